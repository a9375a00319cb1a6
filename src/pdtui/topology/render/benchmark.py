"""The model configuration of AISBench, `vllm_api_stream_chat.py`, that points at a cluster's proxy."""

from __future__ import annotations

import json

from pdtui.topology.model import ProxySettings, Role, Topology
from pdtui.topology.render.shell import origin

REQUESTS_PER_DECODE_RANK = 24
RATE_PER_DECODE_RANK = 14 / 32
"""Both of vLLM-Ascend's guides: 768 at once and 14 a second on 32 ranks, 1536 and 28 on 64.

What the file's `workload` says stands in place of the guides' number of requests and length of answers.
"""


def aisbench_config(topology: Topology, proxy: ProxySettings) -> str:
    """Return the configuration: where it sends requests, what it asks for, how many at once."""
    ranks = sum(group.dp_size for group in topology.groups.values() if group.role is Role.DECODE)
    at_once = topology.workload.concurrency or ranks * REQUESTS_PER_DECODE_RANK
    trusting = any(group.args.get("trust-remote-code") is True for group in topology.groups.values())
    return f"""\
# {origin(topology)}
# For AISBench: goes to ais_bench/benchmark/configs/models/vllm_api/ of its checkout.
from ais_bench.benchmark.models import VLLMCustomAPIChatStream

models = [
    dict(
        attr="service",
        type=VLLMCustomAPIChatStream,
        abbr="vllm-api-stream-chat",
        path={_text(topology.model.path)},  # for the tokenizer: where the benchmark runs
        model={_text(topology.model.served_name)},
        request_rate={max(0.1, round(ranks * RATE_PER_DECODE_RANK, 1)):g},  # a second
        retry=2,
        host_ip={_text(proxy.advertise)},
        host_port={proxy.port},
        max_out_len={topology.workload.output_tokens or 10},
        batch_size={at_once},  # at once
        trust_remote_code={trusting},
        generation_kwargs=dict(
            temperature=0,
            seed=1024,
            ignore_eos=False,
        ),
    )
]
"""


def _text(value: str) -> str:
    """Return a Python string; JSON's are such, with double quotes as everybody writes them."""
    return json.dumps(value, ensure_ascii=False)
