from __future__ import annotations

import pytest

from pdtui.readings import hccn
from pdtui.readings.answer import Answer
from pdtui.readings.assess import Place, assess, assess_reading, finding, place_of
from pdtui.readings.npu_smi import read_table
from pdtui.readings.reasons import KINDS, kind_of
from pdtui.readings.verdict import Verdict
from tests.readings.samples import said, sample


def test_every_kind_of_reason_says_what_it_means_and_fills_its_places() -> None:
    for reason_id in KINDS:
        told = finding(reason_id, "words", Place("9", "4", "1"))
        assert told.meaning.endswith("."), reason_id
        assert told.id == reason_id
        assert told.verdict in (Verdict.FAILED, Verdict.DEGRADED, Verdict.UNKNOWN)
        assert "{" not in told.meaning + told.remedy
        assert told.remedy.endswith(".") or reason_id in ("no-answer", "not-asked"), reason_id


def test_families_of_ids_end_in_what_was_asked() -> None:
    assert kind_of("no-answer-link") is KINDS["no-answer"]
    assert kind_of("stale-net-health") is KINDS["stale"]
    with pytest.raises(KeyError):
        kind_of("link")


def test_npu_smi_counts_cards_of_two_chips_on_a3() -> None:
    assert place_of(9, "a3") == Place("9", "4", "1")
    assert place_of(5, "a2") == Place("5", "5", "0")
    assert "-i 4 -c 1" in finding("vnic-down", "", place_of(9, "a3")).remedy


def test_one_link_down_says_less_on_a3_than_on_a2() -> None:
    down = hccn.Link("DOWN")
    assert assess(down, "a2").id == "link-down"
    assert assess(down, "a3").verdict is Verdict.UNKNOWN
    assert assess(down, "a5").verdict is Verdict.NA
    assert assess(hccn.Link("UP"), "a3").verdict is Verdict.HEALTHY


def test_a_table_is_as_bad_as_its_worst_chip_and_a_cut_one_is_not_known_to_be_good() -> None:
    text = sample("npu_smi_info_16chips_idle.a3.txt").decode()
    whole = read_table(said(text)).value
    assert assess(whole, "a3").verdict is Verdict.HEALTHY
    cut = read_table(said(text[: text.index("| 7     Ascend910")])).value
    assert assess(cut, "a3").id == "npu-unseen"
    alarm = read_table(said(text.replace("| OK            | 160.7 ", "| Alarm         | 160.7 ", 1)))
    told = assess(alarm.value, "a3")
    assert (told.verdict, told.id) == (Verdict.FAILED, "npu-health")
    assert told.summary == "NPU 0: npu-smi health Alarm"


def test_a_failure_is_neither_good_nor_bad_and_absence_is_not_applicable() -> None:
    late = hccn.read_link(Answer("hccn_tool -i 0 -link -g", timed_out=True))
    told = assess_reading("link", late, "a2")
    assert (told.verdict, told.id) == (Verdict.UNKNOWN, "no-answer-link")
    assert "dmesg" in told.remedy
    unset = hccn.read_ip(said("", "Get ipconf failed, because no ip was preset there!", 13))
    assert assess_reading("ip", unset, "a3").verdict is Verdict.NA
