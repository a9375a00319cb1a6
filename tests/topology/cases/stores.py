"""Rules of KV pools, host memory and pipeline stages: what breaks each of them, and what does not."""

from __future__ import annotations

from pdtui.topology.findings import Severity
from tests.topology.examples import Case, Edits

ERROR, WARNING = Severity.ERROR, Severity.WARNING

CONNECTOR = "kv: {connector: MooncakeConnectorV1}"
STORE = "kv.stores.AscendStoreConnector"
GROUP_P = "rpc_port: 12321, kv_port: 14000"
GROUP_D = "rpc_port: 12321, kv_port: 14200"
DENSE = ("served_name: m}", "served_name: m, kind: dense}")
FILE = ("OMP_NUM_THREADS: 10", "OMP_NUM_THREADS: 10, MOONCAKE_CONFIG_PATH: /etc/mooncake.json")
STAGES = "tp_size: 4, pp_size: 2"
OFFLOAD = "kv: {stores: {RecomputeCPUOffloadConnector: {extra: {cpu_bytes_to_use_per_rank: 1}}}}, args"
SCHEDULER = "additional-config: {recompute_scheduler_enable: true}"
SPARSE = "additional-config: {sparse_kv_offload_config: {enabled: true}}"


def pool(extra: str = "", config: str = "", more: str = "") -> Edits:
    store = f"AscendStoreConnector: {{extra: {{{extra}}}, config: {{{config}}}}}"
    return (CONNECTOR, f"kv: {{connector: MooncakeConnectorV1, stores: {{{store}}}{more}}}"), FILE


def version(text: str) -> Edits:
    return (('"0.22.1rc1"', f'"{text}"'),)


def stages(text: str) -> Edits:
    return (("tp_size: 8", f"{STAGES}, {text}"),)


def remote(*edits: tuple[str, str], extra: str = "{}", decode: str = SPARSE) -> Edits:
    connector = f"kv: {{connector: SfaRemoteD2HConnector, extra: {extra}}}"
    return (*version("main"), (CONNECTOR, connector), ("max-num-seqs: 40", f"max-num-seqs: 40, {decode}"), *edits)


def env(one: str, other: str) -> Edits:
    return (GROUP_P, f"{GROUP_P}, env: {{{one}}}"), (GROUP_D, f"{GROUP_D}, env: {{{other}}}")


CASES: tuple[Case, ...] = (
    Case("K10", ERROR, (*pool(), *version("0.11.0")), STORE, "since vllm-ascend 0.12.0", pool()),
    Case(
        "K10",
        ERROR,
        (
            (CONNECTOR, "kv: {connector: MooncakeConnectorV1, stores: {LMCacheAscendConnector: {}}}"),
            *version("0.25.1"),
        ),
        "kv.stores.LMCacheAscendConnector",
        "no longer in 0.24.0",
        ((CONNECTOR, "kv: {connector: MooncakeConnectorV1, stores: {LMCacheAscendConnector: {}}}"),),
    ),
    Case(
        "K14",
        WARNING,
        pool(config="kv_load_failure_policy: recompute"),
        f"{STORE}.config.kv_load_failure_policy",
        "MultiConnector's own counts",
        pool(more=", config: {kv_load_failure_policy: recompute}"),
    ),
    Case("K24", WARNING, pool()[:1], STORE, "MOONCAKE_CONFIG_PATH, the path of mooncake.json", pool()),
    Case(
        "K24",
        ERROR,
        (*pool("use_layerwise: true"),),
        f"{STORE}.extra.use_layerwise",
        "for prefill only",
        (
            *pool(),
            (
                "prefill: {args",
                "prefill: {kv: {stores: {AscendStoreConnector: {extra: {use_layerwise: true}}}}, args",
            ),
        ),
    ),
    Case(
        "K24",
        ERROR,
        (
            *pool(),
            (GROUP_D, f"{GROUP_D}, kv: {{stores: {{AscendStoreConnector: {{extra: {{backend: memcache}}}}}}}}"),
        ),
        f"groups.d.{STORE}.extra.backend",
        "the pool of d is memcache, that of p mooncake",
        pool("backend: mooncake"),
    ),
    Case(
        "K25",
        ERROR,
        remote(extra="{transfer_backend: mooncake}"),
        "kv.extra.transfer_backend",
        "memfabric is derived",
        remote(extra="{transfer_backend: memfabric}"),
    ),
    Case("K25", ERROR, remote(decode="async-scheduling: true"), "groups.d", "into host memory of d", remote()),
    Case(
        "K25",
        ERROR,
        remote(("enforce-eager: true", f"enforce-eager: true, {SPARSE}")),
        "roles.prefill.args.additional-config.sparse_kv_offload_config",
        "for decode; take it out of p",
        remote(),
    ),
    Case("K25", ERROR, remote(("tp_size: 8", STAGES)), "groups.p.pp_size", "without pipelines", remote()),
    Case(
        "K25",
        ERROR,
        remote(decode=f"{SPARSE}, decode-context-parallel-size: 2"),
        "roles.decode.args.decode-context-parallel-size",
        "without context parallelism",
        remote(),
    ),
    Case(
        "K26",
        ERROR,
        (*version("0.23.0"), ("prefill: {args", f"prefill: {{{OFFLOAD}")),
        "roles.prefill.kv.stores.RecomputeCPUOffloadConnector",
        "works on decode only",
        (*version("0.23.0"), ("decode: {args", f"decode: {{{OFFLOAD}"), ("max-num-seqs: 40", SCHEDULER)),
    ),
    Case(
        "K26",
        ERROR,
        (*version("0.23.0"), ("decode: {args", f"decode: {{{OFFLOAD}")),
        "roles.decode.kv.stores.RecomputeCPUOffloadConnector",
        "needs the recompute scheduler",
    ),
    Case(
        "K30",
        WARNING,
        ((CONNECTOR, "kv: {connector: MooncakeConnectorV1, extra: {backend: memcache}}"),),
        "kv.extra.backend",
        "write it under `stores: {AscendStoreConnector: {extra: ...}}`",
        pool("backend: memcache"),
    ),
    Case(
        "K30",
        WARNING,
        pool("lookup_rcp_port: 1"),
        f"{STORE}.extra.lookup_rcp_port",
        "did you mean `lookup_rpc_port`",
    ),
    Case(
        "R52",
        ERROR,
        (*pool(), *env("PYTHONHASHSEED: 0", "PYTHONHASHSEED: 1")),
        "groups.d.env.PYTHONHASHSEED",
        "0 in p and 1 in d",
        (*pool(), *env("PYTHONHASHSEED: 1", "PYTHONHASHSEED: 1")),
    ),
    Case(
        "R52",
        ERROR,
        (*pool(), *env("A: b", "PYTHONHASHSEED: null")),
        "groups.d.env.PYTHONHASHSEED",
        "delete the line",
    ),
    Case(
        "R52",
        ERROR,
        (*pool("lookup_rpc_port: 0"), DENSE),
        f"{STORE}.extra.lookup_rpc_port",
        "p/0 and p/1 have the lookup_rpc_port 0 on n1",
        pool("lookup_rpc_port: 0"),
    ),
    Case(
        "R52",
        ERROR,
        (*pool("lookup_rpc_port: 0"), ("nodes: [n2, n3], dp_size: 8", "nodes: [n1, n3], dp_size: 8")),
        f"{STORE}.extra.lookup_rpc_port",
        "p/0 and d/0 have the lookup_rpc_port 0 on n1",
        (*pool(), ("nodes: [n2, n3], dp_size: 8", "nodes: [n1, n3], dp_size: 8")),
    ),
    Case(
        "K8",
        ERROR,
        stages("pp_layer_partition: [20, 20, 21]"),
        "groups.p.pp_layer_partition",
        "over 3 stages, but pp_size of p is 2",
        stages("pp_layer_partition: [31, 30]"),
    ),
    Case(
        "K8",
        ERROR,
        stages("env: {VLLM_PP_LAYER_PARTITION: '32,29'}"),
        "groups.p.env.VLLM_PP_LAYER_PARTITION",
        "write `pp_layer_partition`, which sets both",
        stages("pp_layer_partition: [31, 30], env: {VLLM_PP_LAYER_PARTITION: '31,30'}"),
    ),
    Case(
        "K8",
        ERROR,
        stages("env: {VLLM_PP_LAYER_PARTITION: '30,31'}"),
        "groups.p.env.VLLM_PP_LAYER_PARTITION",
        "the connector is told nothing of it",
        stages("env: {VLLM_PP_LAYER_PARTITION: '31,30'}"),
    ),
    Case(
        "R31",
        ERROR,
        (
            *version("main"),
            (CONNECTOR, "kv: {connector: MooncakeLayerwiseConnector}"),
            (GROUP_D, f"{GROUP_D}, kv: {{connector: SfaRemoteD2HConnector}}"),
        ),
        "groups.d.kv.connector",
        "by memfabric, the other by Mooncake",
        remote(),
    ),
    Case(
        "V13",
        WARNING,
        pool("password: hunter22"),
        f"{STORE}.extra.password",
        "for all to read",
        pool("tenant_id: a"),
    ),
    Case(
        "K8",
        ERROR,
        stages(
            "pp_layer_partition: [31, 30], kv: {extra: {prefill: {dp_size: 2, tp_size: 4, pp_size: 2, "
            "pp_layer_partition: '30,31'}}}"
        ),
        "groups.p.kv.extra.prefill.pp_layer_partition",
        "contradicts pp_layer_partition of p, 31,30",
    ),
)
