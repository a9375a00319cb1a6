from __future__ import annotations

import pytest

from pdtui.readings import hccn
from pdtui.readings.answer import Answer, Failure
from pdtui.readings.words import failure_words
from tests.readings.samples import answered, said


@pytest.mark.parametrize(
    "text",
    ["link status: SIDEWAYS", "vnic link status: UP", "link status: UP\nlink status: DOWN", "link status:", "UP"],
)
def test_what_is_no_link_state_is_unreadable(text: str) -> None:
    reading = hccn.read_link(said(text))
    assert reading.failure is Failure.UNREADABLE
    assert reading.value is None


def test_vnic_is_three_lines_or_nothing() -> None:
    up = hccn.Vnic("UP", "192.168.2.199", "255.255.255.0")
    assert hccn.read_vnic(answered("hccn_vnic_up.a3.txt")).value == up
    assert hccn.read_vnic(answered("hccn_vnic_up.a5.doc.txt")).value == up
    assert hccn.read_vnic(answered("hccn_vnic_loop6.a3.txt")).failure is Failure.UNREADABLE
    assert hccn.read_vnic(said("vnic link status: UP\nvnic ipaddr: 1.2.3.4")).failure is Failure.UNREADABLE
    down = hccn.read_vnic(said("vnic link status: DOWN\nvnic ipaddr: 1.2.3.4\nvnic netmask: 255.0.0.0\n\n"))
    assert down.value is not None
    assert down.value.status == "DOWN"


def test_a_tool_that_could_not_be_started() -> None:
    absent = Answer("hccn_tool", status=None, error="No such file or directory: 'hccn_tool'")
    assert hccn.read_link(absent).failure is Failure.ENVIRONMENT
    assert "No such file" in failure_words(hccn.read_link(absent))
    assert hccn.read_link(Answer("x", status=None, error="Permission denied")).failure is Failure.PERMISSION


def test_a_warning_line_before_the_answer_is_passed_over() -> None:
    text = '[WARNING] "/var/log/hccn_tool" is not a directory, hccn_tool logs may be lost.\nlink status: UP'
    assert hccn.read_link(said(text)).value == hccn.Link("UP")


def test_the_empty_sample_is_neither_unconfigured_nor_down() -> None:
    assert hccn.read_ip(answered("hccn_ip_empty.a1.txt")).failure is Failure.EMPTY
    assert hccn.read_ip(answered("hccn_ip_not_preset.txt")).failure is Failure.NOT_CONFIGURED
