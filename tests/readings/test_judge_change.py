"""Verdicts from what changed, from memory and lanes, and from the other NPUs of a node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pdtui.readings.answer import Answer
from pdtui.readings.commands import Query
from pdtui.readings.hccn_conf import HccnConf, read_hccn_conf
from pdtui.readings.judge import Judgement, NodeSight, NpuReadings, Observed, judge, node_sight, read_answer
from pdtui.readings.verdict import Reason, Verdict
from pdtui.topology.model import Platform
from tests.readings.samples import said, sample
from tests.readings.test_judge import GOOD, NOW, UNCONFIGURED, health, link, table, vnic


def heard(*answers: tuple[Query, str, float], base: NpuReadings = GOOD) -> NpuReadings:
    """Return readings with further answers, each with its time."""
    for query, text, at in answers:
        answer = said(text if text.endswith("\n") else f"{text}\n", command=f"hccn_tool -i 0 -{query} -g", at=at)
        reading = read_answer(query, answer)
        assert reading.failure is None, (query, text, reading)
        base = base.then(query, reading)
    return base


def verdict(
    one: NpuReadings,
    *,
    others: NpuReadings = GOOD,
    conf: Observed[HccnConf] | None = None,
    platform: Platform = "a3",
    device: int = 0,
    now: float = NOW,
) -> Judgement:
    readings = {i: one if i == device else others for i in range(16)}
    return judge(device, platform, table(at=now - 5), one, node_sight(readings, conf), now=now)


def only(result: Judgement) -> Reason:
    assert [reason.id for reason in result.reasons] == [result.reasons[0].id], result.reasons
    reason = result.reasons[0]
    assert reason.meaning
    assert reason.remedy
    return reason


# ---------------------------------------------------------------------------------- the link over time


def link_stat(name: str, device: int = 0) -> str:
    return sample(f"hccn_link_stat_{name}.txt").decode()


RECENT = """[devid 0]current time        : Tue Oct 28 21:46:46 2025
[devid 0]link up count       : 4
[devid 0]link down count     : 3
[devid 0]link change records :
[devid 0]    Tue Oct 28 21:40:12 2025    LINK UP
[devid 0]    Tue Oct 28 21:40:09 2025    LINK DOWN
[devid 0]    Tue Oct 28 20:10:00 2025    LINK UP
[devid 0]    Tue Oct 28 20:09:00 2025    LINK DOWN
[devid 0]    Sun Oct  5 10:13:51 2025    LINK UP
[devid 0]    Sun Oct  5 10:13:50 2025    LINK DOWN
[devid 0]    Sun Oct  5 10:13:35 2025    LINK UP
"""
BOOTED = """[devid 0]current time        : Sun Oct  5 10:20:00 2025
[devid 0]link up count       : 2
[devid 0]link down count     : 1
[devid 0]link change records :
[devid 0]    Sun Oct  5 10:13:51 2025    LINK UP
[devid 0]    Sun Oct  5 10:13:50 2025    LINK DOWN
[devid 0]    Sun Oct  5 10:13:35 2025    LINK UP
"""


def test_a_link_that_went_down_within_the_hour_flaps_by_the_devices_own_clock() -> None:
    reason = only(verdict(heard((Query.LINK_STAT, RECENT, NOW - 5))))
    assert (reason.id, reason.verdict) == ("flapping", Verdict.DEGRADED)
    assert "once" in reason.summary
    assert "21:40:09 2025" in reason.summary
    assert reason.command == "hccn_tool -i 0 -link_stat -g"
    assert "LINK DOWN" in reason.raw


@pytest.mark.parametrize("text", [BOOTED, link_stat("flap.a2a3"), link_stat("up.a1")])
def test_a_start_is_no_flap_and_an_old_one_is_over(text: str) -> None:
    assert verdict(heard((Query.LINK_STAT, text, NOW - 5))).verdict is Verdict.HEALTHY


def test_where_there_are_no_records_the_counts_tell() -> None:
    none = "[devid 0]current time        : Sun Oct  5 10:20:00 2025\n[devid 0]link up count       : {}\n"
    none += "[devid 0]link change records :NA\n"
    steady = heard((Query.LINK_STAT, none.format(2), NOW - 300), (Query.LINK_STAT, none.format(2), NOW - 5))
    assert verdict(steady).verdict is Verdict.HEALTHY
    grown = heard((Query.LINK_STAT, none.format(2), NOW - 300), (Query.LINK_STAT, none.format(4), NOW - 5))
    assert only(verdict(grown)).id == "flapping"
    assert verdict(heard((Query.LINK_STAT, none.format(1), NOW - 1), base=grown)).verdict is Verdict.HEALTHY


def test_a_link_that_is_down_now_is_told_once() -> None:
    down = heard((Query.LINK_STAT, link_stat("down.2023"), NOW - 5), base=replace(GOOD, link=link("DOWN")))
    assert only(verdict(down)).id == "link-down"


STAT = "packet statistics:\nmac_rx_fcs_err_pkt_num:{}\nroce_rx_err_pkt_num:7\nmac_rx_pfc_pkt_num:{}\n"


def test_errors_that_grow_are_told_for_half_an_hour_and_congestion_is_not() -> None:
    grown = heard((Query.STAT, STAT.format(3, 1), NOW - 200), (Query.STAT, STAT.format(15, 99), NOW - 20))
    reason = only(verdict(grown))
    assert reason.id == "errors-growing"
    assert "mac_rx_fcs_err_pkt_num +12" in reason.summary
    assert "pfc" not in reason.summary
    later = heard((Query.STAT, STAT.format(15, 99), NOW + 1900), base=replace(grown, link=link(at=NOW + 1895)))
    later = replace(later, net_health=health(at=NOW + 1895), vnic=vnic(at=NOW + 1895))
    assert verdict(later, now=NOW + 1900).verdict is Verdict.HEALTHY


def test_counters_that_were_high_before_we_looked_and_those_of_a_reset_device_say_nothing() -> None:
    assert verdict(heard((Query.STAT, STAT.format(9999, 0), NOW - 5))).verdict is Verdict.HEALTHY
    reset = heard(
        (Query.STAT, STAT.format(10, 0), NOW - 400),
        (Query.STAT, STAT.format(30, 0), NOW - 200),
        (Query.STAT, STAT.format(2, 0), NOW - 5),
    )
    assert verdict(reset).verdict is Verdict.HEALTHY
    again = heard((Query.STAT, STAT.format(5, 0), NOW - 1), base=reset)
    assert "+3" in only(verdict(again)).summary


def test_what_grew_while_nobody_could_ask_is_not_told_as_of_the_last_half_hour() -> None:
    grown = heard((Query.STAT, STAT.format(3, 1), NOW - 9000), (Query.STAT, STAT.format(15, 1), NOW - 20))
    assert verdict(grown).verdict is Verdict.HEALTHY
    again = heard((Query.STAT, STAT.format(16, 1), NOW - 5), base=grown)
    assert "mac_rx_fcs_err_pkt_num +1 in" in only(verdict(again)).summary


def test_packets_for_a_connection_that_its_rank_has_left_are_no_damage() -> None:
    ended = "packet statistics:\nroce_qp_status_err_num:{}\n"
    stopped = heard((Query.STAT, ended.format(0), NOW - 200), (Query.STAT, ended.format(40), NOW - 20))
    assert verdict(stopped).verdict is Verdict.HEALTHY


# ------------------------------------------------------------------------------------ memory and lanes

ECC = """NPU ID : 0
Chip Count : 1

HBM Single Bit Error Count : {}
HBM Double Bit Error Count : {}
HBM Single Bit Isolated Pages Count : {}
HBM Double Bit Isolated Pages Count : 0
Chip ID : 0
"""


def test_errors_that_could_not_be_corrected_fail_a_chip() -> None:
    reason = only(verdict(heard((Query.ECC, ECC.format(5, 2, 0), NOW - 5))))
    assert (reason.id, reason.verdict) == ("ecc", Verdict.FAILED)
    assert "2 double-bit" in reason.summary
    assert "-i 0 -c 0" in reason.remedy


def test_corrected_errors_count_only_as_they_grow_fast_and_isolated_pages_at_once() -> None:
    assert verdict(heard((Query.ECC, ECC.format(90000, 0, 7), NOW - 5))).verdict is Verdict.HEALTHY
    some = heard((Query.ECC, ECC.format(0, 0, 7), NOW - 600), (Query.ECC, ECC.format(900, 0, 7), NOW - 5))
    assert verdict(some).verdict is Verdict.HEALTHY
    many = heard((Query.ECC, ECC.format(1200, 0, 7), NOW - 1), base=some)
    assert "single-bit errors +1200" in only(verdict(many)).summary
    pages = heard((Query.ECC, ECC.format(900, 0, 8), NOW - 1), base=some)
    assert "isolated pages +1" in only(verdict(pages)).summary


def test_corrected_errors_that_grow_a_little_at_each_look_add_up_over_a_whole_day() -> None:
    looks = [(Query.ECC, ECC.format(8 * i, 0, 7), NOW - 86000 + 600 * i) for i in range(144)]
    assert "single-bit errors +1144" in only(verdict(heard(*looks))).summary


HCCS = "hccs health status : {}\nhccs lane mode : [4 4]\nhccs link lane list : [1111 {}]\n"
HCCS += "hccs retry count : [0 {}]\nhccs error count : [0 0]\n"


@pytest.mark.parametrize("platform", ["a2", "a3"])
def test_a_lost_lane_or_nok_fails_and_retries_that_grow_degrade(platform: Platform) -> None:
    def told(*texts: str) -> Judgement:
        return verdict(
            heard(*((Query.HCCS, text, NOW - 9 + i) for i, text in enumerate(texts))), platform=platform
        )

    assert told(HCCS.format("OK", "1111", 5)).verdict is Verdict.HEALTHY
    assert only(told(HCCS.format("OK", "1101", 0))).summary == "HCCS lanes down (link 1: 1101)"
    assert only(told(HCCS.format("NOK", "1111", 0))).id == "hccs"
    growing = only(told(HCCS.format("OK", "1111", 5), HCCS.format("OK", "1111", 17)))
    assert (growing.id, growing.verdict) == ("hccs-errors", Verdict.DEGRADED)
    assert "link 1 retries +12" in growing.summary


# -------------------------------------------------------------------------------------- optical module

OPTICAL = """optical info:
present : {}
temperature : {} C
Temp High Thres : 70 C
Temp Low Thres : 0 C
Rx Power0 : {} mW
Rx Power1 : 1.0189 mW
RxPower High Thres : 3.5481 mW
RxPower Low Thres : 0.1445 mW
Rx Los Flag : {}
"""


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (("present", "45", "1.0", "0x0"), ""),
        (("present", "45", "0.02", "0x0"), "Rx power lane 0 0.02 mW, outside 0.1445 to 3.5481"),
        (("present", "81", "1.0", "0x0"), "module 81 °C, outside 0 to 70"),
        (("present", "45", "1.0", "0x3"), "Rx loss of signal (0x3)"),
        (("present", "NA", "NA", "NA"), ""),
        (("not present", "45", "0.0", "0xff"), ""),
    ],
)
def test_a_module_is_judged_by_its_own_thresholds(values: tuple[str, ...], words: str) -> None:
    text = OPTICAL.format(*values).replace("NA C", "NA").replace("NA mW", "NA")
    result = verdict(heard((Query.OPTICAL, text, NOW - 5)))
    if words:
        assert (only(result).id, words in only(result).summary) == ("optical", True)
    else:
        assert result.verdict is Verdict.HEALTHY


def test_that_no_module_is_there_explains_a_link_that_is_down() -> None:
    absent = (Query.OPTICAL, OPTICAL.format("not present", "45", "0.0", "0xff"), NOW - 5)
    result = verdict(heard(absent, base=replace(GOOD, link=link("DOWN"))))
    assert [reason.id for reason in result.reasons] == ["link-down", "optical-absent"]


# ---------------------------------------------------------------------------- addresses and neighbours


def conf(text: str) -> Observed[HccnConf]:
    empty: Observed[HccnConf] = Observed()
    return empty.then(read_hccn_conf(said(text, command="cat /etc/hccn.conf", at=NOW - 5)))


def test_an_address_unlike_the_files_is_told_and_dhcp_is_none() -> None:
    assert verdict(GOOD, conf=conf("address_0=10.0.0.9\n")).verdict is Verdict.HEALTHY
    assert verdict(GOOD, conf=conf("address_1=10.0.0.1\n")).verdict is Verdict.HEALTHY
    assert verdict(GOOD, conf=conf("udhcpc_enable_0=1\naddress_0=10.0.0.7\n")).verdict is Verdict.HEALTHY
    reason = only(verdict(GOOD, conf=conf("address_0=10.0.0.7\n")))
    assert reason.id == "address-unlike-conf"
    assert reason.summary == "runs with address 10.0.0.9, /etc/hccn.conf says address_0=10.0.0.7 (line 1)"


def test_an_npu_without_an_address_among_those_with_one_is_told() -> None:
    unset = said("", "Get ipconf failed, because no ip was preset there!", 13, at=NOW - 5)
    one = GOOD.then(Query.IP, read_answer(Query.IP, unset))
    assert only(verdict(one)).id == "address-missing"
    assert "no RoCE address runs" in only(verdict(one, conf=conf("address_0=10.0.0.7\n"))).summary


def tls(switch: int, device: int = 0) -> tuple[Query, str, float]:
    line = f"dev_id:{device}, tls switch[{switch}](0:disable, 1:enable), tls alarm time threshold[60]days"
    return Query.TLS, line, NOW - 5


def test_the_one_whose_tls_switch_differs_is_told_and_the_others_are_not() -> None:
    on, off = heard(tls(1)), heard(tls(0))
    assert only(verdict(on, others=off)).summary == "TLS is on, on the others it is off"
    assert verdict(off, others=off).verdict is Verdict.HEALTHY
    sight = node_sight({0: on, 1: off, 2: off})
    assert set(sight.tls) == {0}
    assert set(node_sight({0: on, 1: off}).tls) == {0, 1}
    assert not node_sight({0: on, 1: off, 2: GOOD, 3: GOOD}).tls  # Two of four have answered: too early to tell.


def lldp(interface: str) -> tuple[Query, str, float]:
    text = f"Chassis ID TLV\n\tMAC: 00:00:5e:00:53:01\nPort ID TLV\n\tIfname: {interface}\n"
    return Query.LLDP, f"{text}System Name TLV\n\tleaf1\nEnd of LLDPDU TLV\n", NOW - 5


def test_two_npus_on_one_switch_port_are_both_told() -> None:
    first, second, third = (heard(lldp(name)) for name in ("400GE1/1/5:1", "400GE1/1/5:1", "400GE1/1/6:1"))
    sight = node_sight({0: first, 1: second, 2: third})
    assert set(sight.lldp) == {0, 1}
    result = judge(1, "a3", table(), second, replace(sight, roce=node_sight({0: GOOD}).roce), now=NOW)
    assert only(result).summary == "hears switch port 400GE1/1/5:1, and so does NPU 0"


def test_a_port_that_fell_silent_and_switches_without_a_name_share_nothing() -> None:
    first, second = heard(lldp("400GE1/1/5:1")), heard(lldp("400GE1/1/5:1"))
    silent = second.then(Query.LLDP, read_answer(Query.LLDP, said("", command="hccn_tool -i 1 -lldp -g", at=NOW)))
    assert not node_sight({0: first, 1: silent}).lldp, "its cable may be the one that was moved"
    unnamed = heard((Query.LLDP, "Port ID TLV\n\tIfname: 400GE1/1/5:1\nEnd of LLDPDU TLV\n", NOW))
    assert not node_sight({0: unnamed, 1: unnamed}).lldp, "two switches may have a port of that name"


def spod(device: int, *, server: int = 40, sdid_server: int = 40) -> NpuReadings:
    sdid = sdid_server << 22 | device // 2 << 18 | device % 2 << 16 | device
    text = f"SDID : {sdid}\nSuper Pod Size : 384\nSuper Pod ID : 0\nServer Index : {server}\n"
    return heard((Query.SPOD, text, NOW - 5))


def test_an_npu_elsewhere_in_the_super_pod_than_the_others_has_failed() -> None:
    readings = {i: spod(i) for i in range(4)}
    sight = node_sight(readings)
    assert judge(3, "a3", table(), readings[3], sight, now=NOW).verdict is Verdict.HEALTHY
    readings[3] = spod(3, server=41, sdid_server=41)
    sight = node_sight(readings)
    assert (
        "server index 41, 40 on NPUs 0, 1, 2" in only(judge(3, "a3", table(), readings[3], sight, now=NOW)).summary
    )
    assert judge(2, "a3", table(), readings[2], sight, now=NOW).verdict is Verdict.HEALTHY
    within = only(judge(1, "a3", table(), spod(1, sdid_server=39), node_sight({}), now=NOW))
    assert (within.id, within.verdict) == ("spod", Verdict.FAILED)
    other = only(judge(3, "a3", table(), spod(1), node_sight({}), now=NOW))
    assert "is of NPU 0 chip 1 (id 1), this one is 1/1 (id 3)" in other.summary


def test_a_detect_address_that_is_not_set_is_the_reason_for_init() -> None:
    one = heard(
        (Query.NETDETECT, "netdetect address: 0.0.0.0", NOW - 5), base=replace(GOOD, net_health=health("Init"))
    )
    assert only(verdict(one, platform="a3")).id == "netdetect-unset"


# ---------------------------------------------------------------------------------- what is not judged


def test_an_a3_whose_roce_is_not_in_use_is_not_judged_by_it() -> None:
    one = heard(
        (Query.LINK_STAT, RECENT, NOW - 5),
        (Query.STAT, STAT.format(1, 0), NOW - 200),
        (Query.STAT, STAT.format(9, 0), NOW - 5),
        base=UNCONFIGURED,
    )
    assert verdict(one, others=UNCONFIGURED).verdict is Verdict.HEALTHY


@pytest.mark.parametrize("query", [Query.LINK_STAT, Query.STAT, Query.OPTICAL, Query.ECC, Query.HCCS, Query.TLS])
def test_what_only_sharpens_makes_nothing_unknown_when_it_has_no_answer(query: Query) -> None:
    late = read_answer(query, Answer("hccn_tool", timed_out=True, at=NOW - 5))
    assert verdict(GOOD.then(query, late)).verdict is Verdict.HEALTHY


def test_a_verdict_says_until_when_it_holds() -> None:
    result = verdict(GOOD)
    assert result.until is not None
    assert judge(0, "a3", table(), GOOD, NodeSight(), now=result.until + 1).verdict is Verdict.UNKNOWN
    assert result.until - NOW < 60


def test_a_hang_is_told_with_the_call_that_hung() -> None:
    late = read_answer(Query.ECC, Answer("npu-smi info -t ecc -i 0 -c 0", timed_out=True, at=NOW - 5))
    hung = replace(GOOD.then(Query.ECC, late), hanging="npu-smi hangs on this NPU since 03:12:00")
    reason = verdict(hung).reasons[0]
    assert (reason.id, reason.command) == ("tool-hangs", "npu-smi info -t ecc -i 0 -c 0")
