"""`pdtui ack`: which keys are taken, what is meant by a mistyped one, and what the list shows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pdtui.cli import ack
from pdtui.cli.status import as_dict, as_text
from pdtui.errors import UsageError
from pdtui.fleet.snapshot import Acknowledgement, RankState, Snapshot
from pdtui.readings.verdict import Reason, Verdict
from tests.support.fake_fleet import NOW, FakeFleet, with_npu, with_rank

LINK = Reason(Verdict.FAILED, "link DOWN", id="link-down")


@pytest.fixture
def snapshot() -> Snapshot:
    made = with_npu(FakeFleet.healthy().snapshot, "node3", 9, verdict=Verdict.FAILED, reasons=(LINK,))
    return with_rank(made, "decode/5", state=RankState.FAILED, exit_status=1)


def given(key: str) -> Acknowledgement:
    return Acknowledgement(key, "waits for a cable", "ann@desk", NOW - 60, NOW + 3600)


@pytest.mark.parametrize(
    "key",
    [
        "node3/9:link-down",
        "node1/2:link-down",  # not wrong now: for planned work
        "node3/*:hot",
        "node3/4:no-answer-link",
        "node2:unreachable",
        "node2:lldp",
        "node2:logout",
        "decode/5:failed",
        "decode/31:stopped",
        "decode/*:kv-held",
    ],
)
def test_taken(snapshot: Snapshot, key: str) -> None:
    ack.check_key(key, snapshot, remove=False)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("node3/9:lnk-down", "nothing is called 'lnk-down'; did you mean node3/9:link-down?"),
        ("node3/9", "names no trouble; there is node3/9:link-down"),
        ("nod3/9:link-down", "'nod3/9'; did you mean node3/9:link-down?"),
        ("node3/77:link-down", "no node, NPU, rank or group 'node3/77'; did you mean"),
        ("decode/99:failed", "no node, NPU, rank or group 'decode/99'"),
        ("decode/5:ready", "nothing is called 'ready'"),
        ("\x1b[31mx:failed", "'x'"),
    ],
)
def test_refused_with_what_may_have_been_meant(snapshot: Snapshot, key: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        ack.check_key(key, snapshot, remove=False)
    assert words in error.value.message
    assert "\x1b" not in error.value.message


def test_only_what_is_acknowledged_can_be_taken_back(snapshot: Snapshot) -> None:
    known = replace(snapshot, acknowledgements=(given("node3/*:link-down"),))
    ack.check_key("node3/*:link-down", known, remove=True)
    with pytest.raises(UsageError, match=r"is not acknowledged; did you mean node3/\*:link-down"):
        ack.check_key("node3/9:link-down", known, remove=True)


def test_list_and_status_show_who_knows_what(snapshot: Snapshot, capsys: pytest.CaptureFixture[str]) -> None:
    known = replace(
        snapshot, acknowledgements=(given("node3/9:link-down"), given("node1:lldp"), given("node1/1:hot"))
    )
    ack.show(known, as_json=False)
    text = capsys.readouterr().out
    assert text.splitlines()[1].split()[0] == "node3/9:link-down"
    assert "ann@desk" in text
    assert "waits for a cable" in text
    assert "not wrong now" in text
    assert "see pdtui preflight" in text
    assert text.index("WRONG NOW") < text.index("decode/5:failed")
    ack.show(known, as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["schema_version"] == 1
    assert set(found) == {"schema_version", "acknowledgements", "troubles"}
    assert set(found["acknowledgements"][0]) == {"key", "reason", "by", "at", "expires", "troubles"}
    shape = {"kind", "subject", "id", "severity", "summary", "unwell", "key", "acknowledged"}
    assert set(found["troubles"][0]) == shape
    assert [(one["key"], one["troubles"]) for one in found["acknowledgements"]] == [
        ("node3/9:link-down", ["node3/9:link-down"]),
        ("node1:lldp", []),
        ("node1/1:hot", []),
    ]
    assert {one["key"]: one["acknowledged"] for one in found["troubles"]} == {
        "node3/9:link-down": True,
        "decode/5:failed": False,
    }
    status = "\n".join(as_text(known))
    assert "1 acknowledged, not counted" in status
    assert "[acknowledged] link DOWN" in status
    assert "waits for a cable" in status
    assert as_dict(known)["healthy"] is False
    well = with_rank(known, "decode/5", state=RankState.READY)
    assert as_dict(well)["healthy"] is True
    many = FakeFleet.healthy().snapshot
    for npu in range(5):
        many = with_npu(many, "node3", npu, verdict=Verdict.FAILED, reasons=(LINK,))
    ack.show(many, as_json=False)
    assert "node3/*:link-down  link DOWN (5 NPUs)" in capsys.readouterr().out
