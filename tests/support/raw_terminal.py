"""A program on a pseudo-terminal whose other end is read only when a test wants it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self


class RawTerminal:
    """Nothing is read in the background: what is not asked for stays in the terminal's small buffer."""

    def __init__(self, argv: Sequence[str], *, size: tuple[int, int], env: Mapping[str, str]) -> None:
        self._master, self._slave = os.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self._ends = [self._slave, self._master]
        os.set_blocking(self._master, False)
        self.modes = termios.tcgetattr(self._slave)
        self.process = subprocess.Popen(
            argv,
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env={**env, "TERM": "xterm-256color", "LANG": "C.UTF-8"},
            start_new_session=True,
        )
        self.output = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.close()

    def fill(self, within: float = 60.0) -> None:
        """Type without reading until the terminal takes no more of what the program writes."""
        deadline = time.monotonic() + within
        before = -1
        while self.waiting != before:
            assert time.monotonic() < deadline, "the program writes without end"
            before = self.waiting
            for _ in range(10):
                self.type(b"\t" * 50)
                time.sleep(0.05)

    def close(self) -> None:
        """Let the terminal go, as a connection that is lost does."""
        while self._ends:
            os.close(self._ends.pop())

    def type(self, keys: bytes) -> None:
        """Send keys; those that find no room are lost, as on a line."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._master, keys)

    def read(self, seconds: float) -> None:
        """Read what comes in this time; returns early with the first that comes."""
        if select.select([self._master], [], [], seconds)[0]:
            with contextlib.suppress(BlockingIOError, OSError):
                self.output += os.read(self._master, 65536)

    def until(self, *texts: bytes, within: float = 60.0) -> None:
        """Read until each of `texts` was written after this call; fails with the end of the output otherwise."""
        start, deadline = len(self.output), time.monotonic() + within
        while not all(text in self.output[start:] for text in texts):
            if time.monotonic() > deadline:
                raise AssertionError(f"never saw {texts} in {within} s: {self.output[-4000:]!r}")
            self.read(0.1)

    def ended(self, within: float = 90.0) -> int:
        """Read until the program ends and return its status."""
        deadline = time.monotonic() + within
        while self.process.poll() is None:
            assert time.monotonic() < deadline, "the program does not end"
            self.read(0.1)
        self.read(0)
        return self.process.wait()

    @property
    def waiting(self) -> int:
        """Return how many bytes were written and not read, as far as the terminal takes any."""
        count: int = struct.unpack("i", fcntl.ioctl(self._master, termios.FIONREAD, bytes(4)))[0]
        return count

    @property
    def modes_now(self) -> list[int | list[bytes | int]]:
        """Return the terminal's modes."""
        return termios.tcgetattr(self._slave)
