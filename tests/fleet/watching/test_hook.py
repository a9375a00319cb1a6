"""The operator's program: what it gets, and that nothing it does holds up whoever watches."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from pdtui.clock import SystemClock
from pdtui.errors import UsageError
from pdtui.fleet.watching.hook import WAITING, Hook, parse_command
from tests.support.processes import carrying
from tests.support.waiting import eventually

Begin = Callable[..., Hook]


@asynccontextmanager
async def running(script: str, told: list[str], *, limit: float = 60.0, grace: float = 0.3) -> AsyncIterator[Hook]:
    """Run a hook that is a shell script."""
    hook = Hook(("sh", "-c", script), clock=SystemClock(), tell=told.append, limit=limit, grace=grace)
    task = asyncio.ensure_future(hook.run())
    try:
        yield hook
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def ended(hook: Hook, **runs: int) -> None:
    await eventually(lambda: dict(hook.runs) == runs, what=f"{runs}")


async def test_it_gets_each_line_in_order_in_a_session_of_its_own(tmp_path: Path) -> None:
    told: list[str] = []
    out = shlex.quote(str(tmp_path / "out"))
    async with running(f"cat >>{out}; ps -o sid= -p $$ >>{out}.sid", told) as hook:
        for number in range(3):
            hook.offer(json.dumps({"n": number, "text": "前 'x' $HOME"}))
        await ended(hook, ok=3)
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert lines == [{"n": number, "text": "前 'x' $HOME"} for number in range(3)]
    sessions = {int(word) for word in (tmp_path / "out.sid").read_text().split()}
    assert os.getsid(0) not in sessions
    assert told == []


async def test_what_fails_is_told_and_the_next_is_run() -> None:
    told: list[str] = []
    async with running("echo HF_TOKEN=S3CRET no such channel >&2; exit 3", told) as hook:
        hook.offer("{}")
        hook.offer("{}")
        await ended(hook, failed=2)
    assert told == ["hook exit 3: HF_TOKEN=*** no such channel"] * 2
    told.clear()
    gone = Hook(("/nonexistent/program",), clock=SystemClock(), tell=told.append)
    task = asyncio.ensure_future(gone.run())
    gone.offer("{}")
    await ended(gone, failed=1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert told == ["hook No such file or directory"]


async def test_one_that_hangs_is_killed_with_what_it_began(tmp_path: Path) -> None:
    told: list[str] = []
    mark = f"hook-{tmp_path.name}"
    async with running(f": {mark}; trap '' TERM; sleep 1000 & wait; sleep 1000", told, limit=0.3) as hook:
        hook.offer("{}")
        await ended(hook, timeout=1)
    assert told == ["hook gave no end within 0.3 s and was killed"]
    assert not carrying(mark)


async def test_what_it_leaves_behind_does_not_hold_it_up(tmp_path: Path) -> None:
    told: list[str] = []
    pid = tmp_path / "pid"
    script = f"sleep 30 & echo $! >{shlex.quote(str(pid))}; echo left one behind >&2; exit 1"
    async with running(script, told) as hook:
        hook.offer("{}")
        await ended(hook, failed=1)
    assert told == ["hook exit 1: left one behind"]
    os.kill(int(pid.read_text()), 9)


async def test_one_that_does_not_read_or_says_too_much(tmp_path: Path) -> None:
    told: list[str] = []
    async with running("yes '\x1b[31mloud' | head -c 3000000 >&2; exit 9", told) as hook:
        hook.offer("x" * 200_000)
        await ended(hook, failed=1)
    assert told == ["hook exit 9: loud"]


async def test_what_waits_is_bounded() -> None:
    told: list[str] = []
    hook = Hook(("true",), clock=SystemClock(), tell=told.append)
    for number in range(WAITING + 5):
        hook.offer(str(number))
    assert (hook.waiting, hook.runs["dropped"]) == (WAITING, 5)
    assert len(told) == 1
    task = asyncio.ensure_future(hook.run())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert told[-1].endswith("transitions were not handed to it")


async def test_the_end_lets_it_finish_and_kills_what_does_not(tmp_path: Path) -> None:
    told: list[str] = []
    out = tmp_path / "out"
    async with running(f"touch {out}.began; sleep 0.3; touch {out}", told, grace=20.0) as hook:
        hook.offer("{}")
        await eventually(Path(f"{out}.began").exists)
    assert out.exists()
    mark = f"stuck-{tmp_path.name}"
    async with running(f": {mark}; touch {out}.stuck; sleep 1000; :", told) as hook:
        hook.offer("{}")
        await eventually(Path(f"{out}.stuck").exists)
    assert not carrying(mark)


@pytest.mark.parametrize(
    ("text", "words"), [("", "needs a command"), ("'x", "no command line"), ("nonsuch --x", "no program nonsuch")]
)
def test_no_command(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_command(text)


def test_a_command_is_words_and_no_shell_line() -> None:
    assert parse_command("sh -c 'echo $HOME; x' \"a b\"") == ("sh", "-c", "echo $HOME; x", "a b")
