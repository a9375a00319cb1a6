"""A client for test completions: one request, its answer as it grows, errors in words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import aiohttp

from pdtui.clock import Clock
from pdtui.proxy import openai
from pdtui.proxy.errors import UpstreamLost
from pdtui.proxy.interface import Ask, AskProgress
from pdtui.proxy.sse import DONE, SseParser
from pdtui.proxy.trace import TraceLog
from pdtui.text import clean, clean_line

_FASTEST = 0.001
"""Seconds a token; no engine decodes one sequence faster: what did came in a burst, and its times say nothing."""

KEY_VARIABLE = "VLLM_API_KEY"
"""Where a test completion's key is looked for on the operator's machine, as vLLM does for its own."""

_NO_KEY = f"the ranks ask for an API key: set {KEY_VARIABLE} where pdtui runs (HTTP 401)"
_WRONG_KEY = f"the ranks refuse the API key that {KEY_VARIABLE} has where pdtui runs (HTTP 401)"

_ESCAPE = 32
"""Characters that the longest reasonable escape sequence has."""


def request_body(ask: Ask, served_name: str) -> dict[str, Any]:
    """Return the JSON body of a test completion."""
    body: dict[str, Any] = {"model": ask.model or served_name, "max_tokens": ask.max_tokens, "stream": ask.stream}
    if ask.chat or ask.messages:
        body["messages"] = [dict(m) for m in ask.messages] or [{"role": "user", "content": ask.prompt}]
    else:
        body["prompt"] = ask.prompt
    if ask.temperature is not None:
        body["temperature"] = ask.temperature
    if ask.stream:
        body["stream_options"] = {"include_usage": True}
    return body


class AskClient:
    """Sends a completion to a proxy at `base` (http://host:port) and reports on it; `key` is that of its ranks."""

    def __init__(
        self, session: aiohttp.ClientSession, base: str, *, served_name: str, clock: Clock, key: str = ""
    ) -> None:
        self._session = session
        self._key = key
        self._base = base
        self._served_name = served_name
        self._clock = clock

    async def ask(
        self,
        request: Ask,
        progress: Callable[[AskProgress], None],
        *,
        request_id: str,
        traces: TraceLog | None = None,
    ) -> AskProgress:
        """Send `request`; `progress` gets every step, the last one included, which is returned too.

        With the proxy's `traces` it also says where the request is; a proxy in another process has none to show.
        Nothing is raised for a failed completion: the last progress says what went wrong.
        """
        traces = TraceLog(0) if traces is None else traces
        run = _Run(request_id, self._clock, progress, traces)
        headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        path = openai.CHAT if request.chat or request.messages else openai.COMPLETIONS
        try:
            with traces.watched(request_id, run.changed):
                async with self._session.post(
                    self._base + path,
                    data=openai.dump(request_body(request, self._served_name)),
                    headers=headers,
                ) as response:
                    await run.read(response)
                    if response.status == 401:
                        run.explain(_WRONG_KEY if self._key else _NO_KEY)
        except UpstreamLost as error:
            run.fail(error.message)
        except (aiohttp.ClientError, OSError) as error:
            run.fail(f"the proxy broke off: {clean_line(str(error)) or type(error).__name__}")
        return run.end()


class _Run:
    """One completion on its way."""

    def __init__(
        self, request_id: str, clock: Clock, progress: Callable[[AskProgress], None], traces: TraceLog
    ) -> None:
        self._clock = clock
        self._report = progress
        self._traces = traces
        self._started = clock.monotonic()
        self._now = AskProgress(request_id=request_id)
        self._text = ""
        self._events = 0
        self._first: float | None = None
        self._last: float | None = None
        self._streamed = False

    def changed(self) -> None:
        """A leg has begun or ended."""
        self._update()

    async def read(self, response: aiohttp.ClientResponse) -> None:
        self._update(status=response.status)
        if response.status == 200 and response.content_type == "text/event-stream":
            await self._read_events(response.content)
        else:
            self._read_whole(await response.read())

    def fail(self, message: str) -> None:
        self._update(error=message)

    def explain(self, why: str) -> None:
        """Say what an error comes from, behind the server's own words."""
        self._update(error=f"{self._now.error.rstrip('.')}: {why}" if self._now.error else why)

    def end(self) -> AskProgress:
        self._update(done=True)
        return self._now

    async def _read_events(self, content: aiohttp.StreamReader) -> None:
        self._streamed = True
        parser = SseParser(source="the proxy")
        done = False
        async for piece in content.iter_any():
            for event in parser.feed(piece):
                done = done or event.data == DONE
                value = openai.event_object(event)
                if value is not None:
                    self._take(value)
            self._update()
        if not done and not self._now.error:
            self.fail("the answer ended before it was complete")

    def _read_whole(self, raw: bytes) -> None:
        value = openai.json_object(raw)
        if value is not None and "error" not in value and self._now.status == 200:
            self._take(value)
            return
        failure = openai.error_of(value)
        said = failure[0] if failure else raw[:300].decode("utf-8", "replace")
        self.fail(clean(said).strip() or f"HTTP {self._now.status} without a word")

    def _take(self, value: dict[str, Any]) -> None:
        failure = openai.error_of(value)
        if failure is not None:
            self.fail(clean(failure[0]))
            return
        for choice in openai.choices_of(value)[:1]:
            self._text += openai.text_of(choice, reasoning=True)
            reason = choice.get("finish_reason")
            if isinstance(reason, str):
                self._now = replace(self._now, finish_reason=clean_line(reason))
        if openai.choices_of(value) and not openai.is_opening(value):
            self._events += 1
            self._last = self._clock.monotonic()
            if self._first is None:
                self._first = self._last
        usage = openai.usage_of(value)
        if usage:
            self._now = replace(self._now, usage=usage)

    def _update(self, **changes: Any) -> None:
        """Report what is known now."""
        counted = openai.count_of(self._now.usage, "completion_tokens")
        tokens = counted if counted is not None else self._events if self._streamed and self._events else None
        now = replace(
            self._now,
            text=self._shown(done=bool(changes.get("done"))),
            tokens=tokens,
            ttft_s=self._first - self._started if self._streamed and self._first is not None else None,
            tokens_per_s=self._rate(tokens),
            **changes,
        )
        trace = self._traces.get(now.request_id)
        if trace is not None:
            now = replace(
                now,
                prefill=trace.last.prefill,
                decode=trace.last.decode,
                queue_s=trace.queue_s,
                prefill_s=trace.prefill_s,
                transfer_s=trace.transfer_s,
            )
        self._now = now
        self._report(now)

    def _shown(self, *, done: bool) -> str:
        """Return the clean text so far, without the beginning of an escape sequence: what is shown stays shown."""
        start = self._text.rfind("\x1b", -_ESCAPE)
        return clean(self._text if done or start < 0 else self._text[:start])

    def _rate(self, tokens: int | None) -> float | None:
        """Tokens after the first by the time they took; of an answer in one piece, all by the whole time."""
        if tokens is None or self._first is None or self._last is None:
            return None
        if not self._streamed:
            whole = self._last - self._started
            return tokens / whole if whole > 0 else None
        span = self._last - self._first
        return (tokens - 1) / span if tokens > 1 and span >= (tokens - 1) * _FASTEST else None
