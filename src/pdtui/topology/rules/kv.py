"""KV transfer: connectors, roles, sizes of both sides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from pdtui.topology.build import CPU_CONNECTORS, FLOWS, SFA_REMOTE
from pdtui.topology.findings import Path, Problem
from pdtui.topology.model import Group, Role, Topology
from pdtui.topology.planner import KV_ROLES
from pdtui.topology.rules.registry import Context, error, info, npu_rule, rule, warning
from pdtui.topology.versions import Release, dotted

SINCE: Mapping[str, Release] = {
    "MooncakeConnectorV1": (0, 10, 2),
    "MooncakeLayerwiseConnector": (0, 11, 0),
    "MooncakeHybridConnector": (0, 20, 2),
    "SfaRemoteD2HConnector": (0, 26, 0),
}
"""Connector -> the first vllm-ascend that has it."""

KNOWN_KEYS = frozenset(
    {
        "kv_connector",
        "kv_role",
        "kv_port",
        "engine_id",
        "kv_connector_extra_config",
        "kv_connector_module_path",
        "kv_load_failure_policy",
        "kv_buffer_device",
        "enable_permute_local_kv",
    }
)
"""Keys of --kv-transfer-config (vllm/config/kv_transfer.py)."""

DROPPED_KEYS = frozenset({"kv_rank", "kv_parallel_size", "kv_buffer_size", "kv_ip"})
"""Keys of old releases that no Ascend connector reads and the newest vLLM rejects."""

WITHOUT_PCP: Release = (0, 25, 1)
"""The first vllm-ascend without prefill context parallelism."""

NEEDLESS_KEYS = frozenset({"kv_connector_module_path", "kv_buffer_device"})


@rule("K10", "R31")
def connectors(context: Context) -> Iterator[Problem]:
    """All groups use connectors of one flow (R31), and ones that the version has (K10)."""
    topology = context.topology
    for name, group in topology.groups.items():
        path = _connector_path(context, group)
        if (group.connector in CPU_CONNECTORS) is topology.has_npus:
            yield error("K10", _elsewhere(topology, group.connector), path)
            continue
        other = next(iter(topology.groups.values()))
        mixed = (group.connector == SFA_REMOTE) is not (other.connector == SFA_REMOTE)
        if mixed and FLOWS[group.connector] is topology.flow:
            message = (
                f"{name} uses {group.connector}, but {other.name} uses {other.connector}: one moves KV by "
                "memfabric, the other by Mooncake; both roles need the same"
            )
            yield error("R31", message, path)
        if FLOWS[group.connector] is not topology.flow:
            message = (
                f"{name} uses {group.connector} ({FLOWS[group.connector].value}), but {other.name} uses "
                f"{other.connector} ({topology.flow.value}); both roles need the same"
            )
            yield error("R31", message, path)
        since = SINCE.get(group.connector) if topology.has_npus else None
        if since is not None and context.release < since:
            first = dotted(since)
            message = f"{group.connector} exists since vllm-ascend {first}; this file says {topology.vllm_ascend}"
            yield error("K10", message, path)


def _elsewhere(topology: Topology, connector: str) -> str:
    here = sorted(set(FLOWS) - CPU_CONNECTORS if topology.has_npus else CPU_CONNECTORS)
    place = "vLLM itself, on platform cpu" if topology.has_npus else "vLLM-Ascend, on platforms with NPUs"
    return (
        f"{connector} is a connector of {place}; platform {topology.platform} needs {' or '.join(here)}, "
        "so change the connector or the platform"
    )


def _connector_path(context: Context, group: Group) -> Path:
    for level in (("groups", group.name), ("roles", group.role.value)):
        if context.document.has((*level, "kv", "connector")):
            return (*level, "kv", "connector")
    return ("kv", "connector")


@npu_rule("K6")
def equal_shapes(context: Context) -> Iterator[Problem]:
    """Groups of one role have one shape, since the other role is told only one (K6)."""
    for role in Role:
        for first, group in pairwise(context.groups(role)):
            ours, theirs = _shape(group, context), _shape(first, context)
            if ours != theirs:
                message = (
                    f"{group.name} has {_words(ours)}, {first.name} has {_words(theirs)}; the other role is told "
                    f"one size of {role.value} and would transfer wrongly, so make them equal"
                )
                yield error("K6", message, ("groups", group.name), on_key=True)


def _shape(group: Group, context: Context) -> tuple[int, int, int]:
    dp_size = 1 if context.topology.model.kind == "dense" else group.dp_size
    return dp_size, group.tp_size, group.pp_size


def _words(shape: tuple[int, int, int]) -> str:
    return f"dp_size {shape[0]}, tp_size {shape[1]}" + (f", pp_size {shape[2]}" if shape[2] > 1 else "")


@rule("R29")
def decode_pipeline(context: Context) -> Iterator[Problem]:
    """Decode has no pipeline (R29)."""
    for group in context.groups(Role.DECODE):
        if group.pp_size > 1:
            message = f"pp_size of {group.name} is {group.pp_size}; {group.connector} allows 1 on decode"
            yield error("R29", message, ("groups", group.name, "pp_size"))


@npu_rule("K20", "R28", "R29")
def sizes_fit(context: Context) -> Iterator[Problem]:
    """Prefill's tp_size is decode's or a multiple of it (R28); pipelines and contexts are not mixed (R29)."""
    seen: set[tuple[int, int]] = set()
    for prefill in context.groups(Role.PREFILL):
        for decode in context.groups(Role.DECODE):
            pair = (prefill.tp_size, decode.tp_size)
            if pair in seen or (pair[0] >= pair[1] and pair[0] % pair[1] == 0):
                continue
            seen.add(pair)
            message = (
                f"tp_size of {prefill.name} (prefill) is {pair[0]}, of {decode.name} (decode) {pair[1]}; "
                "the connector needs prefill's to be decode's or a multiple of it"
            )
            yield error("R28", message, ("groups", prefill.name, "tp_size"))
    for group in context.topology.groups.values():
        if group.pcp_size > 1:
            where = context.where(group, "args", "prefill-context-parallel-size")
            if group.pp_size > 1:
                message = f"{group.name} has pipeline and prefill context parallelism; only one of them is allowed"
                yield error("R29", message, where)
            if context.release >= WITHOUT_PCP:
                yield error("K20", "prefill context parallelism was removed in vllm-ascend 0.25.1", where)


@rule("C5", "F11", "K2", "K11", "R23", "R24")
def transfer_keys(context: Context) -> Iterator[Problem]:
    """What the file adds to --kv-transfer-config is known and does not contradict what is derived (K2, R24)."""
    for group in context.topology.groups.values():
        for key, value in group.kv_config.items():
            path = context.where(group, "kv.config", key)
            if key == "kv_connector_extra_config":
                yield error("F11", "write these keys into `kv: {extra: ...}`", path, on_key=True)
            elif key == "kv_role":
                yield from _role(group, value, path)
            elif key == "kv_connector" and value != group.connector:
                yield error("F11", f"{value} contradicts `connector`, {group.connector}; delete it here", path)
            elif key == "kv_port" and not context.topology.has_npus:
                message = (
                    f"NixlConnector does not read `kv_port` here; its port follows from kv_port of {group.name}"
                )
                yield warning("C5", f"{message}: delete it", path, on_key=True)
            elif key == "kv_port" and str(value) != str(group.kv_port):
                message = f"{value} contradicts kv_port of {group.name}, {group.kv_port}; delete it here"
                yield error("F11", message, path)
            elif key in DROPPED_KEYS:
                message = f"`{key}` is read by no connector and rejected by newer vLLM; delete it"
                yield warning("K2", message, path, on_key=True)
            elif key in NEEDLESS_KEYS and context.topology.has_npus:
                yield info("K11", f"`{key}` is no longer needed; delete it", path, on_key=True)
            elif key not in KNOWN_KEYS:
                hint = "; did you mean `kv_role`?" if key in {"kv_producer", "kv_consumer"} else ""
                message = f"`{key}` is no key of --kv-transfer-config; vLLM would refuse to start{hint}"
                yield error("R23", message, path, on_key=True)


def _role(group: Group, value: object, path: Path) -> Iterator[Problem]:
    derived = KV_ROLES[group.role]
    if value != derived:
        yield error(
            "R24", f"kv_role {value} in the {group.role.value} group {group.name}: it must be {derived}", path
        )


@npu_rule("R25", "R26", "R27")
def told_sizes(context: Context) -> Iterator[Problem]:
    """Sizes that the file gives the connector are the groups' own (R26)."""
    for group in context.topology.groups.values():
        for role in Role:
            if role.value not in group.kv_extra:
                continue
            path = context.where(group, "kv.extra", role.value)
            told = group.kv_extra[role.value]
            if not isinstance(told, Mapping):
                yield error("R25", f"`{role.value}` must be a mapping with dp_size and tp_size", path)
                continue
            for other in [group] if group.role is role else context.groups(role):
                yield from _told(context, group, other, told, path)


def _told(
    context: Context, group: Group, other: Group, told: Mapping[str, object], path: Path
) -> Iterator[Problem]:
    dp_size, tp_size, pp_size = _shape(other, context)
    for key, real in (("dp_size", dp_size), ("tp_size", tp_size), ("pp_size", pp_size)):
        said = told.get(key, 1 if key == "pp_size" else None)
        if said is None:
            yield error("R25", f"`{key}` is missing; delete the whole entry and it is derived", path, on_key=True)
        elif said != real or isinstance(said, (str, bool)):
            has = "every instance of a dense model is one of its own" if _is_dense(context, key) else other.name
            message = (
                f"{group.name} is told {key} {said!r} for {other.role.value}, but {has}"
                f"{':' if _is_dense(context, key) else ' has'} {real}; delete the entry and it is derived"
            )
            yield error("R27" if _is_dense(context, key) else "R26", message, (*path, key))


def _is_dense(context: Context, key: str) -> bool:
    """Whether a size is that of data parallelism in a model whose ranks know nothing of each other."""
    return key == "dp_size" and context.topology.model.kind == "dense"
