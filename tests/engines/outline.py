"""An HTTP fact without what changes from version to version of vLLM: what a client of any of them relies on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def outline(fact: Mapping[str, Any]) -> dict[str, Any]:
    """Return status, content type and the kind of body: an answer, an error, the events of a stream."""
    kinds = [header.partition(": ")[2].partition(";")[0] for header in fact["headers"] if "content-type" in header]
    body = fact["body"]
    if isinstance(body, list):
        seen: Any = [_event(event) for event in body]
    elif isinstance(body, Mapping):
        seen = _object(body)
    else:
        seen = body
    return {"status": fact["status"], "type": kinds, "body": seen}


def _object(body: Mapping[str, Any]) -> Any:
    if "error" in body:
        error = body["error"]
        return {"error": sorted(error), "code": error["code"]} if isinstance(error, Mapping) else {"error": error}
    if "choices" not in body:
        return sorted(body)
    choices = [
        [
            choice.get("finish_reason"),
            bool(choice.get("logprobs")),
            "text" in choice or sorted(choice["message"])[:1],
        ]
        for choice in body["choices"]
    ]
    usage = {name: value for name, value in body["usage"].items() if name.endswith("_tokens")}
    return {"id": body["id"], "object": body["object"], "choices": choices, "usage": usage}


def _event(event: str) -> str:
    if not event.startswith("data: {"):
        return event
    value = json.loads(event[6:])
    if "error" in value:
        return "error"
    words = [value["object"], value["id"]]
    for choice in value["choices"]:
        words += ["role" if "role" in choice.get("delta", {}) else "text", str(choice["finish_reason"])]
    if value.get("usage"):
        words.append("usage")
    return " ".join(words)
