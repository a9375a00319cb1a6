"""The pull flow: P prefills and keeps the KV cache, D fetches it and generates.

What is tried again, and what is not:
- a rank that could not be connected has not seen the request: the next one gets it, D with the same
  `kv_transfer_params` as long as P's lease lasts;
- any other failure before the first token means a new prefill under a new id, at most `settings.prefills` in all,
  since D may have fetched the blocks and P freed them;
- a 4xx is the client's, and passed on; a P that hands over nothing is an error, never a silent prefill on D;
- after the first token nothing is tried again, but an answer that D dropped for lack of memory is resumed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from pdtui.clock import Clock
from pdtui.proxy import openai
from pdtui.proxy.balance import Role
from pdtui.proxy.errors import CannotResume, NotConnected, Refused, TooLate, UpstreamError, UpstreamLost
from pdtui.proxy.flows.base import Call, Sink
from pdtui.proxy.flows.pull_body import (
    Handover,
    decode_body,
    prefill_body,
    read_handover,
    refuse_what_cannot_be_split,
)
from pdtui.proxy.flows.resume import Resume, is_recomputed
from pdtui.proxy.pool import Pool, Reservation
from pdtui.proxy.settings import ProxySettings
from pdtui.proxy.sse import DONE, Event, SseParser, encode
from pdtui.proxy.trace import Attempt
from pdtui.proxy.upstream import Answer, Upstream
from pdtui.text import clean_line

_PASSED_ON = ("content-type", "retry-after", "www-authenticate")


class PullFlow:
    """`Flow` for MooncakeConnectorV1 and its kin."""

    def __init__(self, pool: Pool, upstream: Upstream, settings: ProxySettings, clock: Clock) -> None:
        self.pool = pool
        self.upstream = upstream
        self.settings = settings
        self.clock = clock

    async def serve(self, call: Call, sink: Sink) -> None:
        """Answer a request; raises `ProxyError`."""
        refuse_what_cannot_be_split(call.body)
        # A prefill that no decoder can fetch would only hold memory on P.
        self.pool.require("prefill")
        self.pool.require("decode")
        await _Request(self, call, sink).run()


class _Request:
    """One request on its way."""

    def __init__(self, flow: PullFlow, call: Call, sink: Sink) -> None:
        self._pool = flow.pool
        self._upstream = flow.upstream
        self._settings = flow.settings
        self._clock = flow.clock
        self._call = call
        self._sink = sink
        self._body = call.body
        self._resume = Resume(call.path, call.body)
        self._unreachable: set[str] = set()
        self._failed: set[str] = set()
        self._attempt = Attempt(call.id)

    async def run(self) -> None:
        prefills = 0
        while True:
            prefills += 1
            try:
                dropped = await self._try_once()
            except UpstreamError as error:
                self._attempt.error = error.message
                if self._sink.started or prefills >= self._settings.prefills:
                    raise
                continue
            if dropped is None:
                return
            self._call.trace.recomputes += 1
            if self._call.trace.recomputes > self._settings.recomputes:
                raise CannotResume(f"{self._attempt.decode} dropped this request again and again")
            self._body = self._resume.next_body(dropped)
            prefills = 0

    async def _try_once(self) -> dict[str, Any] | None:
        """Prefill and decode; returns the answer or chunk with which D dropped the request, None at its end."""
        attempts = self._call.trace.attempts
        number = len(attempts) + 1
        self._attempt = Attempt(self._call.id if number == 1 else f"{self._call.id}-{number}")
        attempts.append(self._attempt)
        # The one place of release: whatever ends this attempt, its reservations end here, without an await.
        with contextlib.ExitStack() as held:
            try:
                prefill, handover = await self._prefill(held)
                return await self._decode(held, prefill, handover)
            finally:
                self._attempt.ended = self._clock.monotonic()

    def _reserve(self, held: contextlib.ExitStack, role: Role) -> Reservation:
        reservation = self._pool.reserve(role, self._call.size, exclude=self._unreachable, avoid=self._failed)
        held.enter_context(reservation)
        if role == "prefill":
            self._attempt.prefill = reservation.rank
        else:
            self._attempt.decode = reservation.rank
        return reservation

    @contextlib.contextmanager
    def _blame(self, rank: str) -> Iterator[None]:
        """Tell the pool what a rank did to us."""
        try:
            yield
        except TooLate:
            self._failed.add(rank)  # Perhaps it is the way that is slow, or P: nothing to put a rank out for.
            raise
        except UpstreamError as error:
            self._pool.failed(rank, error.message, connected=error.started)
            (self._failed if error.started else self._unreachable).add(rank)
            raise

    # P ---------------------------------------------------------------------------------------------------------

    async def _prefill(self, held: contextlib.ExitStack) -> tuple[Reservation, Handover]:
        """Prefill on the first P that can be connected."""
        body = openai.dump(prefill_body(self._body))
        while True:
            reservation = self._reserve(held, "prefill")
            try:
                with self._blame(reservation.rank):
                    return reservation, await self._prefill_on(reservation.rank, body)
            except NotConnected:
                reservation.release()

    async def _prefill_on(self, rank: str, body: bytes) -> Handover:
        settings, clock = self._settings, self._clock
        began = self._attempt.prefill_sent = clock.monotonic()
        self._call.trace.changed()
        async with self._send(rank, body, within=settings.prefill_s) as answer:
            left = max(0.0, began + settings.prefill_s - clock.monotonic())
            raw = await answer.read(settings.answer_limit, within=left)
        self._attempt.prefill_done = clock.monotonic()
        _check_status(rank, answer, raw)
        handover = read_handover(rank, raw, settings, monotonic=clock.monotonic(), wall=clock.wall())
        self._pool.succeeded(rank)
        self._resume.note_prefill(handover.prompt_tokens)
        return handover

    def _send(
        self, rank: str, body: bytes, *, within: float, not_after: float | None = None
    ) -> contextlib.AbstractAsyncContextManager[Answer]:
        headers = openai.forward_headers(self._call.headers, self._attempt.id)
        return self._upstream.exchange(
            rank, "POST", self._call.path, headers=headers, body=body, within=within, not_after=not_after
        )

    # D ---------------------------------------------------------------------------------------------------------

    async def _decode(
        self, held: contextlib.ExitStack, prefill: Reservation, handover: Handover
    ) -> dict[str, Any] | None:
        """Decode on the first D that can be connected while P's lease lasts."""
        body = openai.dump(decode_body(self._resume.budget(self._body), handover.params))
        while True:
            reservation = self._reserve(held, "decode")
            rank = reservation.rank
            if self._clock.monotonic() >= handover.deadline:
                raise UpstreamLost(_gone_by_then(prefill.rank))
            try:
                with self._blame(rank):
                    return await self._decode_on(rank, body, prefill, handover)
            except NotConnected:
                reservation.release()
            except TooLate as error:
                raise UpstreamLost(f"{_gone_by_then(prefill.rank)}: {error.message}") from error

    async def _decode_on(
        self, rank: str, body: bytes, prefill: Reservation, handover: Handover
    ) -> dict[str, Any] | None:
        settings = self._settings
        began = self._attempt.decode_sent = self._clock.monotonic()
        self._call.trace.changed()
        streamed = bool(self._body.get("stream"))
        # A decoder that has not begun when the lease ends may yet fetch blocks that are someone else's by then.
        lease = float("inf") if settings.lease_renewed else handover.deadline + settings.margin_s - began
        within = min(settings.first_token_s, lease) if streamed else settings.answer_s
        until = began + within
        async with self._send(rank, body, within=within, not_after=handover.deadline) as answer:
            if answer.status == 200 and _is_events(answer):
                return await self._relay(rank, answer, prefill, handover, until)
            left = max(0.0, until - self._clock.monotonic())
            raw = await answer.read(settings.answer_limit, within=left)
        _check_status(rank, answer, raw)
        return await self._hand_out(rank, answer, raw, prefill, handover)

    def _first_token(self, rank: str, prefill: Reservation) -> None:
        """D has the KV cache: P's share of the load ends, and the rank has proved itself."""
        prefill.release()
        self._pool.succeeded(rank)
        now = self._clock.monotonic()
        if self._attempt.first_token is None:
            self._attempt.first_token = now
        if self._call.trace.first_token is None:
            self._call.trace.first_token = now

    async def _hand_out(
        self, rank: str, answer: Answer, raw: bytes, prefill: Reservation, handover: Handover
    ) -> dict[str, Any] | None:
        """Send an answer that came in one piece."""
        value = openai.completion_of(raw, rank, "the request")
        prefill.release()
        self._pool.succeeded(rank)
        if is_recomputed(value):
            return value
        changed = openai.with_cached_tokens(value, handover.cached_tokens)
        if self._resume.resumed:
            self._resume.patch_whole(value)
            changed = True
        self._call.trace.tokens = openai.count_of(openai.usage_of(value), "completion_tokens") or 0
        content_type = answer.headers.get("content-type", "application/json")
        await self._sink.whole(content_type, openai.dump(value) if changed else raw)
        return None

    async def _relay(
        self, rank: str, answer: Answer, prefill: Reservation, handover: Handover, until: float
    ) -> dict[str, Any] | None:
        """Send an answer by event; nothing goes out before the first token, so a failure can still be mended."""
        parser = SseParser(self._settings.event_limit, source=rank)
        relay = _Relay(
            rank, self._call, self._resume, handover, self._sink.started, lambda: self._first_token(rank, prefill)
        )
        while not relay.done and relay.dropped is None:
            waiting = self._attempt.first_token is None
            within = max(0.0, until - self._clock.monotonic()) if waiting else self._settings.idle_s
            piece = await answer.chunk(within=within)
            if not piece:
                if relay.failed:
                    break
                raise UpstreamLost(f"{rank} ended its answer before it was complete")
            for event in parser.feed(piece):
                relay.take(event)
                if relay.done or relay.dropped is not None:
                    break
            if relay.out and self._attempt.first_token is not None:
                if not self._sink.started:
                    await self._sink.start(answer.headers.get("content-type", "text/event-stream"))
                await self._sink.write(relay.flush())
        return relay.dropped


class _Relay:
    """Turns D's events into what the client gets; `out` collects it."""

    def __init__(
        self,
        rank: str,
        call: Call,
        resume: Resume,
        handover: Handover,
        late: bool,
        first_token: Callable[[], None],
    ) -> None:
        self._rank = rank
        self._trace = call.trace
        self._resume = resume
        self._handover = handover
        self._first_token = first_token
        self._begun = False
        self._late = late
        """Whether the client has had a part of the answer already, from an earlier leg."""
        self.out: list[bytes] = []
        self.done = False
        self.dropped: dict[str, Any] | None = None
        """The chunk with which D dropped the request."""
        self.failed = False
        """D said itself that it failed, after the first token."""

    def flush(self) -> bytes:
        """Return and forget what is to be sent."""
        data = b"".join(self.out)
        self.out.clear()
        return data

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._first_token()

    def take(self, event: Event) -> None:
        """Take one event; raises `Refused` or `UpstreamLost` for an error before the first token."""
        if event.data == DONE:
            self._begin()
            self.done = True
            self.out.append(event.raw)
            return
        if event.data is None:
            # A comment keeps a connection alive; before the first token there is none to the client.
            if self._begun or self._late:
                self.out.append(event.raw)
            return
        value = openai.event_object(event)
        if value is None:
            self._begin()
            self.out.append(event.raw)
            return
        failure = openai.error_of(value)
        if failure is not None:
            self._fail(event, *failure)
            return
        if is_recomputed(value):
            self._begin()
            self.dropped = value
            return
        opening = openai.is_opening(value)
        if opening and self._late:
            return
        if not opening:
            self._begin()
            self._resume.note_chunk(value)
            self._trace.tokens = self._resume.events
        self.out.append(self._patched(event, value))

    def _patched(self, event: Event, value: dict[str, Any]) -> bytes:
        changed = openai.with_cached_tokens(value, self._handover.cached_tokens)
        if self._resume.resumed:
            self._resume.patch_chunk(value)
            changed = True
        counted = openai.count_of(openai.usage_of(value), "completion_tokens")
        if counted is not None:
            self._trace.tokens = counted
        return encode(openai.dump(value).decode()) if changed else event.raw

    def _fail(self, event: Event, message: str, code: int) -> None:
        message = clean_line(message)
        if self._begun or self._late:
            self.failed = True
            self._trace.error = f"{self._rank}: {message}"
            self.out.append(event.raw)
            return
        if 400 <= code < 500:
            body = (event.data or "").encode()
            raise Refused(message, status=code, body=body, headers={"content-type": "application/json"})
        raise UpstreamLost(f"{self._rank} failed: {message}")


def _gone_by_then(rank: str) -> str:
    return f"{rank} does not keep the KV cache long enough to reach a decoder"


def _is_events(answer: Answer) -> bool:
    return answer.headers.get("content-type", "").lower().startswith("text/event-stream")


def _check_status(rank: str, answer: Answer, raw: bytes) -> None:
    """Raise `Refused` for a 4xx, `UpstreamLost` for anything else that is not 200."""
    if answer.status == 200:
        return
    failure = openai.error_of(openai.json_object(raw))
    said = clean_line(failure[0] if failure else raw[:200].decode("utf-8", "replace")).strip()
    message = f"{rank} answered {answer.status}" + (f": {said}" if said else "")
    if 400 <= answer.status < 500:
        headers = {name: answer.headers[name] for name in _PASSED_ON if name in answer.headers}
        raise Refused(message, status=answer.status, body=raw, headers=headers)
    raise UpstreamLost(message)
