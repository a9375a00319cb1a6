"""What the processes of a rank have in common: titles, signals, pipes and waiting."""

import contextlib
import json
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

ENDS = (signal.SIGTERM, signal.SIGINT)


def question_on(connection: socket.socket) -> str:
    """Return the line that is asked on a connection; empty, and the connection closed, when none comes in time."""
    connection.settimeout(2)
    request = b""
    with contextlib.suppress(OSError):
        while not request.endswith(b"\n") and (piece := connection.recv(4096)):
            request += piece
    if not request.endswith(b"\n"):
        connection.close()
        return ""
    return request.decode("utf-8", "replace")


class Stopped(Exception):
    """SIGTERM or SIGINT came; the text is the signal's name."""


class Signals:
    """Turns SIGTERM and SIGINT into something that `select` sees."""

    def __init__(self) -> None:
        self.received = ""
        self.deaf = False
        """Whether a signal is noted and nothing more, as while the process waits where no signal reaches it."""
        self.wake, woken = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for number in ENDS:
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def _note(self, number: int, _: Any) -> None:
        self.received = self.received or signal.Signals(number).name

    def wait(self, readers: list[Any], seconds: float | None = None) -> list[Any]:
        """Return the readers with something to read. Raises `Stopped` after a signal."""
        self._raise()
        ready, _, _ = select.select([self.wake, *readers], [], [], seconds)
        if self.wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 4096)
            ready.remove(self.wake)
        self._raise()
        return ready

    def _raise(self) -> None:
        if self.received and not self.deaf:
            raise Stopped(self.received)

    def pause(self, seconds: float, readers: list[Any] | None = None) -> list[Any]:
        """Wait; returns early with what became readable. Raises `Stopped` after a signal."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            ready = self.wait(readers or [], left)
            if ready:
                return ready
        return self.wait(readers or [], 0)


class Pipe:
    """JSON lines between two processes of a rank."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._rest = b""
        self.open = True

    def fileno(self) -> int:
        """Return the descriptor, for select."""
        return self._end.fileno()

    def send(self, message: dict[str, Any]) -> None:
        """Send; the other side may be gone."""
        with contextlib.suppress(OSError):
            self._end.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]]:
        """Read what is there; `open` turns false at the end of the pipe."""
        try:
            data = self._end.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.open = False
            return []
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close this side."""
        self._end.close()


def node_pids(node: str, pids: list[int]) -> list[int]:
    """Return what the node knows these processes of ours by: in a container its pids are others than ours."""
    try:
        folder = os.open(f"{node}/run", os.O_RDONLY)
    except OSError:
        return pids
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
            asking.settimeout(5)
            asking.connect(f"/proc/self/fd/{folder}/pids")
            found = []
            for pid in pids:
                who = struct.pack("3i", pid, os.getuid(), os.getgid())
                asking.sendmsg([b"?"], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, who)])
                found.append(int(asking.recv(16)))
            return found
    except (OSError, ValueError):
        return pids  # no simulated node answers: nobody is there who could be misled
    finally:
        os.close(folder)


def fork(title: str, body: Callable[[Pipe], int], close: list[Any]) -> tuple[int, Pipe]:
    """Run `body` in a child with a pipe to us; `close` lists what the child must not keep open."""
    ours, theirs = socket.socketpair()
    # A signal that comes before the child can take it waits.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        theirs.close()
        return pid, Pipe(ours)
    status = 1
    try:
        ours.close()
        for thing in close:
            thing.close()
        # The parent's waiting is its own.
        signal.set_wakeup_fd(-1)
        set_title(title)
        status = body(Pipe(theirs))
    except Exception:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)


def set_title(title: str) -> None:
    """Name the process as setproctitle does: the command name, and the command line overwritten in place.

    The title takes the place of the environment too, which then cannot be read from outside, unless SPT_NOENV is
    set (README of setproctitle).
    """
    with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="utf-8") as comm:
        comm.write(title.split(" ")[0][:15])
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/stat", encoding="utf-8") as stat:
            fields = stat.read().rpartition(")")[2].split()
        start, end, env_start, env_end = (int(fields[index]) for index in (45, 46, 47, 48))
        if end > start:
            with open("/proc/self/mem", "r+b", buffering=0) as memory:
                memory.seek(start)
                memory.write(title.encode()[: end - start - 1].ljust(end - start, b"\0"))
                if not os.environ.get("SPT_NOENV") and env_end > env_start:
                    memory.seek(env_start)
                    memory.write(b"\0" * (env_end - env_start))


def reap(pid: int) -> int | None:
    """Return how a child ended (-N: by signal N), None while it runs."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return 0
    return os.waitstatus_to_exitcode(status) if done else None


def end(pid: int, seconds: float) -> bool:
    """TERM to a child, KILL after `seconds`; True when KILL was needed."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + seconds
    while reap(pid) is None:
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
            return True
        select.select([], [], [], 0.02)
    return False


def fault(node: str, name: str, rank: str, port: int) -> bool:
    """Say whether a fault is switched on for this rank, known by its name or its API port."""
    try:
        with open(f"{node}/fault/{name}", encoding="utf-8") as file:
            names = file.read().split()
    except OSError:
        return False
    return rank in names or str(port) in names
