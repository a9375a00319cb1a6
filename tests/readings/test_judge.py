from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import pytest

from pdtui.readings import hccn
from pdtui.readings.answer import Answer, Reading
from pdtui.readings.hccn_conf import read_hccn_conf
from pdtui.readings.judge import Ages, Judgement, NodeSight, NpuReadings, Observed, judge, node_sight, roce_plane
from pdtui.readings.npu_smi import Table, read_table
from pdtui.readings.verdict import Verdict
from pdtui.topology.model import Platform
from tests.readings.samples import said, sample

T = TypeVar("T")

NOW = 1000.0
A3 = sample("npu_smi_info_16chips_idle.a3.txt").decode()
A2 = sample("npu_smi_info_8cards.a1.txt").decode() + (
    "+---+\n| NPU     Chip         | Process id    | Process name             | Process memory(MB)      |\n+===+\n"
)


def table(text: str = A3, at: float = NOW - 5) -> Observed[Table]:
    empty: Observed[Table] = Observed()
    return empty.then(read_table(said(text, at=at, command="npu-smi info")))


def seen(reading: Reading[T]) -> Observed[T]:
    empty: Observed[T] = Observed()
    return empty.then(reading)


def link(word: str = "UP", at: float = NOW - 5) -> Observed[hccn.Link]:
    return seen(hccn.read_link(said(f"link status: {word}", command="hccn_tool -i 0 -link -g", at=at)))


def vnic(word: str = "UP", at: float = NOW - 5) -> Observed[hccn.Vnic]:
    text = f"vnic link status: {word}\nvnic ipaddr: 192.168.2.199\nvnic netmask: 255.255.255.0"
    return seen(hccn.read_vnic(said(text, command="hccn_tool -i 0 -vnic -g", at=at)))


def health(word: str = "Success", at: float = NOW - 5) -> Observed[hccn.NetHealth]:
    return seen(hccn.read_net_health(said(f"net health status: {word}", at=at)))


def ip(address: str | None = "10.0.0.9") -> Observed[hccn.Address]:
    unset = said("", "Get ipconf failed, because no ip was preset there!", 13)
    return seen(hccn.read_ip(said(f"ipaddr:{address}\nnetmask:255.255.255.0") if address else unset))


GOOD = NpuReadings(link(), health(), vnic(), ip())
UNCONFIGURED = NpuReadings(link("DOWN"), health("Init"), vnic(), ip(None))


def verdict(
    one: NpuReadings,
    *,
    platform: Platform = "a3",
    others: NpuReadings = GOOD,
    on: Observed[Table] | None = None,
    device: int = 0,
    now: float = NOW,
) -> Judgement:
    count = 16 if platform == "a3" else 8
    readings = {i: one if i == device else others for i in range(count)}
    default = table() if platform == "a3" else table(A2)
    return judge(device, platform, on or default, one, node_sight(readings), now=now, ages=Ages())


@pytest.mark.parametrize("platform", ["a2", "a3"])
def test_all_good_is_healthy_without_reasons(platform: Platform) -> None:
    result = verdict(GOOD, platform=platform)
    assert result.verdict is Verdict.HEALTHY
    assert result.reasons == ()
    assert result.oldest == NOW - 5


def test_on_a3_vnic_decides_when_roce_is_configured_nowhere() -> None:
    assert verdict(UNCONFIGURED, others=UNCONFIGURED).verdict is Verdict.HEALTHY
    down = verdict(replace(UNCONFIGURED, vnic=vnic("DOWN")), others=UNCONFIGURED)
    assert down.verdict is Verdict.FAILED
    assert [reason.summary for reason in down.reasons] == ["vnic link DOWN"]
    assert down.reasons[0].command == "hccn_tool -i 0 -vnic -g"
    assert "vnic link status: DOWN" in down.reasons[0].raw
    assert down.reasons[0].observed_at == NOW - 5
    assert down.reasons[0].remedy


@pytest.mark.parametrize("platform", ["a2", "a3"])
def test_one_link_down_on_a_deployed_plane_fails(platform: Platform) -> None:
    result = verdict(replace(GOOD, link=link("DOWN"), net_health=health("Fault")), platform=platform)
    assert result.verdict is Verdict.FAILED
    assert [reason.summary for reason in result.reasons] == ["link DOWN"]


def test_a2_without_any_roce_has_no_network_verdict() -> None:
    bare = replace(UNCONFIGURED, vnic=Observed())
    assert verdict(bare, platform="a2", others=bare).verdict is Verdict.HEALTHY


def test_a3_roce_with_addresses_but_no_link_anywhere_is_a_warning_not_a_failure() -> None:
    dark = replace(GOOD, link=link("DOWN"))
    assert verdict(dark, others=dark).verdict is Verdict.DEGRADED
    assert verdict(dark, others=dark, platform="a2").verdict is Verdict.FAILED


def test_a_hung_tool_on_one_device_does_not_hide_that_roce_is_unconfigured() -> None:
    late = hccn.read_ip(Answer("hccn_tool -i 3 -ip -g", timed_out=True))
    readings = dict.fromkeys(range(15), UNCONFIGURED) | {15: replace(UNCONFIGURED, ip=seen(late))}
    assert roce_plane(readings).deployed is False
    assert roce_plane({0: NpuReadings()}).deployed is None


@pytest.mark.parametrize(("platform", "expected"), [("a2", Verdict.FAILED), ("a3", Verdict.DEGRADED)])
def test_addresses_in_hccn_conf_mean_that_links_should_be_up(platform: Platform, expected: Verdict) -> None:
    readings = dict.fromkeys(range(2), UNCONFIGURED)
    conf = seen(read_hccn_conf(Answer("cat /etc/hccn.conf", b"address_1=10.0.0.2\n", at=NOW)))
    sight = node_sight(readings, conf)
    assert judge(1, platform, table(), UNCONFIGURED, sight, now=NOW).verdict is expected
    other = seen(read_hccn_conf(Answer("cat /etc/hccn.conf", b"mtu_1=8192\n", at=NOW)))
    assert node_sight(readings, other).roce.deployed is False


@pytest.mark.parametrize("setting", ["IPv6address_0=fd00::9", "udhcpc_enable_0=1", "udhcpc_ipv6_enable_0=1"])
def test_ports_that_get_their_address_otherwise_are_in_use_too(setting: str) -> None:
    readings = dict.fromkeys(range(2), UNCONFIGURED)
    conf = seen(read_hccn_conf(Answer("cat /etc/hccn.conf", setting.encode() + b"\n", at=NOW)))
    sight = node_sight(readings, conf)
    assert judge(0, "a2", table(A2), UNCONFIGURED, sight, now=NOW).verdict is Verdict.FAILED


def test_on_a3_npus_that_were_never_cabled_are_well_beside_those_that_are() -> None:
    assert verdict(UNCONFIGURED).verdict is Verdict.HEALTHY
    assert verdict(replace(UNCONFIGURED, ip=ip("10.0.0.7"))).verdict is Verdict.FAILED
    assert verdict(UNCONFIGURED, platform="a2").verdict is Verdict.FAILED, "that has no other plane"
    readings = dict.fromkeys(range(1, 16), GOOD) | {0: UNCONFIGURED}
    conf = seen(read_hccn_conf(Answer("cat /etc/hccn.conf", b"address_0=10.0.0.2\n", at=NOW)))
    written = judge(0, "a3", table(), UNCONFIGURED, node_sight(readings, conf), now=NOW)
    assert written.verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("Success", Verdict.HEALTHY),
        ("Socket fail", Verdict.FAILED),
        ("Socket failed", Verdict.FAILED),
        ("Receive timeout", Verdict.FAILED),
        ("Unreachable", Verdict.FAILED),
        ("Time exceeded", Verdict.FAILED),
        ("Fault", Verdict.FAILED),
        ("Init", Verdict.DEGRADED),
        ("Detect ip set", Verdict.DEGRADED),
        ("Thread error", Verdict.UNKNOWN),
        ("Unknown", Verdict.UNKNOWN),
        ("Wonderful", Verdict.UNKNOWN),
    ],
)
def test_net_health_words_on_a2(word: str, expected: Verdict) -> None:
    assert verdict(replace(GOOD, net_health=health(word)), platform="a2").verdict is expected


def test_receive_timeout_of_a_probe_into_the_vnic_range_is_no_failure_on_a3() -> None:
    detect = seen(hccn.read_netdetect(said("netdetect address: 192.168.2.1")))
    one = replace(GOOD, net_health=health("Receive timeout"), netdetect=detect)
    assert verdict(one).verdict is Verdict.DEGRADED
    assert verdict(one, platform="a2").verdict is Verdict.FAILED


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("OK", Verdict.HEALTHY),
        ("Warning", Verdict.DEGRADED),
        ("Alarm", Verdict.FAILED),
        ("Critical", Verdict.FAILED),
        ("UNKNOWN", Verdict.UNKNOWN),
        ("Odd", Verdict.UNKNOWN),
    ],
)
def test_npu_smi_health_words(word: str, expected: Verdict) -> None:
    text = A3.replace("| 0     Ascend910           | OK            | 160.7", f"| 0     Ascend910 | {word} | 160.7")
    result = verdict(GOOD, on=table(text))
    assert result.verdict is expected
    if expected is not Verdict.HEALTHY:
        assert word in result.reasons[0].summary
        assert "0000:9D:00.0" in result.reasons[0].raw
        assert "0000:9F:00.0" not in result.reasons[0].raw


def test_a_device_missing_from_a_whole_table_has_failed_from_a_cut_one_is_unknown() -> None:
    lines = A3.split("\n")
    without_three = "\n".join(lines[:11] + lines[14:]).replace("| 1     1  ", "| 1     1  ")
    gone = next(i for i in range(16) if read_table(said(without_three)).value.of(i) is None)  # type: ignore[union-attr]
    result = verdict(GOOD, device=gone, on=table(without_three))
    assert result.verdict is Verdict.FAILED
    assert result.reasons[0].summary == "not in npu-smi's table"
    cut = A3[: A3.index("| 7     Ascend910")]
    assert verdict(GOOD, device=15, on=table(cut)).verdict is Verdict.UNKNOWN


def test_heat_counts_only_when_it_stays() -> None:
    hot = A3.replace("| 160.7       45 ", "| 160.7       91 ")
    once = table(hot)
    assert verdict(GOOD, on=once).verdict is Verdict.HEALTHY
    twice = once.then(read_table(said(hot, at=NOW - 1)))
    result = verdict(GOOD, on=twice)
    assert result.verdict is Verdict.DEGRADED
    assert "91 °C" in result.reasons[0].summary


@pytest.mark.parametrize(
    "answer",
    [
        Answer("hccn_tool -i 0 -link -g", timed_out=True, at=NOW),
        said("", "", 0, at=NOW),
        said("gibberish", at=NOW),
        said("", "Command execute failed!", 1, at=NOW),
        said("", "permission denied: pls check this cmd run permission.", 12, at=NOW),
        said("", "hccn_tool: command not found", 127, at=NOW),
        said("hccn_tool is busy, please try again.", status=11, at=NOW),
    ],
)
@pytest.mark.parametrize("platform", ["a2", "a3"])
def test_no_answer_is_neither_healthy_nor_failed(answer: Answer, platform: Platform) -> None:
    result = verdict(replace(GOOD, link=seen(hccn.read_link(answer))), platform=platform)
    assert result.verdict is Verdict.UNKNOWN
    assert result.reasons[0].summary.startswith("link: ")


def test_busy_leaves_a_fresh_value_standing_and_a_stale_one_not() -> None:
    busy = hccn.read_link(said("hccn_tool is busy, please try again.", status=11, at=NOW))
    assert verdict(replace(GOOD, link=link().then(busy))).verdict is Verdict.HEALTHY
    assert verdict(replace(GOOD, link=link(at=NOW - 106).then(busy))).verdict is Verdict.UNKNOWN


def test_a_time_out_counts_at_once_though_the_last_value_is_fresh() -> None:
    late = hccn.read_link(Answer("hccn_tool", timed_out=True, at=NOW))
    result = verdict(replace(GOOD, link=link().then(late)))
    assert result.verdict is Verdict.UNKNOWN
    assert result.oldest == NOW - 5


@pytest.mark.parametrize("platform", ["a2", "a3"])
def test_old_values_make_the_verdict_unknown(platform: Platform) -> None:
    result = verdict(GOOD, platform=platform, now=NOW + 3600)
    assert result.verdict is Verdict.UNKNOWN
    assert all("too old" in reason.summary for reason in result.reasons)
    assert result.oldest == NOW - 5


def test_a_certain_failure_outweighs_what_is_unknown_and_unknown_what_is_degraded() -> None:
    late = hccn.read_net_health(Answer("hccn_tool", timed_out=True))
    failed = verdict(replace(GOOD, vnic=vnic("DOWN"), net_health=seen(late)))
    assert [reason.verdict for reason in failed.reasons] == [Verdict.FAILED, Verdict.UNKNOWN]
    assert failed.verdict is Verdict.FAILED
    warned = A3.replace("| 0     Ascend910           | OK            | 160.7", "| 0 Ascend910 | Warning | 160.7")
    assert verdict(replace(GOOD, net_health=seen(late)), on=table(warned)).verdict is Verdict.UNKNOWN


def test_a5_has_no_network_verdict() -> None:
    text = sample("npu_smi_info_idle.a5.txt").decode()
    assert judge(0, "a5", table(text), NpuReadings(), NodeSight(), now=NOW).verdict is Verdict.HEALTHY
    down = NpuReadings(vnic=vnic("DOWN"))
    assert judge(0, "a5", table(text), down, NodeSight(), now=NOW).verdict is Verdict.HEALTHY


def test_nothing_asked_yet_is_unknown() -> None:
    result = judge(0, "a3", Observed(), NpuReadings(), NodeSight(), now=NOW)
    assert result.verdict is Verdict.UNKNOWN
    assert result.oldest is None


def test_a_hanging_tool_is_named_first() -> None:
    result = verdict(replace(GOOD, hanging="hccn_tool hangs on this NPU"))
    assert result.verdict is Verdict.UNKNOWN
    assert result.reasons[0].summary == "hccn_tool hangs on this NPU"
