"""The requests of the contract: what is asked of a plain server, one by one, as data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MODEL = "tiny"
LONGEST = 2048
"""--max-model-len."""
TOKENS = [5, 9, 13, 21, 34, 55, 89, 144, 233, 377]
"""A prompt whose length every tokenizer agrees about."""
MESSAGES = [{"role": "user", "content": "Who are you?"}]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    name: str
    method: str
    path: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    only_status: bool = False
    """Whether the body is left out of the comparison: a page for people, or a schema."""

    def _body(self) -> Mapping[str, Any]:
        try:
            value = json.loads(self.body or b"")
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def counted(self) -> list[str]:
        """Counts of the answer's usage about which every tokenizer agrees."""
        prompt = self._body().get("prompt")
        ids = isinstance(prompt, list) and all(isinstance(item, int | list) for item in prompt)
        whole = "stop" not in self._body()
        return [*(["prompt_tokens"] if ids else []), *(["completion_tokens"] if whole else [])]

    @property
    def mixed(self) -> bool:
        """Whether there are several choices, whose events come in any order."""
        body = self._body()
        prompt = body.get("prompt")
        return body.get("n", 1) != 1 or (
            isinstance(prompt, list) and any(isinstance(item, list) for item in prompt)
        )


def _post(name: str, path: str, body: Any, **headers: str) -> Ask:
    sent = {"Content-Type": "application/json", **{key.replace("_", "-"): value for key, value in headers.items()}}
    return Ask(name, "POST", path, body if isinstance(body, bytes) else json.dumps(body).encode(), sent)


def completion(name: str, body: Mapping[str, Any] | None = None, **headers: str) -> Ask:
    """Return a completion request: a short prompt, four tokens, unless `body` says otherwise; None drops a key."""
    whole = {
        "model": MODEL,
        "prompt": TOKENS,
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
        **(body or {}),
    }
    kept = {key: value for key, value in whole.items() if value is not None}
    return _post(f"completions: {name}", "/v1/completions", kept, **headers)


def chat(name: str, body: Mapping[str, Any] | None = None) -> Ask:
    """Return a chat request, likewise."""
    whole = {
        "model": MODEL,
        "messages": MESSAGES,
        "max_tokens": 4,
        "temperature": 0,
        "ignore_eos": True,
        **(body or {}),
    }
    kept = {key: value for key, value in whole.items() if value is not None}
    return _post(f"chat: {name}", "/v1/chat/completions", kept)


STREAM = {"stream": True}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}

PLAIN: tuple[Ask, ...] = (
    Ask("health", "GET", "/health"),
    Ask("ping", "GET", "/ping"),
    Ask("ping, POST", "POST", "/ping"),
    Ask("version", "GET", "/version"),
    Ask("models", "GET", "/v1/models"),
    Ask("one model", "GET", f"/v1/models/{MODEL}"),
    Ask("load", "GET", "/load"),
    Ask("metrics", "GET", "/metrics", only_status=True),
    Ask("docs", "GET", "/docs", only_status=True),
    Ask("openapi", "GET", "/openapi.json", only_status=True),
    Ask("root", "GET", "/"),
    Ask("unknown path", "GET", "/nothing/here"),
    Ask("unknown path, POST", "POST", "/v1/nothing", b"{}"),
    Ask("health, wrong method", "PUT", "/health"),
    Ask("health, HEAD", "HEAD", "/health"),
    Ask("completions, wrong method", "GET", "/v1/completions"),
    Ask("chat, wrong method", "GET", "/v1/chat/completions"),
    Ask("models, wrong method", "POST", "/v1/models", b"{}"),
    completion("token ids"),
    completion("text", {"prompt": "Who are you?"}),
    completion("with a request id", {}, X_Request_Id="seen-by-proxy"),
    completion("no model named", {"model": None}),
    completion("unknown model", {"model": "nobody"}),
    completion("unknown model, stream", {"model": "nobody", **STREAM}),
    completion("max_tokens left out", {"max_tokens": None}),
    completion("max_completion_tokens alone", {"max_tokens": None, "max_completion_tokens": 7}),
    completion("max_tokens 0", {"max_tokens": 0}),
    completion("max_tokens negative", {"max_tokens": -1}),
    completion("max_tokens text", {"max_tokens": "many"}),
    completion("max_tokens beyond the context", {"max_tokens": 5000}),
    completion("min_tokens above max_tokens", {"min_tokens": 9}),
    completion("prompt too long", {"prompt": [7] * 3000}),
    completion("prompt as long as the context", {"prompt": [7] * LONGEST, "max_tokens": 1}),
    completion("prompt too long, stream", {"prompt": [7] * 3000, **STREAM}),
    completion("no prompt", {"prompt": None}),
    completion("empty prompt", {"prompt": ""}),
    completion("empty list of prompts", {"prompt": []}),
    completion("prompt of a wrong type", {"prompt": {"a": 1}}),
    completion("token beyond the vocabulary", {"prompt": [5, 99999999]}),
    completion("two prompts", {"prompt": [TOKENS, TOKENS[:4]]}),
    completion("n=2", {"n": 2, "temperature": 1.0}),
    completion("n=2, greedy", {"n": 2}),
    completion("n=0", {"n": 0}),
    completion("echo", {"echo": True}),
    completion("echo alone", {"echo": True, "max_tokens": 0}),
    completion("logprobs", {"logprobs": 2}),
    completion("too many logprobs", {"logprobs": 99}),
    completion("negative logprobs", {"logprobs": -5}),
    completion("temperature negative", {"temperature": -1}),
    completion("top_p too high", {"top_p": 2}),
    completion("a field that nobody knows", {"no_such_field": 1}),
    completion("stream_options without stream", {"stream_options": {"include_usage": True}}),
    completion("kv_transfer_params where no connector is", {"kv_transfer_params": {"do_remote_decode": True}}),
    completion("stream", STREAM),
    completion("stream with usage", USAGE),
    completion("stream with usage in each event",
               {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    completion("stream with a request id", STREAM, X_Request_Id="seen-by-proxy"),
    completion("stream of one token", {**STREAM, "max_tokens": 1}),
    completion("stream of two prompts", {**USAGE, "prompt": [TOKENS, TOKENS[:4]]}),
    completion("stream with echo", {**STREAM, "echo": True}),
    completion("stream with logprobs", {**STREAM, "logprobs": 1}),
    _post("completions: bad JSON", "/v1/completions", b'{"model": "tiny", '),
    _post("completions: a list", "/v1/completions", b"[1]"),
    _post("completions: no body", "/v1/completions", b""),
    Ask("completions: not called JSON", "POST", "/v1/completions", b"{}", {"Content-Type": "text/plain"}),
    chat("plain"),
    chat("max_completion_tokens", {"max_tokens": None, "max_completion_tokens": 7}),
    chat("max_completion_tokens beside max_tokens", {"max_completion_tokens": 7}),
    chat("max_tokens 0", {"max_tokens": 0}),
    chat("max_tokens negative", {"max_tokens": -1}),
    chat("max_tokens beyond the context", {"max_tokens": 5000}),
    chat("unknown model", {"model": "nobody"}),
    chat("no messages", {"messages": None}),
    chat("empty messages", {"messages": []}),
    chat("messages of a wrong type", {"messages": "Who are you?"}),
    chat("message without a role", {"messages": [{"content": "x"}]}),
    chat("n=2", {"n": 2, "temperature": 1.0}),
    chat("logprobs", {"logprobs": True, "top_logprobs": 2}),
    chat("stream", STREAM),
    chat("stream with usage", USAGE),
    chat("stream with logprobs", {**STREAM, "logprobs": True}),
    chat("stream of two choices", {**STREAM, "n": 2, "temperature": 1.0}),
    chat("tools without a parser",
         {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "tool_choice": "auto"}),
    _post("tokenize", "/tokenize", {"model": MODEL, "prompt": "Who are you?"}),
    _post("tokenize messages", "/tokenize", {"model": MODEL, "messages": MESSAGES}),
    _post("tokenize nothing", "/tokenize", {"model": MODEL}),
    _post("tokenize, unknown model", "/tokenize", {"model": "nobody", "prompt": "x"}),
    _post("detokenize", "/detokenize", {"model": MODEL, "tokens": TOKENS}),
    _post("detokenize nothing", "/detokenize", {"model": MODEL}),
    _post("embeddings of a model that makes none", "/v1/embeddings", {"model": MODEL, "input": "x"}),
)  # fmt: skip
