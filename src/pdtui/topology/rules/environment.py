"""Environment variables: names, derived ones, secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pdtui.topology.findings import Path, Problem
from pdtui.topology.lease import NIXL_KEY, OLD_LEASE
from pdtui.topology.model import Group, Topology
from pdtui.topology.planner import derived_env, placement, rank_devices
from pdtui.topology.reference import API_KEY_FLAG, is_reference
from pdtui.topology.rules.registry import Context, error, info, rule, warning
from pdtui.topology.script import HOME
from pdtui.topology.versions import NEWEST, Release

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
OBSOLETE: dict[str, str] = {
    "VLLM_ASCEND_EXTERNAL_DP_LB_ENABLED": "only 0.9.1 read it",
    "DISAGGREGATED_PREFILL_RANK_TABLE_PATH": "its connector is gone",
    "PHYSICAL_DEVICES": "its connector is gone",
}
"""Variables that no release with external load balancing reads -> why."""

ENDED: dict[str, tuple[Release, str]] = {
    "VLLM_USE_V1": ((0, 12, 0), "there is no other engine any more"),
    "ASCEND_BUFFER_POOL": ((0, 23, 0), "its buffers went with vllm-ascend 0.23"),
    "VLLM_ASCEND_ENABLE_FLASHCOMM1": (NEWEST, "FlashComm v1 was removed"),
}
"""Variables -> the first vllm-ascend that does not read them, and why."""


SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL_"
"""How the variables begin that say where NixlConnector listens."""


@rule("F06", "V7")
def variables(context: Context) -> Iterator[Problem]:
    """Names are names, references lead somewhere, nothing obsolete is set (F06, V7)."""
    for path, env in context.levels("env"):
        for key, value in env.items():
            where = (*path, key)
            if not _NAME.match(key):
                yield error("F06", f"`{key}` is no name of an environment variable", where, on_key=True)
            elif is_reference(value):
                yield from _reference(where, value)
            if isinstance(value, str) and value.startswith(HOME):
                message = (
                    f"{key} is passed on as written: ~/ is no home here; write $HOME/{value.removeprefix(HOME)}"
                )
                yield warning("F06", message, where)
            if value is not None and (why := _obsolete(context, key)):
                yield info("V7", f"{key} has no effect: {why}; delete it", where, on_key=True)
    for path, args in context.levels("args"):
        for key, value in args.items():
            if is_reference(value) and key.replace("_", "-") == API_KEY_FLAG:
                yield from _reference((*path, key), value)


def _obsolete(context: Context, key: str) -> str:
    if key == OLD_LEASE and not context.topology.has_npus:
        return f"it is {NIXL_KEY} of `kv: {{extra: ...}}` now"
    since, why = ENDED.get(key, (NEWEST, ""))
    return OBSOLETE.get(key, "") or (why if context.release >= since else "")


def _reference(where: Path, value: Mapping[str, str]) -> Iterator[Problem]:
    """Check a reference; what stands there by mistake may be the secret itself, so it is not repeated."""
    if "from_env" in value and not _NAME.match(value["from_env"]):
        yield error("F06", "what follows `from_env` is no name of an environment variable", where)
    elif "file" in value and not value["file"].startswith(("/", HOME)):
        message = "what follows `file` must be an absolute path, or begin with ~/ for the home where ranks run"
        yield error("F06", message, where)


OF_GROUP = frozenset({"PYTHONHASHSEED", "VLLM_PP_LAYER_PARTITION"})
"""Derived variables that do not follow from the node."""


@rule("F11", "R53", "R56", "T4")
def derived(context: Context) -> Iterator[Problem]:
    """Variables that follow from the node are not contradicted (R53, R56, T4)."""
    topology = context.topology
    for group in topology.groups.values():
        first = next((env for _, env in _derived(topology, group)), {})
        for key in (first.keys() - OF_GROUP) & group.env.keys():
            said, where = group.env[key], context.where(group, "env", key)
            if key.startswith(SIDE_CHANNEL) and (not isinstance(said, str) or "$" in said):
                known = f"without {key}" if said is None else f"with {key} from the node's environment"
                message = f"{known} a rank of {group.name} binds a port that is not in the plan"
                yield error("F11", f"{message}; delete the line", where)
            if not isinstance(said, str) or "$" in said:
                continue
            wrong = next(((node, env[key]) for node, env in _derived(topology, group) if env[key] != said), None)
            yield _variable(group, key, said, wrong, where)


def _derived(topology: Topology, group: Group) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (node, derived variables) of each rank of a group."""
    for node, dp_rank, local_rank in placement(group):
        devices = rank_devices(group, node, local_rank)
        yield node, derived_env(topology, group, topology.nodes[node], devices, dp_rank)


def _variable(group: Group, key: str, said: str, wrong: tuple[str, str] | None, path: Path) -> Problem:
    name = group.name
    if wrong is None:
        return info("F11", f"{key} follows from the node anyway; delete it", path, on_key=True)
    node, real = wrong
    if key == "ASCEND_RT_VISIBLE_DEVICES":
        message = f"every rank of {name} would see NPU {said}, but a rank on {node} has {real}; use `devices:`"
        return error("T4", message, path)
    message = f"{key} is {said} for all of {name}, but on {node} it is {real}; delete it and it is derived"
    if key.startswith(SIDE_CHANNEL):
        source = "the node's address" if key.endswith("_HOST") else f"kv_port of {name}"
        message = f"{key} {said} contradicts {source}, from which {real} follows for a rank on {node}; delete it"
        return error("F11", message, path)
    if key == "HCCL_IF_IP":
        return error("R53", message, path)
    return warning("R56" if key == "VLLM_HOST_IP" else "R53", message, path)
