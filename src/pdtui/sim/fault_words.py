"""The words of a fault's line: switches, choices and amounts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pdtui.errors import UsageError

if TYPE_CHECKING:
    from pdtui.sim.simulation import SimNode, Simulation


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault."""

    usage: str
    help: str
    apply: Callable[[Simulation, Sequence[str]], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class Target:
    """A node that a fault is for, and of its NPUs one or all."""

    node: SimNode
    npu: int | None = None

    @property
    def npus(self) -> range:
        """The physical ids meant."""
        return range(self.node.npus.hardware.count) if self.npu is None else range(self.npu, self.npu + 1)


def require_npus(simulation: Simulation) -> None:
    """Refuse a fault of NPUs and their tools where there are none. Raises `UsageError`."""
    if not simulation.npu_count:
        raise UsageError(
            "the nodes of this cluster have no NPUs and no tools for them (platform: cpu)",
            remedy="faults of ranks and servers apply, such as: crash RANK, stall RANK, cut NODE, reboot NODE",
        )


def targets(simulation: Simulation, word: str, *, npus: bool = True) -> list[Target]:
    """Return what NODE, NODE/NPU or `all` means. Raises `UsageError`, `SimulationError`, `ValueError`."""
    if npus:
        require_npus(simulation)
    if word == "all":
        return [Target(node) for node in simulation.nodes.values()]
    name, slash, number = word.partition("/")
    node = simulation.node(name)
    if not slash:
        return [Target(node)]
    if not npus:
        raise ValueError(word)
    phy = int(number)
    if phy not in range(simulation.npu_count):
        raise UsageError(f"{name} has NPUs 0 to {simulation.npu_count - 1}")
    return [Target(node, phy)]


def npu(simulation: Simulation, word: str) -> tuple[SimNode, int]:
    """Return the one NPU that NODE/NPU means. Raises as `targets` does."""
    (target,) = targets(simulation, word) if "/" in word else [None]
    if target is None or target.npu is None:
        require_npus(simulation)
        raise ValueError(word)
    return target.node, target.npu


def switch(words: Sequence[str], at: int) -> bool:
    """Return the on or off at a place; on when nothing stands there. Raises `KeyError`."""
    return {"on": True, "off": False}[words[at]] if len(words) > at else True


def one(words: Sequence[str], *choices: str) -> str:
    """Return the choice that the only word is. Raises `ValueError`."""
    (word,) = words
    found = next((choice for choice in choices if choice.lower() == word.lower()), "")
    if not found:
        raise ValueError(word)
    return found


def rate(words: Sequence[str]) -> tuple[int, int]:
    """Return how much a counter stands higher and grows by a second: `N`, `N/s`, `off`. Raises `ValueError`."""
    (word,) = words
    if word == "off":
        return 0, 0
    if word.endswith("/s"):
        return 1, int(word.removesuffix("/s"))
    return int(word), 0


def amount(text: str, *units: tuple[str, float]) -> float:
    """Return a number with one of these units, or a number without; off is none. Raises `ValueError`."""
    if text == "off":
        return 0.0
    for unit, factor in units:
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    raise ValueError(text)
