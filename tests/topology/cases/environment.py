"""Rules of variables and containers: what breaks each of them, and what does not."""

from __future__ import annotations

from pdtui.topology.findings import Severity
from tests.topology.cases.flags import A2, EP, MAIN, every, more
from tests.topology.examples import Case, Edits

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


def env(text: str) -> Edits:
    return (("OMP_NUM_THREADS: 10", f"OMP_NUM_THREADS: 10, {text}"),)


def runtime(text: str) -> Edits:
    return (("name: small", f"name: small\nruntime: {{container: v, {text}}}"),)


ALL = "defaults.env"
LEASE = "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT"
OLD_LEASE = "VLLM_NIXL_ABORT_REQUEST_TIMEOUT"

TIMES = (
    Case("R47", WARNING, env(f"{LEASE}: 300000"), f"{ALL}.{LEASE}", "300000 s", env(f"{LEASE}: 600")),
    Case("R47", WARNING, env(f"{LEASE}: 30"), f"{ALL}.{LEASE}", "blocks gone"),
    Case(
        "R47",
        WARNING,
        env(f"{OLD_LEASE}: 480"),
        f"{ALL}.{OLD_LEASE}",
        f"write {LEASE}",
        (*env(f"{OLD_LEASE}: 480"), ('"0.22.1rc1"', '"0.13.0"')),
    ),
    Case(
        "R48",
        WARNING,
        env("HCCL_CONNECT_TIMEOUT: 60"),
        f"{ALL}.HCCL_CONNECT_TIMEOUT",
        "120 to 7200",
        env("HCCL_CONNECT_TIMEOUT: 3600"),
    ),
    Case(
        "R48",
        WARNING,
        (("name: small", "name: small\nstart: {stagger: 60s}"),),
        "groups.d",
        "starts 180 s after the first",
        (("name: small", "name: small\nstart: {stagger: 60s}"), *env("HCCL_CONNECT_TIMEOUT: 600")),
    ),
    Case(
        "R49",
        WARNING,
        env("VLLM_ENGINE_READY_TIMEOUT_S: 300"),
        f"{ALL}.VLLM_ENGINE_READY_TIMEOUT_S",
        "below vLLM's own",
        env("VLLM_ENGINE_READY_TIMEOUT_S: 1800"),
    ),
    Case(
        "V6",
        INFO,
        env("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: 600"),
        f"{ALL}.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS",
        "raised to 3000",
        env("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: 30000"),
    ),
    Case("R50", ERROR, env("HCCL_BUFFSIZE: 600MB"), f"{ALL}.HCCL_BUFFSIZE", "600MB", env("HCCL_BUFFSIZE: 600")),
    Case("R50", WARNING, (*env("HCCL_BUFFSIZE: 100"), *every(EP)), f"{ALL}.HCCL_BUFFSIZE", "below HCCL's own"),
    Case("R50", INFO, every(EP), "groups.d", "is not set", (*every(EP), *env("HCCL_BUFFSIZE: 512"))),
)
NAMES = (
    Case(
        "R58",
        WARNING,
        env("HCCL_INTTRA_ROCE_ENABLE: 0"),
        f"{ALL}.HCCL_INTTRA_ROCE_ENABLE",
        "did you mean HCCL_INTRA_ROCE_ENABLE",
        env("HCCL_INTRA_ROCE_ENABLE: 0"),
    ),
    Case("R58", WARNING, env("HCCL_BUFFER_SIZE: 600"), f"{ALL}.HCCL_BUFFER_SIZE", "did you mean HCCL_BUFFSIZE"),
    Case(
        "R58",
        WARNING,
        env("HCCL_DETERMINISTICS: 1"),
        f"{ALL}.HCCL_DETERMINISTICS",
        "did you mean HCCL_DETERMINISTIC",
        env("LCCL_DETERMINISTIC: 1, ASCEND_A3_EBA_ENABLE: 1"),
    ),
    Case("R58", WARNING, env("ASCEND_VISIBLE_DEVICES: 0"), f"{ALL}.ASCEND_VISIBLE_DEVICES", "container runtime"),
    Case(
        "V7",
        INFO,
        env("VLLM_USE_V1: 1"),
        f"{ALL}.VLLM_USE_V1",
        "no other engine",
        (*env("VLLM_USE_V1: 1"), ('"0.22.1rc1"', '"0.11.0"')),
    ),
    Case(
        "V7",
        INFO,
        (*env('ASCEND_BUFFER_POOL: "4:8"'), MAIN),
        f"{ALL}.ASCEND_BUFFER_POOL",
        "went with",
        env('ASCEND_BUFFER_POOL: "4:8"'),
    ),
    Case(
        "V8",
        INFO,
        (*env("VLLM_ASCEND_ENABLE_NZ: 1"), *every(more("weight_nz_mode: 1"))),
        f"{ALL}.VLLM_ASCEND_ENABLE_NZ",
        "`weight_nz_mode`",
        env("VLLM_ASCEND_ENABLE_NZ: 1"),
    ),
)
EFFECTS = (
    Case(
        "R35",
        ERROR,
        env("VLLM_ASCEND_BALANCE_SCHEDULING: 1"),
        f"{ALL}.VLLM_ASCEND_BALANCE_SCHEDULING",
        "both roles",
        env("VLLM_ASCEND_BALANCE_SCHEDULING: 0"),
    ),
    Case("R54", ERROR, env("HCCL_IF_IP: $(hostname -I)"), f"{ALL}.HCCL_IF_IP", "its command is not run"),
    Case("R54", WARNING, env("HCCL_IF_IP: $MY_IP"), f"{ALL}.HCCL_IF_IP", "delete it", env("HCCL_IF_IP: null")),
    Case("F06", WARNING, env("A: $(date)"), f"{ALL}.A", "is not run", env("A: $DATE")),
    Case(
        "R57",
        WARNING,
        env("HCCL_INTRA_ROCE_ENABLE: 1"),
        f"{ALL}.HCCL_INTRA_ROCE_ENABLE",
        "over RoCE",
        (*A2, *env("HCCL_INTRA_ROCE_ENABLE: 1")),
    ),
    Case(
        "R61",
        WARNING,
        env("VLLM_CONFIGURE_LOGGING: 0"),
        f"{ALL}.VLLM_CONFIGURE_LOGGING",
        "read from the log",
        env("VLLM_CONFIGURE_LOGGING: 1"),
    ),
    Case("R61", WARNING, env("VLLM_LOGGING_LEVEL: error"), f"{ALL}.VLLM_LOGGING_LEVEL", "most of them at INFO"),
    Case("R61", WARNING, every("disable-log-stats: true"), "defaults.args.disable-log-stats", "no throughput"),
    Case(
        "R62",
        WARNING,
        env('http_proxy: "http://gate:3128", no_proxy: "127.0.0.1,192.0.2.1"'),
        f"{ALL}.http_proxy",
        "leaves out 192.0.2.2, 192.0.2.3",
        env('http_proxy: "http://gate:3128", no_proxy: "127.0.0.1,192.0.2.1,192.0.2.2,192.0.2.3"'),
    ),
    Case(
        "R82",
        INFO,
        env("ASCEND_PROCESS_LOG_PATH: /var/log/npu"),
        f"{ALL}.ASCEND_PROCESS_LOG_PATH",
        "to one place",
    ),
    Case(
        "R83",
        ERROR,
        env("""ASCEND_GLOBAL_RESOURCE_CONFIG: '{comm_resource_config.protocol_desc: ["roce:device"]}'"""),
        f"{ALL}.ASCEND_GLOBAL_RESOURCE_CONFIG",
        "at character 2",
        env("""ASCEND_GLOBAL_RESOURCE_CONFIG: '{"comm_resource_config.protocol_desc": ["roce:device"]}'"""),
    ),
    Case(
        "V3",
        ERROR,
        env("ASCEND_LAUNCH_BLOCKING: 1"),
        f"{ALL}.ASCEND_LAUNCH_BLOCKING",
        "graphs, which d has",
        (("prefill: {args", "prefill: {env: {ASCEND_LAUNCH_BLOCKING: 1}, args"),),
    ),
    Case(
        "V9",
        WARNING,
        env('PYTORCH_NPU_ALLOC_CONF: "expandable_segments:True,max_split_size_mb:256"'),
        f"{ALL}.PYTORCH_NPU_ALLOC_CONF",
        "exclude each other",
        env('PYTORCH_NPU_ALLOC_CONF: "expandable_segments:True"'),
    ),
)
SECRETS = (
    Case(
        "V13",
        WARNING,
        env("MY_API_KEY: sk-1"),
        f"{ALL}.MY_API_KEY",
        "{file: PATH}",
        env("MY_API_KEY: {file: /run/key}, HF_TOKEN: $HF_TOKEN"),
    ),
    Case(
        "V13",
        WARNING,
        env('http_proxy: "http://ann:pw@gate:3128", no_proxy: "*"'),
        f"{ALL}.http_proxy",
        "looks like a password",
    ),
    Case(
        "V13",
        WARNING,
        every("api-key: sk-1"),
        "defaults.args.api-key",
        "VLLM_API_KEY",
        every("api-key: {from_env: K}"),
    ),
    Case(
        "V13",
        WARNING,
        every("model-loader-extra-config: {store: {secret: x}}"),
        "defaults.args.model-loader-extra-config",
        "shown by `ps`",
    ),
    Case(
        "V13",
        WARNING,
        (("MooncakeConnectorV1", "MooncakeConnectorV1, extra: {access_token: x}"),),
        "kv.extra.access_token",
        "command line",
    ),
    Case(
        "V13",
        WARNING,
        runtime('options: ["-e", "HF_TOKEN=x", "--env=HF_TOKEN=x"]'),
        "runtime.options.1",
        "docker inspect",
    ),
    Case("F09", ERROR, every("hf-token: {file: /k}"), "defaults.args.hf-token", "only variables and api-key"),
    Case("F09", ERROR, every("api-key: [{file: /k}]"), "defaults.args.api-key", "with one value"),
    Case(
        "F09",
        ERROR,
        (("MooncakeConnectorV1", "MooncakeConnectorV1, extra: {store: {access_token: {file: /k}}}"),),
        "kv.extra.store",
        "not be looked up",
        (("MooncakeConnectorV1", "MooncakeConnectorV1, extra: {store: {log: {file: /k}}}"),),
    ),
    Case(
        "F03",
        ERROR,
        (*every("api-key: {file: /k}"), *env("VLLM_API_KEY: {file: /k}")),
        f"{ALL}.VLLM_API_KEY",
        "the same thing",
        env("VLLM_API_KEY: {file: /k}"),
    ),
    Case("F06", ERROR, env("A: {file: key}"), f"{ALL}.A", "absolute path", env("A: {file: ~/key}")),
    Case("F06", ERROR, every("api-key: {file: key}"), "defaults.args.api-key", "absolute path"),
)

CASES: tuple[Case, ...] = (*TIMES, *NAMES, *EFFECTS, *SECRETS)
