"""What P and D are sent in the pull flow, and what P must have said.

Source: vllm-ascend, examples/disaggregated_prefill_v1/load_balance_proxy_server_example.py (main, August 2026).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pdtui.proxy import openai
from pdtui.proxy.errors import BadRequest, HandoverMissing
from pdtui.proxy.settings import ProxySettings

_TIMES_OF_DAY = (1e9, 1e11)
"""Smaller «times» are some machine's uptime: NIXL counts its lease on perf_counter, which means nothing here."""

_PARAMS = "kv_transfer_params"
_UNREAD = frozenset({"stream_options", "echo", "logprobs", "top_logprobs", "logprob_token_ids", "prompt_logprobs"})
"""What of a request only adds to P's answer."""

_REMEDY = (
    "A prefiller hands out its KV cache only as kv_producer and only for requests that end by length: look at the "
    "kv-transfer-config of this rank."
)


def prefill_body(body: dict[str, Any]) -> dict[str, Any]:
    """Return the client's body as P gets it: one token, not streamed, its KV kept for a decoder.

    `min_tokens` as well as `max_tokens` are 1 since P hands its KV over only when the request ends by length. What
    only adds to an answer that nobody reads is left out: the first log probabilities cost a server half a minute.
    """
    prefill = {key: value for key, value in without_params(body).items() if key not in _UNREAD}
    prefill[_PARAMS] = {
        "do_remote_decode": True,
        "do_remote_prefill": False,
        "remote_engine_id": None,
        "remote_block_ids": None,
        "remote_host": None,
        "remote_port": None,
    }
    prefill["stream"] = False
    prefill["max_tokens"] = 1
    prefill["min_tokens"] = 1
    if "max_completion_tokens" in body:
        prefill["max_completion_tokens"] = 1
    return prefill


def decode_body(body: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
    """Return the client's body as D gets it: as it came, with P's `kv_transfer_params` whole and only those.

    A client's own empty block list would end a real decoder's whole engine.
    """
    return without_params(body) | {_PARAMS: params}


def without_params(body: dict[str, Any]) -> dict[str, Any]:
    """Return a client's body without its KV parameters, also those among vLLM's extra arguments."""
    cleaned = {key: value for key, value in body.items() if key != _PARAMS}
    extra = cleaned.get("vllm_xargs")
    if isinstance(extra, dict) and _PARAMS in extra:
        cleaned["vllm_xargs"] = {key: value for key, value in extra.items() if key != _PARAMS}
    return cleaned


def refuse_what_cannot_be_split(body: dict[str, Any]) -> None:
    """Raise `BadRequest` for a request that makes several sequences at once, or none.

    P hands over the blocks of one sequence, and frees them when they have been fetched once: real servers answer
    the others with wrong text and status 200. What D would refuse for its length would hold P's blocks in vain.
    """
    prompt = body.get("prompt")
    many = isinstance(prompt, list) and len(prompt) > 1 and not all(isinstance(item, int) for item in prompt)
    embeds = body.get("prompt_embeds")
    # A server takes embeddings beside a prompt for one more prompt, even beside an empty one.
    many = many or (embeds not in (None, []) and prompt is not None)
    if many or (isinstance(embeds, list) and len(embeds) > 1):
        raise BadRequest("several prompts cannot be served in one request here: send one request for each")
    if (_number(body.get("n")) or 1) > 1:
        raise BadRequest("n above 1 cannot be served here: send a request for each answer")
    if body.get("use_beam_search"):
        raise BadRequest("beam search cannot be split into prefill and decode")
    limits = {name: _number(body.get(name)) for name in ("max_tokens", "max_completion_tokens")}
    for name, asked in limits.items():
        if asked is not None and asked < 1 and not body.get("echo"):
            raise BadRequest(f"{name} must be at least 1")
    given = [asked for asked in limits.values() if asked is not None]
    if given and (_number(body.get("min_tokens")) or 0) > max(given):
        raise BadRequest("min_tokens must not be above max_tokens")
    if body.get("stream_options") and not body.get("stream"):
        raise BadRequest("stream_options need `stream: true`")


def _number(value: Any) -> float | None:
    """Return what a server takes for a number, texts included; None for what is none."""
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Handover:
    """What P's answer is good for."""

    params: dict[str, Any]
    """Opaque: goes to D as it is."""
    deadline: float
    """Monotonic moment after which the pull must not be sent."""
    prompt_tokens: int | None
    cached_tokens: int


def read_handover(rank: str, raw: bytes, settings: ProxySettings, *, monotonic: float, wall: float) -> Handover:
    """Return what P's answer hands over; raises `UpstreamLost`, `HandoverMissing`.

    The lease runs from now for `lease_s`, or until `remote_blocks_expiry_time` when P says that as a time of day.
    """
    answer = openai.completion_of(raw, rank, "the prefill")
    params = answer.get(_PARAMS)
    if not isinstance(params, dict) or not params:
        raise HandoverMissing(f"{rank} prefilled, but answered without kv_transfer_params", remedy=_REMEDY)
    if "remote_block_ids" in params and not _any_block(params["remote_block_ids"]):
        # Sent on, an empty list ends a real decoder's whole engine.
        raise HandoverMissing(f"{rank} prefilled, but handed over no KV blocks", remedy=_REMEDY)
    lease = settings.lease_s
    expiry = params.get("remote_blocks_expiry_time")
    if isinstance(expiry, (int, float)) and not isinstance(expiry, bool):
        earliest, latest = _TIMES_OF_DAY
        lease = expiry - wall if earliest < expiry < latest else lease
    usage = openai.usage_of(answer)
    return Handover(
        params=params,
        deadline=monotonic + lease - settings.margin_s,
        prompt_tokens=openai.count_of(usage, "prompt_tokens"),
        cached_tokens=openai.cached_tokens(usage),
    )


def _any_block(ids: Any) -> bool:
    """Whether a block list, flat or one per KV group, names any block; a form we do not know does unless empty."""
    if isinstance(ids, list):
        return any(bool(group) if isinstance(group, (list, dict, str)) else group is not None for group in ids)
    return bool(ids)
