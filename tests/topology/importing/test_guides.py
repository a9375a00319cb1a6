"""The guides' own text, imported: the plan is that of the sample files, and the report says what cannot run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pdtui.assets import asset_dir
from pdtui.topology.importing.assemble import assemble
from pdtui.topology.importing.observed import Origin, Said, Wanted, serve_command
from pdtui.topology.importing.report import Draft, Kind
from pdtui.topology.importing.scripts import Source, read
from pdtui.topology.load import load, load_bytes
from pdtui.topology.model import Topology
from pdtui.topology.plan import RankPlan
from pdtui.topology.planner import make_plan

DATA = Path(__file__).parent.parent / "data"
MOONCAKE = "export LD_LIBRARY_PATH=/usr/local/lib64/python3.12/site-packages/mooncake:$LD_LIBRARY_PATH"
"""The guide has every rank start from a shell in which this was run."""


def imported(*names: str, wanted: Wanted | None = None, more: Sequence[Source] = ()) -> Draft:
    sources = [Source(name, (DATA / name).read_bytes()) for name in names]
    seen, notes = read([*sources, *more], wanted)
    return assemble(seen, wanted, notes)


def topology_of(text: str) -> Topology:
    loaded = load_bytes(text.encode(), Path("draft.yaml"))
    assert loaded.topology is not None, loaded.findings
    return loaded.topology


def shape(topology: Topology) -> Mapping[object, object]:
    """Return what runs where, whatever nodes and groups are called."""
    return {
        (rank.role, rank.host, rank.dp_rank): (rank.devices, rank.kv_ports, *command(rank), dict(rank.env))
        for rank in make_plan(topology).ranks
    }


def command(rank: RankPlan) -> tuple[str | None, dict[str, Any]]:
    """Return model and flags of a rank's command; their order means nothing."""
    words = [Said(word, Origin("")) for word in rank.argv[2:]]
    found = serve_command(words, {}, host="", origin=Origin(""))
    return found.model.text if found.model else None, {
        name: json.loads(said.text) if said.text.startswith("{") else said.value
        for name, said in found.flags.items()
    }


@pytest.mark.parametrize(
    ("flow", "file"), [("layerwise", "deepseek-r1-2p1d-layerwise.yaml"), ("pull", "deepseek-r1-2p1d.yaml")]
)
def test_the_2p1d_guide_becomes_the_plan_of_the_sample_file(flow: Any, file: str) -> None:
    shell = Source("login.sh", MOONCAKE.encode())
    draft = imported("guide_2p1d.txt", "guide_2p1d_services.txt", more=[shell], wanted=Wanted(flow=flow))
    topology = topology_of(draft.text)
    sample = load(asset_dir("sample_configs") / file).topology
    assert sample is not None
    assert shape(topology) == shape(sample)
    assert draft.complete, draft.notes
    assert not [note for note in draft.notes if note.kind in (Kind.CONTRADICTION, Kind.FINDING)]
    assert topology.proxy is not None
    assert (topology.nodes[topology.proxy.node].address, topology.proxy.port) == ("192.0.0.1", 1999)
