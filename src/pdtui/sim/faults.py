"""Faults of a simulated cluster, switched while it runs: a line of words each, for the shell and for tests."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

from pdtui.errors import UsageError
from pdtui.sim import container, reach
from pdtui.sim.fault_words import Fault, Target, one, switch, targets
from pdtui.sim.machine import python
from pdtui.sim.node_faults import NODE_FAULTS, heal_node
from pdtui.sim.npu_faults import NPU_FAULTS, restore_conf
from pdtui.sim.npus import write_file
from pdtui.sim.sshd import KILLS_AT_LOGOUT
from pdtui.sim.tool_faults import PLACE, TOOL_FAULTS

if TYPE_CHECKING:
    from pdtui.sim.simulation import SimNode, Simulation

NO_PYTHON = """\
#!/bin/sh
echo "bash: line 1: exec: python3: not found" >&2
exit 127
"""


async def apply(simulation: Simulation, spec: str) -> str:
    """Switch a fault and return what was done. Raises `UsageError`, `SimulationError`."""
    name, *words = spec.split() or [""]
    fault = FAULTS.get(name)
    if fault is None:
        raise UsageError(f"no fault {name!r}", remedy=f"faults: {', '.join(FAULTS)}")
    try:
        return await fault.apply(simulation, words)
    except (ValueError, LookupError):
        raise UsageError(f"{spec}: write {name} {fault.usage}") from None


_SPEC_WIDTH = 34
"""Columns of a fault's name and words in the table; longer ones have a line of their own."""


def describe() -> str:
    """Return the table of all faults."""
    lines: list[str] = []
    for name, fault in FAULTS.items():
        spec = f"{name} {fault.usage}"
        if len(spec) > _SPEC_WIDTH - 2:
            lines.append(spec)
            spec = ""
        lines += wrap(fault.help, 118, initial_indent=spec.ljust(_SPEC_WIDTH), subsequent_indent=" " * _SPEC_WIDTH)
    return "\n".join(lines)


async def _heal(simulation: Simulation, words: Sequence[str]) -> str:
    (word,) = words
    for target in targets(simulation, word, npus="/" in word):
        await _heal_one(simulation, target)
    return f"{word} is {'healthy' if '/' in word else 'healthy and reachable'}"


async def _heal_one(simulation: Simulation, target: Target) -> None:
    node = target.node
    for phy in target.npus:
        node.npus.heal(phy)
    if target.npu is not None:
        for path in (node.folder / "fault").glob(f"*.{target.npu}*"):
            path.unlink()
        return
    for path in (node.folder / "fault").iterdir():
        path.unlink()
    if simulation.npu_count:
        restore_conf(node)
        for tool, place in PLACE.items():
            path = node.folder.joinpath("usr", "local", *place)
            aside = path.with_name(f".{tool}.aside")
            if aside.exists():
                aside.rename(path)
    _set_python(node, there=True)
    if node.network is not None:
        await node.network.impair(node.name, cut=False, loss=0.0, delay=0.0)
    if not node.processes.running:
        await node.power_on()
    await node.ssh.allow_forwarding(allowed=True)
    (node.folder / "etc" / "sudo").unlink(missing_ok=True)
    await _kills_at_logout(simulation, [node.name, "off"])
    for word in ("down", "denied"):
        (node.machine.engine / word).unlink(missing_ok=True)
    if node.machine.container and not node.container_refused:
        await container.heal(node.machine, node.processes)
    await heal_node(simulation, node)
    await node.ssh.listen()


async def _container(simulation: Simulation, words: Sequence[str]) -> str:
    name, verb, *rest = words
    node = simulation.node(name)
    if not node.machine.container:
        raise UsageError(
            f"{name} has no container: this cluster's ranks run on the hosts themselves",
            remedy="rehearse a file with runtime.container: pdtui demo FILE",
        )
    done = await container.act(node.machine, node.processes, one([verb], *container.VERBS), *rest)
    return f"container {node.machine.container} of {name}: {verb} {done}".rstrip()


def _engine_switch(
    name: str, on_text: str, off_text: str
) -> Callable[[Simulation, Sequence[str]], Awaitable[str]]:
    async def turn(simulation: Simulation, words: Sequence[str]) -> str:
        node, on = simulation.node(words[0]), switch(words, 1)
        path = node.machine.engine / name
        if on:
            write_file(path, "")
        else:
            path.unlink(missing_ok=True)
        return f"the container engine of {node.name} {on_text if on else off_text}"

    return turn


SUDO_WORDS = ("allow", "password", "unlisted", "tty", "missing")


async def _sudo(simulation: Simulation, words: Sequence[str]) -> str:
    node, how = simulation.node(words[0]), one(words[1:], *SUDO_WORDS)
    write_file(node.folder / "etc" / "sudo", f"{how}\n")
    return f"sudo on {node.name}: {how}"


async def _kills_at_logout(simulation: Simulation, words: Sequence[str]) -> str:
    node, on = simulation.node(words[0]), switch(words, 1)
    if on and node.network is not None:
        raise UsageError("OpenSSH's own sshd has no simulated logind behind it", remedy="begin without --netns")
    files = {
        KILLS_AT_LOGOUT: "[Login]\nKillUserProcesses=yes\nKillExcludeUsers=\n",
        Path("proc", "self", "cgroup"): f"0::/user.slice/user-{os.getuid()}.slice/session-7.scope\n",
    }
    for name, text in files.items():
        path = node.folder / name
        if on:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, text)
        else:
            path.unlink(missing_ok=True)
    return f"processes on {node.name} {'end' if on else 'do not end'} with the last login"


async def _no_python(simulation: Simulation, words: Sequence[str]) -> str:
    on = switch(words, 1)
    _set_python(simulation.node(words[0]), there=not on)
    return f"{words[0]} has {'no ' if on else ''}python3"


def _set_python(node: SimNode, *, there: bool) -> None:
    for folder in {node.machine.folder / "usr" / "local" / "bin", node.machine.rank_bin}:
        if not folder.is_dir():
            continue  # A container that was removed.
        new = folder / ".python3.new"
        if there:
            new.symlink_to(python())
        else:
            new.write_text(NO_PYTHON, encoding="ascii")
            new.chmod(0o755)
        new.replace(folder / "python3")


@dataclass(frozen=True, slots=True)
class Running:
    """A rank of the stand-in that runs, or ran: what it left word of."""

    node: SimNode
    record: Path
    rank: str
    port: int
    pids: tuple[int, ...]


def running(simulation: Simulation) -> list[Running]:
    """Return what the stand-ins left word of, oldest first."""
    found: list[tuple[float, Running]] = []
    for node in simulation.nodes.values():
        folder = node.folder / "run" / "vllm"
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.suffix == ".new":
                continue
            try:
                record = json.loads(path.read_text(encoding="utf-8"))
                age = path.stat().st_mtime
            except (OSError, ValueError):
                continue
            found.append((age, Running(node, path, record["rank"], record["port"], tuple(record["pids"]))))
    return [each for _, each in sorted(found, key=lambda pair: pair[0])]


def _is_target(rank: Running, target: str) -> bool:
    return target in {rank.rank, f"{rank.node.name}:{rank.port}"}


async def _crash(simulation: Simulation, words: Sequence[str]) -> str:
    (target,) = words
    ranks = running(simulation)
    hits = [rank for rank in ranks if _is_target(rank, target)]
    if not hits:
        names = ", ".join(sorted({rank.rank or f"{rank.node.name}:{rank.port}" for rank in ranks})) or "none"
        raise UsageError(f"no rank {target} runs; running: {names}")
    *old, rank = hits
    for each in old:
        each.record.unlink(missing_ok=True)
    await rank.node.processes.kill(rank.pids, int(signal.SIGKILL))
    rank.record.unlink(missing_ok=True)
    return f"{target}: SIGKILL to {', '.join(map(str, rank.pids))}"


def _rank_switch(name: str) -> Callable[[Simulation, Sequence[str]], Awaitable[str]]:
    async def rank_switch(simulation: Simulation, words: Sequence[str]) -> str:
        target, on = words[0], switch(words, 1)
        node_name, colon, port = target.partition(":")
        nodes = [simulation.node(node_name)] if colon else list(simulation.nodes.values())
        for node in nodes:
            path = node.folder / "fault" / name
            names = set(path.read_text(encoding="utf-8").split()) if path.exists() else set()
            key = str(int(port)) if colon else target
            names = names | {key} if on else names - {key}
            write_file(path, "\n".join(sorted(names)) + "\n")
        return f"{target}: {name} {'on' if on else 'off'}"

    return rank_switch


FAULTS: dict[str, Fault] = {
    **NPU_FAULTS,
    **TOOL_FAULTS,
    **NODE_FAULTS,
    "cut": Fault(
        "NODE",
        "packets to and from the node vanish until heal NODE (without --netns: SSH drops and is refused)",
        reach.cut,
    ),
    "slow": Fault("NODE MILLISECONDSms|off", "packets to the node and back take longer (--netns)", reach.slow),
    "lossy": Fault("NODE PERCENT%|off", "packets to and from the node are lost (--netns)", reach.lossy),
    "sshd-kill": Fault("NODE", "SSH connections drop and new ones are refused, until sshd NODE", reach.sshd_kill),
    "sshd-freeze": Fault("NODE", "sshd and its sessions do nothing more, until sshd NODE", reach.sshd_freeze),
    "sshd": Fault("NODE", "sshd runs again", reach.sshd),
    "reboot": Fault("NODE", "every process ends, and the node comes back as after a boot", reach.reboot),
    "power": Fault("NODE on|off", "the node is off, and says good-bye to nobody (--netns)", reach.power),
    "rekey": Fault("NODE [on|off]", "the node has another host key, and its connections end", reach.rekey),
    "no-forwarding": Fault("NODE [on|off]", "sshd forbids TCP forwarding to new connections", reach.no_forwarding),
    "no-python": Fault("NODE [on|off]", "python3 is not found on the node", _no_python),
    "container": Fault(
        f"NODE {'|'.join(container.VERBS)} [no-state]",
        "the node's container; `create` makes it anew, `no-state` without the mount of the state folder",
        _container,
    ),
    "engine-down": Fault(
        "NODE [on|off]", "the container engine does not answer", _engine_switch("down", "is down", "runs again")
    ),
    "engine-denied": Fault(
        "NODE [on|off]",
        "this user may not use the container engine",
        _engine_switch("denied", "refuses this user", "lets this user in"),
    ),
    "sudo": Fault(f"NODE {'|'.join(SUDO_WORDS)}", "how sudo takes this user", _sudo),
    "kills-at-logout": Fault(
        "NODE [on|off]", "systemd-logind ends what logins left (KillUserProcesses)", _kills_at_logout
    ),
    "crash": Fault("RANK", "SIGKILL to every process of a rank (decode/3, or NODE:PORT)", _crash),
    "die-at-start": Fault(
        "RANK [on|off]", "the rank runs out of memory while it loads", _rank_switch("die-at-start")
    ),
    "stall": Fault("RANK [on|off]", "the rank makes no tokens, though /health is 200", _rank_switch("stall")),
    "heal": Fault("NODE[/NPU]|all", "everything on the node, or of the NPU, is well again", _heal),
}
"""Name -> fault, in the order of the help."""
