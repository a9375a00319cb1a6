"""The place where ranks run: a script that looks around there, in the very environment that a rank starts from."""

from __future__ import annotations

import base64
import functools
import json
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pdtui.fleet.answers import NO_ANSWER
from pdtui.fleet.commands import as_rank
from pdtui.fleet.preflight.check import NodeView, unknown
from pdtui.fleet.preflight.outcome import Evidence, Outcome, Result
from pdtui.fleet.preflight.probes import Asking, Gathered, probe
from pdtui.readings.answer import Answer, Failure, Reading
from pdtui.readings.rank_place import has_answered, read_place
from pdtui.topology.model import Group, Topology
from pdtui.topology.plan import Plan, PortUse, RankPlan

QUICK = 8.0
"""Seconds for a part that reads a few files: beyond, a disk hangs."""

SLOW = 18.0
"""Seconds for a part that starts Python anew, perhaps from a network disk."""

SHELL = 30.0
"""Seconds on the node for all of it: two login shells, then the slowest part."""

PARTS_SHARE = 0.6
"""Of that time, what a part may have of it."""

PACKAGES = ("vllm", "vllm-ascend", "mooncake")
"""Distributions whose versions are looked for, as package indexes spell them, beside Mooncake's many others."""

ENGINE = "from mooncake.engine import TransferEngine"
"""What the connectors that use Mooncake import (vllm_ascend/distributed/kv_transfer)."""

TEMPORARY, HOME = "/tmp", "~"  # noqa: S108 - vLLM's own choice for sockets and small files
"""Folders into which vLLM and CANN write beside the records: sockets, compiled graphs, plog without a folder."""

ENTERED, MADE = "PDTUI-ENTERED", "PDTUI-MADE"
"""Printed before the shell that ranks start from begins, and once it has made their environment: what breaks
before, between and behind them has other causes."""

# What the agent adds to the environment of its commands is taken off again: a rank would not find the driver's
# libraries by it. The variable by which the agent finds its own stays.
_AS_THE_AGENT = (
    "import os,sys\n"
    "e=dict(os.environb)\n"
    "try:\n"
    " r=open('/proc/%d/environ'%os.getppid(),'rb').read().split(b'\\0')\n"
    " k={n:v for n,v in e.items() if n.startswith((b'PDTUI_EXEC',b'PDTUI_AGENT'))}\n"
    " e=dict(w.split(b'=',1) for w in r if b'=' in w)\n"
    " e.update(k)\n"
    "except OSError: pass\n"
    f"os.write(1,b'{ENTERED}\\n')\n"
    "os.execvpe(sys.argv[1],sys.argv[1:],e)"
)


@functools.cache
def program(name: str) -> str:
    """Return one of the scripts for nodes as a line for `python3 -c`."""
    packed = base64.b64encode(zlib.compress(Path(__file__).with_name(f"{name}.py").read_bytes(), 9)).decode()
    return f'import base64,zlib;exec(zlib.decompress(base64.b64decode("{packed}")))'


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that the script is asked."""

    key: str
    """The item of its reading."""
    name: str
    """The script's name for it."""
    argument: Any
    seconds: float
    command: str
    """How a person would ask the same."""


def uses_mooncake(group: Group) -> bool:
    """Return whether the connector of a group moves KV by Mooncake."""
    return group.connector.startswith("Mooncake")


def exact_ports(plan: Plan, address: str) -> tuple[PortUse, ...]:
    """Return the planned ports of a node that must be free by number; the transfer engine tries others."""
    exact = ("api", "rpc", "kv", "proxy", "hccl")
    return tuple(use for use in plan.ports if use.host == address and use.use in exact)


def groups_on(view: NodeView) -> tuple[Group, ...]:
    """Return the groups that have ranks on a node."""
    return groups_of(view.name, view.topology, view.plan)


def groups_of(node: str, topology: Topology, plan: Plan) -> tuple[Group, ...]:
    """Return the same before there is a view."""
    return tuple(topology.groups[name] for name in dict.fromkeys(rank.group for rank in plan.on_node(node)))


def disks_of(topology: Topology, state_dir: str) -> Mapping[str, str]:
    """Return the folders that are written to: item -> path."""
    paths = {"state_dir": state_dir, "temporary": TEMPORARY, "home": HOME}
    logs = {str(text) for group in topology.groups.values() if (text := group.env.get("ASCEND_PROCESS_LOG_PATH"))}
    paths |= {f"plog {path}": path for path in sorted(logs) if path.startswith(("/", "~/"))}
    return {f"disk {name}": path for name, path in paths.items() if path}


def parts_of(asking: Asking, group: Group | None, *, first: bool) -> Iterator[Part]:
    """Yield what is asked in the environment of one group; what is the machine's only once."""
    if group is not None:
        home = "$ASCEND_HOME_PATH"
        yield Part(f"variables {group.name}", "variables", "", QUICK, "env")
        if asking.topology.has_npus:
            command = f"cat {home}/$(uname -m)-linux/ascend_toolkit_install.info"
            yield Part(f"cann {group.name}", "cann", "", QUICK, command)
        yield Part(f"packages {group.name}", "packages", PACKAGES, SLOW, "pip list")
        if uses_mooncake(group):
            yield Part(f"import {group.name}", "import", ENGINE, SLOW, f"python3 -c '{ENGINE}'")
    if not first:
        return
    if group is None:
        yield Part("variables", "variables", "", QUICK, "env")
    else:
        path = asking.topology.model.path
        if path.startswith(("/", "~")):
            yield Part("model", "model", path, QUICK, f"ls -l {path}; sha256sum {path}/config.json")
    yield Part("shm", "shm", "", QUICK, "df -h /dev/shm")
    yield Part("devices", "devices", "", QUICK, "ls -l /dev/davinci*")
    yield Part("limits", "limits", "", QUICK, "ulimit -a; cat /sys/fs/cgroup/pids.max")
    sysctls = "net.ipv4.ip_local_port_range net.ipv4.ip_local_reserved_ports"
    exact = [[use.first, use.last] for use in exact_ports(asking.plan, asking.node.address)]
    yield Part("ports", "ports", exact, QUICK, f"sysctl {sysctls}; ss -tn")
    yield Part("addresses", "addresses", "", QUICK, "ip -br address")
    for key, path in disks_of(asking.topology, asking.agent.facts.state_dir).items():
        yield Part(key, "disk", path, QUICK, f"df -h {path}; df -i {path}")


@probe("place", place="ranks", limit=60.0)
async def place(asking: Asking) -> AsyncIterator[Gathered]:
    """What a rank would find where it starts: an item a part, those of a group with its name behind."""
    node = asking.node.name
    groups: Sequence[Group | None] = groups_of(node, asking.topology, asking.plan) or (None,)
    for number, group in enumerate(groups):
        parts = list(parts_of(asking, group, first=number == 0))
        answer, made = await _ask(asking, _rank_of(asking, group), parts)
        if group is not None:
            yield f"environment {group.name}", made
        yield f"python {group.name if group is not None else ''}", _python(answer, made)
        for key, found in read_place(answer, {part.key: (part.name, part.command) for part in parts}).items():
            # Without an answer at all, its words are about the script and not about what was looked for.
            yield key, found if has_answered(answer) else replace(found, failure=_silence(answer, made))


def _rank_of(asking: Asking, group: Group | None) -> RankPlan:
    """Return the rank whose environment is taken: a group's first here, or none's, with what all start from."""
    ranks = asking.plan.ranks
    if group is None:
        return replace(ranks[0], id=asking.node.name, node=asking.node.name, env={})
    return next(rank for rank in asking.plan.on_node(asking.node.name) if rank.group == group.name)


async def _ask(asking: Asking, rank: RankPlan, parts: Sequence[Part]) -> tuple[Answer, Reading[bool]]:
    """Return what the script said, and whether the environment of ranks could be made at all, or why not."""
    limit = min(SHELL, asking.limits.probe - asking.limits.grace)  # What is late must still be said.
    # In all cases before the whole is killed: what hangs must hide nothing else.
    wanted = {part.key: [part.name, part.argument, min(part.seconds, limit * PARTS_SHARE)] for part in parts}
    told = ("sh", "-c", f'printf "\\n{MADE}\\n"; exec "$0" "$@"')
    script = (*told, "python3", "-S", "-c", program("place_script"), json.dumps(wanted))
    words, variables = as_rank(rank, asking.topology.runtime, script)
    answer = await asking.run(("python3", "-S", "-c", _AS_THE_AGENT, *words), timeout=limit, env=variables)
    lines = answer.stdout.split(b"\n")
    entered, made = ENTERED.encode() in lines, MADE.encode() in lines
    plain = b"\n".join(line for line in lines if line not in (ENTERED.encode(), MADE.encode()))
    in_shell, error = entered and not made and not has_answered(answer), answer.error
    if answer.timed_out:
        waits = "a start-up file of the shell (~/.bashrc) or runtime.setup waits" if in_shell else "python3 waits"
        error = f"{NO_ANSWER} within {limit:g} s: {waits}"
    elif not answer.stderr.strip() and not plain.strip() and answer.status is not None:
        ended = f"ended with status {answer.status}, and without a word"
        error = (
            f"the shell {ended}: a start-up file ends it (exit in ~/.bashrc)" if in_shell else f"python3 {ended}"
        )
    # The words that were sent would say nothing to anybody.
    answer = replace(answer, command=f"bash -ic, then what starts {rank.id}", stdout=plain, error=error)
    if not in_shell:
        return answer, Reading(answer.command, answer.at, "", value=True)
    failure = Failure.TIMEOUT if answer.timed_out else Failure.ERROR
    return answer, Reading(answer.command, answer.at, answer.text.strip(), failure=failure)


def _silence(answer: Answer, made: Reading[bool]) -> Failure:
    return made.failure or (Failure.TIMEOUT if answer.timed_out else Failure.UNREADABLE)


def _python(answer: Answer, made: Reading[bool]) -> Reading[bool]:
    """Return whether the script has answered, in an environment that could be made or before one was tried."""
    if has_answered(answer):
        return Reading(answer.command, answer.at, "", value=True)
    return Reading(answer.command, answer.at, answer.text.strip(), failure=_silence(answer, made))


def missing(view: NodeView, reading: Reading[Any], what: str, *, hang: str = "", group: str = "") -> Result:
    """Return that a part of the place has no value, and why; `hang`: the remedy where it hangs.

    Where the environment of ranks cannot be made at all, nothing is judged in it: the check of vLLM says so.
    """
    if reading is view.facts.missing.get("place"):  # All of it: the same words, so that it is told once.
        return view.unknown(reading, what="what is where ranks run")
    broken = _broken(view, "environment", group)
    if broken is not None and broken.failure is not Failure.TIMEOUT:
        return view.not_run("the environment that ranks start from cannot be made (see vllm)")
    silent = None if broken is not None else _broken(view, "python", group)
    finding = unknown(reading, f"{group}: {what}" if group else what)
    summary, remedy = finding.summary, finding.remedy
    if broken is not None:
        # One cause, told once in full.
        summary = summary if view.check.id == "vllm" else "hangs: the shell that ranks start from (see vllm)"
        reading, remedy = broken, "find what waits: time bash -ic true, where ranks run"
    elif silent is not None:
        hangs = silent.failure is Failure.TIMEOUT
        summary = "hangs: python3 where ranks run" if hangs else "python3 gives no answer where ranks run"
        summary += f": {last_line(silent.raw)[:200]}" if view.check.id == "vllm" else " (see vllm)"
        reading, remedy = silent, _NO_PYTHON
    elif reading.failure is Failure.TIMEOUT:
        remedy = hang or DISK_HANGS
    elif reading.failure in (Failure.ENVIRONMENT, Failure.EMPTY, Failure.DRIVER):
        remedy = ""
    evidence = (Evidence(reading.command, reading.raw, reading.at),)
    return Result(view.check.id, view.name, Outcome.UNKNOWN, summary, remedy, evidence)


_NO_PYTHON = (
    "see whether it starts: bash -ic 'python3 -S -c 1', where ranks run; ~/.bashrc and runtime.setup may give "
    "another PATH, PYTHONHOME or LD_LIBRARY_PATH"
)


def is_silent(view: NodeView) -> bool:
    """Return whether the script has given no answer there, whatever was asked."""
    return any(_broken(view, what, "") is not None for what in ("environment", "python"))


DISK_HANGS = "a disk that it lies on does not answer: look at mount and dmesg there"


def _broken(view: NodeView, what: str, group: str) -> Reading[Any] | None:
    """Return why the environment could not be made, or the script gave no answer; None where it is not so."""
    name = group or next((one.name for one in groups_on(view)), "")
    found = view.facts.readings.get(("place", f"{what} {name}"))
    return found if found is not None and found.failure is not None else None


def last_line(text: str) -> str:
    """Return the last line that says something: of a traceback, what went wrong."""
    return next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "")


def size_words(count: float) -> str:
    """Return bytes in words: `64 MB`, `1.5 GB` (powers of 1024)."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if count >= 10 or unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"
