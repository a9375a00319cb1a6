"""One `vllm serve` under observation: its processes, ports, log and HTTP answers."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def wait_for(probe: Callable[[], T], *, within: float, every: float = 0.05) -> T:
    """Return the first true value of `probe`, or its last one when there is none in time."""
    deadline = time.monotonic() + within
    while not (value := probe()) and time.monotonic() < deadline:
        time.sleep(every)
    return value


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer as it came."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Member:
    """A living process of a server."""

    pid: int
    parent: int
    name: str
    """The command name that ps shows."""
    command: str


class Server:
    """A server in a session of its own; all that it starts stays in that session."""

    def __init__(
        self, name: str, argv: Sequence[str], env: Mapping[str, str], log: Path, ports: Mapping[str, int]
    ) -> None:
        """`ports`: what each port that matters is for (`api`, `side`, `rpc`) and its number."""
        self.name = name
        self.log_path = log
        self.ports = dict(ports)
        self._began = time.monotonic()
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
        self.pid = self._process.pid

    @property
    def log(self) -> str:
        """Everything that it wrote."""
        return self.log_path.read_text(encoding="utf-8", errors="replace")

    @property
    def age(self) -> float:
        """Seconds since its start."""
        return time.monotonic() - self._began

    def exit_status(self, within: float) -> int | None:
        """Wait for the end of the server's first process; None when it lives on. Minus N: by signal N."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(within)
        return None

    def members(self) -> list[Member]:
        """Return the living processes of the session, the eldest first."""
        return sorted(_members(self.pid), key=lambda member: member.pid)

    def member(self, title: str) -> Member:
        """Return the process whose command line begins with a title. Raises `LookupError`."""
        found = [member for member in self.members() if member.command.startswith(title)]
        if not found:
            raise LookupError(f"{self.name} has no {title}")
        return found[0]

    def gone(self, within: float) -> bool:
        """Say whether every process of the session ends in time."""
        return bool(wait_for(lambda: not self.members(), within=within))

    def kill(self, pid: int, number: signal.Signals) -> None:
        """Signal one process; it may be gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def close(self) -> None:
        """End whatever is left of it."""
        for member in self.members():
            self.kill(member.pid, signal.SIGKILL)
        self._process.wait()
        self.gone(10)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout: float = 60,
    ) -> Answer:
        """Ask the API server. Raises `OSError`, `http.client.HTTPException`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["api"], timeout=timeout)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            return Answer(answer.status, tuple(answer.getheaders()), answer.read())
        finally:
            connection.close()

    def opened(self, path: str, body: bytes) -> socket.socket:
        """Send a POST and leave the connection as it is, its answer unread."""
        client = socket.create_connection(("127.0.0.1", self.ports["api"]), timeout=60)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return client

    def health(self) -> int | str:
        """Return the status of /health, or what became of the question."""
        try:
            return self.request("GET", "/health", timeout=5).status
        except ConnectionRefusedError:
            return "refused"
        except TimeoutError:
            return "no answer"
        except (OSError, http.client.HTTPException):
            return "connection lost"

    def ready(self, within: float) -> bool:
        """Wait until it serves; False when it ended or the time is over."""
        wait_for(lambda: self._process.poll() is not None or self.health() == 200, within=within, every=0.2)
        return self.health() == 200

    def listening(self) -> dict[str, tuple[str, str]]:
        """Return for each port that matters the address that is bound and the name of the process that did."""
        sockets = dict(_listening())
        held: dict[str, tuple[str, str]] = {}
        for member in self.members():
            for inode in _sockets_of(member.pid):
                if inode not in sockets:
                    continue
                address, port = sockets[inode]
                for use, number in self.ports.items():
                    if number == port:
                        held.setdefault(use, (address, member.name))
        return held


def _members(session: int) -> Iterator[Member]:
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            state, parent, _, sid = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(sid) != session or state in "ZX":
                continue
            name = (folder / "comm").read_text().strip()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except OSError:
            continue
        yield Member(int(folder.name), int(parent), name, command)


def _listening() -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield (inode, (address, port)) of TCP sockets that listen, or are bound by a server that will."""
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] != "0A":
                continue
            address, _, port = fields[1].rpartition(":")
            packed = bytes.fromhex(address)
            words = b"".join(packed[at : at + 4][::-1] for at in range(0, len(packed), 4))
            family = socket.AF_INET if len(words) == 4 else socket.AF_INET6
            yield fields[9], (socket.inet_ntop(family, words), int(port, 16))


def _sockets_of(pid: int) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                target = str(entry.readlink())
                if target.startswith("socket:["):
                    yield target[8:-1]
