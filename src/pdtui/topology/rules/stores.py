"""What runs beside the connector or below it: KV pools, memory of the host, stages of a pipeline."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from pdtui.topology.build import ASCEND_STORE, SFA_REMOTE
from pdtui.topology.findings import Path, Problem
from pdtui.topology.model import Group, Role, Store
from pdtui.topology.planner import placement
from pdtui.topology.rules.additional import scheduler
from pdtui.topology.rules.registry import Context, error, npu_rule, rule, warning
from pdtui.topology.rules.settings import config, count, is_enabled, is_on, per_group
from pdtui.topology.versions import Release, dotted

SEED = "PYTHONHASHSEED"
LAYERS = "VLLM_PP_LAYER_PARTITION"
POOL_FILE = "MOONCAKE_CONFIG_PATH"
CPU_OFFLOAD = "RecomputeCPUOffloadConnector"
RECOMPUTE = "recompute_scheduler_enable"
SPARSE = "sparse_kv_offload_config"

SINCE: Mapping[str, tuple[Release, Release | None]] = {
    ASCEND_STORE: ((0, 12, 0), None),
    "UCMConnector": ((0, 13, 0), None),
    "LMCacheAscendConnector": ((0, 18, 0), (0, 24, 0)),
    CPU_OFFLOAD: ((0, 23, 0), None),
}
"""Store -> the first vllm-ascend that has it, and the first that has it no longer."""

STORE_KEYS = frozenset(
    {
        *("backend", "lookup_rpc_port", "mooncake_rpc_port", "load_async", "consumer_is_to_put", "use_layerwise"),
        *("consumer_is_to_load", "prefill_pp_size", "prefill_pp_layer_partition", "save_decode_cache"),
        *("discard_partial_chunks", "layerwise_prefetch_layers", "layerwise_max_transfer_blocks"),
        *("layerwise_max_transfer_bytes", "h2d_stagger_us", "layerwise_num_shared_buffers"),
        "layerwise_independent_layers",
    }
)
"""Keys of kv_connector_extra_config that AscendStoreConnector reads (kv_pool)."""

_ONLY_STORES = STORE_KEYS - {"use_layerwise"}


def _where(context: Context, group: Group, store: Store, *steps: str) -> Path:
    """Return where a store of a group, or a piece of it, is written: the group's, the role's or the file's own."""
    kind = ".".join(("kv.stores", *((store.connector, *steps[:-1]) if steps else ())))
    return context.where(group, kind, steps[-1] if steps else store.connector)


def _of(group: Group, connector: str) -> Store | None:
    return next((store for store in group.stores if store.connector == connector), None)


@rule("K10")
def known(context: Context) -> Iterator[Problem]:
    """Stores exist on the platform and in the version (K10)."""
    yield from per_group(context, _known)


def _known(context: Context, group: Group) -> Iterator[Problem]:
    for store in group.stores:
        name, path = store.connector, _where(context, group, store)
        first, gone = SINCE.get(name, ((0, 0, 0), None))
        if not context.topology.has_npus:
            message = f"{name} is run by vLLM-Ascend, on platforms with NPUs; take it out, or change the platform"
            yield error("K10", message, path, on_key=True)
        elif context.release < first or (gone is not None and context.release >= gone):
            span = f"since vllm-ascend {dotted(first)}"
            span += f" and no longer in {dotted(gone)}" if gone is not None else ""
            message = f"{name} exists {span}; this file says {context.topology.vllm_ascend}"
            yield error("K10", message, path, on_key=True)


@npu_rule("K14", "K24", "K26", "K30")
def settings(context: Context) -> Iterator[Problem]:
    """Stores are told what they read, where they read it (K14, K24, K30), and stand where they work (K26)."""
    yield from per_group(context, _failure, _pool, _host_memory, _keys)


def _failure(context: Context, group: Group) -> Iterator[Problem]:
    for store in group.stores:
        if "kv_load_failure_policy" in store.config:
            path = _where(context, group, store, "config", "kv_load_failure_policy")
            message = f"nobody reads kv_load_failure_policy of {store.connector}: MultiConnector's own counts"
            yield warning("K14", f"{message}; write it under `kv: {{config: ...}}`", path, on_key=True)


def _pool(context: Context, group: Group) -> Iterator[Problem]:
    store = _of(group, ASCEND_STORE)
    if store is None:
        return
    if store.extra.get("backend", "mooncake") == "mooncake" and group.env.get(POOL_FILE) is None:
        message = (
            f"the pool of {group.name} needs {POOL_FILE}, the path of mooncake.json, which says where its master "
            "is; write it under `env`, unless the login environment of the nodes has it"
        )
        yield warning("K24", message, _where(context, group, store), on_key=True)
    if group.role is Role.DECODE and is_on(store.extra.get("use_layerwise")):
        message = f"use_layerwise of {ASCEND_STORE} is for prefill only; take it out of {group.name}"
        yield error(
            "K24",
            f"{message}: write it under `roles: {{prefill: ...}}`",
            _where(context, group, store, "extra", "use_layerwise"),
        )


def _host_memory(context: Context, group: Group) -> Iterator[Problem]:
    store = _of(group, CPU_OFFLOAD)
    if store is None:
        return
    path = _where(context, group, store)
    if group.role is Role.PREFILL:
        message = f"{CPU_OFFLOAD} works on decode only, and {group.name} is prefill"
        yield error("K26", f"{message}; write it under `roles: {{decode: {{kv: ...}}}}`", path, on_key=True)
    elif not is_on(scheduler(config(context, group, "additional-config"), RECOMPUTE)[0]):
        message = f"{CPU_OFFLOAD} of {group.name} needs the recompute scheduler; add {RECOMPUTE}: true to"
        yield error("K26", f"{message} `additional-config`", path, on_key=True)


def _keys(context: Context, group: Group) -> Iterator[Problem]:
    store = _of(group, ASCEND_STORE)
    for key in group.kv_extra.keys() & _ONLY_STORES:
        message = (
            f"{group.connector} does not read `{key}`; write it under `stores: {{{ASCEND_STORE}: {{extra: ...}}}}`"
        )
        yield warning("K30", message, context.where(group, "kv.extra", key), on_key=True)
    for key in store.extra if store is not None else ():
        close = difflib.get_close_matches(str(key).lower(), STORE_KEYS, n=1, cutoff=0.75)
        if store is not None and key not in STORE_KEYS and close:
            path = _where(context, group, store, "extra", str(key))
            yield warning(
                "K30", f"{ASCEND_STORE} does not read `{key}`; did you mean `{close[0]}`?", path, on_key=True
            )


@npu_rule("K24", "R52")
def pool_is_one(context: Context) -> Iterator[Problem]:
    """All that share a pool name its entries alike and keep it in the same place (R52, K24)."""
    groups = [group for group in context.topology.groups.values() if group.stores]
    seeds = [(group, group.env.get(SEED, "0")) for group in groups]
    seeds = [(group, said) for group, said in seeds if said is None or (isinstance(said, str) and "$" not in said)]
    for group, said in seeds:
        first = seeds[0][1]
        if said is None or said == "random":
            message = (
                f"without a fixed {SEED} no rank of {group.name} finds what another has kept; delete the line"
            )
            yield error("R52", f"{message}: it is 0 wherever there are stores", context.where(group, "env", SEED))
            return
        if said != first:
            message = (
                f"{SEED} is {first} in {seeds[0][0].name} and {said} in {group.name}: neither finds what the "
                "other has kept; delete both, and it is 0"
            )
            yield error("R52", message, context.where(group, "env", SEED))
            return
    pools = [(group, store) for group in groups if (store := _of(group, ASCEND_STORE)) is not None]
    for group, store in pools[1:]:
        ours, theirs = (one.extra.get("backend", "mooncake") for one in (store, pools[0][1]))
        if ours != theirs:
            message = f"the pool of {group.name} is {ours}, that of {pools[0][0].name} {theirs}; make them equal"
            path = _where(context, group, store, "extra", "backend")
            yield error("K24", message, path)
            return


@npu_rule("R52")
def lookups(context: Context) -> Iterator[Problem]:
    """No two instances of a host look up by one socket (R52)."""
    topology = context.topology
    taken: dict[tuple[str, str, int], str] = {}
    for group in topology.groups.values():
        store = _of(group, ASCEND_STORE)
        key = (
            "mooncake_rpc_port" if store is not None and "mooncake_rpc_port" in store.extra else "lookup_rpc_port"
        )
        if store is None or key not in store.extra:
            continue
        port = str(store.extra[key])
        for node, dp_rank, _ in placement(group):
            socket = (topology.nodes[node].address, port, 0 if topology.is_apart(group) else dp_rank)
            owner = taken.setdefault(socket, f"{group.name}/{dp_rank}")
            if owner != f"{group.name}/{dp_rank}":
                message = (
                    f"{owner} and {group.name}/{dp_rank} have the {key} {port} on {node}: it names a socket of "
                    "the host, and each instance needs its own; delete it and it is derived"
                )
                yield error("R52", message, _where(context, group, store, "extra", key))
                break


@npu_rule("K25")
def through_host_memory(context: Context) -> Iterator[Problem]:
    """SfaRemoteD2HConnector has its backend, and decode keeps its KV in host memory (K25)."""
    yield from per_group(context, _remote)


def _remote(context: Context, group: Group) -> Iterator[Problem]:
    if group.connector != SFA_REMOTE:
        return
    backend = group.kv_extra.get("transfer_backend", "memfabric")
    if backend != "memfabric":
        message = f"{SFA_REMOTE} knows no transfer_backend {backend!s:.40}: delete it, memfabric is derived"
        yield error("K25", message, context.where(group, "kv.extra", "transfer_backend"))
    said = config(context, group, "additional-config")
    offloads = is_enabled(said.values.get(SPARSE))
    if group.role is Role.PREFILL and offloads:
        message = f"{SPARSE} is for decode; take it out of {group.name}, which is prefill"
        yield error("K25", message, said.where(SPARSE))
    elif group.role is Role.DECODE and not offloads:
        message = f"{SFA_REMOTE} moves KV into host memory of {group.name}: add `{SPARSE}: {{enabled: true}}` to"
        path = context.where(group, "args", "additional-config")
        yield error("K25", f"{message} its `additional-config`", path, on_key=True)
    if group.pp_size > 1:
        message = f"{SFA_REMOTE} works without pipelines; pp_size of {group.name} is {group.pp_size}"
        yield error("K25", message, ("groups", group.name, "pp_size"))
    for flag in ("prefill-context-parallel-size", "decode-context-parallel-size"):
        if (count(group, flag) or 1) > 1:
            message = f"{SFA_REMOTE} works without context parallelism; take {flag} out of {group.name}"
            yield error("K25", message, context.where(group, "args", flag))


def _usual(layers: str) -> str:
    """Return how so many layers are spread by default: what is left over goes to later stages, not the last."""
    counts = [int(part) for part in layers.split(",") if part.strip().isdecimal() and len(part) < 6]
    each, left = divmod(sum(counts), max(len(counts), 1))
    later = range(len(counts) - 1 - left, len(counts) - 1)
    return ",".join(str(each + (stage in later)) for stage in range(len(counts)))


@npu_rule("K8")
def stages(context: Context) -> Iterator[Problem]:
    """The layers of a pipeline are said once, for each stage of it (K8)."""
    for name, group in context.topology.groups.items():
        layers = group.pp_layer_partition
        if layers and (parts := layers.count(",") + 1) != group.pp_size:
            message = f"pp_layer_partition {layers} spreads layers over {parts} stages, but pp_size of {name} is"
            yield error("K8", f"{message} {group.pp_size}", ("groups", name, "pp_layer_partition"))
        told = group.kv_extra.get("prefill")
        again = told.get("pp_layer_partition") if isinstance(told, Mapping) else None
        if layers and again is not None and again != layers:
            path = (*context.where(group, "kv.extra", "prefill"), "pp_layer_partition")
            yield error(
                "K8", f"{again!s:.40} contradicts pp_layer_partition of {name}, {layers}; delete it here", path
            )
        known_layers = layers or (again if isinstance(again, str) else "")
        by_variable = group.env.get(LAYERS)
        if (
            isinstance(by_variable, str)
            and "$" not in by_variable
            and by_variable.replace(" ", "") != (known_layers.replace(" ", "") or _usual(by_variable))
        ):
            message = (
                f"{LAYERS} spreads the layers of {name} as {by_variable:.40}, and the connector is told "
                f"{known_layers or 'nothing of it'}; delete it and write `pp_layer_partition`, which sets both"
            )
            yield error("K8", message, context.where(group, "env", LAYERS))
