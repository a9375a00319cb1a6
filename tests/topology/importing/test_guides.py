"""The guides' own text, imported: the plan is that of the sample files, and the report says what cannot run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pdtui.assets import asset_dir
from pdtui.topology.findings import Severity
from pdtui.topology.importing.assemble import assemble
from pdtui.topology.importing.observed import Origin, Said, Wanted, serve_command
from pdtui.topology.importing.report import Draft, Kind, Note
from pdtui.topology.importing.scripts import read
from pdtui.topology.importing.sources import Source
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


def lines(note: Note) -> list[int]:
    return [origin.line for origin in note.origins]


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
    assert not [note for note in draft.notes if note.kind is Kind.CONTRADICTION or note.severity is Severity.ERROR]
    elsewhere = [(note.message, lines(note)) for note in draft.notes if note.rule == "X12"]
    assert (
        len(elsewhere) == 3
    )  # The guide's benchmark and its curl miss the proxy's port, and one the model's name.
    assert topology.proxy is not None
    assert (topology.nodes[topology.proxy.node].address, topology.proxy.port) == ("192.0.0.1", 1999)


def test_of_two_flows_the_first_is_read_and_the_other_named() -> None:
    draft = imported("guide_2p1d.txt")
    [note] = [note for note in draft.notes if "both flows" in note.message]
    assert "--flow pull" in note.message
    assert len(note.origins) == 2
    assert topology_of(draft.text).connector == "MooncakeLayerwiseConnector"


def test_the_guide_for_large_ep_becomes_eight_nodes_and_its_report_says_what_runs_nowhere() -> None:
    draft = imported("guide_large_ep_zh.txt")
    topology = topology_of(draft.text)
    sample = load(asset_dir("sample_configs") / "deepseek-r1-large-ep.yaml").topology
    assert sample is not None
    assert place(topology) == place(sample)
    assert topology.proxy is not None
    assert (topology.proxy.listen, topology.proxy.port) == ("0.0.0.0", 8000)
    rules = {note.rule: note for note in draft.notes if note.severity is Severity.ERROR}
    assert rules.keys() == {"R10", "R22", "R25", "R74"}
    assert "v0.9.1" in rules["R10"].message
    assert "no release" in rules["R10"].message
    text = (DATA / "guide_large_ep_zh.txt").read_text().split("\n")
    assert [text[line - 1].strip() for line in lines(rules["R22"])] == ['"kv_port": "20001",'] * 2
    unknown = [note.message for note in draft.notes if note.rule == "R74"]
    assert [message.split()[0] for message in unknown] == [
        "--prefiller-hosts-num",
        "--prefiller-ports-inc",
        "--decoder-hosts-num",
        "--decoder-ports-inc",
    ]
    translated = [note.message for note in draft.notes if note.kind is Kind.TRANSLATION]
    assert "VLLM_DP_SIZE -> --data-parallel-size" in translated
    assert not draft.complete  # The interfaces are `xxxx` in the guide, and it says no version.
    assert {finding.rule for finding in draft.findings if finding.severity is Severity.ERROR} == {"R14", "V2"}


def place(topology: Topology) -> object:
    """Return which ranks run where, with which NPUs and API port."""
    return [
        (rank.role, rank.host, rank.dp_rank, rank.devices, rank.api_port, topology.groups[rank.group].dp_address)
        for rank in make_plan(topology).ranks
    ]
