"""What of an observation is the contract: ids, times, words and numbers that are no one's business replaced."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_TEXTS = frozenset({"text", "content", "token", "prompt", "tokens_str"})
_HEX_ID = re.compile(r"(?<![a-z])(\d_)?((?:chat)?cmpl)-[0-9a-f]{16,32}\b")
_INTERNAL = re.compile(r"(?<![a-z])((?:chat)?cmpl-[\w<>-]+?)(-\d+)?-[0-9a-f]{8}\b")
_IGNORED_HEADERS = frozenset({"date", "content-length"})


def answer(seen: Mapping[str, Any]) -> dict[str, Any]:
    """Return an HTTP answer as far as it is the contract."""
    headers = sorted(f"{k.lower()}: {v}" for k, v in seen["headers"] if k.lower() not in _IGNORED_HEADERS)
    body = str(seen["body"])
    return {"status": seen["status"], "headers": headers, "body": _body(body, seen)}


def _body(text: str, seen: Mapping[str, Any]) -> Any:
    counted = frozenset(seen["counted"])
    if text.startswith("data: "):
        return events(text, counted=counted, mixed=bool(seen.get("mixed")))
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return plain(value, counted=counted)


def events(text: str, *, counted: frozenset[str], mixed: bool) -> list[str]:
    """Return the events of a stream, each kind once; `mixed`: several choices, whose order is nobody's promise.

    How many tokens an event carries is chance.
    """
    kinds: list[str] = []
    *parts, rest = text.split("\n\n")
    for part in [*parts, *([f"unfinished: {rest}"] if rest else [])]:
        kind = part
        if part.startswith("data: {"):
            value = plain(json.loads(part[6:]), counted=counted)
            for choice in value.get("choices", ()):
                if "logprobs" in choice:
                    choice["logprobs"] = _once(choice["logprobs"])
                if "usage" in value:
                    value["usage"]["completion_tokens"] = "<so far>"
            kind = "data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        if kind not in kinds:
            kinds.append(kind)
    return sorted(kinds) if mixed else kinds


def merged(real: Any, found: Any) -> bool:
    """Say whether two streams differ only in events of text between the first and the last, of which one has none.

    A server whose client reads late puts all tokens that have come meanwhile into one event, be it the last.
    """
    if not (isinstance(real, list) and isinstance(found, list)):
        return False
    return found == [event for event in real if event in found or not _may_merge(event)]


def _may_merge(event: Any) -> bool:
    if not (isinstance(event, str) and event.startswith("data: {")):
        return False
    choices = json.loads(event[6:]).get("choices") or ()
    return bool(choices) and all(
        choice.get("finish_reason", "") is None
        and "<text>" in (choice.get("text"), choice.get("delta", {}).get("content"))
        and "role" not in choice.get("delta", {})
        for choice in choices
    )


def _once(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _once(item) for key, item in value.items()}
    return value[:1] if isinstance(value, list) else value


def plain(value: Any, *, counted: frozenset[str], key: str = "") -> Any:
    """Return JSON with what differs from run to run, or from tokenizer to tokenizer, replaced.

    `counted`: keys of `usage` about which every tokenizer agrees.
    """
    if isinstance(value, dict):
        if key == "kv_transfer_params":
            return parameters(value)
        if key in ("top_logprobs", "top"):
            return "<alternatives>"
        made = {name: plain(item, counted=counted, key=name) for name, item in value.items()}
        return _usage(made, value, counted=counted) if "completion_tokens" in value else _role(made, value)
    if isinstance(value, list):
        if key in ("tokens", "text_offset", "bytes", "prompt_token_ids"):
            return f"<{key}>"
        items = [plain(item, counted=counted, key=key) for item in value]
        return (
            [*items[:1], f"{len(items)} of them"] if len(items) > 2 and len(set(map(str, items))) == 1 else items
        )
    if isinstance(value, str):
        return "<text>" if key in _TEXTS else words(value)
    if isinstance(value, float) or key in ("created", "count"):
        return f"<{key or 'float'}>"
    return value


def _role(made: dict[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    """The first event of a chat has an empty text, which says that it is the first."""
    return {**made, "content": ""} if value.get("role") and value.get("content") == "" else made


def _usage(made: dict[str, Any], value: Mapping[str, Any], *, counted: frozenset[str]) -> dict[str, Any]:
    for name in ("prompt_tokens", "completion_tokens"):
        if name not in counted:
            made[name] = f"<{name}>"
    if value.get("total_tokens") == value.get("prompt_tokens", 0) + value.get("completion_tokens", 0):
        made["total_tokens"] = "<sum>"
    return made


def words(text: str) -> str:
    """Return a message without ids, pids, addresses of objects and places of this machine."""
    text = _HEX_ID.sub(lambda found: f"{'<choice>_' if found[1] else ''}{found[2]}-<id>", text)
    text = _INTERNAL.sub(r"\1\2-<suffix>", text)
    text = re.sub(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<uuid>", text)
    text = re.sub(r"exit code: [-\w]+", "exit code: <n>", text)
    text = re.sub(r"\bpid[ =]\d+", "pid <n>", text)
    text = re.sub(r"\bmodelperm-[0-9a-f]+", "modelperm-<id>", text)
    text = re.sub(r"^(vllm-[\d.]+)-[0-9a-f]{8}$", r"\1-<settings>", text)
    text = re.sub(r"(errors\.pydantic\.dev)/[\d.]+/", r"\1/<version>/", text)
    text = re.sub(r"input_value=.*?, input_type", "input_value=<value>, input_type", text)
    text = re.sub(r"(Must be one of) \[.*?\]", r"\1 <list>", text)
    text = re.sub(r"(?<!\w)/[\w./<>-]*/(?:models/dense|tiny-qwen2(?!-moe))", "<dense model>", text)
    text = re.sub(r"(?<!\w)/[\w./<>-]*/(?:models/moe|tiny-qwen2-moe)", "<moe model>", text)
    return re.sub(r"(127\.0\.0\.1:)\d{4,5}", r"\1<port>", text)


def parameters(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return KV parameters by key, with the shape of each value."""
    return {name: _shape(name, item) for name, item in value.items()}


def _shape(name: str, value: Any) -> Any:
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, list):
        return [_shape(name, item) for item in value[:1]]
    if isinstance(value, int | float):
        return f"<{type(value).__name__}>"
    if name in ("remote_host", "transfer_mode"):
        return value
    return words(str(value))
