"""Flags of `vllm serve` that have come up to 0.32: a start is refused for what no version takes."""

SWITCHES = frozenset(
    """
    allow-credentials cohere-is-reasoning-model cudagraph-metrics data-parallel-multi-port-external-lb
    dcp-q-replicate disable-chunked-mm-input disable-nccl-for-dp-synchronization
    enable-batch-sharded-sampling enable-cumem-allocator enable-elastic-ep enable-ep-weight-filter
    enable-fault-tolerance enable-flash-late-interaction enable-flashinfer-autotune enable-hc-sp
    enable-layerwise-nvtx-tracing enable-log-deltas enable-logging-iteration-details
    enable-mamba-cache-stochastic-rounding enable-mamba-shared-prefix-checkpoint enable-mfu-metrics
    enable-mixed-moe-lora-format enable-mm-embeds enable-moe-shared-loras enable-nccl-comm-suspend
    enable-offline-docs enable-per-request-metrics enable-return-routed-experts enable-scale-out
    enable-shm-tensor-arena enable-ssl-refresh enable-tower-connector-lora enable-trace-replay
    fail-on-environ-validation grpc interleave-mm-strings jit-monitor-verbose kv-cache-metrics
    kv-sharing-fast-prefill log-error-stack long-prefill-token-threshold-adaptive mm-device-do-normalize
    mm-encoder-only numa-bind ray-workers-use-nsight return-sampling-mask scheduler-reserve-full-isl
    sleep-mode-offload-cudagraph specialize-active-lora swa-bounded-replay tokens-only
    trust-request-mm-kwargs use-fp64-gumbel use-replayssm
    """.split()
)
"""Flags without a value; each has a `--no-` form."""

VALUES = frozenset(
    """
    all2all-backend allowed-local-media-path anthropic-disabled-thinking-effort attention-backend
    aux-output-config chat-template-content-format cohere-format convert cpu-distributed-timeout-seconds
    custom-histogram-buckets data-parallel-supervisor-port dbo-decode-token-threshold
    dbo-prefill-token-threshold dcp-comm-backend dcp-kv-cache-interleave-size default-mm-loras device-ids
    diffusion-config distributed-timeout-seconds dp-supervisor-probe-failure-threshold
    dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s dp-sync-interval ec-manager-config
    ec-transfer-config elastic-ep-max-dp-size engram-config expert-placement-strategy fault-tolerance-config
    fingerprint-mode fingerprint-value gdn-prefill-backend grpc-port h11-max-header-count
    h11-max-incomplete-event-size hf-config-path hf-token io-processor-plugin ir-op-priority
    jit-monitor-mode kda-decode-backend kda-prefill-backend kv-cache-metrics-sample kv-offloading-backend
    kv-offloading-size linear-backend log-config-file log-level logging-config logprobs-mode lora-dtype
    mamba-backend mamba-block-size mamba-cache-dtype mamba-cache-mode mamba-cache-philox-rounds
    mamba-ssm-cache-dtype mamba-ssu-algorithm max-cudagraph-capture-size max-log-len max-lora-cls-labels
    max-num-active-seqs max-num-queued-reqs max-num-queued-tokens max-num-scheduled-tokens media-io-kwargs
    mm-encoder-attn-backend mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin
    mm-encoder-fp8-scale-save-path mm-encoder-tp-mode mm-hasher-algorithm mm-ipc-gpu-memory-gb
    mm-processor-cache-type mm-processor-device mm-shm-cache-max-object-size-mb mm-tensor-ipc
    model-class-overrides model-loader-extra-config moe-backend offload-backend offload-group-size
    offload-num-in-group offload-prefetch-step optimization-level per-request-spec-decode-metrics
    performance-mode prefill-schedule-interval prefix-cache-retention-interval prefix-caching-hash-algo
    prefix-match-unit pt-load-map-location quantization-config reasoning-config reasoning-parser-plugin
    renderer-num-workers replayssm-buffer-len safetensors-load-strategy safetensors-prefetch-block-size
    safetensors-prefetch-num-threads show-hidden-metrics-for-version shutdown-timeout
    sparse-indexer-topk-backend spec-method spec-model spec-tokens sse-keep-alive-interval ssl-cert-reqs
    ssl-ciphers stream-interval tool-server tool-strict-level ubatch-size uds video-pruning-method
    video-pruning-rate watermark watermark-config weight-transfer-config
    """.split()
)
"""Flags with one value."""

LISTS = frozenset(
    """
    allowed-media-domains collect-detailed-traces cpu-offload-params ignore-patterns
    kv-cache-dtype-skip-layers lora-target-modules numa-bind-cpus numa-bind-nodes offload-params
    sleep-preserve-parameter-names
    """.split()
)
"""Flags with one value or more."""
