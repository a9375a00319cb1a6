"""Environment variables: names, derived ones, secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pdtui.topology.findings import Path, Problem
from pdtui.topology.lease import lease_variable
from pdtui.topology.model import Group, Topology
from pdtui.topology.planner import derived_env, placement, rank_devices
from pdtui.topology.redact import is_secret
from pdtui.topology.rules.registry import Context, error, info, rule, warning
from pdtui.topology.script import HOME

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
OBSOLETE = {
    "VLLM_ASCEND_EXTERNAL_DP_LB_ENABLED": "only 0.9.1 read it",
    "DISAGGREGATED_PREFILL_RANK_TABLE_PATH": "its connector is gone",
    "PHYSICAL_DEVICES": "its connector is gone",
    "VLLM_NIXL_ABORT_REQUEST_TIMEOUT": "it is VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT, or kv_lease_duration, now",
}
"""Variables that no current release reads -> why."""


SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL_"
"""How the variables begin that say where NixlConnector listens."""


@rule("F06", "F09", "V7", "V13")
def variables(context: Context) -> Iterator[Problem]:
    """Names are names, secrets are references, nothing obsolete is set (F06, F09, V7, V13)."""
    lease = lease_variable(context.topology) if context.topology.has_npus else ""
    for path, env in context.levels("env"):
        for key, value in env.items():
            where = (*path, key)
            if not _NAME.match(key):
                yield error("F06", f"`{key}` is no name of an environment variable", where, on_key=True)
            elif isinstance(value, dict) and "file" in value:
                yield error("F09", "{file: ...} as a variable is not yet supported; use {from_env: NAME}", where)
            elif isinstance(value, dict) and "from_env" in value and not _NAME.match(value["from_env"]):
                yield error("F06", f"`{value['from_env']}` is no name of an environment variable", where)
            elif is_secret(key) and isinstance(value, str) and value and not value.startswith("$"):
                message = f"the value of {key} stands in the file for all to read; write {{from_env: NAME}}"
                yield warning("V13", message, where, on_key=True)
            if isinstance(value, str) and value.startswith(HOME):
                message = (
                    f"{key} is passed on as written: ~/ is no home here; write $HOME/{value.removeprefix(HOME)}"
                )
                yield warning("F06", message, where)
            if key in OBSOLETE and key != lease:
                yield info("V7", f"{key} has no effect: {OBSOLETE[key]}; delete it", where, on_key=True)


@rule("F11", "R53", "R56", "T4")
def derived(context: Context) -> Iterator[Problem]:
    """Variables that follow from the node are not contradicted (R53, R56, T4)."""
    topology = context.topology
    for group in topology.groups.values():
        for key in next((env for _, env in _derived(topology, group)), {}).keys() & group.env.keys():
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
