"""The command line of `vllm serve`, as far as deployments use it, with argparse's and vLLM's words for mistakes."""

import json
from typing import Any

from . import flags_0_32 as newer

SWITCHES = frozenset(
    """
    aggregate-engine-logging allow-deprecated-quantization async-scheduling calculate-kv-scales
    data-parallel-external-lb data-parallel-hybrid-lb disable-cascade-attn
    disable-custom-all-reduce disable-fastapi-docs disable-frontend-multiprocessing disable-hybrid-kv-cache-manager
    disable-log-requests disable-log-stats disable-sliding-window disable-uvicorn-access-log enable-auto-tool-choice
    enable-chunked-prefill enable-dbo enable-eplb enable-expert-parallel enable-force-include-usage
    enable-log-outputs enable-log-requests enable-lora enable-prefix-caching enable-prompt-embeds
    enable-prompt-tokens-details enable-request-id-headers enable-server-load-tracking enable-sleep-mode
    enable-tokenizer-info-endpoint enforce-eager exclude-tools-when-tool-choice-none
    fully-sharded-loras headless language-model-only no-log-requests return-tokens-as-token-ids
    skip-mm-profiling skip-tokenizer-init trust-remote-code trust-request-chat-template use-tqdm-on-load
    """.split()
) | newer.SWITCHES  # fmt: skip
"""Flags without a value; each has a `--no-` form."""

VALUES = frozenset(
    """
    api-key api-server-count block-size chat-template code-revision config config-format context-parallel-size
    disable-access-log-for-endpoints
    cpu-offload-gb cp-kv-cache-interleave-size data-parallel-address data-parallel-backend data-parallel-rank
    data-parallel-rpc-port data-parallel-size data-parallel-size-local data-parallel-start-rank
    decode-context-parallel-size distributed-executor-backend download-dir dtype generation-config
    gpu-memory-utilization guided-decoding-backend host hf-overrides kv-cache-dtype kv-cache-memory-bytes
    limit-mm-per-prompt load-format logits-processors long-prefill-token-threshold master-addr master-port
    max-cpu-loras max-logprobs max-lora-rank max-loras max-model-len max-num-batched-tokens
    max-num-partial-prefills max-num-seqs max-parallel-loading-workers max-seq-len-to-capture mm-processor-cache-gb
    model model-impl node-rank nnodes num-gpu-blocks-override num-lookahead-slots otlp-traces-endpoint port
    pipeline-parallel-size prefill-context-parallel-size quantization reasoning-parser response-role revision
    root-path runner scheduler-cls scheduling-policy seed ssl-ca-certs ssl-certfile ssl-keyfile swap-space
    tensor-parallel-size tokenizer tokenizer-mode tokenizer-revision tool-call-parser tool-parser-plugin
    uvicorn-log-level worker-cls worker-extension-cls
    """.split()
) | newer.VALUES  # fmt: skip
"""Flags with one value."""

LISTS = frozenset(
    """
    allowed-headers allowed-methods allowed-origins cudagraph-capture-sizes lora-modules middleware
    served-model-name
    """.split()
) | newer.LISTS  # fmt: skip
"""Flags with one value or more."""

JSON_VALUES = frozenset(
    """
    additional-config attention-config compilation-config default-chat-template-kwargs eplb-config
    kernel-config kv-events-config kv-transfer-config mm-processor-kwargs override-generation-config
    pooler-config profiler-config speculative-config structured-outputs-config
    """.split()
)
"""Flags with one JSON value."""

SHORT = {"-tp": "tensor-parallel-size", "-pp": "pipeline-parallel-size", "-dp": "data-parallel-size",
         "-dpa": "data-parallel-address", "-dpp": "data-parallel-rpc-port", "-dpr": "data-parallel-rank",
         "-q": "quantization", "-O": "compilation-config"}  # fmt: skip

INTEGERS = frozenset(
    """
    block-size data-parallel-rank data-parallel-rpc-port data-parallel-size data-parallel-size-local
    data-parallel-start-rank max-num-batched-tokens max-num-seqs pipeline-parallel-size port seed
    tensor-parallel-size prefill-context-parallel-size decode-context-parallel-size api-server-count
    """.split()
)
FLOATS = frozenset({"gpu-memory-utilization", "swap-space", "cpu-offload-gb"})

USAGE = "usage: vllm serve [model_tag] [options]\n"
TOP_USAGE = """\
usage: vllm [-h] [-v]
            {chat,complete,serve,launch,bench,collect-env,download-kernels,preload,run-batch,snapshot}
            ...
"""
PYDANTIC = "    For further information visit https://errors.pydantic.dev/2.14/v/"


class BadCommand(Exception):
    """A command line that vLLM refuses; the text is what it prints, the exit status is 2."""


def parse(words: list[str]) -> dict[str, Any]:
    """Return flag -> value for the words after `vllm serve`. Raises `BadCommand`."""
    values: dict[str, Any] = {}
    unknown: list[str] = []
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if not word.startswith("-"):
            if "model_tag" in values:
                unknown.append(word)
            else:
                values["model_tag"] = word
            continue
        name, equals, glued = word.partition("=")
        flag = SHORT.get(name) or (name[2:].replace("_", "-") if name.startswith("--") else "")
        if flag in SWITCHES:
            values[flag] = True
        elif flag.startswith("no-") and flag[3:] in SWITCHES:
            values[flag[3:]] = False
        elif flag in VALUES or flag in JSON_VALUES:
            if not equals and (not queue or _is_flag(queue[0])):
                raise BadCommand(f"{USAGE}vllm serve: error: argument --{flag}: expected one argument\n")
            values[flag] = _convert(flag, glued if equals else queue.pop(0))
        elif flag in LISTS:
            items = [glued] if equals else []
            while queue and not _is_flag(queue[0]):
                items.append(queue.pop(0))
            if not items:
                raise BadCommand(f"{USAGE}vllm serve: error: argument --{flag}: expected at least one argument\n")
            values[flag] = items
        else:
            unknown.append(word)
            while queue and not _is_flag(queue[0]):
                unknown.append(queue.pop(0))
    if unknown:
        raise BadCommand(f"{TOP_USAGE}vllm: error: unrecognized arguments: {' '.join(unknown)}\n")
    return values


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not word.lstrip("-").replace(".", "", 1).isdigit()


def _convert(flag: str, text: str) -> Any:
    error = f"{USAGE}vllm serve: error: argument --{flag}: "
    if flag in INTEGERS:
        try:
            return int(text)
        except ValueError:
            raise BadCommand(f"{error}invalid int value: {text!r}\n") from None
    if flag in FLOATS:
        try:
            return float(text)
        except ValueError:
            raise BadCommand(f"{error}invalid float value: {text!r}\n") from None
    if flag == "max-model-len":
        return _human_readable(error, text)
    if flag == "kv-transfer-config":
        return _kv_transfer(error, text)
    if flag in JSON_VALUES and flag != "additional-config":
        try:
            return json.loads(text)
        except ValueError:
            raise BadCommand(f"{error}Value {text} cannot be converted to <function loads>.\n") from None
    return text


def _human_readable(error: str, text: str) -> int:
    """Read `40000`, `40k` (thousands) and `40K` (binary thousands)."""
    scale = {"k": 1000, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    try:
        if text[-1:] in scale:
            return int(float(text[:-1]) * scale[text[-1]])
        return int(text)
    except ValueError:
        raise BadCommand(f"{error}Invalid value for human readable int: {text!r}\n") from None


KV_KEYS = {
    "kv_connector", "engine_id", "kv_buffer_device", "kv_role", "kv_port", "kv_connector_extra_config",
    "kv_connector_module_path", "kv_load_failure_policy", "enable_permute_local_kv",
}  # fmt: skip
OLD_KV_KEYS = {"kv_rank", "kv_parallel_size", "kv_buffer_size", "kv_ip"}
"""Valid in the 0.10-0.11 era; unknown in 0.32.0; no connector of vllm-ascend reads them. Taken in silence here."""


def _shown(text: str) -> str:
    return repr(text if len(text) < 50 else f"{text[:25]}...{text[-25:]}")


def _kv_transfer(error: str, text: str) -> dict[str, Any]:
    head = f"{error}1 validation error for KVTransferConfig\n"
    try:
        value = json.loads(text)
    except ValueError as problem:
        what = str(problem)
        reason = what.split(":")[0].lower()
        stripped = text.rstrip()
        if ",}" in stripped.replace(" ", "").replace("\n", "") or ",]" in stripped.replace(" ", "").replace(
            "\n", ""
        ):
            reason = "trailing comma"
        where = what[what.find("line") :].split(" (")[0]
        raise BadCommand(
            f"{head}  Invalid JSON: {reason} at {where} "
            f"[type=json_invalid, input_value={_shown(text)}, input_type=str]\n{PYDANTIC}json_invalid\n"
        ) from None
    if not isinstance(value, dict):
        raise BadCommand(f"{head}  Input should be an object [type=model_type]\n{PYDANTIC}model_type\n")
    for key in value:
        if key not in KV_KEYS and key not in OLD_KV_KEYS:
            raise BadCommand(
                f"{head}{key}\n  Unexpected keyword argument [type=unexpected_keyword_argument, "
                f"input_value={value[key]!r}, input_type={type(value[key]).__name__}]\n"
                f"{PYDANTIC}unexpected_keyword_argument\n"
            )
    role = value.get("kv_role")
    if role not in (None, "kv_producer", "kv_consumer", "kv_both"):
        raise BadCommand(
            f"{head}kv_role\n  Input should be 'kv_producer', 'kv_both' or 'kv_consumer' [type=literal_error, "
            f"input_value={role!r}, input_type={type(role).__name__}]\n{PYDANTIC}literal_error\n"
        )
    if value.get("kv_connector") and role is None:
        raise BadCommand(
            f"{head}  Value error, Please specify kv_role when kv_connector is set, supported roles are "
            f"('kv_producer', 'kv_both', 'kv_consumer') [type=value_error, input_value={value!r}, input_type=dict]\n"
            f"{PYDANTIC}value_error\n"
        )
    try:
        value["kv_port"] = int(value.get("kv_port", 14579))
    except (TypeError, ValueError):
        raise BadCommand(
            f"{head}kv_port\n  Input should be a valid integer, unable to parse string as an integer "
            f"[type=int_parsing, input_value={value['kv_port']!r}, input_type=str]\n{PYDANTIC}int_parsing\n"
        ) from None
    return value
