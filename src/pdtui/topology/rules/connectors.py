"""What single connectors and their releases demand of both sides: identities, blocks, contexts, models."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

from pdtui.topology.build import SFA_REMOTE
from pdtui.topology.findings import Path, Problem
from pdtui.topology.model import Flow, Group, Role
from pdtui.topology.rules.kv import WITHOUT_PCP
from pdtui.topology.rules.registry import Context, by_version, error, npu_rule, rule, warning
from pdtui.topology.rules.settings import config, count, is_enabled, is_hybrid, is_on, per_group, variable

HYBRID = "MooncakeHybridConnector"

DIRECT_FIRST, DIRECT_LAST = (0, 11, 0), (0, 12, 0)
"""Releases that use Ascend's direct transport only when they are told to: from, below."""

INTERLEAVE = ("cp-kv-cache-interleave-size", "dcp-kv-cache-interleave-size")
"""The flag, and its name in vLLM 0.11, which later ones still take for it."""

INTERLEAVED = (0, 12, 0)
"""The first release that demands blocks of that size."""

POLICIES = ("fail", "recompute")
"""What vLLM can do when KV does not arrive (vllm/config/kv_transfer.py)."""

A5_RESOURCES = ("ASCEND_GLOBAL_RESOURCE_CONFIG", "ASCEND_LOCAL_COMM_RES")
"""Variables that describe an A5 server's links to Mooncake, in place of ascend_local_comm_res_path."""

EXTRA_KEYS = frozenset(
    {
        "prefill",
        "decode",
        "use_ascend_direct",
        "ascend_local_comm_res_path",
        "tls_config",
        "transfer_backend",
        "connectors",
        "backend",
        "lookup_rpc_port",
        "mooncake_rpc_port",
        "load_async",
        "consumer_is_to_put",
        "consumer_is_to_load",
        "use_layerwise",
        "save_decode_cache",
        "discard_partial_chunks",
    }
)
"""Keys of kv_connector_extra_config that connectors of vLLM-Ascend read (kv_p2p, kv_pool)."""

_V4 = re.compile(r"deepseek[-_.]?v4", re.IGNORECASE)


@npu_rule("R30")
def identities(context: Context) -> Iterator[Problem]:
    """Groups that name themselves by engine_id have each a name of its own (R30)."""
    named = [group for group in context.topology.groups.values() if group.kv_config.get("engine_id")]
    for first, group in combinations(named, 2):
        name = group.kv_config["engine_id"]
        if str(name) == str(first.kv_config["engine_id"]):
            message = f"{first.name} and {group.name} have the same engine_id {name!s:.40}: " + (
                "vllm-ascend adds a part of its own since 0.12, so nothing fails; delete it"
                if context.release >= (0, 12, 0)
                else 'the first transfer ends with "Conflict engine id"; give each group its own, or none'
            )
            yield by_version(context, "R30", message, context.where(group, "kv.config", "engine_id"))
            return


@npu_rule("R32")
def direct(context: Context) -> Iterator[Problem]:
    """Releases that must be told to use the direct transport are told (R32)."""
    if not DIRECT_FIRST <= context.release < DIRECT_LAST:
        return
    for group in context.topology.groups.values():
        if not is_on(group.kv_extra.get("use_ascend_direct")):
            message = (
                f"vllm-ascend {context.topology.vllm_ascend} transfers KV the slow way, or not at all, unless "
                "`use_ascend_direct` is true; write it under `kv: {extra: ...}`"
            )
            path = context.where(group, "kv.extra", "use_ascend_direct")
            yield warning("R32", message, path if path[-1] == "use_ascend_direct" else ("kv",))
            return


@rule("R23", "K13")
def failures(context: Context) -> Iterator[Problem]:
    """What happens when KV does not arrive is something that vLLM and the model can do (R23, K13)."""
    yield from per_group(context, _failure)


def _failure(context: Context, group: Group) -> Iterator[Problem]:
    policy = group.kv_config.get("kv_load_failure_policy")
    where = context.where(group, "kv.config", "kv_load_failure_policy")
    if policy is None:
        return
    if policy not in POLICIES:
        yield error("R23", f"kv_load_failure_policy must be {' or '.join(POLICIES)}, not {policy!s:.40}", where)
    elif policy == "recompute" and (group.connector == HYBRID or is_hybrid(context)):
        message = "kv_load_failure_policy recompute cannot be used with hybrid models: vLLM-Ascend asserts it"
        yield error("K13", f"{message}; delete it, `fail` is the default", where)


@npu_rule("K8")
def layers(context: Context) -> Iterator[Problem]:
    """Layers are spread over as many stages as prefill has (K8)."""
    seen: set[Path] = set()
    for group in context.topology.groups.values():
        told = group.kv_extra.get("prefill")
        spread = told.get("pp_layer_partition") if isinstance(told, Mapping) else None
        parts = spread.split(",") if isinstance(spread, str) else spread
        if parts is None:
            continue
        path = (*context.where(group, "kv.extra", "prefill"), "pp_layer_partition")
        for prefill in context.groups(Role.PREFILL):
            if (not isinstance(parts, list) or len(parts) != prefill.pp_size) and path not in seen:
                seen.add(path)
                message = (
                    f"pp_layer_partition {spread!s:.40} spreads layers over "
                    f"{len(parts) if isinstance(parts, list) else 'no'} stages, but pp_size of {prefill.name} is "
                    f"{prefill.pp_size}; give one number for each stage"
                )
                yield error("K8", message, path)


@npu_rule("K16", "K17", "K18")
def models(context: Context) -> Iterator[Problem]:
    """Models that need one connector, or exclude one, have the right one (K16, K17, K18)."""
    yield from per_group(context, _sparse)
    topology = context.topology
    by_name = [text for text in (topology.model.path, topology.model.served_name) if _V4.search(text)]
    if by_name and all(group.connector != HYBRID for group in topology.groups.values()):
        message = (
            f"the model is a DeepSeek-V4 by its name; its layers keep KV of several kinds, which {HYBRID} "
            f"transfers and {topology.connector} does not"
        )
        yield warning("K17", message, ("kv", "connector"))
    if is_hybrid(context):
        for prefill in context.groups(Role.PREFILL):
            for decode in context.groups(Role.DECODE):
                if HYBRID in {prefill.connector, decode.connector} and prefill.tp_size != decode.tp_size:
                    message = (
                        f"tp_size of {prefill.name} is {prefill.tp_size}, of {decode.name} {decode.tp_size}; a "
                        f"Mamba hybrid with {HYBRID} needs them equal"
                    )
                    yield error("K18", message, ("groups", decode.name, "tp_size"))
                    return


def _sparse(context: Context, group: Group) -> Iterator[Problem]:
    said = config(context, group, "additional-config")
    if not is_on(said.values.get("enable_sparse_sfa_c8")):
        return
    if group.connector == "MooncakeLayerwiseConnector":
        message = f"enable_sparse_sfa_c8 packs KV in a way that {group.connector} of {group.name} cannot push"
        yield error(
            "K16", f"{message}; take it out, or use MooncakeConnectorV1", said.where("enable_sparse_sfa_c8")
        )
    elif is_enabled(said.values.get("sparse_kv_offload_config")):
        message = f"enable_sparse_sfa_c8 and sparse_kv_offload_config exclude each other in {group.name}"
        yield error("K16", f"{message}; keep one of them", said.where("enable_sparse_sfa_c8"))


@npu_rule("K19", "K21")
def contexts(context: Context) -> Iterator[Problem]:
    """Context parallel sizes fit the ranks (K19), each other (K19) and the blocks (K21)."""
    yield from per_group(context, _decode_context)
    for prefill in context.groups(Role.PREFILL):
        for decode in context.groups(Role.DECODE):
            ours, theirs = (group.pcp_size * _dcp(group) for group in (prefill, decode))
            if ours % theirs and SFA_REMOTE not in {prefill.connector, decode.connector}:
                message = (
                    f"{prefill.name} splits a context {ours} ways, {decode.name} {theirs}; prefill's must be "
                    "decode's or a multiple of it (prefill- times decode-context-parallel-size)"
                )
                yield error("K19", message, context.where(decode, "args", "decode-context-parallel-size"))
                return


def _dcp(group: Group) -> int:
    return count(group, "decode-context-parallel-size") or 1


def _decode_context(context: Context, group: Group) -> Iterator[Problem]:
    size = _dcp(group)
    if group.connector == SFA_REMOTE:
        return  # It allows none, which K25 says.
    if group.tp_size % size:
        message = (
            f"decode-context-parallel-size {size} of {group.name} must divide its tp_size {group.tp_size}: it "
            "splits what the ranks of one tensor parallel group hold"
        )
        yield error("K19", message, context.where(group, "args", "decode-context-parallel-size"))
    refused = group.pcp_size > 1 and (group.pp_size > 1 or context.release >= WITHOUT_PCP)  # K20, R29
    if size * group.pcp_size > 1 and context.release >= INTERLEAVED and not refused:
        yield from _interleaved(context, group)


def _interleaved(context: Context, group: Group) -> Iterator[Problem]:
    flag = next((name for name in INTERLEAVE if name in group.args), INTERLEAVE[0])
    block, interleave = _block(group), count(group, flag) or 1
    if interleave == block:
        return
    message = (
        f"{group.name} splits contexts and transfers KV: {flag} must be block-size, {block}, not {interleave}"
    )
    written = flag if flag in group.args else "decode-context-parallel-size"
    yield error("K21", message, context.where(group, "args", written))


@npu_rule("K22")
def blocks(context: Context) -> Iterator[Problem]:
    """Blocks of both sides map onto each other (K22)."""
    for prefill in context.groups(Role.PREFILL):
        for decode in context.groups(Role.DECODE):
            ours, theirs = _block(prefill), _block(decode)
            if ours == theirs:
                continue
            written = decode if "block-size" in decode.args else prefill
            where = context.where(written, "args", "block-size")
            message = f"block-size is {ours} in {prefill.name} and {theirs} in {decode.name}"
            if context.release < (0, 23, 0):
                version = context.topology.vllm_ascend
                yield warning("K22", f"{message}; vllm-ascend {version} takes them for equal", where)
                return
            if ours > theirs and (context.topology.flow is Flow.LAYERWISE or _dcp(decode) > 1):
                layerwise = context.topology.flow is Flow.LAYERWISE
                what = "a layerwise connector" if layerwise else "decode context parallelism"
                yield error("K22", f"{message}; with {what} prefill's may not be the larger one", where)
                return


def _block(group: Group) -> int:
    """Return the block size in effect: vLLM-Ascend takes 128 for all that it does not know."""
    size = count(group, "block-size")
    return size if size in (32, 64) else 128


@npu_rule("K23")
def request_ids(context: Context) -> Iterator[Problem]:
    """Request ids keep the part that layerwise connectors take off again (K23)."""
    if context.topology.flow is not Flow.LAYERWISE:
        return
    name = "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION"
    for group in context.topology.groups.values():
        if is_on(variable(group, name)):
            message = (
                f"{name} in {group.name}: {group.connector} takes the random end off each request id, and without "
                "one it takes off what the proxy knows the request by: it waits without end; delete it"
            )
            yield error("K23", message, context.where(group, "env", name))
            return


@npu_rule("K27")
def a5_links(context: Context) -> Iterator[Problem]:
    """On A5 the connector knows the server's links (K27)."""
    if context.topology.platform != "a5":
        return
    for group in context.topology.groups.values():
        described = group.kv_extra.get("ascend_local_comm_res_path") or any(
            group.env.get(name) is not None for name in A5_RESOURCES
        )
        if group.connector.startswith("Mooncake") and not described:
            message = (
                f"{group.connector} does not find the links of an A5 server by itself; write "
                "ascend_local_comm_res_path: /etc/hixlep under `kv: {extra: ...}`, unless the login environment "
                f"of the nodes has {A5_RESOURCES[0]}"
            )
            yield warning("K27", message, ("kv",), on_key=True)
            return


@npu_rule("K30")
def extra_keys(context: Context) -> Iterator[Problem]:
    """Keys under `extra` are not misspelt (K30)."""
    yield from per_group(context, _misspelt)


def _misspelt(context: Context, group: Group) -> Iterator[Problem]:
    extra: Mapping[str, Any] = group.kv_extra
    for key in extra:
        close = difflib.get_close_matches(str(key).lower(), EXTRA_KEYS, n=1, cutoff=0.75)
        if key not in EXTRA_KEYS and close:
            message = f"no connector reads `{key}`, and nobody says so; did you mean `{close[0]}`?"
            yield warning("K30", message, context.where(group, "kv.extra", key), on_key=True)
