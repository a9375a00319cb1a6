"""The pull flow from outside: what P hands out, what D makes of it, and what becomes of what nobody pulls."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.engines.asking import Seen, grown, samples, send, text_of
from tests.engines.houses import LEASE
from tests.engines.requests import TOKENS, chat, completion
from tests.engines.server import Server, wait_for
from tests.support.ports import free_ports

WANTS_PULL = {
    "do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None,
    "remote_host": None, "remote_port": None,
}  # fmt: skip
KEPT = {"prompt": TOKENS[::-1] * 20}
"""A prompt of two blocks of 128 tokens."""


def prefilled(prefill: Server, body: Mapping[str, Any]) -> tuple[Seen, Any]:
    """Ask P; return its answer and the parameters that it hands out."""
    answer = send(prefill, completion("x", {**body, "max_tokens": 1, "kv_transfer_params": WANTS_PULL}))
    return answer, json.loads(answer["body"]).get("kv_transfer_params")


def pull_flow(plain: Server, prefill: Server, decode: Server) -> Iterator[tuple[str, Any]]:
    """Yield what P and D answer and count, for right and wrong pulls, and what is left when a lease is over."""
    lent = time.monotonic()
    kept_text = text_of(send(plain, completion("x", {**KEPT, "max_tokens": 12})))
    _, late = prefilled(prefill, KEPT)
    waiting = samples(prefill)
    yield "P while a prefill waits for its pull", {"counts": _standing(waiting)}
    yield from _pulls(plain, prefill, decode, waiting)
    yield from _wrong_pulls(prefill, decode)
    time.sleep(max(0.0, lent + LEASE + 2 - time.monotonic()))
    wait_for(lambda: not _usage(samples(prefill)), within=LEASE + 10.0, every=0.2)
    yield "P after the lease", {"counts": _standing(samples(prefill))}
    # Long enough for whatever has been freed to be used again.
    for number in range(4):
        send(prefill, completion("x", {"prompt": [number + 3] * 1900, "max_tokens": 2}))
    yield "P has forgotten", {"counts": _transfers(samples(prefill))}
    stale = send(decode, completion("x", {**KEPT, "max_tokens": 12, "kv_transfer_params": late}))
    same = stale["status"] == 200 and text_of(stale) == kept_text
    yield "D pulls after the lease", {**stale, "the right text": same}
    send(prefill, completion("x"))
    yield "P after a pull that came too late", {"counts": _transfers(samples(prefill))}
    send(decode, completion("x", {"max_tokens": 1}))
    values = samples(decode)
    computed = {
        key: value for key, value in values.items() if 'source="local_compute"' in key and not _detail(key)
    }
    counts = {**_standing(values), **_transfers(values), **computed}
    yield "D at the end", {"health": decode.health(), "counts": counts}


def _standing(values: Mapping[str, float]) -> dict[str, float]:
    """Return what a server is doing, and whether it holds blocks."""
    kept = {key: value for key, value in values.items() if key.startswith("vllm:num_requests")}
    return {**kept, "holds blocks": float(_usage(values) > 0)}


def _transfers(values: Mapping[str, float]) -> dict[str, float]:
    """Return what has been transferred and how requests ended; sizes in bytes are the model's."""
    names = ("vllm:nixl_", "vllm:request_success", "vllm:num_preemptions_total")
    return {key: value for key, value in values.items() if key.startswith(names) and not _detail(key)}


def _detail(series: str) -> bool:
    return any(word in series for word in ("_bucket", "_created", "_sum"))


def _usage(values: Mapping[str, float]) -> float:
    return sum(value for key, value in values.items() if key.startswith("vllm:kv_cache_usage_perc"))


def _pulls(
    plain: Server, prefill: Server, decode: Server, waiting: Mapping[str, float]
) -> Iterator[tuple[str, Any]]:
    asked = {"prompt": TOKENS * 8}
    before_p, before_d = samples(prefill), samples(decode)
    answer, params = prefilled(prefill, asked)
    yield "P hands out", {**answer, "params": params}
    yield "P counts", {"counts": grown(before_p, samples(prefill))}
    answer = send(decode, completion("x", {**asked, "max_tokens": 12, "kv_transfer_params": params}))
    alone = text_of(send(plain, completion("x", {**asked, "max_tokens": 12})))
    yield "D pulls", {**answer, "the text of a plain server": text_of(answer) == alone}
    yield "D counts", {"counts": grown(before_d, samples(decode))}
    pinned = _usage(waiting)
    freed = wait_for(lambda: _usage(samples(prefill)) <= pinned, within=5)
    yield "P has freed what was pulled", freed
    answer, params = prefilled(prefill, asked)
    yield "D pulls, stream", send(
        decode, completion("x", {**asked, "stream": True, "stream_options": {"include_usage": True},
                                 "kv_transfer_params": params}),
    )  # fmt: skip
    asked_chat = chat("x", {"max_tokens": 1, "kv_transfer_params": WANTS_PULL})
    answer = send(prefill, asked_chat)
    yield "P hands out, chat", answer
    params = json.loads(answer["body"]).get("kv_transfer_params")
    yield "D pulls, chat", send(decode, chat("x", {"kv_transfer_params": params}))
    _, params = prefilled(prefill, {"prompt": "Who are you?"})
    yield (
        "D pulls, chat stream",
        send(decode, completion("x", {"prompt": "Who are you?", "stream": True, "kv_transfer_params": params})),
    )
    yield (
        "P hands out, stream",
        send(
            prefill, completion("x", {**asked, "max_tokens": 1, "stream": True, "kv_transfer_params": WANTS_PULL})
        ),
    )
    several = {"prompt": [TOKENS, TOKENS[:4]], "max_tokens": 1, "kv_transfer_params": WANTS_PULL}
    yield "P hands out for two prompts", send(prefill, completion("x", several))
    yield (
        "P asked for eight tokens",
        send(prefill, completion("x", {**asked, "max_tokens": 8, "kv_transfer_params": WANTS_PULL})),
    )
    twice = {**asked, "n": 2, "temperature": 1.0, "max_tokens": 1, "kv_transfer_params": WANTS_PULL}
    yield "P asked for two choices", send(prefill, completion("x", twice))


def _wrong_pulls(prefill: Server, decode: Server) -> Iterator[tuple[str, Any]]:
    asked = {"prompt": TOKENS * 8, "max_tokens": 6}
    _, params = prefilled(prefill, asked)

    def pull(changes: Mapping[str, Any]) -> Seen:
        return send(decode, completion("x", {**asked, "kv_transfer_params": {**params, **changes}}))

    first = pull({})
    yield "D pulls what P has freed", {"first": first["status"], **pull({})}
    _, params = prefilled(prefill, asked)
    yield "D pulls blocks that do not exist", pull({"remote_block_ids": [[99999]]})
    before = samples(decode)
    answer = send(decode, completion("x", asked))
    yield "D without parameters", {**answer, "counts": grown(before, samples(decode))}
    _, params = prefilled(prefill, asked)
    nobody = {**params, "remote_engine_id": "nobody", "remote_port": free_ports(1)[0]}
    asks = [
        completion("x", {**asked, **stream, "kv_transfer_params": nobody}) for stream in ({}, {"stream": True})
    ]
    began = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        whole, stream = pool.map(lambda ask: send(decode, ask), asks)
    yield "D pulls from an engine that is not there", {**whole, "seconds": time.monotonic() - began}
    yield "D pulls from an engine that is not there, stream", stream
    yield "D after wrong pulls", {"health": decode.health()}
