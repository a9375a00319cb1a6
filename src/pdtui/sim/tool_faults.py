"""Faults of the vendor tools: what they say in place of an answer, to all that is asked or to one question."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from pdtui.errors import UsageError
from pdtui.sim.fault_words import Fault, Target, one, require_npus, switch, targets
from pdtui.sim.npus import write_file

if TYPE_CHECKING:
    from pdtui.sim.simulation import Simulation

TOOLS = ("hccn_tool", "npu-smi")
HCCN_QUERIES = (
    *("link", "net_health", "ip", "gateway", "netdetect", "vnic", "tls", "lldp", "link_stat", "stat", "optical"),
    *("ping", "hccs_ping", "fec", "mtu", "mac", "speed", "duplex", "process", "hw_stats", "status", "cfg"),
)
SMI_QUERIES = (
    *("table", "list", "map", "health", "spod-info", "usages", "common", "memory", "temp", "power", "board"),
    *("ecc", "hccs", "proc-mem", "topo", "product"),
)
_NODE_QUERIES = frozenset(("table", "list", "map", "topo"))
_SPELLINGS = {"info": "table", "l": "list", "m": "map", "spod": "spod-info"}
MODES = {
    "hang": "the tool never answers; QUERY: link, lldp, ping, ... or table, list, map, health, ...",
    "busy": "the tool says that it is busy",
    "empty": "the tool prints nothing",
    "garble": "the tool prints rubbish: escape sequences, NUL, no number that could be one",
    "denied": "the tool says that this user may not ask",
    "driver": "the tool says that the driver does not answer",
    "libraries": "the tool does not find its libraries (no LD_LIBRARY_PATH, lib64 not mounted)",
    "unsupported": "the tool says that this machine does not know the question",
    "occupied": "npu-smi says that somebody else holds the devices; hccn_tool fails without a reason",
    "half": "npu-smi's table ends in the middle; hccn_tool fails without a reason",
}
"""Word -> what happens; the tools know them."""
USAGE = "NODE[/NPU]|all [hccn_tool|npu-smi] [QUERY] [on|off]"
PLACE = {"hccn_tool": ("Ascend", "driver", "tools", "hccn_tool"), "npu-smi": ("sbin", "npu-smi")}
"""Below /usr/local."""


def _question(words: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Return which tools are meant and which question; empty: every one. Raises `ValueError`."""
    rest = list(words)
    tools = (rest.pop(0),) if rest and rest[0] in TOOLS else ()
    if not rest:
        return tools, ""
    (word,) = rest
    name = word.lstrip("-").lower()
    name = _SPELLINGS.get(name, name)
    for tool, known in zip(TOOLS, (HCCN_QUERIES, SMI_QUERIES), strict=True):
        for spelling in (name, name.replace("-", "_"), name.replace("_", "-")):
            if spelling in known and tools in ((), (tool,)):
                return (tool,), spelling
    raise ValueError(word)


def _files(target: Target, tools: Sequence[str], query: str) -> list[str]:
    names = []
    for tool in tools:
        # Without a question npu-smi answers for the whole node.
        whole = target.npu is None or (tool == "npu-smi" and (not query or query in _NODE_QUERIES))
        names.append(f"{tool}.{'all' if whole else target.npu}{f'.{query}' if query else ''}")
    return names


def _tool_fault(mode: str) -> Callable[[Simulation, Sequence[str]], Awaitable[str]]:
    async def tool(simulation: Simulation, words: Sequence[str]) -> str:
        word, *rest = words
        on = True
        if rest and rest[-1] in {"on", "off"}:
            on = rest.pop() == "on"
        tools, query = _question(rest)
        for target in targets(simulation, word):
            for name in _files(target, tools or (TOOLS[:1] if target.npu is not None else TOOLS), query):
                path = target.node.folder / "fault" / name
                if on:
                    write_file(path, f"{mode}\n")
                else:
                    path.unlink(missing_ok=True)
        asked = f" -{query}" if query else ""
        which = " and ".join(tools or (TOOLS[:1] if "/" in word else TOOLS))
        return f"{which}{asked} of {word}: {mode} {'on' if on else 'off'}"

    return tool


async def _slow_tools(simulation: Simulation, words: Sequence[str]) -> str:
    word, text = words
    seconds = 0.0 if text == "off" else float(text.removesuffix("s"))
    if not 0 <= seconds <= 3600:
        raise UsageError(f"{text}: seconds from 0 to 3600")
    for target in targets(simulation, word):
        path = target.node.folder / "fault" / "slow"
        if seconds:
            write_file(path, f"{seconds:g}\n")
        else:
            path.unlink(missing_ok=True)
    return f"every call of a vendor tool on {word} takes {seconds:g} s longer"


async def _no_tool(simulation: Simulation, words: Sequence[str]) -> str:
    require_npus(simulation)
    word, name, *_ = words
    tool, gone = one([name], *TOOLS), switch(words, 2)
    for target in targets(simulation, word):
        path = target.node.folder.joinpath("usr", "local", *PLACE[tool])
        aside = path.with_name(f".{tool}.aside")
        if gone and path.exists():
            path.rename(aside)
        elif not gone and aside.exists():
            aside.rename(path)
    return f"{tool} of {word} is {'not there' if gone else 'there'}"


TOOL_FAULTS: dict[str, Fault] = {
    **{mode: Fault(USAGE, text, _tool_fault(mode)) for mode, text in MODES.items()},
    "slow-tools": Fault("NODE|all SECONDS|off", "every call of a vendor tool takes that much longer", _slow_tools),
    "no-tool": Fault("NODE|all hccn_tool|npu-smi [on|off]", "the tool is not installed", _no_tool),
}
