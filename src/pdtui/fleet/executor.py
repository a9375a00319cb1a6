"""Threads for calls that may hang (a name server, a file system), which never keep a program from ending.

The threads of asyncio's own executor are waited for twice, by the loop and by the interpreter: a look at a network
disk that is gone would keep a console that was left for ever.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DaemonExecutor(ThreadPoolExecutor):
    """A daemon thread a call, so for few calls; a loop takes nothing else than this class as its default."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function in a thread of its own."""
        future: Future[T] = Future()
        call = partial(fn, *args, **kwargs)
        threading.Thread(target=_run, args=(future, call), name="pdtui-aside", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for nothing."""


def _run(future: Future[Any], call: Callable[[], object]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:  # It goes to whoever waits, as from any executor.
        future.set_exception(error)
    else:
        future.set_result(result)
