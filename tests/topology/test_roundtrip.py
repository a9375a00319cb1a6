"""What is rendered and then imported has the same plan: nothing is lost on the way through bash."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings

from pdtui.assets import asset_dir
from pdtui.topology.importing.assemble import assemble
from pdtui.topology.importing.observed import Wanted
from pdtui.topology.importing.report import Draft, Kind
from pdtui.topology.importing.scripts import read
from pdtui.topology.importing.sources import Source
from pdtui.topology.load import load
from pdtui.topology.model import Topology
from pdtui.topology.plan import RankPlan
from pdtui.topology.planner import make_plan
from pdtui.topology.render.container import STATE_DIR, container_argv
from pdtui.topology.render.files import render
from tests.topology.examples import loaded
from tests.topology.render.test_running import SHAPES
from tests.topology.shapes import files

SAMPLES = sorted(path.name for path in asset_dir("sample_configs").glob("*.yaml"))


def imported(topology: Topology) -> tuple[Topology, Draft]:
    """Return the topology of the scripts that are rendered from another, and its report."""
    sources = [
        Source(file.path, file.text.encode())
        for file in render(topology).files
        if file.path.endswith((".sh", ".py")) and "container_shell" not in file.path
    ]
    wanted = Wanted(
        name=topology.name,
        platform=topology.platform,
        vllm_ascend=topology.vllm_ascend or topology.vllm,
        flow=topology.flow.value,
    )
    seen, notes = read(sources, wanted)
    draft = assemble(seen, wanted, notes)
    result = loaded(draft.text)
    assert result.topology is not None, (draft.text, result.findings)
    assert not result.errors, (draft.text, result.errors)
    return result.topology, draft


def flags(argv: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    """Return a command as flags with their words; in which order they stand says nothing."""
    found: dict[str, tuple[str, ...]] = {}
    name = ""
    for word in argv:
        if word.startswith("--"):
            name = word
            found[name] = ()
        else:
            found[name] = (*found.get(name, ()), word)
    return found


def essence(rank: RankPlan) -> dict[str, object]:
    """Return all of a rank that does not depend on what its group and its node are called."""
    return {
        "role": rank.role,
        "devices": rank.devices,
        "kv_ports": rank.kv_ports,
        "command": flags(rank.argv),
        "env": dict(rank.env),
    }


def same_plan(before: Topology, after: Topology) -> None:
    first, second = make_plan(before), make_plan(after)
    theirs = {(rank.host, rank.api_port): essence(rank) for rank in second.ranks}
    for rank in first.ranks:
        assert theirs.pop((rank.host, rank.api_port), None) == essence(rank), rank.id
    assert not theirs
    assert {(use.host, use.first, use.last, use.use) for use in first.ports} == {
        (use.host, use.first, use.last, use.use) for use in second.ports
    }
    assert (before.flow, before.platform, before.runtime.setup) == (
        after.flow,
        after.platform,
        after.runtime.setup,
    )
    assert (before.model.path, before.model.served_name) == (after.model.path, after.model.served_name)
    if not all(before.is_apart(group) for group in before.groups.values()):
        # Instances that stand alone are started in the same way whether the model has experts or not.
        assert before.model.kind == after.model.kind
    assert before.proxy is not None
    assert after.proxy is not None
    assert (before.proxy.advertise, before.proxy.port) == (after.proxy.advertise, after.proxy.port)
    if before.runtime.image:
        assert container(before) == container(after)
        assert f"{STATE_DIR}:{STATE_DIR}" not in after.runtime.mounts  # Every container of ours has it.


def container(topology: Topology) -> dict[str, tuple[str, ...]]:
    """Return how each server's container is started, by address."""
    return {node.address: container_argv(topology, name) for name, node in topology.nodes.items()}


@pytest.mark.parametrize("name", SAMPLES)
def test_samples(name: str) -> None:
    topology = load(asset_dir("sample_configs") / name).topology
    assert topology is not None
    result, draft = imported(topology)
    same_plan(topology, result)
    assert draft.complete, [note for note in draft.notes if note.kind in (Kind.UNREAD, Kind.ASKED)]
    # A script of ours gives no cause to complain, nor to guess but whether the model has experts.
    doubts = (Kind.CONTRADICTION, Kind.FINDING, Kind.ASSUMPTION)
    assert not [note for note in draft.notes if note.kind in doubts and note.path != "model.kind"]


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str) -> None:
    topology = loaded(SHAPES[name]).topology
    assert topology is not None
    result, _ = imported(topology)
    same_plan(topology, result)


@settings(max_examples=25)
@given(files())
def test_any_valid_file(text: str) -> None:
    topology = loaded(text).topology
    assert topology is not None
    result, draft = imported(topology)
    same_plan(topology, result)
    assert draft.complete


def test_what_is_imported_can_be_rendered_again() -> None:
    """The second time nothing changes any more, but for names."""
    topology = load(asset_dir("sample_configs") / "deepseek-r1-2p1d.yaml").topology
    assert topology is not None
    once, first = imported(topology)
    twice, second = imported(once)
    same_plan(once, twice)
    assert first.text == second.text
