"""What is not right about a node that can be used, and what helps: read from what its agents say of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from pdtui.fleet.snapshot import Condition, NodeStatus
from pdtui.remote.messages.commands import Facts
from pdtui.topology.model import Runtime

CONDITIONS = ("state-in-container", "other-records", "no-state", "logout")
"""Ids of all conditions."""

MEMORY = frozenset({"tmpfs", "ramfs"})
"""File systems that a restart of their container empties."""


def conditions(host: Facts | None, where_ranks_run: Facts | None, runtime: Runtime) -> tuple[Condition, ...]:
    """Return the conditions of one node; nothing is said of what could not be asked."""
    found: list[Condition] = []
    if where_ranks_run is not None and where_ranks_run.state_dir_error:
        found.append(_no_state(where_ranks_run))
    elif where_ranks_run is not None and where_ranks_run.other_user and runtime.state_dir is None:
        found.append(_other_records(where_ranks_run))
    if runtime.container:
        if host is not None and where_ranks_run is not None and _goes_with_container(host, where_ranks_run):
            found.append(_not_mounted(where_ranks_run, runtime))
    elif where_ranks_run is not None and where_ranks_run.logout_user:
        found.append(_logout(where_ranks_run))
    return tuple(found)


def start_warnings(nodes: Sequence[NodeStatus]) -> tuple[str, ...]:
    """Return what whoever starts ranks on these nodes has to know, nodes with the same trouble together."""
    found: dict[Condition, list[str]] = {}
    for node in nodes:
        for condition in node.conditions:
            found.setdefault(condition, []).append(node.name)
    return tuple(
        f"{', '.join(names)}: {condition.message} ({condition.remedy})" for condition, names in found.items()
    )


def _goes_with_container(host: Facts, inside: Facts) -> bool:
    """Return whether records lie in the container's own layer, or in its memory."""
    apart = host.mount_namespace and inside.mount_namespace and host.mount_namespace != inside.mount_namespace
    return bool(apart and inside.state_dir) and (inside.state_mount == "/" or inside.state_mount_type in MEMORY)


def _not_mounted(inside: Facts, runtime: Runtime) -> Condition:
    folder = str(PurePosixPath(inside.state_dir).parent)
    return Condition(
        "state-in-container",
        f"records and logs of ranks go with container {runtime.container}: {folder} in it is no mount of the host",
        f"run the container with -v {folder}:{folder}",
    )


_SAME_USER = (
    "every console has to be the same user on the node: same ssh.user, same ssh.sudo, same runtime.state_dir"
)


def _other_records(facts: Facts) -> Condition:
    return Condition(
        "other-records",
        f"{facts.other_user}'s records lie in {facts.other_folder}, those of {facts.user} in {facts.state_dir}:"
        " neither sees what the other has started",
        _SAME_USER,
    )


def _no_state(facts: Facts) -> Condition:
    foreign = "belongs to" in facts.state_dir_error
    return Condition(
        "no-state",
        f"no folder for records, nothing can be started: {facts.state_dir_error}",
        _SAME_USER if foreign else "set runtime.state_dir to a folder that this user may write",
    )


def _logout(facts: Facts) -> Condition:
    user = facts.logout_user
    source = facts.logout_source or "systemd-logind"
    spared = "KillUserProcesses=no" if user == "root" else f"KillExcludeUsers=root {user}"
    return Condition(
        "logout",
        f"ranks end with the last login of {user}, which may be this connection (KillUserProcesses in {source})",
        f"as root: printf '[Login]\\n{spared}\\n' > /etc/systemd/logind.conf.d/pdtui.conf"
        " && systemctl restart systemd-logind; then connect anew",
    )
