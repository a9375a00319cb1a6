"""pdtui's proxy as an HTTP server in front of real ranks, with a hand on the way to a decoder."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Iterator

from pdtui.clock import SystemClock
from pdtui.proxy.embedded import EmbeddedProxy
from pdtui.proxy.interface import BackendState
from pdtui.proxy.settings import ProxySettings
from tests.real.cluster import RealCluster

Hold = Callable[[str], Awaitable[None]]
"""Called with a rank before it is connected; raises `ConnectError` where there shall be no way to it."""


async def _let_through(rank: str) -> None:
    """Hold nothing."""


@contextlib.contextmanager
def proxied(
    cluster: RealCluster, *, hold: Hold = _let_through, settings: ProxySettings | None = None
) -> Iterator[str]:
    """Serve on a loop in a thread of its own and yield the URL; every planned rank is a backend.

    So is a second decode rank, `d/1`: the same server by another name, for a request that did not reach the first.
    """
    planned = cluster.plan()
    planned["d/1"] = planned["d/0"]

    async def resolve(rank: str) -> tuple[str, int]:
        await hold(rank)
        return str(planned[rank]["host"]), int(planned[rank]["api_port"])

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy")
    thread.start()
    proxy = EmbeddedProxy(served_name="tiny", resolver=resolve, clock=SystemClock(), settings=settings)

    async def begin() -> tuple[str, int]:
        address = await proxy.start()
        proxy.update([BackendState(rank, one["group"], one["role"], True) for rank, one in planned.items()])
        return address

    try:
        host, port = asyncio.run_coroutine_threadsafe(begin(), loop).result(30)
        try:
            yield f"http://{host}:{port}"
        finally:
            asyncio.run_coroutine_threadsafe(proxy.close(), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
