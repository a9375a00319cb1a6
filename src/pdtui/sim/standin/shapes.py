"""The JSON of completions and their events, keys in vLLM's order."""

import hashlib
import json
import time
from typing import Any

from .config import Config


def fingerprint(config: Config) -> str:
    """Return what the answers call the server's settings."""
    return f"vllm-{config.version}-{hashlib.blake2b(config.fingerprint().encode(), digest_size=4).hexdigest()}"


def head(body: dict[str, Any], request_id: str, kind: str, config: Config) -> dict[str, Any]:
    """Return what an answer or event begins with."""
    return {
        "id": request_id,
        "object": kind,
        "created": int(time.time()),
        "model": body.get("model") or config.served[0],
    }


def choice(index: int, text: str, logprobs: Any, reason: str, stop: str | None, *, chat: bool) -> dict[str, Any]:
    """Return one choice of a whole answer."""
    end = {"logprobs": logprobs, "finish_reason": reason, "stop_reason": stop, "token_ids": None}
    if not chat:
        nothing = {"prompt_logprobs": None, "prompt_token_ids": None, "routed_experts": None}
        return {"index": index, "text": text, **end, **nothing}
    message = {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    return {"index": index, "message": message, **end, "routed_experts": None}


def whole(
    start: dict[str, Any],
    choices: list[dict[str, Any]],
    usage: dict[str, Any],
    params: Any,
    print_of_settings: str,
    *,
    chat: bool,
) -> dict[str, Any]:
    """Return a whole answer."""
    prompt = {"prompt_logprobs": None, "prompt_token_ids": None, "prompt_text": None} if chat else {}
    return {
        **start,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": print_of_settings,
        "usage": usage,
        **prompt,
        "kv_transfer_params": params,
        "ec_transfer_params": None,
        "metrics": None,
    }


def usage(prompt: int, made: int, cached: int | None, *, chat: bool) -> dict[str, Any]:
    """Return the usage of a whole answer; `cached` is None where prompt details are off."""
    created = 0 if chat else None
    details = {"cached_tokens": cached, "created_cache_tokens": created, "multimodal_tokens": None}
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + made,
        "completion_tokens": made,
        "prompt_tokens_details": None if cached is None else details,
        "completion_tokens_details": None,
    }


def stream_usage(prompt: int, made: int, cached: int | None = None, *, chat: bool = False) -> dict[str, Any]:
    """Return the usage in an event, where nothing stands that is null."""
    shown: dict[str, Any] = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + made,
        "completion_tokens": made,
    }
    if cached is not None:
        shown["prompt_tokens_details"] = {"cached_tokens": cached, **({"created_cache_tokens": 0} if chat else {})}
    return shown


def first_delta(index: int) -> dict[str, Any]:
    """Return the choice of a chat's first event."""
    delta = {"role": "assistant", "content": ""}
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def piece(
    index: int,
    text: str,
    logprobs: Any,
    reason: str | None,
    stop: str | None,
    prompt_ids: list[int] | None = None,
    *,
    chat: bool,
) -> dict[str, Any]:
    """Return the choice of an event."""
    end: dict[str, Any] = {"logprobs": logprobs, "finish_reason": reason}
    if chat:
        if reason is not None:
            end["stop_reason"] = stop
        return {"index": index, "delta": {"content": text}, **end, "token_ids": None}
    return {
        "index": index,
        "text": text,
        **end,
        "stop_reason": stop,
        "prompt_token_ids": prompt_ids,
        "token_ids": None,
    }


def logprobs(tokens: list[str], wanted: int, offset: int, *, chat: bool) -> dict[str, Any]:
    """Return log probabilities of tokens: any, they are nobody's business here."""
    if chat:
        content = [
            {
                "token": token,
                "logprob": -0.5,
                "bytes": list(token.encode()),
                "top_logprobs": [
                    {"token": token, "logprob": -0.5 - place, "bytes": list(token.encode())}
                    for place in range(wanted)
                ],
            }
            for token in tokens
        ]
        return {"content": content}
    offsets: list[int] = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return {
        "text_offset": offsets,
        "token_logprobs": [-0.5 for _ in tokens],
        "tokens": tokens,
        "top_logprobs": [{token: -0.5} for token in tokens],
    }


def event(value: dict[str, Any]) -> bytes:
    """Return a server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
