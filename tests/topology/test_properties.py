"""What holds for every topology: plans share nothing, rules let nothing broken pass, spelling does not matter."""

from __future__ import annotations

from collections import Counter
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtui.topology.compare import rank_changes
from pdtui.topology.differences import compare_files
from pdtui.topology.findings import Severity
from pdtui.topology.model import Topology
from pdtui.topology.planner import make_plan
from pdtui.topology.rules.explained import EXPLANATIONS
from tests.topology.examples import FILE, loaded
from tests.topology.shapes import files

EXACT = {"api", "rpc", "kv", "proxy"}


def troubles(topology: Topology) -> list[str]:
    """Return what would keep a plan from running, counted by hand: no rule and no formula is asked."""
    plan = make_plan(topology)
    found = []
    for name, group in topology.groups.items():
        numbers = sorted(rank.dp_rank for rank in plan.of_group(name))
        if numbers != list(range(group.dp_size)):
            found.append(f"{name} has ranks {numbers}")
    for address in {node.address for node in topology.nodes.values()}:
        devices = Counter(device for rank in plan.ranks if rank.host == address for device in rank.devices)
        found += [f"NPU {device} of {address} twice" for device, count in devices.items() if count > 1]
        found += [f"no NPU {device} on {address}" for device in devices if device >= topology.npus_per_node]
        ports = Counter(
            port
            for use in plan.ports
            if use.host == address and use.use in EXACT
            for port in range(use.first, use.last + 1)
        )
        found += [f"port {port} of {address} twice" for port, count in ports.items() if count > 1]
        found += [f"port {port} of {address}" for port in ports if not 0 < port < 65536]
    if topology.has_npus:
        found += [
            f"{rank.id} has {len(rank.devices)} NPUs"
            for rank in plan.ranks
            if len(rank.devices) != topology.groups[rank.group].npus_per_rank
        ]
    return found


@settings(max_examples=40)
@given(files())
def test_a_valid_file_has_no_error_and_a_plan_that_can_run(text: str) -> None:
    result = loaded(text)
    assert result.topology is not None
    assert not result.errors
    assert troubles(result.topology) == []
    assert {finding.rule for finding in result.findings} <= EXPLANATIONS.keys()
    again = loaded(text).topology
    assert again is not None
    assert make_plan(again) == make_plan(result.topology)


NUMBERS = ("dp_size", "tp_size", "pp_size", "api_port", "rpc_port", "kv_port")


@settings(max_examples=100)
@given(files(), st.data())
def test_no_number_can_be_broken_unseen(text: str, data: st.DataObject) -> None:
    """One number, list of NPUs, or node of a valid file is replaced: an error is found, or the plan still runs."""
    tree = yaml.safe_load(text)
    group = tree["groups"][data.draw(st.sampled_from(sorted(tree["groups"])))]
    key = data.draw(st.sampled_from([*NUMBERS, "devices", "nodes", "ranks", "proxy"]))
    if key == "devices":
        group[key] = data.draw(st.sampled_from(["0-7", "0-3", "4-7", "8-15", "15", "16-17", "0,0"]))
    elif key == "nodes":
        group[key] = data.draw(st.lists(st.sampled_from(sorted(tree["nodes"])), min_size=1, max_size=3))
    elif key == "ranks":
        group[key] = {node: data.draw(st.integers(1, 4)) for node in group["nodes"]}
    elif key == "proxy":
        tree[key]["port"] = group[data.draw(st.sampled_from(["api_port", "kv_port"]))]
    else:
        others = [other[key] for other in tree["groups"].values() if key in other]
        near = (
            st.integers(1, 40) if key.endswith("size") else st.sampled_from([*others, 7100, 12321, 65535, 65530])
        )
        group[key] = data.draw(near)
    result = loaded(yaml.safe_dump(tree, sort_keys=False, allow_unicode=True))
    if not result.errors:
        assert result.topology is not None
        assert troubles(result.topology) == []


def shuffled(value: Any, data: st.DataObject, path: tuple[str, ...] = ()) -> Any:
    """Return the same with the keys of its mappings in another order, where no order is meant."""
    if not isinstance(value, dict):
        return value
    keys = list(value)
    # Ranks are numbered in the order of `nodes`, exported and passed in that of `env` and `args`, stores asked in
    # that of `stores`.
    ordered = {("groups",), ("defaults", "env"), ("defaults", "args"), ("kv", "stores")}
    if path not in ordered and "hf-overrides" not in path:
        keys = data.draw(st.permutations(keys))
    return {key: shuffled(value[key], data, (*path, key)) for key in keys}


@settings(max_examples=30)
@given(files(), st.data())
def test_order_and_spelling_do_not_matter(text: str, data: st.DataObject) -> None:
    tree = yaml.safe_load(text)
    other = shuffled(tree, data)
    other["defaults"]["args"] = {
        (f"no-{key}" if value is False else key).replace("-", "_" if data.draw(st.booleans()) else "-"): (
            True if value is False else value
        )
        for key, value in other["defaults"]["args"].items()
    }
    one, another = loaded(text), loaded(yaml.safe_dump(other, sort_keys=False, allow_unicode=True))
    assert one.topology is not None
    assert another.topology is not None
    assert not another.errors, another.errors
    plans = make_plan(one.topology), make_plan(another.topology)
    assert {rank.id: rank for rank in plans[0].ranks} == {rank.id: rank for rank in plans[1].ranks}
    assert compare_files(one.topology, another.topology).is_empty
    assert all(not rank_changes(rank, rank) for rank in plans[0].ranks)


@settings(max_examples=100)
@given(files(), st.data())
def test_a_damaged_file_is_named_by_line_or_loads(text: str, data: st.DataObject) -> None:
    lines = text.encode().splitlines(keepends=True)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        match data.draw(st.integers(0, 4)):
            case 0:
                lines[at] = b""
            case 1:
                lines.insert(at, lines[data.draw(st.integers(0, len(lines) - 1))])
            case 2:
                lines[at] = lines[at][: data.draw(st.integers(0, len(lines[at])))]
            case 3:
                cut = data.draw(st.integers(0, len(lines[at])))
                lines[at] = lines[at][:cut] + data.draw(st.binary(min_size=1, max_size=3)) + lines[at][cut:]
            case _:
                lines[at] = b"  " + lines[at]
    damaged = b"".join(lines)
    result = loaded(damaged)
    assert result.topology is not None or result.errors
    for finding in result.findings:
        assert finding.file == str(FILE)
        assert 1 <= finding.line <= damaged.count(b"\n") + damaged.count(b"\r") + damaged.count(b"\xe2\x80") + 2
        assert finding.column >= 1
        assert finding.rule in EXPLANATIONS
        assert finding.severity in Severity
