"""The settings of vLLM-Ascend's own nightly deployments between prefill and decode: all of them are left alone."""

from __future__ import annotations

import pytest

from tests.topology.examples import changed, loaded, of_rule

FILE = """
pdtui: 1
name: nightly
platform: a3
vllm_ascend: "{version}"
model: {{path: /models/DeepSeek-V3.1-w8a8-mtp, served_name: m}}
kv: {{connector: MooncakeConnectorV1}}
nodes:
  n0: {{host: 192.0.2.1, nic: eth0}}
  n1: {{host: 192.0.2.2, nic: eth0}}
  n2: {{host: 192.0.2.3, nic: eth0}}
defaults:
  env:
    ACL_OP_INIT_MODE: 1
    ASCEND_A3_ENABLE: 1
    ASCEND_AGGREGATE_ENABLE: 1
    ASCEND_TRANSPORT_PRINT: 0
    DISABLE_L2_CACHE: 1
    HCCL_CONNECT_TIMEOUT: 400
    HCCL_DETERMINISTIC: True
    HCCL_ENTRY_LOG_ENABLE: 1
    HCCL_EXEC_TIMEOUT: 204
    HCCL_INTRA_PCIE_ENABLE: 1
    HCCL_INTRA_ROCE_ENABLE: 0
    HCCL_OP_EXPANSION_MODE: AIV
    HCCL_OP_RETRY_ENABLE: "L0:0, L1:0, L2:0"
    LD_PRELOAD: /usr/lib/aarch64-linux-gnu/libjemalloc.so.2:$LD_PRELOAD
    LOCAL_IP: 192.0.2.9
    MC_LOG_LEVEL: ERROR
    NUMEXPR_MAX_THREADS: 128
    OMP_NUM_THREADS: 10
    OMP_PROC_BIND: false
    PYTORCH_NPU_ALLOC_CONF: expandable_segments:True
    SERVER_PORT: 8080
    TASK_QUEUE_ENABLE: 1
    VLLM_DISABLE_COMPILE_CACHE: 0
    VLLM_ENGINE_READY_TIMEOUT_S: 7200
    VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: 30000
    VLLM_LOGGING_LEVEL: info
    VLLM_PREFIX_CACHE_RETENTION_INTERVAL: 4096
    VLLM_RPC_TIMEOUT: 3600000
    VLLM_TORCH_PROFILER_WITH_STACK: 0
    VLLM_USE_MODELSCOPE: true
    VLLM_USE_V2_MODEL_RUNNER: 1
  args:
    allowed-local-media-path: /
    attention_config.indexer_kv_dtype: int8
    block-size: "128"
    distributed-executor-backend: mp
    enable-auto-tool-choice: true
    enable-expert-parallel: true
    hf-overrides: '{{"use_index_cache": true, "index_topk_freq": 4}}'
    long-prefill-token-threshold: 2048
    max-model-len: "65536"
    model-loader-extra-config: '{{"enable_multithread_load": true, "num_threads": 128}}'
    no-disable-hybrid-kv-cache-manager: true
    quantization: ascend
    reasoning-parser: glm45
    safetensors-load-strategy: prefetch
    seed: "1024"
    speculative-config: '{{"num_speculative_tokens": 1, "method": "mtp", "enforce_eager": true}}'
    tokenizer-mode: deepseek_v4
    tool-call-parser: glm47
    trust-remote-code: true
roles:
  prefill:
    env: {{HCCL_BUFFSIZE: 256, VLLM_ASCEND_ENABLE_FUSED_MC2: 1}}
    args:
      additional-config:
        '{{"enable_cpu_binding": "True", "enable_dsa_cp": true, "enable_sparse_sfa_c8": true,
        "enable_sparse_li_c8": true, "c8_enable_reshape_optim": true, "weight_nz_mode": 2,
        "enable_shared_expert_dp": true, "enable_mlapo": true}}'
      enable-chunked-prefill: true
      enforce-eager: true
      gpu-memory-utilization: "0.9"
      max-num-batched-tokens: "16384"
      max-num-seqs: "8"
  decode:
    env: {{HCCL_BUFFSIZE: 1100, VLLM_ASCEND_ENABLE_MLAPO: 1, DYNAMIC_EPLB: true, EXPERT_MAP_RECORD: true}}
    args:
      additional-config:
        '{{"recompute_scheduler_enable": true, "multistream_overlap_shared_expert": true,
        "finegrained_tp_config": {{"lmhead_tensor_parallel_size": 8}},
        "eplb_config": {{"dynamic_eplb": true, "expert_heat_collection_interval": 4000,
        "algorithm_execution_interval": 200, "num_redundant_experts": 0, "eplb_policy_type": 2}},
        "ascend_compilation_config": {{"enable_npugraph_ex": true, "enable_static_kernel": false}}}}'
      async-scheduling: true
      compilation-config: '{{"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [2, 4, 8, 56]}}'
      gpu-memory-utilization: "0.95"
      max-num-batched-tokens: "256"
      max-num-seqs: "28"
groups:
  p: {{role: prefill, nodes: [n0], dp_size: 2, tp_size: 8, api_port: 7100, rpc_port: 12321, kv_port: 14000}}
  d: {{role: decode, nodes: [n1, n2], dp_size: 32, tp_size: 1, api_port: 7100, rpc_port: 12321, kv_port: 14200}}
proxy: {{node: n0, port: 1999}}
"""


@pytest.mark.parametrize("version", ["0.22.1rc1", "0.23.0", "main"])
def test_what_nightly_deployments_set_is_left_alone(version: str) -> None:
    assert loaded(FILE.format(version=version)).findings == ()


def test_each_key_of_a_text_is_reported_and_what_groups_share_only_once() -> None:
    text = """additional-config: '{"lmhead_tensor_parallel_size": 16, "recompute_schedular_enable": true}'"""
    findings = of_rule(loaded(changed(("seed: 1024", f"seed: 1024, {text}"))).findings, "R39")
    assert [finding.message.split("`")[1] for finding in findings] == [
        "lmhead_tensor_parallel_size",
        "recompute_schedular_enable",
    ]
    assert {finding.path for finding in findings} == {"defaults.args.additional-config"}


@pytest.mark.parametrize(
    "value", [".inf", "-.inf", ".nan", "'1e400'", "1e30", "[]", "{}", "null", "''", "{a: {b: [c]}}"]
)
def test_values_of_any_kind_are_survived(value: str) -> None:
    names = (
        *("max-num-seqs", "max-num-batched-tokens", "max-model-len", "gpu-memory-utilization", "block-size"),
        *("spec-tokens", "speculative-config", "compilation-config", "additional-config", "api-server-count"),
        *("enable-expert-parallel", "scheduling-policy", "num-redundant-experts", "api-key"),
    )
    args = ", ".join(f"{name}: {value}" for name in names)
    text = changed(
        ("{seed: 1024, max-model-len: 4000}", f"{{{args}}}"),
        ("{max-num-seqs: 40}", "{spec-tokens: 2, compilation-config: {cudagraph_capture_sizes: [.inf, x, 8]}}"),
        ("name: small", "name: small\nworkload: {input_tokens: 9, output_tokens: 9, concurrency: 9}"),
    )
    assert loaded(text).topology is not None
