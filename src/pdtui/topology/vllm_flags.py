"""The flags of `vllm serve`: what releases since 0.9 take, and which of them pdtui cannot live with."""

from __future__ import annotations

from collections.abc import Mapping

_CURRENT = """
    additional-config aggregate-engine-logging all2all-backend allow-credentials allow-deprecated-quantization
    allowed-headers allowed-local-media-path allowed-media-domains allowed-methods allowed-origins
    anthropic-disabled-thinking-effort api-key api-server-count async-scheduling attention-backend
    attention-config aux-output-config block-size chat-template chat-template-content-format code-revision
    cohere-format cohere-is-reasoning-model collect-detailed-traces compilation-config config config-format
    convert cp-kv-cache-interleave-size cpu-distributed-timeout-seconds cpu-offload-gb cpu-offload-params
    cudagraph-capture-sizes cudagraph-metrics custom-histogram-buckets data-parallel-address
    data-parallel-backend data-parallel-external-lb data-parallel-hybrid-lb data-parallel-multi-port-external-lb
    data-parallel-rank data-parallel-rpc-port data-parallel-size data-parallel-size-local
    data-parallel-start-rank data-parallel-supervisor-port dbo-decode-token-threshold
    dbo-prefill-token-threshold dcp-comm-backend dcp-kv-cache-interleave-size dcp-q-replicate
    decode-context-parallel-size default-chat-template-kwargs default-mm-loras device-ids
    device-memory-utilization diffusion-config disable-access-log-for-endpoints disable-cascade-attn
    disable-chunked-mm-input disable-custom-all-reduce disable-fastapi-docs disable-hybrid-kv-cache-manager
    disable-log-stats disable-nccl-for-dp-synchronization disable-sliding-window disable-uvicorn-access-log
    distributed-executor-backend distributed-timeout-seconds download-dir dp-supervisor-probe-failure-threshold
    dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s dp-sync-interval dtype ec-manager-config
    ec-transfer-config elastic-ep-max-dp-size enable-auto-tool-choice enable-batch-sharded-sampling
    enable-chunked-prefill enable-cumem-allocator enable-dbo enable-elastic-ep enable-ep-weight-filter
    enable-eplb enable-expert-parallel enable-fault-tolerance enable-flash-late-interaction
    enable-flashinfer-autotune enable-force-include-usage enable-hc-sp enable-layerwise-nvtx-tracing
    enable-log-deltas enable-log-outputs enable-log-requests enable-logging-iteration-details enable-lora
    enable-mamba-cache-stochastic-rounding enable-mamba-shared-prefix-checkpoint enable-mfu-metrics
    enable-mixed-moe-lora-format enable-mm-embeds enable-moe-shared-loras enable-nccl-comm-suspend
    enable-offline-docs enable-per-request-metrics enable-prefix-caching enable-prompt-embeds
    enable-prompt-tokens-details enable-request-id-headers enable-return-routed-experts enable-scale-out
    enable-server-load-tracking enable-shm-tensor-arena enable-sleep-mode enable-ssl-refresh
    enable-tokenizer-info-endpoint enable-tower-connector-lora enable-trace-replay enforce-eager engram-config
    eplb-config exclude-tools-when-tool-choice-none expert-placement-strategy fail-on-environ-validation
    fault-tolerance-config fingerprint-mode fingerprint-value fully-sharded-loras gdn-prefill-backend
    generation-config gpu-memory-utilization grpc grpc-port h11-max-header-count h11-max-incomplete-event-size
    headless hf-config-path hf-overrides hf-token host ignore-patterns interleave-mm-strings io-processor-plugin
    ir-op-priority jit-monitor-mode jit-monitor-verbose kda-decode-backend kda-prefill-backend kernel-config
    kv-cache-dtype kv-cache-dtype-skip-layers kv-cache-memory-bytes kv-cache-metrics kv-cache-metrics-sample
    kv-events-config kv-offloading-backend kv-offloading-size kv-sharing-fast-prefill kv-transfer-config
    language-model-only limit-mm-per-prompt linear-backend load-format log-config-file log-error-stack log-level
    logging-config logits-processors logprobs-mode long-prefill-token-threshold
    long-prefill-token-threshold-adaptive lora-dtype lora-modules lora-target-modules mamba-backend
    mamba-block-size mamba-cache-dtype mamba-cache-mode mamba-cache-philox-rounds mamba-ssm-cache-dtype
    mamba-ssu-algorithm master-addr master-port max-cpu-loras max-cudagraph-capture-size max-log-len
    max-logprobs max-lora-cls-labels max-lora-rank max-loras max-model-len max-num-active-seqs
    max-num-batched-tokens max-num-queued-reqs max-num-queued-tokens max-num-scheduled-tokens max-num-seqs
    max-parallel-loading-workers media-io-kwargs middleware mm-device-do-normalize mm-encoder-attn-backend
    mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin
    mm-encoder-fp8-scale-save-path mm-encoder-only mm-encoder-tp-mode mm-hasher-algorithm mm-ipc-gpu-memory-gb
    mm-processor-cache-gb mm-processor-cache-type mm-processor-device mm-processor-kwargs
    mm-shm-cache-max-object-size-mb mm-tensor-ipc model model-class-overrides model-impl
    model-loader-extra-config moe-backend nnodes node-rank num-gpu-blocks-override numa-bind numa-bind-cpus
    numa-bind-nodes offload-backend offload-group-size offload-num-in-group offload-params offload-prefetch-step
    optimization-level otlp-traces-endpoint override-generation-config per-request-spec-decode-metrics
    performance-mode pipeline-parallel-size pooler-config port prefill-context-parallel-size
    prefill-schedule-interval prefix-cache-retention-interval prefix-caching-hash-algo prefix-match-unit
    profiler-config pt-load-map-location quantization quantization-config ray-workers-use-nsight
    reasoning-config reasoning-parser reasoning-parser-plugin renderer-num-workers replayssm-buffer-len
    response-role return-sampling-mask return-tokens-as-token-ids revision root-path runner
    safetensors-load-strategy safetensors-prefetch-block-size safetensors-prefetch-num-threads scheduler-cls
    scheduler-reserve-full-isl scheduling-policy seed served-model-name show-hidden-metrics-for-version
    shutdown-timeout skip-mm-profiling skip-tokenizer-init sleep-mode-offload-cudagraph
    sleep-preserve-parameter-names sparse-indexer-topk-backend spec-method spec-model spec-tokens
    specialize-active-lora speculative-config sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs ssl-certfile
    ssl-ciphers ssl-keyfile stream-interval structured-outputs-config swa-bounded-replay tensor-parallel-size
    tokenizer tokenizer-mode tokenizer-revision tokens-only tool-call-parser tool-parser-plugin tool-server
    tool-strict-level trust-remote-code trust-request-chat-template trust-request-mm-kwargs ubatch-size uds
    use-fp64-gumbel use-replayssm use-tqdm-on-load uvicorn-log-level video-pruning-method video-pruning-rate
    watermark watermark-config weight-transfer-config worker-cls worker-extension-cls
"""
CURRENT = frozenset(_CURRENT.split())
"""Flags of vLLM 0.32 (`vllm serve --help=all`), without `no-` and dashes."""

_OLDER = """
    attention-backend-config calculate-kv-scales context-parallel-size cuda-graph-sizes device
    disable-async-output-proc disable-frontend-multiprocessing disable-log-requests
    disable-logprobs-during-spec-decoding disable-mm-preprocessor-cache enable-kv-cache-events enable-lora-bias
    enable-microbatching enable-multimodal-encoder-data-parallel enable-prompt-adapter enable-reasoning
    enable-trace-function-calls eplb-log-balancedness eplb-step-interval eplb-window-size
    guided-decoding-backend guided-decoding-config guided-decoding-disable-additional-properties
    guided-decoding-disable-any-whitespace guided-decoding-disable-fallback logits-processor-pattern
    long-lora-scaling-factors lora-extra-vocab-size max-long-partial-prefills max-num-partial-prefills
    max-prompt-adapter-token max-prompt-adapters max-seq-len-to-capture mm-processor-cache-size model-tag
    multi-step-stream-outputs ngram-prompt-lookup-max ngram-prompt-lookup-min num-lookahead-slots
    num-redundant-experts num-scheduler-steps num-speculative-tokens override-neuron-config
    override-pooler-config preemption-mode prompt-adapters qlora-adapter-name-or-path rope-scaling rope-theta
    scheduler-delay-factor spec-decoding-acceptance-method speculative-disable-mqa-scorer
    speculative-draft-tensor-parallel-size speculative-max-model-len speculative-model swap-space task
    tokenizer-pool-size tokenizer-pool-type typical-acceptance-sampler-posterior-alpha
    typical-acceptance-sampler-posterior-threshold use-v2-block-manager worker-use-ray
"""
OLDER = frozenset(_OLDER.split())
"""Flags of vLLM 0.8 to 0.31 that are gone or were renamed since."""

KNOWN = CURRENT | OLDER

SHORT: Mapping[str, str] = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dcp": "decode-context-parallel-size",
    "-pcp": "prefill-context-parallel-size",
    "-dp": "data-parallel-size",
    "-dpn": "data-parallel-rank",
    "-dpr": "data-parallel-start-rank",
    "-dpl": "data-parallel-size-local",
    "-dpa": "data-parallel-address",
    "-dpp": "data-parallel-rpc-port",
    "-dpb": "data-parallel-backend",
    "-dph": "data-parallel-hybrid-lb",
    "-dpe": "data-parallel-external-lb",
    "-dpm": "data-parallel-multi-port-external-lb",
    "-ep": "enable-expert-parallel",
    "-asc": "api-server-count",
    "-n": "nnodes",
    "-r": "node-rank",
    "-q": "quantization",
    "-sc": "speculative-config",
    "-dc": "diffusion-config",
    "-cc": "compilation-config",
    "-ac": "attention-config",
}
"""Short forms (vllm/engine/arg_utils.py, entrypoints/launchers/cli_args.py)."""


def long_name(word: str) -> str:
    """Return the flag of a word such as `--max_num_seqs=8` or `-tp` by its long name, without dashes before it.

    Empty for a word that is no flag. As in vLLM underscores are dashes up to the first dot; behind it stand keys
    of a JSON value.
    """
    flag, dot, keys = word.partition("=")[0].partition(".")
    name = flag[2:].replace("_", "-") if flag.startswith("--") else SHORT.get(flag, "")
    return f"{name}{dot}{keys}" if name else ""


BREAKING: Mapping[str, str] = {
    "headless": "a rank without an API server can neither be checked nor asked",
    "uds": "neither proxy nor checks reach a rank on a socket file",
    "grpc": "proxy and checks speak HTTP",
    "ssl-keyfile": "proxy and checks speak plain HTTP to ranks",
    "ssl-certfile": "proxy and checks speak plain HTTP to ranks",
    "data-parallel-hybrid-lb": "each rank is a server of its own here, and the proxy balances",
    "data-parallel-start-rank": "each rank is a server of its own here, with a --data-parallel-rank",
    "data-parallel-multi-port-external-lb": "each rank is started by itself here, with a port of its own",
    "nnodes": "a rank lives on one server here",
    "node-rank": "a rank lives on one server here",
    "model": "the model stands in `model.path`",
    "model-tag": "the model stands in `model.path`",
}
"""Flags with which a rank does not start, or is no server that pdtui and its proxy can use -> why."""

_TLS = "it does nothing without a certificate of the server, and ranks are asked over plain HTTP"

DOUBTFUL: Mapping[str, str] = {
    "config": "what it says is not checked here and may contradict what is derived: write its flags under `args`",
    "ssl-ca-certs": _TLS,
    "ssl-cert-reqs": _TLS,
    "enable-ssl-refresh": _TLS,
    "data-parallel-backend": "ranks are started one by one here, not by ray",
    "data-parallel-external-lb": "it follows from --data-parallel-rank, which is derived",
    "data-parallel-supervisor-port": "ranks are supervised by pdtui, one by one",
    "enable-elastic-ep": "ranks that come and go are not in the file, so they look like strangers",
}
"""Flags that do nothing good here -> why."""
