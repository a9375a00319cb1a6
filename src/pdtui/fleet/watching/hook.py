"""A program of the operator's that is run for each transition, with its JSON on stdin.

It runs without a shell, one at a time, in a session of its own, and has a time limit; what waits is bounded.
Whatever it does, or does not do, watching goes on.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal

from pdtui.clock import Clock
from pdtui.errors import UsageError
from pdtui.text import clean_line, decode
from pdtui.topology.redact import redacted_text

LIMIT = 30.0
"""Seconds that one run has."""

GRACE = 2.0
"""Seconds between TERM and KILL for one that was given up, and before TERM when the watching ends."""

WAITING = 200
"""Transitions that wait for it; of more, the oldest are dropped."""

LONGEST = 32_768
"""Bytes of JSON that a run gets: less than a pipe takes, so that writing them never waits."""

_TAIL = 4096

Result = Literal["ok", "failed", "timeout", "dropped"]


def parse_command(text: str) -> tuple[str, ...]:
    """Return a command line as words. Raises `UsageError` when it is none, or no such program is there."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--hook {clean_line(text)!r} is no command line: {error}") from None
    if not words:
        raise UsageError("--hook needs a command")
    if shutil.which(words[0]) is None:
        raise UsageError(
            f"--hook: no program {clean_line(words[0])}",
            remedy="it is run without a shell; for pipes and variables: --hook \"sh -c '...'\"",
        )
    return words


class Hook:
    """Runs the program for what it is offered, in order."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        clock: Clock,
        tell: Callable[[str], None],
        limit: float = LIMIT,
        grace: float = GRACE,
    ) -> None:
        """Prepare; `tell` gets a sentence when a run fails or something is dropped. `limit`, `grace`: seconds."""
        self._argv = tuple(argv)
        self._clock = clock
        self._tell = tell
        self._limit = limit
        self._grace = grace
        self._waiting: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._process: asyncio.subprocess.Process | None = None
        self.runs: Counter[str] = Counter()
        """How runs have ended."""

    @property
    def waiting(self) -> int:
        """How many transitions wait."""
        return len(self._waiting)

    def offer(self, line: str) -> None:
        """Let it run for a line of JSON, soon; never waits."""
        if len(self._waiting) >= WAITING:
            self._waiting.popleft()
            self.runs["dropped"] += 1
            if self.runs["dropped"] % WAITING == 1:
                self._tell(f"hook: more than {WAITING} transitions wait for it; the oldest are dropped")
        self._waiting.append(line.encode()[: LONGEST - 1] + b"\n")
        self._news.set()

    async def run(self) -> None:
        """Run it for all that is offered, until cancelled; then what runs is ended."""
        try:
            while True:
                while self._waiting:
                    await self._once(self._waiting.popleft())
                self._news.clear()
                await self._news.wait()
        finally:
            if self._waiting:
                self._tell(f"hook: {len(self._waiting)} transitions were not handed to it")

    async def _once(self, data: bytes) -> None:
        heard = bytearray()
        try:
            result, words = await self._ended(data, heard)
        except OSError as error:
            result, words = "failed", error.strerror or str(error)
        self.runs[result] += 1
        if result != "ok":
            said = redacted_text(clean_line(decode(bytes(heard)).strip().rpartition("\n")[2]))[:300]
            self._tell(f"hook {words}{': ' + said if said else ''}")

    async def _ended(self, data: bytes, heard: bytearray) -> tuple[Result, str]:
        """Run it once; returns how it ended, with words. Raises `OSError` when it does not start."""
        stdin, give = os.pipe()
        try:
            listen, stderr = os.pipe()
        except OSError:  # No more files: these two must not be missing next time.
            os.close(stdin)
            os.close(give)
            raise
        loop = asyncio.get_running_loop()
        try:
            os.write(give, data)
            os.close(give)
            # Own pipes: what it leaves behind may hold its stderr open, and its end must be seen all the same.
            process = self._process = await asyncio.create_subprocess_exec(
                *self._argv, stdin=stdin, stdout=asyncio.subprocess.DEVNULL, stderr=stderr, start_new_session=True
            )
        except BaseException:
            os.close(listen)
            raise
        finally:
            os.close(stdin)
            os.close(stderr)
        os.set_blocking(listen, False)
        loop.add_reader(listen, _take, loop, listen, heard)
        try:
            async with self._clock.timeout(self._limit):
                status = await process.wait()
            _take(loop, listen, heard)
        except TimeoutError:
            await self._end(process)
            return "timeout", f"gave no end within {self._limit:g} s and was killed"
        except asyncio.CancelledError:
            with suppress(TimeoutError):  # What it has begun to tell should be told.
                async with self._clock.timeout(self._grace):
                    await process.wait()
            if process.returncode is None:
                await self._end(process)
            raise
        finally:
            loop.remove_reader(listen)
            os.close(listen)
            self._process = None
        if status == 0:
            return "ok", ""
        return "failed", f"signal {-status}" if status < 0 else f"exit {status}"

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """End it and what it began."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(TimeoutError):
                async with self._clock.timeout(self._grace):
                    await process.wait()
                    if number is signal.SIGKILL:
                        return


def _take(loop: asyncio.AbstractEventLoop, listen: int, heard: bytearray) -> None:
    """Read what it says now, and keep the end of it."""
    try:
        data = os.read(listen, 65536)
    except OSError:
        data = b""
    if not data:
        loop.remove_reader(listen)
    heard += data
    del heard[:-_TAIL]
