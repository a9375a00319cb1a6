"""From what was seen to a topology file in which nothing is said twice, and a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pdtui.topology.importing import cluster_part, draft, group_part, levels, proxy_part, stores, verify
from pdtui.topology.importing.group_part import spans
from pdtui.topology.importing.groups import form, model_kind
from pdtui.topology.importing.observed import Observed, Wanted
from pdtui.topology.importing.origins import origins
from pdtui.topology.importing.places import (
    UNKNOWN_ADDRESS,
    addresses,
    drop_own_address,
    places,
    replicate,
    roles_from,
    settle,
    ssh_part,
)
from pdtui.topology.importing.ranks import Sourced, is_placeholder, sort, sourced
from pdtui.topology.importing.report import Draft, Kind, Note, merged, note
from pdtui.topology.importing.work import Work
from pdtui.topology.load import load_bytes
from pdtui.topology.model import Role
from pdtui.topology.redact import HIDDEN, is_secret, redacted_text
from pdtui.topology.reference import is_reference
from pdtui.topology.yaml_tree import parse

MOST_RANKS = 2048
"""Servers that are read: 128 hosts of 16 NPUs, each its own rank."""

_RENAMED = {
    "MooncakeConnector": "MooncakeConnectorV1",
    "LLMDataDistCMgrConnector": "MooncakeConnectorV1",
}
"""Connectors that are gone -> what does the same today."""


def assemble(seen: Observed, wanted: Wanted | None = None, notes: Sequence[Note] = ()) -> Draft:
    """Return the topology of what was seen; `notes` of the readers come first in its report. Never raises."""
    if not seen.commands:
        nothing = note(Kind.UNREAD, "no vllm serve command was found")
        return Draft("", merged((*notes, nothing)), ())
    work = Work(seen, wanted or Wanted(), list(notes), proxies=list(seen.proxies))
    return _draft(work)


def _draft(work: Work) -> Draft:
    _sort(work)
    _place(work)
    _group(work)
    text = _text(work)
    loaded = load_bytes(text.encode(), Path(_file_name(work)))
    document, _ = parse(text.encode(), "")
    if loaded.topology is not None:
        work.notes += verify.differences(loaded.topology, work.groups, work.notes)
    for message in dict.fromkeys(message for _, message in work.asked):
        paths = [path for path, words in work.asked if words == message]
        lines = sorted({document.mark(path).line for path in paths})
        where = f"line{'s' * (len(lines) > 1)} {spans(lines)} of the draft"
        found = note(Kind.ASKED, f"{message}: write it yourself, {where}", path=".".join(map(str, paths[0])))
        work.notes.append(found)
    return Draft(text, merged(work.notes), loaded.findings)


def _file_name(work: Work) -> str:
    return f"{cluster_part.name(work)}.yaml"


def _sort(work: Work) -> None:
    if len(work.seen.commands) > MOST_RANKS:
        message = f"{len(work.seen.commands)} servers are more than a cluster has; {MOST_RANKS} were read"
        work.notes.append(note(Kind.UNREAD, message, work.seen.commands[MOST_RANKS].origin))
    for command in work.seen.commands[:MOST_RANKS]:
        rank, notes = sort(command)
        work.ranks.append(rank)
        work.notes += notes
    work.notes += settle(work.ranks, work.proxies)
    work.notes += roles_from(work.ranks, work.proxies)
    work.addresses, notes = addresses(work.ranks, work.seen.hosts, work.proxies)
    work.notes += notes
    work.notes += replicate(work.ranks, work.proxies, work.addresses)


def _place(work: Work) -> None:
    extra = [name for proxy in work.proxies[:1] if (name := proxy_part.proxy_host(work, proxy))]
    work.places, notes = places(work.ranks, work.seen.hosts, extra, work.addresses)
    work.notes += notes
    drop_own_address(work.ranks, work.places)
    for name, place in work.places.items():
        path = ("nodes", place.name)
        if not name:
            work.asked.append(((*path, "host"), "nothing says on which host this runs"))
        elif place.address == UNKNOWN_ADDRESS and name != UNKNOWN_ADDRESS:
            work.asked.append(((*path, "address"), "nothing says which address of the host the cluster uses"))
        if not place.nic or is_placeholder(place.nic):
            work.asked.append(((*path, "nic"), "nothing says which interface owns the node's address (nic)"))


def _group(work: Work) -> None:
    work.kind = model_kind(work.ranks)
    work.groups = form(work.ranks, dense=work.kind == "dense")
    for group in work.groups:
        work.notes += group.notes
    prefill = (group.first for group in work.groups if group.role is Role.PREFILL)
    pipeline = next((rank for rank in prefill if rank.pp_size > 1), None)
    if pipeline is not None:
        for rank in work.ranks:
            values = stores.without_pipeline(sourced(rank.stores), pipeline.pp_size, pipeline.layers)
            rank.stores = {name: replace(said, value=values[name]) for name, said in rank.stores.items()}


def _text(work: Work) -> str:
    own: dict[str, Mapping[str, Mapping[str, Sourced]]] = {}
    connectors = group_part.connectors(work)
    for group in work.groups:
        mine, notes = levels.of_group(group)
        work.notes += notes
        group_part.keep_sizes(work, group, mine)
        group_part.keep_served(work, group, mine)
        own[group.name] = mine
    sorted_out = levels.sort_out(work.groups, own)
    platform = cluster_part.platform(work)
    work.platform = platform
    head = {"pdtui": 1, "name": cluster_part.name(work), "platform": platform}
    head["vllm" if work.is_cpu else "vllm_ascend"] = cluster_part.version(work)
    ssh, ssh_own = ssh_part(work.places)
    nodes = {place.name: place.entry() for place in work.places.values()}
    for name, differs in ssh_own.items():
        nodes[name]["ssh"] = differs
    roles = {
        role.value: part
        for role in Role
        if (part := levels.parts_of(sorted_out.roles[role])) and any(group.role is role for group in work.groups)
    }
    kv: dict[str, Any] = {"connector": connectors[0]}
    kv |= levels.kv_part(sorted_out.defaults)
    groups = {
        group.name: group_part.group_part(work, group, sorted_out.groups[group.name], connectors[number])
        for number, group in enumerate(work.groups)
    }
    for number, group in enumerate(work.groups):
        if connectors[number] != connectors[0]:
            groups[group.name].setdefault("kv", {})["connector"] = connectors[number]
    work.notes += origins(work, sorted_out, groups)
    defaults = levels.parts_of(sorted_out.defaults, kv=False)
    sections: list[tuple[Mapping[str, Any], Mapping[str, str]]] = [
        (head, _head_comments(work)),
        ({"ssh": ssh} if ssh else {}, {}),
        ({"runtime": runtime} if (runtime := cluster_part.runtime(work)) else {}, {}),
        ({"model": cluster_part.model(work)}, {}),
        ({"kv": kv}, {}),
        ({"nodes": nodes}, {}),
        ({"defaults": defaults} if defaults else {}, {}),
        ({"roles": roles} if roles else {}, {}),
        ({"groups": groups}, {}),
        ({"proxy": proxy} if (proxy := proxy_part.proxy(work)) else {}, {}),
    ]
    return draft.document([(_without_secrets(work, values, ()), comments) for values, comments in sections])


def _without_secrets(work: Work, value: Any, path: tuple[str | int, ...]) -> Any:
    """Return a part of the file with what looks like a secret hidden, wherever it stands, and asked for."""
    if isinstance(value, Mapping):
        return (
            value
            if is_reference(value)
            else {key: _without_secrets(work, inner, (*path, key)) for key, inner in value.items()}
        )
    if isinstance(value, list | tuple):
        return [_without_secrets(work, inner, (*path, number)) for number, inner in enumerate(value)]
    if not isinstance(value, str) or not value:
        return value
    key = next((str(part) for part in reversed(path) if isinstance(part, str)), "")
    shown = HIDDEN if is_secret(key) else redacted_text(value)
    if shown != value:
        work.asked.append((path, "a secret was not copied, *** stands for it"))
    return shown


def _head_comments(work: Work) -> dict[str, str]:
    names = list(dict.fromkeys(rank.origin.source for rank in work.ranks))
    shown = ["".join(char if char.isprintable() else "?" for char in name) for name in names[:3]]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return {"pdtui": f"imported from {', '.join(shown)}{more}"}
