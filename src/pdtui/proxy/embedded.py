"""The proxy on somebody else's event loop: the console's test completions, and tests."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Sequence

import aiohttp
from aiohttp import web

from pdtui.clock import Clock
from pdtui.errors import ProxyError
from pdtui.proxy.app import ProxyApp
from pdtui.proxy.ask import AskClient
from pdtui.proxy.balance import Policy, ReferencePolicy
from pdtui.proxy.flows.pull import PullFlow
from pdtui.proxy.interface import Ask, AskProgress, BackendState, Resolver
from pdtui.proxy.pool import Pool
from pdtui.proxy.probe import Prober
from pdtui.proxy.settings import ProxySettings
from pdtui.proxy.trace import Trace, TraceLog
from pdtui.proxy.upstream import AiohttpUpstream


class EmbeddedProxy:
    """A pull-flow proxy on a loopback port of the running loop."""

    def __init__(
        self,
        *,
        served_name: str,
        resolver: Resolver,
        clock: Clock,
        policy: Policy | None = None,
        settings: ProxySettings | None = None,
        key: str = "",
    ) -> None:
        self._key = key
        self._served_name = served_name
        self._resolver = resolver
        self._clock = clock
        self._settings = settings or ProxySettings()
        self.pool = Pool(policy or ReferencePolicy(), self._settings, clock.monotonic)
        self._stack = contextlib.AsyncExitStack()
        self._app: ProxyApp | None = None
        self._client: AskClient | None = None
        self._closed = False
        self._asks: set[asyncio.Future[None]] = set()

    async def start(self) -> tuple[str, int]:
        """Listen on a free loopback port and return host and port."""
        settings = self._settings
        async with contextlib.AsyncExitStack() as stack:
            upstream = AiohttpUpstream(self._resolver, settings, self._clock)
            stack.push_async_callback(upstream.close)
            prober = asyncio.create_task(
                Prober(self.pool, upstream, settings, self._clock).run(), name="proxy-probe"
            )
            stack.push_async_callback(_cancel, prober)
            self._app = ProxyApp(
                served_name=self._served_name,
                flow=PullFlow(self.pool, upstream, settings, self._clock),
                pool=self.pool,
                upstream=upstream,
                settings=settings,
                clock=self._clock,
            )
            session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, force_close=True),
                timeout=aiohttp.ClientTimeout(total=None),
                trust_env=False,
            )
            stack.push_async_callback(session.close)
            # The server first, then its own clients, which see it end, then their session: aiohttp leaves a reader
            # hanging for ever whose own session closes.
            stack.push_async_callback(self._asks_ended)
            runner = web.AppRunner(
                self._app.application(),
                handler_cancellation=True,
                access_log=None,
                shutdown_timeout=settings.shutdown_s,
            )
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            self._client = AskClient(
                session,
                f"http://{host}:{port}",
                served_name=self._served_name,
                clock=self._clock,
                key=self._key,
            )
            self._stack = stack.pop_all()
            return host, port

    def update(self, backends: Sequence[BackendState]) -> None:
        """Take over which ranks there are and which may be used; call it on the proxy's loop."""
        self.pool.update(backends)

    @property
    def traces(self) -> TraceLog:
        """The last requests; raises `ProxyError` before `start`."""
        if self._app is None:
            raise ProxyError("the proxy has not been started", status=503)
        return self._app.traces

    def trace(self, request_id: str) -> Trace | None:
        """Return what is known about a request that runs or is still remembered."""
        return self.traces.get(request_id)

    async def ask(self, request: Ask, progress: Callable[[AskProgress], None]) -> AskProgress:
        """Send a test completion; cancelling the call cancels both legs. Raises `ProxyError` before `start`."""
        if self._client is None or self._closed:
            raise ProxyError("the proxy does not run", status=503)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asks.add(ended)
        try:
            return await self._client.ask(request, progress, request_id=f"ask-{uuid.uuid4()}", traces=self.traces)
        finally:
            self._asks.discard(ended)
            ended.set_result(None)

    async def _asks_ended(self) -> None:
        await asyncio.gather(*self._asks)

    async def close(self) -> None:
        """Stop listening, let running requests finish for a moment, end the rest."""
        self._closed = True
        await self._stack.aclose()


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
