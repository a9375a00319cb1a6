"""Commands of the command line in this process, over the fleet that watches already.

Words, exit status and all that they do are those of `pdtui`; only the process and its connections are spared.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from unittest import mock

from pdtui.cli.live import narrate, node_trouble
from pdtui.cli.root import main
from pdtui.fleet.engine import EngineThread
from pdtui.fleet.fleet import Fleet
from pdtui.topology.load import load_checked

COMMANDS = ("start", "stop", "status")


def carry_out(engine: EngineThread, words: Sequence[str], timeout: float) -> tuple[int, str]:
    """Run `pdtui WORDS` over an engine; returns its exit status and what it printed."""

    def over(
        file: Path, work: Callable[[Fleet], Awaitable[int]], *, ready_deadline: float | None = None, **_: object
    ) -> int:
        assert load_checked(file).digest == engine.topology.digest, "another file needs a fleet of its own"
        assert ready_deadline is None, "another deadline needs a fleet of its own"
        done: Future[int] = Future()

        async def run(fleet: Fleet) -> None:
            for node in fleet.snapshot.nodes:
                if node.error:
                    narrate(node_trouble(node))
            task = asyncio.ensure_future(work(fleet))
            await asyncio.wait({task})
            if (error := task.exception()) is not None:
                done.set_exception(error)
            else:
                done.set_result(task.result())

        engine.begin(run)
        return done.result(timeout)

    said = io.StringIO()
    with contextlib.ExitStack() as stack:
        for name in COMMANDS:
            stack.enter_context(
                mock.patch.object(importlib.import_module(f"pdtui.cli.{name}"), "with_fleet", over)
            )
        stack.enter_context(contextlib.redirect_stdout(said))
        stack.enter_context(contextlib.redirect_stderr(said))
        try:
            main(list(words))
        except SystemExit as ended:
            return int(ended.code or 0), said.getvalue()
    raise AssertionError("the command line ends with an exit status")
