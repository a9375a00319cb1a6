"""What one rank is, from its argv and environment, and the mistakes that vLLM finds before it starts processes."""

import json
import os
import socket
import uuid
from typing import Any

from .log import traceback

SERVE = "vllm/vllm/entrypoints/cli/serve.py:115:cmd:uvloop.run(run_server(args))"
ENGINE_ARGS = (
    "vllm/vllm/entrypoints/openai/api_server.py:214:build_async_engine_client_from_engine_args:"
    "vllm_config = engine_args.create_engine_config(usage_context=usage_context)"
)


class Refused(Exception):
    """vLLM ends before its engine exists; the text is what it prints, the exit status is 1."""


def validation_error(model: str, text: str) -> str:
    """Return pydantic's words for a value that a validator refused."""
    return (
        f"pydantic_core._pydantic_core.ValidationError: 1 validation error for {model}\n"
        f"  Value error, {text} [type=value_error, input_value=ArgsKwargs((), {{'model_co...}}), "
        "input_type=ArgsKwargs]\n    For further information visit https://errors.pydantic.dev/2.14/v/value_error"
    )


def _own_address() -> str:
    """Return the address that leads out of here, as vLLM's get_ip finds it: nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("8.8.8.8", 80))
        return str(probe.getsockname()[0])


def check_platform() -> None:
    """Refuse to start without CANN's variables, as an image's interactive shell sets them. Raises `Refused`."""
    libraries = os.environ.get("LD_LIBRARY_PATH", "")
    if (
        os.environ.get("ASCEND_TOOLKIT_HOME") or os.environ.get("ASCEND_HOME_PATH")
    ) and "ascend" in libraries.lower():
        return
    raise Refused(
        traceback(
            "vllm/vllm/plugins/__init__.py:67:load_plugins_by_group:func = plugin.load()",
            "vllm-ascend/vllm_ascend/__init__.py:28:register:import torch_npu  # noqa: F401",
            error="ImportError: libascend_hal.so: cannot open shared object file: No such file or directory",
        )
        + "\n"
        + traceback(
            "vllm/vllm/engine/arg_utils.py:1302:create_engine_config:device_config = DeviceConfig(device=...)",
            "vllm/vllm/config/device.py:56:__post_init__:raise RuntimeError(",
            error="RuntimeError: Failed to infer device type, please set the environment variable "
            "`VLLM_LOGGING_LEVEL=DEBUG` to turn on verbose logging to help debug the issue.",
        )
    )


EXTERNAL_HINT = (
    "For external load balancing, launch independent vLLM instances without --data-parallel-* arguments."
)
QUANTIZATIONS = ("awq", "auto_awq", "fp8", "fbgemm_fp8", "modelopt", "auto_gptq", "gptq", "gptq_marlin", "awq_marlin",
                 "compressed-tensors", "experts_int8", "quark", "moe_wna16", "torchao", "inc", "mxfp4")  # fmt: skip
"""What vLLM itself knows, without vllm-ascend."""
BLOCKS = 1170
"""KV blocks of one rank on NPUs."""
LOOPBACK = ("localhost", "127.0.0.1")
BLOCK_BYTES = 65536
"""KV of 128 tokens of the tiny model in 16 bits."""


CARRIERS = (
    "MooncakeConnectorV1",
    "MooncakeHybridConnector",
    "MooncakeLayerwiseConnector",
    "SfaRemoteD2HConnector",
)
"""Connectors of vllm-ascend that carry KV from prefill to decode."""
KEEPERS = ("AscendStoreConnector", "MooncakeConnectorStoreV1", "UCMConnector", "OffloadingConnector",
           "SimpleCPUOffloadConnector", "RecomputeCPUOffloadConnector", "LMCacheAscendConnector")  # fmt: skip
"""Connectors that keep KV: a pool, or memory of the host."""


def local_address(host: str, address: str) -> str:
    """Return the address to bind or reach for a name of this node; `address` stands for all that it shares."""
    if not address:
        return "0.0.0.0" if host == "::" else host
    return address if host in ("0.0.0.0", "::", *LOOPBACK) else host


def _children(kv: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the connectors that a MultiConnector is told to run (multi_connector.py reads `connectors`)."""
    if kv.get("kv_connector") != "MultiConnector":
        return []
    found = (kv.get("kv_connector_extra_config") or {}).get("connectors")
    if not found or not isinstance(found, list):
        place = "vllm/vllm/distributed/kv_transfer/kv_connector/v1/multi_connector.py:158:__init__:"
        raise Refused(traceback(SERVE, f"{place}assert ktcs is not None", error="AssertionError"))
    return [one for one in found if isinstance(one, dict)]


def _port(said: Any) -> int:
    """Return a KV port; a child's is not looked at when the command is read."""
    text = str(said)
    return int(text) if text.isdecimal() and len(text) < 6 else 14579


class Config:
    """One rank's settings. Raises `Refused` for what vLLM does not accept."""

    def __init__(
        self, flags: dict[str, Any], node: str, address: str, speed: float, version: str, *, cpu: bool = False
    ) -> None:
        self.flags = flags
        self.cpu = cpu
        """Whether it is the build for CPUs, without vllm-ascend."""
        self.node = node
        self.address = address
        self.speed = float(os.environ.get("PDTUI_SIM_SPEED", speed))
        self.version = version
        self.model = str(flags.get("model") or flags.get("model_tag") or "Qwen/Qwen3-0.6B")
        self.served = list(flags.get("served-model-name") or [self.model])
        self.host = flags.get("host") or "0.0.0.0"
        self.dtype = str(flags.get("dtype", "auto")).replace("auto", "bfloat16")
        self.port = int(flags.get("port", 8000))
        self.tp = int(flags.get("tensor-parallel-size", 1))
        self.pp = int(flags.get("pipeline-parallel-size", 1))
        self.dp = int(flags.get("data-parallel-size", 1))
        self.dp_rank = int(flags.get("data-parallel-rank", 0))
        self.dp_address = str(flags.get("data-parallel-address", "127.0.0.1"))
        self.rpc_port = int(flags.get("data-parallel-rpc-port", 29550))
        self.max_num_seqs = int(flags.get("max-num-seqs", 256))
        self.utilization = float(flags.get("gpu-memory-utilization", 0.9))
        self.eager = bool(flags.get("enforce-eager", False))
        self.expert_parallel = bool(flags.get("enable-expert-parallel", False))
        self.block_size = int(flags.get("block-size", 128))
        self.api_key = str(flags.get("api-key") or os.environ.get("VLLM_API_KEY", ""))
        self.mtp = isinstance(flags.get("speculative-config"), dict)
        self.kv: dict[str, Any] = flags.get("kv-transfer-config") or {}
        self.children = _children(self.kv)
        self.transfer = next((one for one in self.children if one.get("kv_connector") in CARRIERS), self.kv)
        """The configuration of the connector that carries KV: a child's under MultiConnector."""
        self.connector = str(self.transfer.get("kv_connector") or "")
        self.role = str(self.kv.get("kv_role") or "")
        self.kv_port = _port(self.transfer.get("kv_port"))
        self.host_ip = os.environ.get("VLLM_HOST_IP") or address or _own_address()
        self.lease = float(os.environ.get("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT") or 480)
        self.side_host = local_address(os.environ.get("VLLM_NIXL_SIDE_CHANNEL_HOST") or "localhost", address)
        self.side_port = int(os.environ.get("VLLM_NIXL_SIDE_CHANNEL_PORT") or 5600) + self.dp_rank
        if self.is_nixl:
            self.lease = float((self.kv.get("kv_connector_extra_config") or {}).get("kv_lease_duration", 30))
        self.engine_id = (
            f"{self.kv.setdefault('engine_id', str(uuid.uuid4()))}{self.name.lower()}" if self.kv else ""
        )
        self.kv_bytes = self._kv_bytes()
        self.block_bytes = BLOCK_BYTES * self.block_size // 128 * (2 if self.dtype == "float32" else 1)
        self.blocks = self.kv_bytes // (self.block_bytes * self.tp) if cpu else BLOCKS
        """KV blocks of this rank."""
        self.rank = os.environ.get("PDTUI_RANK", "").partition(":")[2]
        self.architecture = ""
        self.max_model_len = 0
        self.shards = 1
        self.heads = 0
        """Attention heads of the model; 0: it does not say."""
        self._read_model()
        self.devices = [] if cpu else self._devices()

    def _kv_bytes(self) -> int:
        """Return the KV cache's size: the flag counts bytes, the variable counts GiB."""
        given = str(self.flags.get("kv-cache-memory-bytes", ""))
        if given.isdigit():
            return int(given)
        space = os.environ.get("VLLM_CPU_KVCACHE_SPACE", "")
        return (int(space) if space.isdigit() else 4) << 30

    @property
    def is_nixl(self) -> bool:
        """Whether KV goes by NIXL, whose side channel the scheduler of every rank binds, of both roles."""
        return self.connector == "NixlConnector"

    @property
    def world(self) -> int:
        """Workers of this rank."""
        return self.tp * self.pp

    @property
    def name(self) -> str:
        """Suffix of the engine's process name."""
        return f"_DP{self.dp_rank}" if self.dp > 1 else ""

    @property
    def is_producer(self) -> bool:
        """Whether this rank hands out KV."""
        return self.role in ("kv_producer", "kv_both")

    def kv_base(self) -> int:
        """Return the first KV handshake port of this rank: kv_port + DP rank x TP x PP (mooncake_connector.py)."""
        return self.kv_port + self.dp_rank * self.tp * self.pp

    def kv_handshake_port(self, worker: int) -> int | None:
        """Return the port that a worker binds: producers of the pull connectors only, consumers of layerwise only."""
        if self.connector in ("MooncakeLayerwiseConnector", "SfaRemoteD2HConnector"):
            return self.kv_port + self.dp_rank * self.tp + worker % self.tp if self.role == "kv_consumer" else None
        if self.connector in ("MooncakeConnectorV1", "MooncakeHybridConnector", "MooncakeConnector"):
            return self.kv_base() + worker if self.role == "kv_producer" else None
        return None

    def fingerprint(self) -> str:
        """Return what has to be the same on every rank of a DP group."""
        keys = ("max-model-len", "max-num-seqs", "enable-expert-parallel", "quantization", "dtype", "enforce-eager",
                "speculative-config", "compilation-config")  # fmt: skip
        parts: list[Any] = [self.model.rstrip("/").rpartition("/")[2], self.dp, self.tp, self.pp, self.connector]
        return json.dumps([*parts, self.role, [self.flags.get(key) for key in keys]], sort_keys=True)

    def check(self) -> None:
        """Refuse what vLLM does not accept, all at once. Raises `Refused`."""
        self.check_length()
        self.check_model()
        self.check_connector()

    def _read_model(self) -> None:
        path = os.path.join(self.model, "config.json")
        try:
            with open(path, encoding="utf-8") as file:
                model = json.load(file)
        except OSError:
            text = "vllm/vllm/engine/arg_utils.py:650:__post_init__:self.model = get_model_path(self.model)"
            raise Refused(
                traceback(
                    SERVE,
                    text,
                    "huggingface_hub/utils/_validators.py:133:validate_repo_id:raise HFValidationError(",
                    error="huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or "
                    f"'namespace/repo_name': '{self.model}'. Use `repo_type` argument if needed.",
                )
            ) from None
        self.architecture = str((model.get("architectures") or ["DeepseekV3ForCausalLM"])[0])
        longest = self._longest = int(model.get("max_position_embeddings", 40960))
        self.heads = int(model.get("num_attention_heads") or 2 * model.get("num_key_value_heads", 0))
        self.is_moe = "n_routed_experts" in model or "Moe" in self.architecture or "Deepseek" in self.architecture
        self.max_model_len = int(self.flags.get("max-model-len", longest))
        self.shards = sum(1 for name in os.listdir(self.model) if name.endswith(".safetensors")) or 1

    def check_length(self) -> None:
        """Refuse a context that is longer than the model's. Raises `Refused`."""
        longest = self._longest
        if self.max_model_len > longest and not os.environ.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN"):
            raise Refused(
                traceback(
                    SERVE,
                    ENGINE_ARGS,
                    error=validation_error(
                        "ModelConfig",
                        f"User-specified max_model_len ({self.max_model_len}) is greater than the derived max_model_len "
                        f"(max_position_embeddings={float(longest)} or model_max_length=None in model's config.json). To "
                        "allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1. "
                        "VLLM_ALLOW_LONG_MAX_MODEL_LEN must be used with extreme caution. If the model uses relative "
                        "position encoding (RoPE), positions exceeding derived_max_model_len lead to nan. If the model "
                        "uses absolute position encoding, positions exceeding derived_max_model_len will cause a CUDA "
                        "array out-of-bounds error.",
                    ),
                )
            )

    def check_model(self) -> None:
        """Refuse a model that does not go with the flags. Raises `Refused`."""
        method = self.flags.get("quantization")
        if self.cpu and method and method not in QUANTIZATIONS:
            text = f"Unknown quantization method: {method}. Must be one of {list(QUANTIZATIONS)}."
            raise Refused(traceback(SERVE, ENGINE_ARGS, error=validation_error("ModelConfig", text)))
        problem = ""
        if not 0 <= self.dp_rank < max(self.dp, 1):
            problem = f"data_parallel_rank ({self.dp_rank}) must be in the range [0, {self.dp})"
        elif self.dp > 1 and "data-parallel-rank" in self.flags and not self.is_moe:
            text = "ValueError: Non-MoE models do not support external data parallel mode. "
            raise Refused(traceback(SERVE, ENGINE_ARGS, error=text + EXTERNAL_HINT))
        if problem:
            raise Refused(traceback(SERVE, ENGINE_ARGS, error=validation_error("ParallelConfig", problem)))
        if self.heads and self.heads % self.tp:
            text = f"Total number of attention heads ({self.heads}) must be divisible by tensor parallel size ({self.tp})."
            raise Refused(traceback(SERVE, ENGINE_ARGS, error=validation_error("VllmConfig", text)))

    def check_connector(self) -> None:
        """Compare the connector's extra configuration with this rank's sizes (check_kv_extra_config)."""
        if not self.connector:
            return
        known: tuple[str, ...]
        known = ("NixlConnector",) if self.cpu else (*CARRIERS, *KEEPERS, "MultiConnector")
        for one in (self.kv, *self.children):
            if one.get("kv_connector") not in known:
                text = f"Unsupported connector type: {one.get('kv_connector')}"
                raise Refused(traceback(SERVE, ENGINE_ARGS, error=validation_error("VllmConfig", text)))
        extra = self.kv.get("kv_connector_extra_config") or {}
        for role, side in (("kv_producer", "prefill"), ("kv_consumer", "decode")):
            block = extra.get(side)
            if self.role != role or not isinstance(block, dict):
                continue
            for key, mine in (("tp_size", self.tp), ("dp_size", self.dp)):
                if key in block and block[key] != mine:
                    raise Refused(
                        traceback(
                            SERVE,
                            ENGINE_ARGS,
                            "vllm-ascend/vllm_ascend/utils.py:1238:check_kv_extra_config:raise ValueError(",
                            error=f"ValueError: KV transfer '{side}' config has a conflicting {key.replace('_', ' ')}"
                            f". Expected {mine}, but got {block[key]}.",
                        )
                    )

    def connector_problem(self) -> str:
        """Return the traceback with which the connector ends the engine, or an empty string."""
        if not self.connector.startswith("Mooncake"):
            return ""
        place = "vllm-ascend/vllm_ascend/distributed/kv_transfer/kv_p2p/mooncake_connector.py:1021:__init__:"
        extra = self.transfer.get("kv_connector_extra_config") or {}
        for side in ("prefill", "decode"):
            if side not in extra:
                code = f'assert "{side}" in vllm_config.kv_transfer_config.kv_connector_extra_config.keys()'
                return traceback(place + code, error="AssertionError")
            for key in ("tp_size", "dp_size"):
                if key not in extra[side]:
                    return traceback(place + f'assert "{key}" in {side}_config.keys()', error="AssertionError")
        prefill, decode = extra["prefill"]["tp_size"], extra["decode"]["tp_size"]
        if prefill < decode:
            return traceback(
                place + "raise ValueError(",
                error=f"ValueError: prefill_tp_size: {prefill} must be greater than or equal to the decode_tp_size: "
                f"{decode}",
            )
        if prefill % decode:
            code = "assert self._prefill_tp_size % self._decode_tp_size == 0"
            return traceback(
                place + code, error="AssertionError: Prefill TP size must be divisible by Decode TP size."
            )
        return ""

    def _devices(self) -> list[int]:
        """Return the NPUs that this rank sees, by physical id."""
        text = os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "")
        if text:
            return [int(part) for part in text.split(",") if part.strip().isdigit()]
        try:
            return sorted(int(name) for name in os.listdir(os.path.join(self.node, "npu")))
        except OSError:
            return []
