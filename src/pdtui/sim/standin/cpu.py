"""What vLLM built for CPUs says on its way up and down: its lines in its order, with the places of 0.32."""

import os
import time
import uuid
from collections.abc import Callable
from typing import Any

from .config import Config
from .log import Log, put

TRITON = "Triton is installed, but doesn't include CPU backend. Disabling Triton.\n"

ROUTES = (
    ("/openapi.json", "GET, HEAD"), ("/docs", "GET, HEAD"), ("/docs/oauth2-redirect", "GET, HEAD"),
    ("/redoc", "GET, HEAD"), ("/load", "GET"), ("/version", "GET"), ("/kv_event_sources", "GET"), ("/health", "GET"),
    ("/metrics", "GET"), ("/tokenize", "POST"), ("/detokenize", "POST"), ("/v1/models", "GET"),
    ("/v1/systemone", "POST"), ("/ping", "GET"), ("/ping", "POST"), ("/invocations", "POST"),
    ("/v1/chat/completions", "POST"), ("/v1/chat/completions/batch", "POST"), ("/v1/responses", "POST"),
    ("/v1/responses/{response_id}", "GET"), ("/v1/responses/{response_id}/cancel", "POST"),
    ("/v1/completions", "POST"), ("/v1/messages", "POST"), ("/v1/messages/count_tokens", "POST"),
    ("/generative_scoring", "POST"), ("/scale_elastic_ep", "POST"), ("/is_scaling_elastic_ep", "POST"),
    ("/v1/chat/completions/render", "POST"), ("/v1/messages/render", "POST"), ("/v1/completions/render", "POST"),
    ("/v1/responses/render", "POST"), ("/v1/chat/completions/derender", "POST"),
    ("/v1/completions/derender", "POST"), ("/inference/v1/generate", "POST"),
    ("/inference/v1/abort_requests", "POST"),
)  # fmt: skip


def shown_arguments(flags: dict[str, Any]) -> str:
    """Return the arguments as vLLM shows them: the model twice, defaults left out."""
    shown: dict[str, Any] = {}
    for name, value in flags.items():
        shown[name.replace("-", "_")] = value
        if name == "port" and "model_tag" in flags:
            shown["model"] = flags["model_tag"]
    kv = shown.get("kv_transfer_config")
    text = str(shown)
    if isinstance(kv, dict):
        parts = ", ".join(f"{key}={value!r}" for key, value in kv.items())
        text = text.replace(str(kv), f"KVTransferConfig({parts})")
    return text


def announce(config: Config, log: Log) -> None:
    """Say what the API server says of its configuration, up to what it refuses. Raises `Refused`."""
    log.warning(
        "system_utils.py:255",
        "Found ulimit of 20000 and failed to automatically increase with error current limit exceeds maximum limit. This "
        "can cause fd limit errors like `OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n",
    )
    log.info("model.py:733", f"Resolved architecture: {config.architecture}")
    if config.dtype == "float32":
        log.info("model.py:2492", "Upcasting torch.bfloat16 to torch.float32.")
    config.check_length()
    log.info("model.py:2152", f"Using max model len {config.max_model_len}")
    config.check_model()
    if config.dp > 1:
        log.info("vllm.py:1651", "Disabling NCCL for DP synchronization when using async scheduling.")
    _configuration(config, log)
    log.warning("cpu.py:317", "Reset SSM cache type to float32 for accelerated GDN mamba backend 'none'.")
    log.warning("vllm.py:725", "Model Runner V2 requires Triton; using the V1 model runner instead.")
    config.check_connector()
    if config.connector:
        log.info("nixl_utils.py:72", "NIXL is available")
    log.info("compilation.py:317", "Enabled custom fusions: norm_quant, act_quant")


def _configuration(config: Config, log: Log) -> None:
    if config.eager:
        log.warning(
            "vllm.py:1703",
            "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup. This is equivalent to setting "
            "-cc.mode=none -cc.cudagraph_mode=none and --kernel_config.enable_jit_warmup=False",
        )
        log.warning(
            "vllm.py:1727",
            "Inductor compilation was disabled by user settings, optimizations settings that are only active during "
            "inductor compilation will be ignored.",
        )
    log.info(
        "kernel.py:467",
        "Final IR op priority after setting platform defaults: IrOpPriorityConfig(rms_norm=['native'], "
        "fused_add_rms_norm=['native'], gelu_and_mul_sparse=['native'])",
    )
    log.warning("cpu.py:224", "Triton is not installed. triton-cpu is expected on x86 CPUs.")


def engine_begins(config: Config, log: Log) -> None:
    """Say what the engine says before it has a worker."""
    log.info(
        "core.py:133",
        f"Initializing a V1 LLM engine (v{config.version}) with config: model='{config.model}', "
        f"speculative_config=None, tokenizer='{config.model}', skip_tokenizer_init=False, tokenizer_mode=auto, "
        f"revision=None, tokenizer_revision=None, trust_remote_code={bool(config.flags.get('trust-remote-code'))}, "
        f"dtype=torch.{config.dtype}, max_seq_len={config.max_model_len}, download_dir=None, load_format=auto, "
        f"tensor_parallel_size={config.tp}, pipeline_parallel_size={config.pp}, data_parallel_size={config.dp}, "
        f"quantization={config.flags.get('quantization')}, enforce_eager={config.eager}, kv_cache_dtype=auto, "
        f"device_config=cpu, seed={config.flags.get('seed', 0)}, served_model_name={config.served[0]}",
    )
    log.info(
        "multiproc_executor.py:153",
        f"DP group leader: node_rank=0, node_rank_within_dp=0, master_addr={config.dp_address}, "
        f"mq_connect_ip={config.host_ip} (local), world_size={config.world}, local_world_size={config.world}",
    )
    bind = os.environ.get("VLLM_CPU_OMP_THREADS_BIND", "auto")
    for text in (
        "OpenMP thread binding info: ",
        f"\tVLLM_CPU_OMP_THREADS_BIND='{bind}', auto_setup={bind == 'auto'}, skip_setup={bind == 'nobind'}",
        f"\tlocal_world_size={config.world}, reserve_cpu_num={2 if config.connector else 1}",
        "\treserved_cpus=[]",
    ):
        log.info("ompmultiprocessing.py:185", text)


def worker_begins(config: Config, index: int, log: Log, title: str) -> None:
    """Say what a worker says until it has loaded the weights; its name in the lines grows on the way."""
    put(TRITON, 2)
    log.name = f"VllmWorker-{index}"
    log.warning("vllm.py:725", "Model Runner V2 requires Triton; using the V1 model runner instead.")
    log.name = "Worker"
    for library in ("libtcmalloc", "libiomp"):
        log.warning(
            "cpu_worker.py:114",
            f"{library} is not found in LD_PRELOAD. For best performance, please follow the section `set LD_PRELOAD` in "
            "https://docs.vllm.ai/en/latest/getting_started/installation/cpu/ to setup required pre-loaded libraries.",
        )
    rank, size = config.dp_rank * config.world + index, config.dp * config.world
    method = (
        f"tcp://{config.dp_address}:{config.rpc_port}" if size > 1 else f"file:///tmp/vllm_dist_{uuid.uuid4().hex}"
    )
    log.info(
        "parallel_state.py:1906",
        f"world_size={size} rank={rank} local_rank={index} distributed_init_method={method} backend=gloo",
    )
    if config.dp > 1:
        log.info("cpu_communicator.py:69", "Using allgather_reducescatter all2all manager.")
    experts = rank if config.expert_parallel or config.dp > 1 else "N/A"
    log.info(
        "parallel_state.py:2350",
        f"rank {rank} in world size {size} is assigned as DP rank {config.dp_rank}, PP rank {index // config.tp}, "
        f"PCP rank 0, TP rank {index % config.tp}, ETP rank 0, EP rank {experts}, EPLB rank N/A",
    )
    log.name = title
    log.info("cpu_model_runner.py:68", f"Starting to load model {config.model}...")
    if config.is_moe and config.expert_parallel:
        log.info(
            "expert_map_manager.py:250",
            f"[EP Rank {rank}/{size}] Expert parallelism is enabled. Expert placement strategy: linear. Local/global number "
            f"of experts: 2/{2 * size}. Experts local to global index map: 0->{2 * rank}, 1->{2 * rank + 1}.",
        )
    if config.is_moe:
        log.info("unquantized.py:364", "Using CPU Unquantized MoE backend out of potential backends: ['CPU'].")
    log.info("base_loader.py:82", "Initializing model took 0.145928 seconds")
    log.info(
        "weight_utils.py:1108",
        "Filesystem type for checkpoints: EXT4. Checkpoint size: 0.00 GiB. Available RAM: 19.34 GiB.",
    )
    log.info(
        "weight_utils.py:1131",
        "Auto-prefetch is disabled because the filesystem (EXT4) is not a recognized network FS (NFS/Lustre). If you want "
        "to force prefetching, start vLLM with --safetensors-load-strategy=prefetch.",
    )


def load_weights(config: Config, index: int, log: Log, pause: Callable[[float], None]) -> None:
    """Load the weights, file by file."""
    shards = config.shards
    first = config.dp_rank * config.world + index == 0
    for done in range(shards + 1):
        if first:
            rate = "?it/s]" if not done else f"{252.97 / shards:5.2f}it/s]"
            left = "?" if not done else "00:00"
            put(
                f"\rLoading safetensors checkpoint shards: {done * 100 // shards:3d}% Completed | "
                f"{done}/{shards} [00:00<{left}, {rate}\n",
                2,
            )
        if done < shards:
            pause(0.1)
    if first:
        put("\n", 2)
    log.info("default_loader.py:501", "Loading weights took 0.01 seconds")
    if config.is_moe:
        log.info("unquantized.py:528", "Using MoEPrepareAndFinalizeNaiveDPEPModular")
        log.info("unquantized.py:529", "Using CPUUnquantizedExperts MoE backend")


def worker_caches(config: Config, log: Log) -> None:
    """Say what a worker says of its KV cache and the connector."""
    gib = config.kv_bytes / (1 << 30)
    log.info("cpu_worker.py:260", f"Explicitly set ({gib:.2f}/17.09) GiB for KV cache on node 0.")
    if not config.connector:
        return
    log.info("nixl_utils.py:72", "NIXL is available")
    _connector(config, log)
    log.info("base_worker.py:515", "Initializing NIXL wrapper")
    log.info("base_worker.py:516", f"Initializing NIXL worker {config.engine_id}")
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    put(f"{stamp} NIXL INFO    _api.py:405 Backend UCX was instantiated\n")
    put(f"{stamp} NIXL INFO    _api.py:281 Initialized NIXL agent: {uuid.uuid4()}\n")
    log.info("base_worker.py:861", "Detected attention backend(s) ['CPU_ATTN']")
    log.info("base_worker.py:865", "Detected kv cache layout LBHNC")
    log.info(
        "base_worker.py:1416",
        "Registering KV_Caches. use_mla: False, kv_buffer_device: cpu, use_host_buffer: False",
    )


def _connector(config: Config, log: Log) -> None:
    log.info(
        "factory.py:62", f"Creating v1 connector with name: NixlPullConnector and engine_id: {config.engine_id}"
    )
    log.warning(
        "base.py:214",
        "Initializing KVConnectorBase_V1. This API is experimental and subject to change in the future as we iterate the "
        "design.",
    )


def engine_caches(config: Config, log: Log) -> None:
    """Say what the engine says when its workers have loaded."""
    if config.connector:
        log.info("nixl_utils.py:72", "NIXL is available")
        log.info("connector.py:157", "NixlConnector setting KV cache layout to LBHNC for better xfer performance.")
    log.info("utils.py:347", "Using LBHNC KV cache layout.")
    tokens = config.blocks * config.block_size
    log.info(
        "kv_cache_utils.py:2327",
        f"CPU KV cache size: {tokens:,} tokens, Maximum concurrency for {config.max_model_len:,} tokens per request: "
        f"{tokens / config.max_model_len:.2f}x",
    )


def engine_ready(config: Config, log: Log) -> None:
    """Say what the engine says at the end of its start."""
    log.info("core.py:402", "init engine (profile, create kv cache, warmup model) took 0.61 s")
    if config.connector:
        _connector(config, log)
        log.info("base_scheduler.py:109", f"Initializing NIXL Scheduler {config.engine_id}")
    log.warning("vllm.py:725", "Model Runner V2 requires Triton; using the V1 model runner instead.")


def engine_goes_on(config: Config, log: Log) -> None:
    """Say what the engine says once its side channel is there."""
    _configuration(config, log)
    log.info("compilation.py:317", "Enabled custom fusions: norm_quant, act_quant")


def serves(config: Config, log: Log) -> None:
    """Say what the API server says when its engine is there."""
    log.info("entry.py:136", "Supported tasks: ['generate']")
    log.info(
        "factories.py:89",
        "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
    )
    log.info(
        "hf.py:648",
        "Detected the chat template content format to be 'openai'. You can set `--chat-template-content-format` to "
        "override this.",
    )
    log.info("entry.py:140", f"Starting vLLM server on http://{config.host}:{config.port}")
    log.info("launcher.py:186", "Available routes are:")
    for route, methods in ROUTES:
        log.info("launcher.py:195", f"Route: {route}, Methods: {methods}")
