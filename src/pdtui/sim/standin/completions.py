"""Completions and chat completions of one rank, streamed or not, as its engine makes them."""

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import shapes, words
from .asked import Asked, Refusal, error, error_body, read
from .config import Config
from .kv import EngineKilled, PullFailed, Store
from .log import Log
from .metrics import Metrics
from .process import fault
from .server import Gone, Reply, Request, as_json

TOKEN_SECONDS = 0.005
PREFILL_SECONDS = 0.00002
"""For each token of the prompt, computed here."""
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


class EngineDead(Exception):
    """The engine is gone; every request ends with status 500."""


@dataclass(slots=True)
class Work:
    """One choice of one prompt on its way through the engine."""

    id: str
    """`cmpl-...` or `chatcmpl-...`, as the client sees it."""
    internal: str
    index: int
    """Of the choice in the answer."""
    prompt: str
    tokens: int
    limit: int
    asked: Asked
    began: float = field(default_factory=time.monotonic)
    produced: int = 0
    text: str = ""
    reason: str = ""
    stop: str | None = None
    handed_out: dict[str, Any] | None = None
    source: str = ""

    @property
    def cached(self) -> int:
        """Tokens of the prompt that need not be computed: here, or on the prefill that says so."""
        params = self.asked.kv_params or {}
        if "remote_prefill_cached_tokens" in params:
            return int(params["remote_prefill_cached_tokens"] or 0)
        return self.tokens if self.source == "external_kv_transfer" else 0


class Completions:
    """Answers the two completion endpoints."""

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        kv: Store,
        log: Log,
        kill_engine: Callable[[str], None],
        step: Callable[..., None],
    ) -> None:
        self.config = config
        self.metrics = metrics
        self.kv = kv
        self.log = log
        self.kill_engine = kill_engine
        self.step = step
        self.dead = threading.Event()
        self.leaving = threading.Event()
        """Set when the server was told to end: what runs gets nothing more, and waits for its client to go."""
        self._fingerprint = shapes.fingerprint(config)
        self._details = bool(config.flags.get("enable-prompt-tokens-details"))
        self._slots = threading.Semaphore(config.max_num_seqs)
        self._never = threading.Event()

    def handle(self, request: Request, *, chat: bool) -> Reply:
        """Answer one request."""
        try:
            body, asked = read(request, self.config, chat=chat)
        except Refusal as refusal:
            return refusal.reply
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as problem:
            return error(400, "BadRequestError", f"1 validation error: {problem}")
        if self.dead.is_set():
            return self._engine_dead()
        works = self._works(request, asked)
        if asked.stream:
            return Reply(kind="text/event-stream; charset=utf-8", events=self._stream(request, body, asked, works))
        return self._whole(request, body, asked, works)

    def _works(self, request: Request, asked: Asked) -> list[Work]:
        outer = f"{'chatcmpl' if asked.chat else 'cmpl'}-{request.headers.get('x-request-id') or uuid.uuid4().hex[:16]}"
        has_suffix = self.config.cpu or self.config.version >= "0.14" or self.config.version.startswith("1")
        made: list[Work] = []
        for place, prompt in enumerate(asked.prompts):
            internal = outer if asked.chat else f"{outer}-{place}"
            internal += f"-{uuid.uuid4().hex[:8]}" if has_suffix else ""
            for number in range(asked.choices):
                name = internal if asked.choices == 1 else f"{number}_{internal}"
                count, limit = asked.counts[place], asked.limits[place]
                made.append(Work(outer, name, len(made), prompt, count, limit, asked))
        return made

    def _engine_dead(self) -> Reply:
        return error(500, "InternalServerError", DEAD)

    def _generate(self, request: Request, work: Work) -> Iterator[str]:
        """Yield the tokens of one choice. Raises `Gone`, `PullFailed`, `EngineDead`."""
        metrics = self.metrics
        reason = "abort"
        self._await_slot(request, work)
        metrics.enter("running")
        self.step(busy=True)
        metrics.observe("request_queue_time_seconds", time.monotonic() - work.began)
        try:
            with self.kv.running(work.internal, work.prompt, work.tokens):
                right = self._prefill(request, work)
                yield from self._decode(request, work, right=right)
                reason = work.reason
                if work.asked.kv_params and work.asked.kv_params.get("do_remote_decode"):
                    work.handed_out = self.kv.hand_out(work.internal, work.tokens, work.produced, reason)
        except (PullFailed, EngineDead):
            reason = "error"
            raise
        except Gone:
            if not self.config.cpu:
                self.log.info("async_llm.py:431", f"Request {work.internal} aborted.")
            raise
        finally:
            metrics.leave("running")
            if not metrics.running:
                self.step(busy=False)
            self._slots.release()
            self._account(work, reason)

    def _await_slot(self, request: Request, work: Work) -> None:
        """Wait for a place in the batch and for blocks. Raises `Gone`, `EngineDead`."""
        if self._slots.acquire(blocking=False):
            if self.kv.room(work.tokens):
                return
            self._slots.release()
        self.metrics.enter("waiting")
        heard = time.monotonic()
        try:
            while True:
                if self._slots.acquire(timeout=0.1):
                    with contextlib.ExitStack() as stack:
                        stack.callback(self._slots.release)
                        self._alive(request)
                        if self.kv.room(work.tokens):
                            stack.pop_all()
                            return
                    self._wait(0.05)
                self._alive(request)
                if time.monotonic() - heard > self.config.lease / 6:
                    heard = time.monotonic()
                    self.kv.heartbeat(work.asked.kv_params)
        finally:
            self.metrics.leave("waiting")

    def _prefill(self, request: Request, work: Work) -> bool:
        """Compute or fetch the prompt's KV; False when what was fetched is somebody else's."""
        try:
            source, right = self.kv.pull(
                work.internal, work.asked.kv_params, work.prompt, work.tokens, request.check
            )
        except EngineKilled as killed:
            self.kill_engine(str(killed))
            self.dead.wait(10)
            raise EngineDead from None
        work.source = source
        self.metrics.prompt(source, work.tokens)
        self._wait(0.004 if source == "external_kv_transfer" else 0.01 + work.tokens * PREFILL_SECONDS)
        return right

    def _decode(self, request: Request, work: Work, *, right: bool) -> Iterator[str]:
        asked = work.asked
        prompt = work.prompt if right else words.spoiled(work.prompt, work.internal)
        prompt += f"\0{work.index}" if asked.choices > 1 else ""
        sentences = None if asked.ignore_end else words.natural_length(prompt)
        tokens = words.answer(prompt, work.limit, sentences=sentences)
        if len(tokens) < asked.least:
            tokens = words.answer(prompt, min(asked.least, work.limit))
        last = 0.0
        for token in tokens:
            self._stall(request)
            self._wait(TOKEN_SECONDS)
            self._alive(request)
            now = time.monotonic()
            if not last:
                self.metrics.observe("time_to_first_token_seconds", now - work.began)
                self.metrics.observe("request_prefill_time_seconds", now - work.began)
            else:
                self.metrics.observe("inter_token_latency_seconds", now - last)
            last = now
            work.produced += 1
            self.kv.grow(work.internal, work.prompt, work.tokens + work.produced - 1)
            self.metrics.add("generation_tokens")
            local = work.produced == 1 and work.source == "local_compute"
            self.metrics.observe("iteration_tokens_total", work.tokens + 1 if local else 1)
            shown = self._until_stop(work, token)
            if work.stop is not None:
                work.reason = "stop"
                yield shown
                return
            yield shown
        work.reason = "length" if work.produced >= work.limit else "stop"

    def _until_stop(self, work: Work, token: str) -> str:
        """Return what of a token is shown: up to a string at which the client wants the end."""
        before, work.text = work.text, work.text + token
        for stop in work.asked.stop:
            place = work.text.find(stop) if stop else -1
            if place >= 0:
                work.stop = stop
                work.text = work.text[: place + len(stop) * work.asked.keep_stop]
                return work.text[len(before) :]
        return token

    def _alive(self, request: Request) -> None:
        """Raise `Gone` or `EngineDead` where there is nothing more to make."""
        while self.leaving.is_set():
            request.check()
            self._wait(0.1)
        request.check()
        if self.dead.is_set():
            raise EngineDead

    def _stall(self, request: Request) -> None:
        while fault(self.config.node, "stall", self.config.rank, self.config.port):
            self._wait(0.1)
            self._alive(request)

    def _wait(self, seconds: float) -> None:
        self._never.wait(seconds)

    def _account(self, work: Work, reason: str) -> None:
        metrics, took = self.metrics, time.monotonic() - work.began
        if reason == "abort" and self.config.cpu:
            return  # 0.32 counts no request whose client left.
        metrics.finished(reason or "abort")
        metrics.observe("request_prompt_tokens", work.tokens)
        metrics.observe("request_generation_tokens", work.produced)
        metrics.observe("request_params_max_tokens", work.limit)
        metrics.observe("e2e_request_latency_seconds", took)
        metrics.observe("request_inference_time_seconds", took)
        metrics.observe("request_params_n", work.asked.choices)
        metrics.observe("request_max_num_generation_tokens", work.produced)
        metrics.observe("request_num_preemptions", 0)
        metrics.observe("request_prefill_kv_computed_tokens", work.tokens)
        if work.produced > 1:
            metrics.observe("request_decode_time_seconds", took)
            metrics.observe("request_time_per_output_token_seconds", took / work.produced)

    # -- answers --

    def _whole(self, request: Request, body: dict[str, Any], asked: Asked, works: list[Work]) -> Reply:
        choices: list[dict[str, Any]] = []
        try:
            for work in works:
                tokens = list(self._generate(request, work))
                text = (work.prompt if asked.echo else "") + "".join(tokens)
                if asked.echo and body.get("max_tokens") == 0:
                    text = work.prompt
                choices.append(
                    shapes.choice(
                        work.index, text, self._logprobs(asked, tokens, 0), work.reason, work.stop, chat=asked.chat
                    )
                )
        except PullFailed:
            self._failed(works[0])
            return error(500, "InternalServerError", "Internal server error")
        except EngineDead:
            return self._engine_dead()
        kind = "chat.completion" if asked.chat else "text_completion"
        made = sum(work.produced for work in works)
        cached = works[0].cached if self._details else None
        usage = shapes.usage(sum(asked.counts), made, cached, chat=asked.chat)
        # Of several choices of a prompt the last one's, of several prompts the first one's.
        params = works[asked.choices - 1].handed_out
        start = shapes.head(body, works[0].id, kind, self.config)
        return as_json(shapes.whole(start, choices, usage, params, self._fingerprint, chat=asked.chat))

    def _failed(self, work: Work) -> None:
        self.log.error("serving.py:203", f"Request {work.id} failed with an internal error during generation")

    def _logprobs(self, asked: Asked, tokens: list[str], offset: int) -> dict[str, Any] | None:
        if asked.logprobs is None:
            return None
        return shapes.logprobs(tokens, asked.logprobs, offset, chat=asked.chat)

    def _stream(self, request: Request, body: dict[str, Any], asked: Asked, works: list[Work]) -> Iterator[bytes]:
        """Yield SSE events; the head is on its way before the first token, so a failure is an event, as in vLLM."""
        kind = "chat.completion.chunk" if asked.chat else "text_completion"
        start = shapes.head(body, works[0].id, kind, self.config)
        settings = {"system_fingerprint": self._fingerprint}
        try:
            for work in works:
                yield from self._stream_one(request, start, work)
            if asked.usage:
                cached = works[0].cached if self._details else None
                made = sum(work.produced for work in works)
                usage = shapes.stream_usage(sum(asked.counts), made, cached, chat=asked.chat)
                yield shapes.event({**start, "choices": [], "usage": usage, **settings})
        except PullFailed:
            self._failed(works[0])
            yield _error_event("Internal server error")
        except EngineDead:
            yield _error_event(DEAD)
        yield b"data: [DONE]\n\n"

    def _stream_one(self, request: Request, start: dict[str, Any], work: Work) -> Iterator[bytes]:
        asked = work.asked
        offset = 0
        held: list[str] | None = None
        for token in self._generate(request, work):
            if held is None:
                if asked.chat:
                    nothing = {"prompt_token_ids": None, "prompt_text": None}
                    yield shapes.event({**start, "choices": [shapes.first_delta(work.index)], **nothing})
            else:
                yield self._event(start, work, held, offset, None)
                offset += len(held[0])
            held = [token]
        yield self._event(start, work, held or [""], offset, work.reason)

    def _event(
        self, start: dict[str, Any], work: Work, tokens: list[str], offset: int, reason: str | None
    ) -> bytes:
        asked = work.asked
        text, prompt_ids = tokens[0], None
        if asked.echo and not offset:
            text, prompt_ids = work.prompt + text, list(range(work.tokens))
        logprobs = self._logprobs(asked, tokens, offset)
        stop = work.stop if reason is not None else None
        piece = shapes.piece(work.index, text, logprobs, reason, stop, prompt_ids, chat=asked.chat)
        value: dict[str, Any] = {**start, "choices": [piece]}
        if reason is not None and not asked.usage:
            value["system_fingerprint"] = self._fingerprint
        if asked.usage_always:
            made = work.produced - (reason is None)
            value["usage"] = shapes.stream_usage(work.tokens, made)
        return shapes.event(value)


def _error_event(message: str) -> bytes:
    body = {"error": error_body(500, "InternalServerError", message)}
    return b"data: " + json.dumps(body).encode() + b"\n\n"
