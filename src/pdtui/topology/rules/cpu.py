"""vLLM itself on servers without NPUs: NixlConnector, and what only Ascend platforms have."""

from __future__ import annotations

from collections.abc import Iterator

from pdtui.topology.findings import Problem
from pdtui.topology.lease import NIXL_KEY, NIXL_LEASE, is_lease
from pdtui.topology.model import Role
from pdtui.topology.rules.registry import Context, cpu_rule, error, info, warning

ASCEND_ENV = ("HCCL_", "ASCEND_", "VLLM_ASCEND_", "ATB_", "ACL_", "MC_", "VLLM_MOONCAKE_")
"""How names of variables begin that only CANN, vLLM-Ascend and Mooncake read."""

ASCEND_VARIABLES = frozenset(
    {"TP_SOCKET_IFNAME", "PYTORCH_NPU_ALLOC_CONF", "TASK_QUEUE_ENABLE", "CPU_AFFINITY_CONF"}
)

ASCEND_EXTRA = frozenset({"prefill", "decode", "use_ascend_direct", "lookup_rpc_port"})
"""Keys of `kv_connector_extra_config` that only connectors of vLLM-Ascend read."""


@cpu_rule("C1", "C2")
def ascend_only(context: Context) -> Iterator[Problem]:
    """Nothing is set that only an Ascend platform reads (C1, C2)."""
    for path, args in context.levels("args"):
        for key, value in args.items():
            plain = key.replace("_", "-")
            if plain == "quantization" and value == "ascend":
                message = (
                    "quantization `ascend` exists on NPUs only; vLLM on platform cpu refuses to start: delete it"
                )
                yield warning("C1", message, (*path, key))
            elif plain == "additional-config" and value is not None:
                message = f"`{key}` is for vLLM-Ascend; on platform cpu nothing reads it: delete it"
                yield warning("C1", message, (*path, key), on_key=True)
    for path, env in context.levels("env"):
        for key, value in env.items():
            if value is not None and (key.startswith(ASCEND_ENV) or key in ASCEND_VARIABLES):
                remedy = "write kv_lease_duration under `kv: {extra: ...}`" if _is_lease(key) else "delete it"
                message = f"{key} is for NPUs and Mooncake; on platform cpu nothing reads it: {remedy}"
                yield warning("C2", message, (*path, key), on_key=True)


def _is_lease(name: str) -> bool:
    return name.endswith("_ABORT_REQUEST_TIMEOUT")


@cpu_rule("C3", "C4", "C5", "F11")
def nixl_keys(context: Context) -> Iterator[Problem]:
    """What the file tells NixlConnector is something that it reads and takes (C3, C4, C5)."""
    for group in context.topology.groups.values():
        if NIXL_KEY in group.kv_extra and not is_lease(said := group.kv_extra[NIXL_KEY]):
            message = f"`{NIXL_KEY}` must be a positive number of seconds, not {said!r:.40}"
            yield error(
                "C3", f"{message}; left out it is {NIXL_LEASE:.0f}", context.where(group, "kv.extra", NIXL_KEY)
            )
        for key in ASCEND_EXTRA & group.kv_extra.keys():
            message = f"`{key}` is for connectors of vLLM-Ascend; NixlConnector does not read it: delete it"
            yield warning("C5", message, context.where(group, "kv.extra", key), on_key=True)
        device = group.kv_config.get("kv_buffer_device", "cpu")
        where = context.where(group, "kv.config", "kv_buffer_device")
        if device != "cpu":
            message = (
                f"kv_buffer_device {device!r:.40} on platform cpu: NixlConnector refuses all but cpu; delete it"
            )
            yield error("C4", message, where)
        elif "kv_buffer_device" in group.kv_config:
            yield info("F11", "`kv_buffer_device` is cpu anyway; delete it", where, on_key=True)


@cpu_rule("R28", "R29")
def sizes_meet(context: Context) -> Iterator[Problem]:
    """One side's tp_size divides the other's (R28); decode has no context parallelism (R29)."""
    seen: set[tuple[int, int]] = set()
    for prefill in context.groups(Role.PREFILL):
        for decode in context.groups(Role.DECODE):
            pair = (prefill.tp_size, decode.tp_size)
            if pair in seen or max(pair) % min(pair) == 0:
                continue
            seen.add(pair)
            message = (
                f"tp_size of {prefill.name} (prefill) is {pair[0]}, of {decode.name} (decode) {pair[1]}; "
                "NixlConnector needs one to be the other or a multiple of it"
            )
            yield error("R28", message, ("groups", prefill.name, "tp_size"))
    for group in context.groups(Role.DECODE):
        if group.pcp_size > 1:
            message = (
                f"{group.name} (decode) has prefill context parallelism; NixlConnector allows it on prefill only"
            )
            yield error("R29", message, context.where(group, "args", "prefill-context-parallel-size"))
