"""Variables that CANN, HCCL, vLLM and vLLM-Ascend read: values that fail, and names that nobody reads."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from typing import Any

from pdtui.topology.findings import Path, Problem
from pdtui.topology.known_variables import KNOWN
from pdtui.topology.lease import OLD_LEASE, lease_variable
from pdtui.topology.model import Group, Role
from pdtui.topology.reference import is_reference
from pdtui.topology.rules.registry import Context, error, info, npu_rule, rule, warning
from pdtui.topology.rules.settings import config, is_on, number, per_group, variable

CONNECT_DEFAULT = 120
"""Seconds that HCCL waits for the others of a group when HCCL_CONNECT_TIMEOUT is not set."""

BUFFER_DEFAULT = 200
"""MB of HCCL's buffers when HCCL_BUFFSIZE is not set."""

ENGINE_DEFAULT = 600
"""Seconds that vLLM waits for its engine when VLLM_ENGINE_READY_TIMEOUT_S is not set."""

JSON_VARIABLES = ("ASCEND_GLOBAL_RESOURCE_CONFIG", "ASCEND_LOCAL_COMM_RES")

MIGRATED = {
    "VLLM_ASCEND_BALANCE_SCHEDULING": "enable_balance_scheduling",
    "VLLM_ASCEND_ENABLE_FLASHCOMM1": "enable_flashcomm1",
    "VLLM_ASCEND_ENABLE_MATMUL_ALLREDUCE": "enable_matmul_allreduce",
    "VLLM_ASCEND_FLASHCOMM2_PARALLEL_SIZE": "flashcomm2_parallel_size",
    "VLLM_ASCEND_ENABLE_CONTEXT_PARALLEL": "enable_context_parallel",
    "MSMONITOR_USE_DAEMON": "msmonitor_use_daemon",
    "VLLM_ASCEND_ENABLE_MLAPO": "enable_mlapo",
    "VLLM_ASCEND_ENABLE_NZ": "weight_nz_mode",
    "VLLM_ASCEND_ENABLE_FUSED_MC2": "enable_fused_mc2",
    "VLLM_ASCEND_FUSION_OP_TRANSPOSE_KV_CACHE_BY_BLOCK": "enable_transpose_kv_cache_by_block",
}
"""Variables that moved to additional-config -> the key there, which wins."""

_CLOSE = 0.88
"""How near an unknown name must be to a known one: HCCL_BUFFER_SIZE and HCCL_BUFFSIZE are."""


@npu_rule("R47", "R48", "R49", "R50", "V6")
def timeouts(context: Context) -> Iterator[Problem]:
    """Times and sizes lie where they work (R47, R48, R49, R50, V6)."""
    yield from per_group(context, _lease, _connect, _engine, _buffer)


def _lease(context: Context, group: Group) -> Iterator[Problem]:
    name = lease_variable(context.topology)
    where = context.where(group, "env", name)
    seconds = number(variable(group, name))
    if seconds is not None and not 60 <= seconds <= 900:
        effect = (
            "a decode rank that is late finds its KV blocks gone"
            if seconds < 60
            else "blocks of requests that failed stay held so long, and prefill fills up"
        )
        yield warning(
            "R47", f"{name} {seconds:g} s in {group.name}: {effect}; take 60 to 900 (default 480)", where
        )
    if name != OLD_LEASE and group.env.get(OLD_LEASE) is not None and group.env.get(name) is None:
        message = f"{OLD_LEASE} is not read since vllm-ascend 0.18: the lease is 480 s; write {name} (60 to 900)"
        yield warning("R47", message, context.where(group, "env", OLD_LEASE), on_key=True)


def _connect(context: Context, group: Group) -> Iterator[Problem]:
    said = variable(group, "HCCL_CONNECT_TIMEOUT")
    seconds, where = number(said), context.where(group, "env", "HCCL_CONNECT_TIMEOUT")
    if said and (seconds is None or not CONNECT_DEFAULT <= seconds <= 7200):
        message = f"HCCL_CONNECT_TIMEOUT is {said:.20}; HCCL takes {CONNECT_DEFAULT} to 7200 seconds"
        yield warning("R48", message, where)
        return
    stagger, ranks = context.topology.start.stagger, max(group.ranks_per_node.values(), default=0)
    skew, limit = stagger * (ranks - 1), seconds or CONNECT_DEFAULT
    is_known = bool(said) or "HCCL_CONNECT_TIMEOUT" not in group.env
    if is_known and skew >= limit and not context.topology.is_apart(group):
        message = (
            f"the last of {ranks} ranks of {group.name} on a server starts {skew:g} s after the first "
            f"(start.stagger {stagger:g} s), HCCL waits {limit:g} s: raise HCCL_CONNECT_TIMEOUT or lower the "
            "stagger"
        )
        yield warning("R48", message, where)


def _engine(context: Context, group: Group) -> Iterator[Problem]:
    name = "VLLM_ENGINE_READY_TIMEOUT_S"
    seconds = number(variable(group, name))
    if seconds is not None and seconds < ENGINE_DEFAULT:
        message = (
            f"{name} {seconds:g} is below vLLM's own {ENGINE_DEFAULT} s; big models load longer, 1800 is what "
            "vLLM-Ascend tests with"
        )
        yield warning("R49", message, context.where(group, "env", name))
    name = "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS"
    seconds = number(variable(group, name))
    if seconds is not None and seconds < 1836:
        message = f"{name} {seconds:g} is raised to 3000 by vLLM-Ascend, as everything below 1836; delete it"
        yield info("V6", message, context.where(group, "env", name))


def _buffer(context: Context, group: Group) -> Iterator[Problem]:
    said, where = variable(group, "HCCL_BUFFSIZE"), context.where(group, "env", "HCCL_BUFFSIZE")
    size = number(said)
    is_wide = context.topology.model.kind == "moe" and group.dp_size > 1 and group.role is Role.DECODE
    if said and (size is None or size < 1 or size != int(size)):
        yield error("R50", f"HCCL_BUFFSIZE is a whole number of MB, not {said:.20}", where)
    elif is_wide and is_on(group.args.get("enable-expert-parallel")):
        if size is not None and size < BUFFER_DEFAULT:
            message = (
                f"HCCL_BUFFSIZE {size:g} MB in {group.name} is below HCCL's own {BUFFER_DEFAULT}; experts are "
                "exchanged through it, and too little looks like a memory fault: guides take 512 to 1100 on "
                "decode"
            )
            yield warning("R50", message, where)
        elif "HCCL_BUFFSIZE" not in group.env:
            message = (
                f"HCCL_BUFFSIZE is not set in {group.name}, so it is {BUFFER_DEFAULT} MB unless the node says "
                "otherwise; guides take 512 to 1100 on decode"
            )
            yield info("R50", message, ("groups", group.name), on_key=True)


@rule("R58")
def misspelt(context: Context) -> Iterator[Problem]:
    """No variable is a misspelt one that is read (R58)."""
    for path, env in context.levels("env"):
        for key, value in env.items():
            if value is None:
                continue
            if key == "ASCEND_VISIBLE_DEVICES" and context.topology.has_npus:
                message = (
                    "ASCEND_VISIBLE_DEVICES tells the container runtime which NPUs to show, and does nothing for "
                    "a process that runs: a rank's own are ASCEND_RT_VISIBLE_DEVICES, which is derived from "
                    "`devices`"
                )
                yield warning("R58", message, (*path, key), on_key=True)
            elif key not in KNOWN and 5 < len(key) < 80:
                near = difflib.get_close_matches(key, KNOWN, n=1, cutoff=_CLOSE)
                if near and (context.topology.has_npus or not near[0].startswith(("HCCL_", "ASCEND_"))):
                    message = f"{key} is no variable that is known here; did you mean {near[0]}?"
                    yield warning("R58", message, (*path, key), on_key=True)


@npu_rule("R57", "V8", "V9", "R82")
def effects(context: Context) -> Iterator[Problem]:
    """Variables do what they seem to (R57, R82), once (V8), and do not exclude each other (V9)."""
    yield from per_group(context, _roce, _migrated, _allocator, _plog)


def _roce(context: Context, group: Group) -> Iterator[Problem]:
    if context.topology.platform == "a3" and is_on(variable(group, "HCCL_INTRA_ROCE_ENABLE")):
        message = (
            f"HCCL_INTRA_ROCE_ENABLE=1 sends what {group.name} exchanges inside a server over RoCE, too: on a3 "
            "only where every NPU has an address there and its link is up (`pdtui preflight` looks); else delete "
            "it"
        )
        yield warning("R57", message, context.where(group, "env", "HCCL_INTRA_ROCE_ENABLE"))


def _migrated(context: Context, group: Group) -> Iterator[Problem]:
    said = config(context, group, "additional-config").values
    for name, key in MIGRATED.items():
        if key in said and group.env.get(name) is not None:
            message = f"{name} and `{key}` of additional-config say the same thing; newer releases take the latter"
            yield info("V8", f"{message}: keep that", context.where(group, "env", name), on_key=True)


def _allocator(context: Context, group: Group) -> Iterator[Problem]:
    name = "PYTORCH_NPU_ALLOC_CONF"
    said = variable(group, name).lower().replace(" ", "")
    other = next((key for key in ("max_split_size_mb", "garbage_collection_threshold") if key in said), "")
    if "expandable_segments:true" in said and other:
        message = f"{name} asks for expandable_segments and {other}, which exclude each other; keep one"
        yield warning("V9", message, context.where(group, "env", name))


def _plog(context: Context, group: Group) -> Iterator[Problem]:
    name = "ASCEND_PROCESS_LOG_PATH"
    if group.env.get(name) is not None:
        message = (
            f"with {name} all ranks of {group.name} write CANN's logs to one place; delete it and each has its "
            "own, beside its log"
        )
        yield info("R82", message, context.where(group, "env", name), on_key=True)


@npu_rule("R83")
def json_values(context: Context) -> Iterator[Problem]:
    """Variables that hold JSON hold JSON (R83)."""
    for path, env in context.levels("env"):
        for key in JSON_VARIABLES:
            said = env.get(key)
            if not isinstance(said, str) or "$" in said:
                continue
            try:
                json.loads(said)
            except (ValueError, RecursionError) as problem:
                at = f" at character {problem.pos + 1}" if isinstance(problem, json.JSONDecodeError) else ""
                message = f"{key} is no valid JSON{at}; keys and texts stand in double quotes"
                yield error("R83", message, (*path, key))


@rule("R61")
def logging(context: Context) -> Iterator[Problem]:
    """Ranks write the log and the metrics from which readiness and faults are read (R61)."""
    yield from per_group(context, _logging)


def _logging(context: Context, group: Group) -> Iterator[Problem]:
    what = "readiness, stages and first causes are read from the log"
    for name in ("VLLM_CONFIGURE_LOGGING", "VLLM_LOG_TO_STDOUT"):
        if variable(group, name) == "0":
            yield warning("R61", f"{name}=0: {what}; delete it", context.where(group, "env", name))
    level = variable(group, "VLLM_LOGGING_LEVEL").upper()
    if level in {"WARN", "WARNING", "ERROR", "CRITICAL", "FATAL"}:
        message = f"VLLM_LOGGING_LEVEL {level}: {what}, most of them at INFO; delete it"
        yield warning("R61", message, context.where(group, "env", "VLLM_LOGGING_LEVEL"))
    if is_on(group.args.get("disable-log-stats")):
        message = (
            f"disable-log-stats takes the metrics of {group.name} away: no throughput, no queue, and a rank that "
            "hangs is not told from one that idles; delete it"
        )
        yield warning("R61", message, context.where(group, "args", "disable-log-stats"))


@rule("R54", "F06")
def not_run(context: Context) -> Iterator[Problem]:
    """Values are text, no commands: `$(...)` is not run (F06), least of all for an address (R54)."""
    for path, env in context.levels("env"):
        for key, value in env.items():
            yield from _not_run((*path, key), key, value)


def _not_run(where: Path, key: str, value: Any) -> Iterator[Problem]:
    text = value if isinstance(value, str) else ""
    if "$(" in text or "`" in text:
        if key == "HCCL_IF_IP":
            message = (
                "HCCL_IF_IP is passed on as written, its command is not run; delete it: the node's address is "
                "derived"
            )
            yield error("R54", message, where)
        else:
            yield warning(
                "F06", f"{key} is passed on as written: a command in it is not run; write the value", where
            )
    elif key == "HCCL_IF_IP" and ("$" in text or is_reference(value)):
        message = (
            "HCCL_IF_IP comes from the node's environment, where it may be any of its addresses; delete it: "
            "it is derived"
        )
        yield warning("R54", message, where)


PROXIES = ("http_proxy", "https_proxy", "all_proxy")


@rule("R62")
def proxies(context: Context) -> Iterator[Problem]:
    """An HTTP proxy in the environment is not asked for the cluster's own addresses (R62)."""
    yield from per_group(context, _proxy)


def _proxy(context: Context, group: Group) -> Iterator[Problem]:
    names = [name for name in group.env if name.lower() in PROXIES and group.env[name]]
    if not names:
        return
    spared = [group.env[name] for name in group.env if name.lower() == "no_proxy" and group.env[name] is not None]
    if any(not isinstance(text, str) or "$" in text for text in spared):
        return
    said = [part.strip() for text in spared for part in text.split(",") if part.strip()]
    missed = [node.address for node in context.topology.nodes.values() if not _is_spared(node.address, said)]
    if missed:
        more = f" and {len(missed) - 2} more" if len(missed) > 2 else ""
        message = (
            f"{names[0]} is set in {group.name}, and no_proxy leaves out {', '.join(missed[:2])}{more}: requests "
            "inside the cluster would go to that proxy; put the nodes' addresses into no_proxy"
        )
        yield warning("R62", message, context.where(group, "env", names[0]), on_key=True)


def _is_spared(address: str, said: list[str]) -> bool:
    # A network is not read by all programs, but somebody thought of it.
    return any(
        part in {"*", address} or "/" in part or part.endswith("*") or address.startswith(f"{part.rstrip('.')}.")
        for part in said
    )
