"""Starts that cannot succeed, as data: what is wrong, and by which line of the log the cause is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NIXL = '{"kv_connector": "NixlConnector", "kv_buffer_device": "cpu", "kv_role": '
"""An unfinished --kv-transfer-config."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One start."""

    name: str
    flags: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    """`{address}` and `{port:USE}` are replaced in values and flags, USE being `api`, `side` or `rpc`."""
    model: str = "dense"
    """`dense`, `moe` or a path that does not exist."""
    taken: str = ""
    """The port (`api`, `side`, `rpc`) that somebody else holds."""
    cause: str = ""
    """Words of the line that says why; empty when nothing does."""
    hangs: bool = False
    """Whether the real one never ends."""
    live: bool = False
    """Whether each run against real servers repeats it; the others are expectations recorded once."""


DP = (
    *("--data-parallel-size", "2", "--data-parallel-address", "127.0.0.1"),
    *("--data-parallel-rpc-port", "{port:rpc}", "--enable-expert-parallel"),
)
SIDE = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": "{port:side}"}

FAILURES: tuple[Failure, ...] = (
    Failure("unknown flag", ("--enable-expert-paralel",), cause="unrecognized arguments", live=True),
    Failure("JSON with a trailing comma", ("--kv-transfer-config", NIXL + '"kv_producer",}'), cause="Invalid JSON",
            live=True),
    Failure("kv_role that does not exist", ("--kv-transfer-config", NIXL + '"producer"}'),
            cause="Input should be"),
    Failure("no kv_role", ("--kv-transfer-config", '{"kv_connector": "NixlConnector"}'), cause="Value error"),
    Failure("a connector that does not exist",
            ("--kv-transfer-config", '{"kv_connector": "NixlConector", "kv_role": "kv_producer"}'),
            cause="Unsupported connector"),
    Failure("a connector of Ascend alone",
            ("--kv-transfer-config", '{"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_producer"}'),
            cause="Unsupported connector"),
    Failure("no model there", model="/path_to_weight/DeepSeek-r1_w8a8_mtp", cause="HFValidationError", live=True),
    Failure("quantization that does not exist", ("--quantization", "ascend"), cause="quantization"),
    Failure("context longer than the model's", ("--max-model-len", "400000"), cause="max_model_len"),
    Failure("rank out of range", (*DP, "--data-parallel-rank", "2"), model="moe", cause="data_parallel_rank"),
    Failure("ranks of a dense model", (*DP, "--data-parallel-rank", "0"), cause="Non-MoE", live=True),
    Failure("more KV heads than there are", ("--tensor-parallel-size", "3"), cause="divisible"),
    Failure("API port taken", taken="api", cause="Address already in use", live=True),
    Failure("RPC port taken", (*DP, "--data-parallel-rank", "0"), model="moe", taken="rpc",
            cause="Address already in use"),
    Failure("side-channel port taken", ("--kv-transfer-config", NIXL + '"kv_producer"}'), SIDE, taken="side",
            cause="Address already in use", hangs=True, live=True),
    Failure("rank 1 alone", (*DP, "--data-parallel-rank", "1"), model="moe", hangs=True),
    Failure("rank 0 alone", (*DP, "--data-parallel-rank", "0"), model="moe", hangs=True),
    Failure("KV cache too small", ("--kv-cache-memory-bytes", "65536"), cause="No available memory"),
)  # fmt: skip
