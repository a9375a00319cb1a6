from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtui.readings import hccn
from pdtui.readings.answer import Answer, Failure, Reading
from pdtui.readings.words import failure_words
from tests.readings.samples import DATA, answered, said

READERS: list[Callable[[Answer], Reading[object]]] = [
    hccn.read_link,
    hccn.read_net_health,
    hccn.read_vnic,
    hccn.read_ip,
    hccn.read_gateway,
    hccn.read_netdetect,
    hccn.read_tls,
    hccn.read_link_stat,
    hccn.read_lldp,
]


def test_link() -> None:
    assert hccn.read_link(answered("hccn_link_up.a2.txt")).value == hccn.Link("UP")
    assert hccn.read_link(answered("hccn_link_down.a5.doc.txt")).value == hccn.Link("DOWN")
    assert hccn.read_link(answered("hccn_ip_link_health.a2.doc.txt")).value == hccn.Link("UP")


@pytest.mark.parametrize(
    "text",
    ["link status: SIDEWAYS", "vnic link status: UP", "link status: UP\nlink status: DOWN", "link status:", "UP"],
)
def test_what_is_no_link_state_is_unreadable(text: str) -> None:
    reading = hccn.read_link(said(text))
    assert reading.failure is Failure.UNREADABLE
    assert reading.value is None


def test_net_health() -> None:
    words = {
        "hccn_net_health_fault.doc.txt": "Fault",
        "hccn_net_health_init.doc.txt": "Init",
        "hccn_net_health_socket_failed.a1.txt": "Socket failed",
        "hccn_ip_link_health.a2.doc.txt": "Success",
    }
    for name, word in words.items():
        assert hccn.read_net_health(answered(name)).value == hccn.NetHealth(word)


def test_vnic_is_three_lines_or_nothing() -> None:
    up = hccn.Vnic("UP", "192.168.2.199", "255.255.255.0")
    assert hccn.read_vnic(answered("hccn_vnic_up.a3.txt")).value == up
    assert hccn.read_vnic(answered("hccn_vnic_up.a5.doc.txt")).value == up
    assert hccn.read_vnic(answered("hccn_vnic_loop6.a3.txt")).failure is Failure.UNREADABLE
    assert hccn.read_vnic(said("vnic link status: UP\nvnic ipaddr: 1.2.3.4")).failure is Failure.UNREADABLE
    down = hccn.read_vnic(said("vnic link status: DOWN\nvnic ipaddr: 1.2.3.4\nvnic netmask: 255.0.0.0\n\n"))
    assert down.value is not None
    assert down.value.status == "DOWN"


def test_neighbours_of_the_link() -> None:
    assert hccn.read_ip(answered("hccn_ip.a2.txt")).value == hccn.Address("10.12.165.80", "255.255.255.0")
    assert hccn.read_ip(answered("hccn_ip_dev1.a3.txt")).value == hccn.Address("10.99.244.11", "255.255.255.0")
    assert hccn.read_gateway(answered("hccn_gateway.a2.txt")).value == hccn.Gateway("10.12.165.1", "eth0")
    assert hccn.read_netdetect(answered("hccn_netdetect.a2.txt")).value == hccn.NetDetect("10.12.165.1")
    assert hccn.read_netdetect(said("netdetect addr: 0.0.0.0")).value == hccn.NetDetect("")
    assert hccn.read_tls(answered("hccn_tls_switch.doc.txt")).value == hccn.Tls(False, True, 60, None, (), 0)
    old = answered("hccn_tls_switch_old_no_preconfigured.txt")
    assert hccn.read_tls(old).value == hccn.Tls(False, None, 60, None, (), 0)
    full = hccn.read_tls(answered("hccn_tls_full.a5.doc.txt")).value
    assert full is not None
    assert full.expiration == 1
    lldp = hccn.read_lldp(answered("hccn_lldp_elided.a2.txt"))
    assert lldp.value is not None
    assert lldp.value.interface == "400GE1/1/20:2"


def test_an_expired_certificate_is_reported_on_stderr() -> None:
    line = "dev_id:0, tls switch[1](0:disable, 1:enable), tls alarm time threshold[60]days"
    late = "tls expiration status[2](0:normal, 1:near expiration, 2:has expired)"
    assert hccn.read_tls(said(line, late)).value == hccn.Tls(True, None, 60, 2, (), 0)


@pytest.mark.parametrize("path", sorted((DATA / "hccn").glob("hccn_link_stat*a[123]*.txt")), ids=lambda p: p.name)
def test_link_stat(path: object) -> None:
    name = str(path).rsplit("/", 1)[-1]
    value = hccn.read_link_stat(answered(name)).value
    assert value is not None
    assert value.up_count == 2
    assert value.device_time
    assert value.records[0].status == ("UP" if "up" in name or "a2a3" in name else "DOWN")
    assert len(value.records) >= 3


@pytest.mark.parametrize(
    ("stdout", "stderr", "status", "failure"),
    [
        ("", "Command execute failed!", 1, Failure.ERROR),
        ("", "Get gateway failed, because no gateway was preset there!", 2, Failure.NOT_CONFIGURED),
        ("", "Get unknown option!", 3, Failure.ERROR),
        ("", "Get invalid device id.", 4, Failure.NO_DEVICE),
        ("", "The device is not exist!", 4, Failure.NO_DEVICE),
        ("hccn_tool is busy, please try again.", "", 11, Failure.BUSY),
        ("", "permission denied: pls check this cmd run permission.", 12, Failure.PERMISSION),
        ("I2c is busy. Please try again.", "", 12, Failure.BUSY),
        ("", "Get ipconf failed, because no ip was preset there!", 13, Failure.NOT_CONFIGURED),
        ("The command is not supported on this product.", "", 13, Failure.UNSUPPORTED),
        ("", "Get lock failed. Please try again.", 25, Failure.BUSY),
        ("", "The VM does not support this command.", 21, Failure.UNSUPPORTED),
        ("", "The device is occupied. Please try again later.", 31, Failure.BUSY),
        (
            "The system is in optical module initializing, please try again later.",
            "",
            18,
            Failure.BUSY,
        ),
        (
            "",
            "The hccn.conf can't access, cmd execute failed! pls check the conf file or cmd run permission.",
            29,
            Failure.PERMISSION,
        ),
        ("", "sh: 1: hccn_tool: not found", 127, Failure.ENVIRONMENT),
        ("", "bash: /usr/local/bin/npu-smi: No such file or directory", 127, Failure.ENVIRONMENT),
        ("", "", 127, Failure.ENVIRONMENT),
        ("", "", 124, Failure.TIMEOUT),
        ("link status: UP", "", 137, Failure.TIMEOUT),
        ("", "", -11, Failure.ERROR),
        ("", "", 0, Failure.EMPTY),
        ("\n\n", "  \n", 0, Failure.EMPTY),
    ],
)
def test_failure_texts(stdout: str, stderr: str, status: int, failure: Failure) -> None:
    reading = hccn.read_link(said(stdout, stderr, status))
    assert reading.failure is failure
    assert failure_words(reading)


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


PIECES = [line for path in sorted((DATA / "hccn").glob("hccn_*.txt")) for line in path.read_bytes().splitlines()]


@given(
    st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=40)), max_size=6).map(b"\n".join),
    st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=40)), max_size=2).map(b"\n".join),
    st.one_of(st.none(), st.integers(-64, 255)),
)
def test_no_bytes_raise(stdout: bytes, stderr: bytes, status: int | None) -> None:
    for read in READERS:
        reading = read(Answer("hccn_tool", stdout, stderr, status))
        assert (reading.value is None) != (reading.failure is None)
        if status != 0:
            assert reading.failure is not None
        failure_words(reading)
