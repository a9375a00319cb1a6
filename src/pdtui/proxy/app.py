"""The proxy's HTTP application: routes, errors in OpenAI's shape, health, models, metrics."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler

from pdtui.clock import Clock
from pdtui.errors import ProxyError
from pdtui.proxy import openai
from pdtui.proxy.balance import Role
from pdtui.proxy.errors import BadRequest, ClientGone, NoBackend, Refused, UpstreamError
from pdtui.proxy.flows.base import Call, Flow
from pdtui.proxy.metrics import Metrics
from pdtui.proxy.pool import Pool
from pdtui.proxy.settings import ProxySettings
from pdtui.proxy.sink import ResponseSink
from pdtui.proxy.trace import Outcome, Trace, TraceLog
from pdtui.proxy.upstream import Upstream
from pdtui.text import clean_line

_log = logging.getLogger(__name__)

_NOT_SERVED = (
    "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/rerank", "/v1/score", "/v1/audio/transcriptions",
    "/v1/audio/translations", "/v1/load_lora_adapter", "/tokenize", "/detokenize", "/pooling", "/v1/metaserver",
)  # fmt: skip
"""Paths that vLLM or a layerwise proxy has and this flow cannot serve."""


class ProxyApp:
    """Everything between a client's connection and a flow."""

    def __init__(
        self,
        *,
        served_name: str,
        flow: Flow,
        pool: Pool,
        upstream: Upstream,
        settings: ProxySettings,
        clock: Clock,
    ) -> None:
        self.traces = TraceLog(settings.traces)
        self.metrics = Metrics(pool, self.traces)
        self._served_name = served_name
        self._flow = flow
        self._pool = pool
        self._upstream = upstream
        self._settings = settings
        self._clock = clock

    def application(self) -> web.Application:
        """Return the aiohttp application; without `handler_cancellation` a client that leaves goes unnoticed."""
        app = web.Application(middlewares=[_errors], client_max_size=self._settings.body_limit)
        app.router.add_post(openai.COMPLETIONS, self._complete)
        app.router.add_post(openai.CHAT, self._complete)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        for path in _NOT_SERVED:
            app.router.add_route("*", path, _not_served)
        return app

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        rid = self._request_id(request)
        trace = Trace(rid, request.path, self._clock.monotonic(), self._clock.wall())
        self.traces.begin(trace)
        sink = ResponseSink(request, rid, self._clock, self._settings.idle_s)
        try:
            return await self._answer(request, trace, sink)
        except asyncio.CancelledError:
            # aiohttp cancels the handler when the connection is gone; it is not swallowed.
            _finish(trace, "client_gone", 499)
            raise
        except Exception:
            # The boundary: a defect of ours is logged, and is an error to the client like any other.
            _log.exception("request %s failed", rid)
            _finish(trace, "failed", 500)
            return await self._tell(ProxyError("internal error of the proxy", status=500), trace, sink)
        finally:
            trace.ended = self._clock.monotonic()
            self.traces.end(trace)
            self.metrics.finished(trace)

    async def _answer(self, request: web.Request, trace: Trace, sink: ResponseSink) -> web.StreamResponse:
        """Run the flow; the one place where an error of it becomes an answer."""
        try:
            raw = await self._body(request)
            body = openai.parse_body(raw)
            await self._flow.serve(Call(trace.id, request.path, body, len(raw), request.headers, trace), sink)
        except ClientGone:
            _finish(trace, "client_gone", 499)
            return sink.response
        except ProxyError as error:
            trace.error = str(error)
            _finish(
                trace, "refused" if isinstance(error, (BadRequest, NoBackend, Refused)) else "failed", error.status
            )
            return await self._tell(error, trace, sink)
        _finish(trace, "failed" if trace.error else "ok", 200)
        return sink.response

    async def _tell(self, error: ProxyError, trace: Trace, sink: ResponseSink) -> web.StreamResponse:
        """Answer with an error: by status while nothing has gone out, as an event afterwards."""
        message = str(error)
        if sink.started:
            try:
                await sink.write(openai.error_event(message, error.status))
            except ClientGone:
                trace.outcome = "client_gone"
            return sink.response
        if isinstance(error, Refused):
            return sink.refuse(error.status, error.body, error.headers)
        headers = {"retry-after": str(error.retry_after)} if isinstance(error, NoBackend) else {}
        return sink.refuse(error.status, openai.error_body(message, error.status), headers)

    async def _body(self, request: web.Request) -> bytes:
        try:
            async with self._clock.timeout(self._settings.idle_s):
                return await request.read()
        except web.HTTPRequestEntityTooLarge as error:
            raise BadRequest(f"the body is longer than {request.client_max_size} bytes", status=413) from error
        except TimeoutError as error:
            raise BadRequest(f"the body did not come within {self._settings.idle_s:g} s", status=408) from error
        except web.RequestPayloadError as error:
            raise BadRequest(f"the body cannot be read: {clean_line(str(error))}") from error
        except ConnectionError as error:
            raise ClientGone from error

    def _request_id(self, request: web.Request) -> str:
        """Return the client's id, made unique among the running ones: engines tell requests apart by it."""
        given = openai.request_id(request.headers.get("X-Request-Id"))
        if given is None:
            return str(uuid.uuid4())
        return f"{given}-{uuid.uuid4().hex[:8]}" if self.traces.is_running(given) else given

    async def _health(self, request: web.Request) -> web.Response:
        """Say whether a request could be served now: 200 or 503."""
        roles: dict[str, Any] = {}
        views = self._pool.views()
        names: tuple[Role, ...] = ("prefill", "decode")
        for role in names:
            usable = self._pool.usable(role)
            of_role = [view for view in views if view.role == role]
            roles[role] = {
                "usable": len(usable),
                "total": len(of_role),
                "out": {v.rank: v.reason or "not ready" for v in of_role if v.rank not in usable},
            }
        serving = all(role["usable"] for role in roles.values())
        status = "ok" if serving else "unavailable"
        return web.json_response({"status": status, **roles}, status=200 if serving else 503)

    async def _models(self, request: web.Request) -> web.Response:
        """Return what a usable decoder says (it knows the context length), else the served name."""
        for rank in [*self._pool.usable("decode"), *self._pool.usable("prefill")][:2]:
            listing = await self._models_of(rank, request)
            if listing is not None:
                return web.json_response(body=listing)
        if not self._served_name:
            raise NoBackend("no rank can say which models it serves", retry_after=self._settings.retry_after_s)
        model = {"id": self._served_name, "object": "model", "created": 0, "owned_by": "vllm"}
        return web.json_response({"object": "list", "data": [model]})

    async def _models_of(self, rank: str, request: web.Request) -> bytes | None:
        headers = openai.forward_headers(request.headers, str(uuid.uuid4()))
        within = self._settings.probe_s
        try:
            async with self._upstream.exchange(
                rank, "GET", "/v1/models", headers=headers, body=b"", within=within
            ) as answer:
                raw = await answer.read(self._settings.event_limit, within=within)
        except UpstreamError:
            return None
        return raw if answer.status == 200 and openai.json_object(raw) is not None else None

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(
            body=self.metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )


def _finish(trace: Trace, outcome: Outcome, status: int) -> None:
    trace.outcome, trace.status = outcome, status


async def _not_served(request: web.Request) -> web.Response:
    raise ProxyError(f"{request.path} cannot be split into prefill and decode here", status=501)


@web.middleware
async def _errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give errors that no flow raised OpenAI's shape."""
    headers: dict[str, str] = {}
    try:
        return await handler(request)
    except ProxyError as error:
        message, status = str(error), error.status
        if isinstance(error, NoBackend):
            headers["Retry-After"] = str(error.retry_after)
    except web.HTTPException as error:
        message, status = f"{request.method} {request.path}: {error.reason}", error.status
        if isinstance(error, web.HTTPMethodNotAllowed):
            headers["Allow"] = ", ".join(sorted(error.allowed_methods))
    return web.json_response(body=openai.error_body(message, status), status=status, headers=headers)
