"""What the agent is asked to do where it runs, and its answers: commands, HTTP, files, its own facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pdtui.readings.commands import may_be_sent

PROTOCOL = 1
"""Version of the agent's RPC."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the agent says of its machine when it starts."""

    protocol: int
    python: str
    user: str
    uid: int
    hostname: str
    machine_id: str
    boot_id: str
    wall: float
    """The node's clock when it answered, seconds since the epoch."""
    state_dir: str
    """The folder of rank directories that it chose."""
    state_dir_error: str = ""
    """Why no folder is writable; ranks cannot be started then."""
    in_container: bool = False
    mount_namespace: str = ""
    """Tells the files that it sees from those that others see; empty where the kernel does not say."""
    state_mount: str = ""
    """Where the file system of `state_dir` is mounted; `/` is the root of the machine or the container."""
    state_mount_type: str = ""
    """Type of that file system; `bind` where a folder of it is mounted, as a host's folder is in a container."""
    other_user: str = ""
    """Whose agents keep records in `other_folder`, which ours cannot use; empty: nobody's."""
    other_folder: str = ""
    logout_user: str = ""
    """The user with whose last session systemd-logind ends what is started here; empty: it does not."""
    logout_source: str = ""
    """The file that says so."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command for `run` or `batch`. Read-only vendor tools and our own scripts; argv, never a shell line.

    This is the only door to the vendor tools: one that changes state, never ends or is not known cannot be made.
    What an operator types goes as `ExecSpec`. Raises `ValueError`.
    """

    argv: tuple[str, ...]
    timeout: float = 10.0
    """Seconds on the node, then its process group is killed."""
    key: str = ""
    """What the caller knows it by; returned with the result."""
    device: int | None = None
    """Commands for one device run one at a time over all consoles."""
    env: Mapping[str, str] = field(default_factory=dict)
    limit: int = 1 << 20
    """Bytes kept of each stream."""
    max_age: float = 0.0
    """Seconds; a shared reading of the same argv that is not older may answer instead."""

    def __post_init__(self) -> None:
        if not may_be_sent(self.argv):
            raise ValueError(f"not a command that may be sent to a vendor tool: {' '.join(self.argv)}")


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that has ended (or never started)."""

    argv: tuple[str, ...]
    status: int | None
    """Exit status; -N when signal N ended it; None when it could not be started."""
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False
    error: str = ""
    """Why it could not be started: the system's words."""
    started: float = 0.0
    """Node's wall clock, seconds since the epoch."""
    seconds: float = 0.0
    age: float = 0.0
    """Seconds since it ended; more than 0 for a shared reading that another console had asked for."""


@dataclass(frozen=True, slots=True)
class ExecSpec:
    """A command of the operator, with its streams."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """On top of the agent's environment."""
    tty: tuple[int, int] | None = None
    """Rows and columns of a terminal that it gets; None: pipes."""


@dataclass(frozen=True, slots=True)
class ExecChunk:
    """What a command has written."""

    stream: Literal["out", "err"]
    data: bytes


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An HTTP answer from a port on the node, or why there is none."""

    status: int | None
    body: bytes = b""
    error: str = ""
    """`refused`, `timeout` or the system's words."""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LogChunk:
    """A piece of a followed file. Offsets are valid for the life of the file, whatever is rotated away."""

    path: str
    offset: int
    data: bytes
    next_offset: int
    gap: bool = False
    """What lay between the asked offset and `offset` is gone."""
    at: float = 0.0
    """Node's wall clock when it was read."""
