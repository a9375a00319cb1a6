"""Completions and chat completions of one rank, streamed or not, with vLLM's shapes and refusals."""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import words
from .config import Config
from .kv import EngineKilled, PullFailed, Store
from .log import Log
from .metrics import Metrics
from .process import fault
from .server import Gone, Reply, Request, as_json

TOKEN_SECONDS = 0.005
PREFILL_SECONDS = 0.00002
"""For each token of the prompt, computed here."""


def error(status: int, kind: str, message: str, param: str | None = None) -> Reply:
    """Return an error in the shape of the OpenAI API."""
    return as_json({"error": error_body(status, kind, message, param)}, status)


def error_body(status: int, kind: str, message: str, param: str | None = None) -> dict[str, Any]:
    """Return the inner part of an error."""
    return {"message": message, "type": kind, "param": param, "code": status}


class EngineDead(Exception):
    """The engine is gone; every request ends with status 500."""


@dataclass(slots=True)
class Work:
    """One request on its way through the engine."""

    id: str
    """`cmpl-...` or `chatcmpl-...`, as the client sees it."""
    internal: str
    prompt: str
    tokens: int
    limit: int
    least: int
    ignore_end: bool
    kv_params: Any
    began: float = field(default_factory=time.monotonic)
    produced: int = 0
    reason: str = ""
    handed_out: dict[str, Any] | None = None


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
        self._slots = threading.Semaphore(config.max_num_seqs)
        self._never = threading.Event()

    def handle(self, request: Request, *, chat: bool) -> Reply:
        """Answer one request."""
        try:
            body = json.loads(request.body)
            if not isinstance(body, dict):
                raise TypeError("not an object")
        except (ValueError, TypeError) as problem:
            return error(
                400, "BadRequestError", f"[{{'type': 'json_invalid', 'msg': 'JSON decode error: {problem}'}}]"
            )
        if self.dead.is_set():
            return self._engine_dead()
        model = body.get("model")
        if model and model not in self.config.served:
            return error(404, "NotFoundError", f"The model `{model}` does not exist.", "model")
        made = self._work(request, body, chat=chat)
        if isinstance(made, Reply):
            return made
        if body.get("stream"):
            events = self._stream(request, body, made, chat=chat)
            return Reply(kind="text/event-stream; charset=utf-8", events=events)
        return self._whole(request, body, made, chat=chat)

    def _work(self, request: Request, body: dict[str, Any], *, chat: bool) -> list[Work] | Reply:
        base = request.headers.get("x-request-id") or uuid.uuid4().hex
        prompts: list[Any]
        if chat:
            try:
                prompts = [words.chat_text(body["messages"])]
            except (KeyError, TypeError, AttributeError):
                return error(
                    400, "BadRequestError", "messages: Input should be a valid list of messages", "messages"
                )
        else:
            prompt = body.get("prompt")
            if prompt is None or prompt in ("", []):
                return error(
                    400, "BadRequestError", "Either prompt or prompt_embeds must be provided and non-empty."
                )
            several = isinstance(prompt, list) and not isinstance(prompt[0], int)
            prompts = list(prompt) if several else [prompt]
        made: list[Work] = []
        for index, prompt in enumerate(prompts):
            tokens = words.count(prompt)
            limit = self._limit(body, tokens, chat=chat)
            if isinstance(limit, Reply):
                return limit
            outer = f"chatcmpl-{base}" if chat else f"cmpl-{base}"
            internal = outer if chat else f"{outer}-{index}"
            if self.config.version >= "0.14" or self.config.version.startswith("1"):
                internal += f"-{uuid.uuid4().hex[:8]}"
            made.append(
                Work(
                    outer,
                    internal,
                    prompt if isinstance(prompt, str) else f"tokens {prompt}",
                    tokens,
                    limit,
                    int(body.get("min_tokens") or 0),
                    bool(body.get("ignore_eos")),
                    body.get("kv_transfer_params"),
                )
            )
        return made

    def _limit(self, body: dict[str, Any], tokens: int, *, chat: bool) -> int | Reply:
        """Return the number of tokens to make; completions know `max_tokens` only, as vLLM's do."""
        longest = self.config.max_model_len
        asked = body.get("max_tokens")
        if chat:
            asked = body.get("max_completion_tokens", asked)
        if tokens >= longest:
            return error(
                400,
                "BadRequestError",
                f"This model's maximum context length is {longest} tokens. However, your request has {tokens} input "
                "tokens. Please reduce the length of the input messages.",
                "input_tokens",
            )
        if asked is None:
            return longest - tokens if chat else min(16, longest - tokens)
        if not isinstance(asked, int) or isinstance(asked, bool) or asked < 1:
            return error(400, "BadRequestError", f"max_tokens must be at least 1, got {asked}.", "max_tokens")
        if tokens + asked > longest:
            return error(
                400,
                "BadRequestError",
                f"'max_tokens' or 'max_completion_tokens' is too large: {asked}. This model's maximum context length is "
                f"{longest} tokens and your request has {tokens} input tokens ({asked} > {longest} - {tokens}).",
                "max_tokens",
            )
        return asked

    def _engine_dead(self) -> Reply:
        return error(
            500,
            "InternalServerError",
            "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        )

    def _generate(self, request: Request, work: Work) -> Iterator[str]:
        """Yield the tokens of one request. Raises `Gone`, `PullFailed`, `EngineDead`."""
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
                wants_pull = isinstance(work.kv_params, dict) and work.kv_params.get("do_remote_decode")
                if wants_pull:
                    work.handed_out = self.kv.hand_out(work.internal, work.tokens, work.produced, reason)
        except (PullFailed, EngineDead):
            reason = "error"
            raise
        except Gone:
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
                    if self.kv.room(work.tokens):
                        return
                    self._slots.release()
                    self._wait(0.05)
                request.check()
                if self.dead.is_set():
                    raise EngineDead
                if time.monotonic() - heard > self.config.lease / 6:
                    heard = time.monotonic()
                    self.kv.heartbeat(work.kv_params)
        finally:
            self.metrics.leave("waiting")

    def _prefill(self, request: Request, work: Work) -> bool:
        """Compute or fetch the prompt's KV; False when what was fetched is somebody else's."""
        try:
            source, right = self.kv.pull(work.internal, work.kv_params, work.prompt, work.tokens, request.check)
        except EngineKilled as killed:
            self.kill_engine(str(killed))
            self.dead.wait(10)
            raise EngineDead from None
        self.metrics.prompt(source, work.tokens)
        self._wait(0.004 if source == "external_kv_transfer" else 0.01 + work.tokens * PREFILL_SECONDS)
        return right

    def _decode(self, request: Request, work: Work, *, right: bool) -> Iterator[str]:
        prompt = work.prompt if right else words.spoiled(work.prompt, work.internal)
        sentences = None if work.ignore_end else words.natural_length(prompt)
        tokens = words.answer(prompt, work.limit, sentences=sentences)
        if len(tokens) < work.least:
            tokens = words.answer(prompt, min(work.least, work.limit))
        last = 0.0
        for token in tokens:
            self._stall(request)
            self._wait(TOKEN_SECONDS)
            request.check()
            if self.dead.is_set():
                raise EngineDead
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
            yield token
        work.reason = "length" if work.produced >= work.limit else "stop"

    def _stall(self, request: Request) -> None:
        while fault(self.config.node, "stall", self.config.rank, self.config.port):
            self._wait(0.1)
            request.check()
            if self.dead.is_set():
                raise EngineDead

    def _wait(self, seconds: float) -> None:
        self._never.wait(seconds)

    def _account(self, work: Work, reason: str) -> None:
        metrics, took = self.metrics, time.monotonic() - work.began
        metrics.finished(reason or "abort")
        metrics.observe("request_prompt_tokens", work.tokens)
        metrics.observe("request_generation_tokens", work.produced)
        metrics.observe("request_params_max_tokens", work.limit)
        metrics.observe("e2e_request_latency_seconds", took)
        metrics.observe("request_inference_time_seconds", took)
        if work.produced > 1:
            metrics.observe("request_decode_time_seconds", took)

    # -- shapes of answers --

    def _whole(self, request: Request, body: dict[str, Any], works: list[Work], *, chat: bool) -> Reply:
        choices: list[dict[str, Any]] = []
        try:
            for index, work in enumerate(works):
                text = "".join(self._generate(request, work))
                choices.append(self._choice(index, text, work, chat=chat))
        except PullFailed as problem:
            return error(500, "InternalServerError", f"KV load failure: {problem}")
        except EngineDead:
            return self._engine_dead()
        answer = self._head(body, works[0], "chat.completion" if chat else "text_completion")
        answer |= {
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": None,
            "usage": self._usage(works),
            "kv_transfer_params": works[0].handed_out,
        }
        return as_json(answer)

    def _choice(self, index: int, text: str, work: Work, *, chat: bool) -> dict[str, Any]:
        end = {"logprobs": None, "finish_reason": work.reason, "stop_reason": None, "token_ids": None}
        if not chat:
            return {"index": index, "text": text, **end, "prompt_logprobs": None, "prompt_token_ids": None}
        message: dict[str, Any] = {
            "role": "assistant",
            "content": text,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "tool_calls": [],
            "reasoning": None,
        }
        return {"index": index, "message": message, **end}

    def _head(self, body: dict[str, Any], work: Work, kind: str) -> dict[str, Any]:
        model = body.get("model") or self.config.served[0]
        return {"id": work.id, "object": kind, "created": int(time.time()), "model": model}

    def _usage(self, works: list[Work]) -> dict[str, Any]:
        prompt = sum(work.tokens for work in works)
        made = sum(work.produced for work in works)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + made,
            "completion_tokens": made,
            "prompt_tokens_details": None,
        }

    def _stream(self, request: Request, body: dict[str, Any], works: list[Work], *, chat: bool) -> Iterator[bytes]:
        """Yield SSE events; the head is on its way before the first token, so a failure is an event, as in vLLM."""
        options = body.get("stream_options") or {}
        head = self._head(body, works[0], "chat.completion.chunk" if chat else "text_completion")
        try:
            for index, work in enumerate(works):
                yield from self._stream_one(request, head, index, work, chat=chat)
            if options.get("include_usage"):
                yield _event({**head, "choices": [], "usage": self._usage(works)})
        except PullFailed as problem:
            yield _event({"error": error_body(500, "InternalServerError", f"KV load failure: {problem}")})
        except EngineDead:
            message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            yield _event({"error": error_body(500, "InternalServerError", message)})
        yield b"data: [DONE]\n\n"

    def _stream_one(
        self, request: Request, head: dict[str, Any], index: int, work: Work, *, chat: bool
    ) -> Iterator[bytes]:
        first = True
        held: str | None = None
        for token in self._generate(request, work):
            if first and chat:
                delta: dict[str, Any] = {"role": "assistant", "content": ""}
                yield _event({**head, "choices": [_delta(index, delta, None)]})
            first = False
            if held is not None:
                yield _event({**head, "choices": [self._piece(index, held, None, chat=chat)]})
            held = token
        yield _event({**head, "choices": [self._piece(index, held or "", work.reason, chat=chat)]})

    def _piece(self, index: int, text: str, reason: str | None, *, chat: bool) -> dict[str, Any]:
        if chat:
            return _delta(index, {"content": text}, reason)
        return {"index": index, "text": text, "logprobs": None, "finish_reason": reason, "stop_reason": None}


def _delta(index: int, delta: dict[str, Any], reason: str | None) -> dict[str, Any]:
    piece = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
    return piece if reason is None else {**piece, "stop_reason": None}


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
