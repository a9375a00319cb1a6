"""vLLM servers that somebody started by hand: which process is one, and which planned rank it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath

from pdtui.remote.messages.processes import Listener, Output, ProcessInfo
from pdtui.topology.compare import flags_of
from pdtui.topology.plan import RankPlan
from pdtui.topology.redact import redacted

DEFAULT_PORT = 8000
"""Of `vllm serve` without `--port`."""

DEVICES = "ASCEND_RT_VISIBLE_DEVICES"
ENGINE = "VLLM::"
"""The beginning of the titles that vLLM gives its engines and workers, in the place of a command line."""

_MODULE = "vllm.entrypoints.openai.api_server"
_SHARED = "lines with another's pid are left out, lines without one may be anybody's"
_IDENTITY = ("--data-parallel-rank", "--data-parallel-address", "--data-parallel-rpc-port")


def is_engine(info: ProcessInfo) -> bool:
    """Return whether a process is an engine, worker or coordinator of a vLLM server."""
    return bool(info.argv) and info.argv[0].startswith(ENGINE)


def is_left_behind(info: ProcessInfo) -> bool:
    """Return whether a process is an engine or worker that nothing is above: its server has ended."""
    return is_engine(info) and info.ppid <= 1


def server_words(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a server's command from `vllm` on, empty for what is none.

    The process itself shows its interpreter first; wrappers (timeout, docker exec) that name the command are none.
    """
    first = PurePath(argv[0]).name if argv else ""
    if not (first.startswith("python") or first == "vllm"):
        return ()
    for index, word in enumerate(argv[:8]):
        if PurePath(word).name == "vllm" and argv[index + 1 : index + 2] == ("serve",):
            return ("vllm", *argv[index + 1 :])
        if word == _MODULE:
            return ("vllm", "serve", *argv[index + 1 :])
    return ()


def short_command(argv: Sequence[str], limit: int = 100) -> str:
    """Return a command line without secrets and without the folders of its programs."""
    words = redacted(argv, {})[0]
    shown = server_words(words) or (*(PurePath(word).name for word in words[:1]), *words[1:])
    text = " ".join(shown) or "(no command line)"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


@dataclass(frozen=True)
class Server:
    """A process that is a vLLM server."""

    process: ProcessInfo
    words: tuple[str, ...]

    @cached_property
    def flags(self) -> Mapping[str, str]:
        """Its flags by their long names."""
        return flags_of(self.words)

    @property
    def port(self) -> int:
        """Its API port as its command says."""
        value = self.flags.get("--port", "")
        return int(value) if value.isdigit() else DEFAULT_PORT

    def owns(self, pid: int | None) -> bool:
        """Return whether a pid is the server or below it."""
        return pid is not None and (pid == self.process.pid or pid in self.process.tree)


def servers_among(processes: Sequence[ProcessInfo]) -> list[Server]:
    """Return the servers, oldest first; a server's child that still bears its command is none of its own."""
    found = [
        Server(info, words)
        for info in sorted(processes, key=lambda info: (info.started, info.pid))
        if (words := server_words(info.argv))
    ]
    inner = {pid for server in found for pid in server.process.tree}
    return [server for server in found if server.process.pid not in inner]


def assign(
    servers: Sequence[Server], planned: Sequence[RankPlan], listeners: Sequence[Listener]
) -> Mapping[str, Server]:
    """Return which server is which planned rank: by the API port, else by its place in the group and devices.

    A server that takes another port than its command says is known by its listener. One server is one rank.
    """
    chosen: dict[str, Server] = {}
    left = list(servers)
    for claims in (_listens, _has_port, _has_place):
        for rank in planned:
            if rank.id in chosen:
                continue
            server = next((one for one in left if claims(one, rank, listeners)), None)
            if server is not None:
                chosen[rank.id] = server
                left.remove(server)
    return chosen


def _listens(server: Server, rank: RankPlan, listeners: Sequence[Listener]) -> bool:
    return any(held.port == rank.api_port and server.owns(held.pid) for held in listeners)


def _has_port(server: Server, rank: RankPlan, _: Sequence[Listener]) -> bool:
    return server.port == rank.api_port


def _has_place(server: Server, rank: RankPlan, _: Sequence[Listener]) -> bool:
    planned = flags_of(rank.argv)
    if "--data-parallel-rank" not in server.flags:
        return False
    if any(server.flags.get(name) != planned.get(name) for name in _IDENTITY):
        return False
    devices = server.process.env.get(DEVICES)
    return devices is None or devices == rank.env.get(DEVICES, devices)


def output_words(output: Output, *, sharers: int, user: str) -> str:
    """Return what an operator must know about where a server writes; empty for a file of its own."""
    match output.kind:
        case "file":
            return f"shared by {sharers} ranks: {_SHARED}" if sharers > 1 else ""
        case "deleted":
            shared = f"; shared by {sharers} ranks: {_SHARED}" if sharers > 1 else ""
            return f"{output.name.removesuffix(' (deleted)')} was deleted or moved; read from the process{shared}"
        case "pipe":
            return "its output goes into a pipe: there is no file to follow"
        case "socket":
            return "its output goes into a socket: there is no file to follow"
        case "tty":
            return f"its output goes to a terminal ({output.name}): there is no file to follow"
        case "null":
            return "its output is thrown away (/dev/null)"
        case "unreadable":
            return f"where its output goes cannot be read{f': it belongs to {user}' if user else ''}"
        case _:
            return f"its output goes to {output.name or 'something'} that cannot be followed"
