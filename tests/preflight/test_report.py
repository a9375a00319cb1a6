"""What a preflight says: JSON whose shape is an interface, text, Markdown, and two runs compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pdtui.errors import FileError
from pdtui.fleet.preflight.checks import load
from pdtui.fleet.preflight.compare import compare
from pdtui.fleet.preflight.grouping import in_short
from pdtui.fleet.preflight.markdown import markdown_of
from pdtui.fleet.preflight.outcome import Evidence, Outcome, Result
from pdtui.fleet.preflight.report import PingCell, PreflightReport, hidden, read_report
from pdtui.fleet.preflight.text import comparison_of, text_of
from pdtui.fleet.snapshot import Acknowledgement

load()

DOWN = Evidence("hccn_tool -i 9 -link -g", "link status: DOWN", 1_800_000_000.0)
REPORT = PreflightReport(
    cluster="big",
    digest="ab" * 32,
    by="ann@desk",
    began=1_800_000_000.0,
    ended=1_800_000_041.2,
    nodes=("node1", "node2", "node3"),
    checks=("ssh", "link", "gateway", "ping", "driver"),
    results=(
        Result("ssh", "node1", Outcome.PASS, "root, Python 3.9"),
        Result("ssh", "node2", Outcome.PASS, "root, Python 3.9"),
        Result("ssh", "node3", Outcome.FAIL, "connection refused", "check that sshd runs"),
        Result("link", "node1", Outcome.PASS, "all 16 NPUs: link UP"),
        Result("link", "node2/9", Outcome.FAIL, "link DOWN", "look at the cable", (DOWN,)),
        Result("link", "node2", Outcome.PASS, "NPU 0-8, 10-15: link UP"),
        Result("link", "node3", Outcome.NOT_RUN, "", because="node3 is not reached"),
        Result("gateway", "cluster", Outcome.NA, "", because="no RoCE"),
        Result("ping", "node1", Outcome.NOT_RUN, "", because="a process uses NPU 0", by_choice=True),
        Result("driver", "cluster", Outcome.PASS, "driver 25.2 on all 2"),
    ),
    pings=(PingCell("node1/0", "node2/0", "hccs", Outcome.PASS, "21 us"),),
)


def test_the_shape_of_json_is_an_interface() -> None:
    found = json.loads(json.dumps(REPORT.as_json()))
    assert found["schema_version"] == 1
    assert {key: type(value).__name__ for key, value in found.items()} == {
        "schema_version": "int",
        "cluster": "str",
        "file_digest": "str",
        "by": "str",
        "began": "float",
        "ended": "float",
        "complete": "bool",
        "targets": "list",
        "only": "list",
        "nodes": "list",
        "checks": "list",
        "counts": "dict",
        "results": "list",
        "pings": "list",
    }
    assert found["counts"] == {"pass": 5, "warn": 0, "fail": 2, "unknown": 0, "n/a": 1, "not run": 2}
    assert found["results"][4] == {
        "check": "link",
        "subject": "node2/9",
        "outcome": "fail",
        "summary": "link DOWN",
        "remedy": "look at the cable",
        "evidence": [{"command": DOWN.command, "raw": DOWN.raw, "at": DOWN.at}],
        "because": "",
        "by_choice": False,
        "known": "",
    }
    assert found["pings"] == [
        {
            "source": "node1/0",
            "target": "node2/0",
            "plane": "hccs",
            "outcome": "pass",
            "summary": "21 us",
            "again": False,
        }
    ]


def test_a_report_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_text(json.dumps(REPORT.as_json()))
    assert read_report(path) == REPORT


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        '{"schema_version": 2}',
        json.dumps(REPORT.as_json() | {"began": 10**400}),
        '{"schema_version": 1}',
        '{"schema_version": 1, "results": [1]}',
    ],
)
def test_what_is_no_report_is_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "old.json"
    path.write_text(text)
    with pytest.raises(FileError, match=r"old\.json"):
        read_report(path)
    with pytest.raises(FileError, match="No such file"):
        read_report(tmp_path / "none.json")


def test_failures_come_first_with_evidence_and_remedy_and_what_passed_is_short() -> None:
    lines = list(text_of(REPORT))
    text = "\n".join(lines)
    assert lines[0] == "big: 3 nodes, 5 checks, 41.2 s: 2 fail, 2 not run, 5 pass, 1 n/a"
    assert text.index("FAILED") < text.index("NOT RUN") < text.index("PASSED")
    assert "  link  node2/9: link DOWN\n      $ hccn_tool -i 9 -link -g\n        link status: DOWN" in text
    assert "      do: look at the cable" in text
    assert "  link  node3 is not reached" in text
    apart = Result("lldp", "node1/3", Outcome.NOT_RUN, "", because="the link is DOWN")
    assert "  lldp  node1/3: the link is DOWN" in list(text_of(replace(REPORT, results=(apart,))))
    assert "16 NPUs" not in text
    every = "\n".join(text_of(REPORT, every=True))
    assert "  ssh  node1-2: root, Python 3.9" in every
    assert "all 16 NPUs: link UP" in every


def test_a_tool_that_hangs_under_many_checks_is_one_entry() -> None:
    words = "all 16 NPUs: hangs: no answer from hccn_tool within 10 s"
    hung = tuple(Result(name, "node1", Outcome.UNKNOWN, words) for name in ("link", "tls"))
    assert f"  link, tls  node1: {words}" in list(text_of(replace(REPORT, results=hung)))


def test_the_exit_status_rests_on_failures_and_on_what_is_not_known() -> None:
    fine = Result("ssh", "node1", Outcome.PASS, "")
    by_choice = Result("ping", "node1", Outcome.NOT_RUN, "", because="in use", by_choice=True)
    assert replace(REPORT, results=(fine, by_choice)).good()
    assert not REPORT.good(allow_unknown=True)
    for outcome in (Outcome.UNKNOWN, Outcome.NOT_RUN):
        report = replace(REPORT, results=(fine, Result("link", "node1", outcome, "")))
        assert not report.good()
        assert report.good(allow_unknown=True)
    assert not replace(REPORT, results=(fine,), complete=False).good(allow_unknown=True)


def test_markdown_says_what_a_colleague_needs_and_nodes_text_is_no_markup() -> None:
    hostile = Result(
        "model", "node1", Outcome.FAIL, "<script>|x|`y`", "", (Evidence("cat x", "```\n# no head\n</pre>", 1.0),)
    )
    text = markdown_of(replace(REPORT, results=(*REPORT.results, hostile), checks=(*REPORT.checks, "model")))
    assert "| link | pass | **FAIL** | not run |" in text
    assert "**3 fail, 2 not run, 5 pass, 1 n/a**" in text
    assert "What to do: look at the cable" in text
    assert "- driver, cluster: driver 25.2 on all 2" in text
    assert "| node1 | 1/1 |" in text
    assert "<script>" not in text
    assert "\n# no head" not in text
    assert text.count("\n# ") == 0


def test_secrets_and_escapes_do_not_get_into_a_report() -> None:
    evidence = Evidence("env HF_TOKEN=abc", "https_proxy=http://ann:pw@proxy:3128\n\x1b[31mred", 1.0)
    shown = hidden(
        Result("proxy-env", "node1", Outcome.WARN, "http_proxy is http://ann:pw@proxy", "", (evidence,))
    )
    assert "pw" not in repr(shown)
    assert "abc" not in repr(shown)
    assert "\x1b" not in shown.evidence[0].raw
    assert "proxy:3128" in shown.evidence[0].raw


def test_what_a_node_said_does_not_look_like_another_result() -> None:
    wide = Evidence("cat x\n## Failed", "y" * 8192, 1.0)
    words = "~~~ x\n\nPASSED\n  link  node2: fine"
    shown = hidden(Result("model", "node1", Outcome.FAIL, words, "- a\n## Checks", (wide,)))
    report = replace(REPORT, results=(*REPORT.results, shown), checks=(*REPORT.checks, "model"))
    lines = list(text_of(report))
    assert lines.count("PASSED") == 1
    assert max(map(len, lines)) < 400
    written = markdown_of(report).split("\n")
    assert written.count("## Failed") == written.count("## Checks") == 1
    assert not any(line.startswith("~~~") for line in written)


def test_what_is_acknowledged_is_shown_apart_and_spoils_no_exit_status() -> None:
    down = Result("link", "node2/9", Outcome.FAIL, "link DOWN", "look at the cable")
    hot = Result("npu-health", "node2/3", Outcome.FAIL, "Alarm")
    ack = Acknowledgement("node2/*:link", "cable is ordered", "ann@desk", 0.0, 9e9)
    report = replace(REPORT, results=(down, Result("ssh", "node2", Outcome.PASS, ""))).with_known((ack,))
    assert report.good()
    text = "\n".join(text_of(report))
    assert "FAILED" not in text
    assert "ACKNOWLEDGED: no longer counted\n  link  node2/9: fail: link DOWN\n      acknowledged by ann" in text
    assert "cable is ordered" in text
    assert "cable is ordered" in markdown_of(report)
    more = replace(REPORT, results=(down, hot)).with_known((ack,))
    assert not more.good()
    assert "npu-health  node2/3: Alarm" in "\n".join(text_of(more))


def test_an_old_report_is_as_foreign_as_any_text(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    odd = {
        "check": "li\x1b[2Jnk",
        "subject": "node2/9\x1b]0;x\x07\nX",
        "outcome": "fail",
        "summary": "\x1b[31mred",
    }
    rest = {"remedy": "", "evidence": [], "because": "", "by_choice": False}
    path.write_text(json.dumps({**REPORT.as_json(), "cluster": "o\x1b[31mther", "results": [odd | rest]}))
    lines = list(comparison_of(compare(read_report(path), REPORT, "old.json")))
    assert "another cluster, other" in lines[0]
    assert not any(char in line for line in lines for char in "\x1b\x07\n")


def _with_clock(outcome: Outcome, seconds: str) -> PreflightReport:
    clock = Result("clock", "cluster", outcome, f"3 nodes within {seconds} s")
    return replace(REPORT, checks=(*REPORT.checks, "clock"), results=(*REPORT.results, clock))


def test_two_runs_are_compared() -> None:
    mended = tuple(
        replace(one, outcome=Outcome.PASS, summary="root, Python 3.9", remedy="")
        if (one.check, one.subject) == ("ssh", "node3")
        else Result("link", "node3", Outcome.PASS, "all 16 NPUs: link UP")
        if (one.check, one.subject) == ("link", "node3")
        else replace(one, summary="driver 25.3 on all 3")
        if one.check == "driver"
        else one
        for one in REPORT.results
        if one.subject != "node2/9" and (one.check, one.subject) != ("link", "node2")
    )
    broken = Result("link", "node1/3", Outcome.FAIL, "link DOWN")
    whole = Result("link", "node2", Outcome.PASS, "all 16 NPUs: link UP")
    new = replace(REPORT, results=(*mended, broken, whole), nodes=(*REPORT.nodes, "node4"))
    found = compare(REPORT, new, "old.json")
    assert any(line.startswith("link node1/3: pass -> fail") for line in found.worse)
    assert len(found.worse) == 1
    assert {line.partition(":")[0] for line in found.mended} == {"ssh node3", "link node3", "link node2/9"}
    assert found.changed == ("driver cluster: driver 25.2 on all 2 -> driver 25.3 on all 3",)
    assert found.only_new == ("node node4",)
    assert not found.only_old
    assert "  worse: link node1/3: pass -> fail: link DOWN" in list(comparison_of(found))
    assert not compare(REPORT, REPORT, "old.json")
    assert not compare(_with_clock(Outcome.PASS, "0.14"), _with_clock(Outcome.PASS, "0.22"), "old.json")
    assert compare(_with_clock(Outcome.FAIL, "31.0"), _with_clock(Outcome.FAIL, "99.0"), "old.json").changed
    assert "  nothing has changed" in list(comparison_of(compare(REPORT, REPORT, "old.json")))


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.NOT_RUN])
def test_what_is_not_known_any_more_is_not_mended(outcome: Outcome) -> None:
    lost = (Result("ssh", "node3", outcome, "no answer"), Result("link", "node2", outcome, "npu-smi hangs"))
    rest = tuple(one for one in REPORT.results if one.check != "ssh" and not one.subject.startswith("node2"))
    found = compare(REPORT, replace(REPORT, results=rest + lost), "old.json")
    assert not found.mended
    assert f"ssh node3: fail -> {outcome}: no answer" in found.changed
    assert any(line.startswith(f"link node2: pass -> {outcome}") for line in found.worse)


def test_subjects_in_few_words() -> None:
    assert in_short(["node1", "node2", "node3", "node7"]) == "node1-3, node7"
    assert in_short(["node3/9", "node3/10", "cluster", "node1"]) == "node3/9-10, cluster, node1"
    assert in_short(["rack-a", "n01", "n02"]) == "rack-a, n01, n02"
