"""What else lives on a node: listening ports and processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening TCP port and its owner."""

    address: str
    port: int
    pid: int | None
    command: str
    """Cleaned command line; empty when it cannot be read."""
    rank: str = ""
    """`cluster:group/dp_rank` from the owner's PDTUI_RANK variable, if it has one."""


OutputKind = Literal["file", "deleted", "pipe", "socket", "tty", "null", "other", "unreadable"]


@dataclass(frozen=True, slots=True)
class Output:
    """Where a process's stdout goes."""

    kind: OutputKind = "unreadable"
    """`deleted`: a file that has lost its name, or whose name is another file's now."""
    path: str = ""
    """What to follow; empty for what is no file."""
    name: str = ""
    """As the node calls it."""
    id: str = ""
    """The same for all processes that write to it."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process, for unmanaged and foreign ones."""

    pid: int
    ppid: int
    session: int
    started: float
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Only the names that were asked for."""
    user: str
    start: int = 0
    """When it started in the node's clock ticks since boot: with the pid it names a process for ever."""
    rank: str = ""
    """`cluster:group/dp_rank` from its PDTUI_RANK variable, if it has one."""
    inner: int = 0
    """Its pid in the container that it is in; `pid` elsewhere, 0 when it was not asked."""
    apart: bool = False
    """It is known to see other files than the agent: it is in another container, or on the host."""
    tree: tuple[int, ...] = ()
    """Pids of all that descends from it."""
    output: Output = Output()
    env_known: bool = True
    """Its environment can be read."""
    brief: bool = False
    """The caller knows it: only pid, start, ppid, tree and output are filled in."""
