"""Collected scripts and values of the field, each imported: what is found in them, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdtui.topology.findings import Severity
from pdtui.topology.importing.assemble import assemble
from pdtui.topology.importing.observed import Wanted
from pdtui.topology.importing.report import Draft, Kind
from pdtui.topology.importing.scripts import read
from pdtui.topology.importing.sources import Source

DATA = Path(__file__).parent / "data"

UNFINISHED = frozenset({"V2", "T15", "X1", "R02"})
"""What `check` says of a draft from an excerpt: no other role, no proxy, values that are in no file."""

EXPECTED: dict[str, set[str]] = {
    "rc08_dense_dp2_tp2_rejected.sh": {"R27", "R58", "R60", "R16"},
    "rc11_two_node_dp2_ei0006.sh": set(),
    "rc12_kvport_20002.json": {"R14"},
    "rc13_kv_role_typo.json": {"R23", "R24"},
    "rc15_trailing_comma.json": {"R22", "R14", "R25", "K2"},
    "rc16_no_kv_role.json": {"R23"},
    "rc17_proxy_glued_hosts.sh": {"R60", "R71"},
    "rc21_balance_scheduling_in_pd.env": {"R35", "R47"},
    "rc22_typo_env_dp2.sh": {"R58", "R51"},
    "rc23_old_launcher_hostname_I.sh": {"R54", "R53"},
    "rc25_single_node_1p1d_ok.sh": set(),
    "rc28_shared_npus_default_hccl_port.sh": {"R19", "R18", "R45"},
    "rc30_run_dp_template_ok.sh": set(),
    "rc32_launcher_default_port_crash.sh": {"R09"},
    "rc34_llmdatadist_loopback_same_port.sh": {"R80", "R71", "R14", "R79", "R58", "K10", "K2", "R05", "P8"},
    "rc36_pool_env_json.env": {"R83"},
    "rc37_template_deletes_plog.sh": {"R81"},
}


def imported(name: str) -> Draft:
    wanted = Wanted(vllm_ascend="" if "NixlConnector" in (DATA / name).read_text() else "0.22.1rc1")
    seen, notes = read([Source(name, (DATA / name).read_bytes())], wanted)
    return assemble(seen, wanted, notes)


def found(draft: Draft) -> set[str]:
    """Return the rules of warnings and errors, of the report and of the draft."""
    notes = {note.rule for note in draft.notes if note.rule and note.severity is not Severity.INFO}
    findings = {finding.rule for finding in draft.findings if finding.severity is not Severity.INFO}
    return (notes | findings) - UNFINISHED


def test_every_sample_is_listed() -> None:
    assert {path.name for path in DATA.iterdir()} == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_findings_of_a_sample_are_these_and_no_others(name: str) -> None:
    assert found(imported(name)) == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
def test_every_note_names_its_place(name: str) -> None:
    lines = (DATA / name).read_text().count("\n") + 1
    for note in imported(name).notes:
        assert note.origins or note.kind in (Kind.ASKED, Kind.ASSUMPTION, Kind.TRANSLATION, Kind.UNREAD), note
        assert all(origin.source == name and 0 <= origin.line <= lines for origin in note.origins)


def test_glued_hosts_are_told_where_they_are_glued() -> None:
    notes = [note for note in imported("rc17_proxy_glued_hosts.sh").notes if note.rule == "R60"]
    assert [(str(note.origins[0]), note.message.split()[-1]) for note in notes] == [
        ("rc17_proxy_glued_hosts.sh:7", "192.0.2.3192.0.2.4"),
        ("rc17_proxy_glued_hosts.sh:8", "192.0.2.4--decoder-ports"),
    ]


def test_a_valid_pair_on_one_server_becomes_two_groups_with_their_own_npus() -> None:
    text = imported("rc25_single_node_1p1d_ok.sh").text
    assert text.count('devices: "0"') == text.count('devices: "1"') == 1
    assert "kind: dense" not in text
    assert "proxy: {node: node1, listen: 192.0.2.130, port: 8080}" in text
