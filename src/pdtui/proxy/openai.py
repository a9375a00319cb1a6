"""Shapes of the OpenAI API as vLLM speaks it: requests, answers and errors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pdtui.proxy.errors import BadRequest, UpstreamLost
from pdtui.proxy.sse import DONE, Event, encode
from pdtui.text import clean_line

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"

_HOP_BY_HOP = frozenset({
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
_OWN = frozenset({"host", "content-length", "content-type", "accept-encoding", "expect", "x-request-id", "cookie"})
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_KINDS = {
    400: "BadRequestError", 401: "AuthenticationError", 404: "NotFoundError", 405: "MethodNotAllowed",
    413: "RequestEntityTooLarge", 501: "NotImplementedError", 502: "BadGateway", 503: "ServiceUnavailableError",
    504: "GatewayTimeout",
}  # fmt: skip


def json_object(text: bytes | str) -> dict[str, Any] | None:
    """Return a JSON object, None for anything else, however deep or broken."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def completion_of(raw: bytes, rank: str, what: str) -> dict[str, Any]:
    """Return what a rank answered to `what` (a request, or its prefill); raises `UpstreamLost`."""
    value = json_object(raw)
    if value is None:
        raise UpstreamLost(f"{rank} answered {what} with something that is no JSON object")
    failure = error_of(value)
    if failure is not None:
        raise UpstreamLost(f"{rank} answered {what} with an error: {clean_line(failure[0])}")
    return value


def parse_body(raw: bytes) -> dict[str, Any]:
    """Return a request's JSON object; raises `BadRequest`."""
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    return body


def dump(value: Any) -> bytes:
    """Return JSON in ASCII, which carries every string that a client can send, lone surrogates too."""
    return json.dumps(value, separators=(",", ":")).encode()


def request_id(given: str | None) -> str | None:
    """Return a client's X-Request-Id if it can be handed on as it is."""
    return given if given and _ID.fullmatch(given) else None


def forward_headers(client: Mapping[str, str], rid: str) -> dict[str, str]:
    """Return the headers for both legs: the client's without hop-by-hop ones (RFC 9110, 7.6.1), and the id."""
    dropped = set(_HOP_BY_HOP | _OWN)
    for name, value in client.items():
        if name.lower() == "connection":
            dropped |= {token.strip().lower() for token in value.split(",")}
    headers = {name: value for name, value in client.items() if name.lower() not in dropped}
    return headers | {"Content-Type": "application/json", "Accept-Encoding": "identity", "X-Request-Id": rid}


def error_body(message: str, status: int) -> bytes:
    """Return an error as OpenAI's clients read it."""
    return dump(error_object(message, status))


def error_object(message: str, status: int) -> dict[str, Any]:
    """Return `{"error": {message, type, param, code}}`."""
    kind = _KINDS.get(status, "InternalServerError" if status >= 500 else "BadRequestError")
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def error_event(message: str, status: int) -> bytes:
    """Return the end of a stream that failed after its head was sent: an error event, then the usual end."""
    return encode(error_body(message, status).decode()) + encode(DONE)


def event_object(event: Event) -> dict[str, Any] | None:
    """Return the JSON object of an event, None if it holds none."""
    return None if event.data is None or event.data == DONE else json_object(event.data)


def error_of(value: Any) -> tuple[str, int] | None:
    """Return message and code of an error object (both shapes of vLLM: nested and flat), None if it is none."""
    if not isinstance(value, dict):
        return None
    error = value.get("error")
    if error is None and value.get("object") == "error":
        error = value
    if error is None:
        return None
    if not isinstance(error, dict):
        return str(error), 500
    code = error.get("code")
    return str(error.get("message") or "no message"), code if isinstance(code, int) else 500


def choices_of(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the choices of an answer or chunk that can be read."""
    choices = value.get("choices")
    return [c for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []


def text_of(choice: Mapping[str, Any], *, reasoning: bool = False) -> str:
    """Return the text of a choice: completion or chat, whole or chunk; with `reasoning`, the thoughts as well."""
    part = choice.get("delta") or choice.get("message")
    if not isinstance(part, dict):
        text = choice.get("text")
        return text if isinstance(text, str) else ""
    keys = ("reasoning_content", "reasoning", "content") if reasoning else ("content",)
    return "".join(v for v in (part.get(k) for k in keys) if isinstance(v, str))


def is_opening(value: Mapping[str, Any]) -> bool:
    """Whether a chunk only says who will speak: chat's first chunk, before any token."""
    choices = choices_of(value)
    if not choices:
        return False
    for choice in choices:
        delta = choice.get("delta")
        if not isinstance(delta, dict) or choice.get("finish_reason") is not None or "role" not in delta:
            return False
        if any(v for k, v in delta.items() if k != "role"):
            return False
    return True


def usage_of(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage of an answer or chunk, empty if it has none (vLLM sends null as well)."""
    usage = value.get("usage")
    return usage if isinstance(usage, dict) else {}


def count_of(usage: Mapping[str, Any], key: str) -> int | None:
    """Return a count of a usage object."""
    value = usage.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def cached_tokens(usage: Mapping[str, Any]) -> int:
    """Return how many prompt tokens came from a cache, 0 when it is not said."""
    details = usage.get("prompt_tokens_details")
    return (count_of(details, "cached_tokens") or 0) if isinstance(details, dict) else 0


def with_cached_tokens(value: dict[str, Any], cached: int) -> bool:
    """Put P's cached tokens into an answer of D, which counts every pulled token as cached; True if it had any."""
    details = usage_of(value).get("prompt_tokens_details")
    if not isinstance(details, dict) or "cached_tokens" not in details:
        return False
    details["cached_tokens"] = cached
    return True
