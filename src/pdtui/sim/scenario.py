"""A scenario: faults that a simulated cluster begins with and that come while it runs, from a YAML file.

    scenario: 1
    name: bad-night
    start: [link node1/3 down]
    events:
      - {at: 30s, faults: [gone node2/9], say: an NPU drops off the bus}
      - {at: 5m, faults: heal all}

Times count from when the nodes can be reached. Read strictly: every mistake is told at once, with file and line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from pdtui.clock import Clock
from pdtui.errors import FileError, PdtuiError
from pdtui.sim.faults import FAULTS, apply
from pdtui.text import did_you_mean

if TYPE_CHECKING:
    from pdtui.sim.simulation import Simulation

FORMAT = "1"
_TOP = ("scenario", "name", "start", "events")
_EVENT = ("at", "faults", "say")
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_WITHOUT_NODE = frozenset(("crash", "die-at-start", "stall"))
"""Faults whose first word is a rank."""


@dataclass(frozen=True, slots=True)
class Step:
    """What happens at one time."""

    at: float
    """Seconds after the nodes can be reached."""
    faults: tuple[tuple[str, int], ...]
    """Lines as for `pdtui demo --fault`, each with its line in the file."""
    say: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A file that has been read."""

    path: Path
    name: str
    start: tuple[tuple[str, int], ...]
    steps: tuple[Step, ...]
    """By time."""

    def place(self, line: int) -> str:
        """Return a place in the file."""
        return f"{self.path}:{line}"


class _Reader:
    """Reads one file and collects what is wrong with it."""

    def __init__(self, path: Path, nodes: Collection[str]) -> None:
        self.path = path
        self.nodes = nodes
        self.problems: list[tuple[int, int, str]] = []

    def wrong(self, node: yaml.Node, text: str) -> None:
        """Note a mistake at its place."""
        self.problems.append((node.start_mark.line + 1, node.start_mark.column + 1, text))

    def keys(self, node: yaml.Node, known: Collection[str], what: str) -> dict[str, yaml.Node]:
        """Return a mapping's values; unknown and repeated keys are mistakes."""
        if not isinstance(node, yaml.MappingNode):
            self.wrong(node, f"{what} is a mapping with {', '.join(known)}")
            return {}
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = str(key.value)
            if name not in known:
                self.wrong(key, f"unknown key {name}{did_you_mean(name, known)}")
            elif name in found:
                self.wrong(key, f"{name} stands here twice")
            else:
                found[name] = value
        return found

    def text(self, node: yaml.Node | None, what: str) -> str:
        """Return a text."""
        if node is None:
            return ""
        if not isinstance(node, yaml.ScalarNode):
            self.wrong(node, f"{what} is a text")
            return ""
        return str(node.value)

    def lines(self, node: yaml.Node | None) -> tuple[tuple[str, int], ...]:
        """Return fault lines: one, or a list of them."""
        if node is None:
            return ()
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        return tuple((self.fault(item), item.start_mark.line + 1) for item in items)

    def fault(self, node: yaml.Node) -> str:
        """Return one fault line; its name and its node must exist."""
        line = self.text(node, "a fault").strip()
        name, *words = line.split() or [""]
        if name not in FAULTS:
            self.wrong(node, f"no fault {name!r}{did_you_mean(name, FAULTS)}")
        elif not words:
            self.wrong(node, f"write {name} {FAULTS[name].usage}")
        elif name not in _WITHOUT_NODE:
            target = words[0].partition("/")[0]
            if target != "all" and target not in self.nodes:
                self.wrong(node, f"no node {target}{did_you_mean(target, self.nodes)}")
        return line

    def event(self, node: yaml.Node) -> Step:
        """Return one event."""
        found = self.keys(node, _EVENT, "an event")
        at = self.text(found.get("at"), "at")
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", at)
        if isinstance(node, yaml.MappingNode) and match is None:
            self.wrong(found.get("at", node), f"at: when, such as 30s or 5m{f'; not {at}' if at else ''}")
        if isinstance(node, yaml.MappingNode) and "faults" not in found:
            self.wrong(node, "faults: what happens then; see pdtui demo --faults")
        seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
        return Step(seconds, self.lines(found.get("faults")), self.text(found.get("say"), "say"))


def read_scenario(path: Path, nodes: Collection[str]) -> Scenario:
    """Read a scenario for a cluster with these nodes. Raises `FileError` with every mistake in it."""
    try:
        tree = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise FileError(f"{path}:{line}: no YAML: {error.problem}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: no YAML: {error}") from error
    if tree is None:
        raise FileError(f"{path}: nothing in this file", remedy="see sample_configs/scenarios")
    reader = _Reader(path, nodes)
    top = reader.keys(tree, _TOP, "a scenario")
    if isinstance(tree, yaml.MappingNode) and reader.text(top.get("scenario"), "scenario") != FORMAT:
        reader.wrong(top.get("scenario", tree), f"write scenario: {FORMAT}, the format of this file")
    events = top.get("events")
    if events is not None and not isinstance(events, yaml.SequenceNode):
        reader.wrong(events, "events is a list")
        events = None
    steps = tuple(reader.event(item) for item in events.value) if events is not None else ()
    scenario = Scenario(
        path,
        reader.text(top.get("name"), "name") or path.stem,
        reader.lines(top.get("start")),
        tuple(sorted(steps, key=lambda step: step.at)),
    )
    if reader.problems:
        told = (f"{path}:{line}:{column}: {text}" for line, column, text in sorted(reader.problems))
        raise FileError("\n".join(told), remedy="faults are listed by: pdtui demo --faults")
    return scenario


async def begin(simulation: Simulation, scenario: Scenario, say: Callable[[str], None]) -> None:
    """Set the faults that the cluster begins with. Raises `FileError` for one that cannot be."""
    for spec, line in scenario.start:
        try:
            say(f"start: {await apply(simulation, spec)}")
        except PdtuiError as error:
            raise FileError(f"{scenario.place(line)}: {error.message}", remedy=error.remedy) from error


async def play(simulation: Simulation, scenario: Scenario, clock: Clock, say: Callable[[str], None]) -> None:
    """Let the events happen, each at its time; one that cannot be is told and the rest goes on."""
    begun = clock.monotonic()
    for step in scenario.steps:
        await clock.sleep(max(0.0, begun + step.at - clock.monotonic()))
        if step.say:
            say(f"{step.at:g} s: {step.say}")
        for spec, line in step.faults:
            try:
                say(f"{step.at:g} s: {await apply(simulation, spec)}")
            except (PdtuiError, OSError) as error:
                why = error.message if isinstance(error, PdtuiError) else error
                say(f"{step.at:g} s: {scenario.place(line)}: {why}")
