"""Every recorded answer of hccn_tool, every hccn.conf and version file, against what a person reads in it."""

from __future__ import annotations

import pytest

from pdtui.errors import UsageError
from pdtui.readings import hccn
from pdtui.readings.answer import Answer, Failure
from pdtui.readings.catalogue import find, split
from pdtui.readings.hccn import a5
from pdtui.readings.hccn_conf import HccnConf
from pdtui.readings.versions import VersionFile
from tests.readings.samples import DATA, sample

MASK = "255.255.255.0"
CN = "/C=CN/O=xxx/CN="
LOOP = "for i in {0..7}; do "

FLAPS = (
    ("Tue Aug  1 14:43:40 2022", "UP"),
    ("Tue Aug  1 14:43:40 2022", "DOWN"),
    ("Tue Aug  1 14:43:26 2022", "UP"),
)

A5_COUNTERS = (
    "is_uboe_port ub_glb_ipv4_pkt_cnt_rx ub_glb_ipv6_pkt_cnt_rx unic_ipv4_pkt_cnt_rx unic_ipv6_pkt_cnt_rx "
    "ub_clan_pkt_cnt_rx ub_umoc_ctph_cnt_rx ub_umoc_ntph_cnt_rx ub_mem_pkt_cnt_rx unknown_pkt_cnt_rx "
    "drop_ind_cnt_rx err_ind_cnt_rx to_host_pkt_cnt_rx to_imp_pkt_cnt_rx to_mar_pkt_cnt_rx "
    "to_link_pkt_cnt_rx to_noc_pkt_cnt_rx route_err_cnt_rx out_err_cnt_rx length_err_cnt_rx "
    "rx_busi_flit_num rx_send_ack_flit ub_glb_ipv4_pkt_cnt_tx ub_glb_ipv6_pkt_cnt_tx unic_ipv4_pkt_cnt_tx "
    "unic_ipv6_pkt_cnt_tx ub_clan_pkt_cnt_tx ub_umoc_ctph_cnt_tx ub_umoc_ntph_cnt_tx ub_mem_pkt_cnt_tx "
    "unknown_pkt_cnt_tx drop_ind_cnt_tx err_ind_cnt_tx lpbk_ind_cnt_tx out_err_cnt_tx length_err_cnt_tx "
    "tx_busi_flit_num tx_recv_ack_flit retry_req_sum retry_ack_sum crc_error_sum "
)


def stat(up: int, down: int | None, now: str, *records: tuple[str, str]) -> tuple[object, ...]:
    """Return what is compared of a link's history."""
    return up, down, now, records


def tls(device: int, preconfigured: bool | None) -> hccn.Tls:
    return hccn.Tls(False, preconfigured, 60, None, (), device)


def vnic(last: int) -> hccn.Vnic:
    return hccn.Vnic("UP", f"192.168.2.{last}", MASK)


def cert(name: str, subject: str, issuer: str, end: str, expiration: int) -> hccn.Certificate:
    return hccn.Certificate(name, subject, issuer, "Sat Jan 31 03:10:27 2026 GMT", end, expiration)


def ping(device: int | None, address: str, *times: float, lost: int = 0) -> hccn.Ping:
    return hccn.Ping(device, address, len(times) + lost, len(times), times, ("time out",) if lost else ())


TLS_FULL = hccn.Tls(
    enabled=False,
    preconfigured=False,
    alarm_days=60,
    expiration=1,
    certificates=(
        cert(
            "pub cert",
            "/C=CN/O=xxx/CN=www.xxx.com",
            "/C=CN/O=xxx/CN=xxx RSA PSS Sub CA",
            "Wed Jun 18 03:10:27 2053 GMT",
            0,
        ),
        cert(
            "ca1 cert", "/C=CN/O=xxx/CN=xxx RSA CA", "/C=CN/O=xxx/CN=xxx RSA CA", "Thu Feb  3 03:10:27 2056 GMT", 0
        ),
        cert(
            "ca2 cert",
            "/C=CN/O=xxx/CN=xxx RSA PSS Sub CA",
            "/C=CN/O=xxx/CN=Test RSA CA",
            "Thu Mar 22 03:10:27 2108 GMT",
            0,
        ),
        cert("crl", "", "/C=CN/O=xxx/CN=xxx RSA PSS Sub CA", "Mon Mar  2 03:10:27 2026 GMT", 1),
    ),
    device=0,
)

OPTICAL = {
    "present": "not present",
    "Tx Power": "4.4035 mW",
    "Rx Power": "1.0189 mW",
    "Vcc High Thres": "3465.00 mV",
    "Vcc Low Thres": "3135.00 mV",
    "Temp High Thres": "70 C",
    "Temp Low Thres": "0 C",
    "TxPower High Thres": "3.5481 mW",
    "TxPower Low Thres": "0.2818 mW",
    "RxPower High Thres": "3.5481 mW",
    "RxPower Low Thres": "0.1445 mW",
    "Tx Bias": "7.9360 mA",
    "Tx Los Flag": "0x0",
    "Rx Los Flag": "0xff",
    "Tx LoL Flag": "0x0",
    "Rx LoL Flag": "0xff",
}

FIXTURE = {"netmask": "255.255.0.0", "netdetect": "127.0.0.1", "gateway": "127.0.0.1"}
FIXTURE |= {"send_arp_status": "1", "tls_enable": "0"}

PORT = {"NPU": "0", "UDie": "0", "Port": "4"}

ROWS: list[tuple[str, str, list[tuple[int | None, object]]]] = [
    ("hccn_link_up.a2.txt", "hccn_tool -i 0 -link -g", [(0, hccn.Link("UP"))]),
    ("hccn_link_down.a5.doc.txt", "hccn_tool -g -link -i 0 -u 0 -p 4", [(0, hccn.Link("DOWN"))]),
    ("hccn_ip_link_health.a2.doc.txt", "hccn_tool -i $i -link -g", [(None, hccn.Link("UP"))]),
    ("hccn_ip_link_health.a2.doc.txt", "hccn_tool -i $i -ip -g", [(None, hccn.Address("192.0.2.80", MASK))]),
    ("hccn_ip_link_health.a2.doc.txt", "hccn_tool -i $i -net_health -g", [(None, hccn.NetHealth("Success"))]),
    ("hccn_net_health_fault.doc.txt", "hccn_tool -i 0 -net_health -g", [(0, hccn.NetHealth("Fault"))]),
    ("hccn_net_health_init.doc.txt", "hccn_tool -i 0 -net_health -g", [(0, hccn.NetHealth("Init"))]),
    (
        "hccn_net_health_socket_failed.a1.txt",
        "hccn_tool -i 0 -net_health -g",
        [(0, hccn.NetHealth("Socket failed"))],
    ),
    ("hccn_netdetect.a2.txt", "hccn_tool -i 0 -netdetect -g", [(0, hccn.NetDetect("10.12.165.1"))]),
    ("hccn_gateway.a2.txt", "hccn_tool -i 0 -gateway -g", [(0, hccn.Gateway("10.12.165.1", "eth0"))]),
    ("hccn_ip.a1.txt", "hccn_tool -i 0 -ip -g", [(0, hccn.Address("10.161.200.10", MASK))]),
    ("hccn_ip.a2.txt", "hccn_tool -i 0 -ip -g", [(0, hccn.Address("10.12.165.80", MASK))]),
    ("hccn_ip_dev1.a3.txt", "hccn_tool -i 1 -ip -g", [(1, hccn.Address("10.99.244.11", MASK))]),
    ("hccn_ip_empty.a1.txt", "hccn_tool -i 2 -ip -g", [(2, Failure.EMPTY)]),
    ("hccn_ip_not_preset.txt", "hccn_tool -i 0 -ip -g", [(0, Failure.NOT_CONFIGURED)]),
    (
        "hccn_ip_loop8.a2.txt",
        f"{LOOP}hccn_tool -i $i -ip -g; done",
        [(device, hccn.Address(f"10.12.165.{80 + device}", MASK)) for device in range(8)],
    ),
    ("hccn_vnic_up.a3.txt", "hccn_tool -i 0 -vnic -g", [(0, vnic(199))]),
    ("hccn_vnic_up.a5.doc.txt", "hccn_tool -g -vnic -i 0", [(0, vnic(199))]),
    (
        "hccn_vnic_loop6.a3.txt",
        "for n in {0..15}; do hccn_tool -i $n -vnic -g ;done",
        [(None, vnic(last)) for last in (199, 198, 197, 196, 195, 194)],
    ),
    (
        "hccn_lldp_ifname_loop8.a2.txt",
        f"{LOOP}hccn_tool -i $i -lldp -g | grep Ifname; done",
        [
            (0, hccn.Lldp("400GE1/1/5:1", "", "")),
            (1, hccn.Lldp("400GE1/1/5:2", "", "")),
            (2, hccn.Lldp("400GE1/2/5:1", "", "")),
            (3, hccn.Lldp("400GE1/2/5:2", "", "")),
            (4, hccn.Lldp("400GE1/3/5:1", "", "")),
            (5, hccn.Lldp("400GE1/3/5:2", "", "")),
            (6, hccn.Lldp("400GE1/4/5:1", "", "")),
            (7, hccn.Lldp("400GE1/4/5:2", "", "")),
        ],
    ),
    (
        "hccn_lldp_elided.a2.txt",
        "hccn_tool -i 3 -lldp -g",
        [(3, hccn.Lldp("400GE1/1/20:2", "", "10.xx.xx.xx"))],
    ),
    ("hccn_tls_switch.doc.txt", "hccn_tool -i 0 -tls -g | grep switch", [(0, tls(0, True))]),
    ("hccn_tls_switch_old_no_preconfigured.txt", "hccn_tool -i 0 -tls -g | grep switch", [(0, tls(0, None))]),
    (
        "hccn_tls_switch_loop8.a2.txt",
        f"{LOOP}hccn_tool -i $i -tls -g ; done | grep switch",
        [(device, tls(device, True)) for device in range(8)],
    ),
    ("hccn_tls_full.a5.doc.txt", "hccn_tool -g -tls -i 0", [(0, TLS_FULL)]),
    (
        "hccn_link_stat_up.a1.txt",
        "hccn_tool -i 0 -link_stat -g",
        [(0, stat(2, None, "Wed Aug  2 03:09:26 2022", *FLAPS))],
    ),
    (
        "hccn_link_stat_down.a1.txt",
        "hccn_tool -i 0 -link_stat -g",
        [(0, stat(2, None, "Wed Aug  2 03:36:43 2022", ("Tue Aug  1 14:44:40 2022", "DOWN"), *FLAPS))],
    ),
    (
        "hccn_link_stat_flap_dev3.a1.txt",
        "hccn_tool -i 3 -link_stat -g",
        [(3, stat(2, None, "Wed Aug  2 03:36:44 2022", ("Tue Aug  1 14:44:40 2022", "DOWN"), *FLAPS))],
    ),
    (
        "hccn_link_stat_flap.a2a3.txt",
        "hccn_tool -i 0 -link_stat -g",
        [
            (
                0,
                stat(
                    2,
                    1,
                    "Tue Oct 28 21:46:46 2025",
                    ("Sun Oct  5 10:13:51 2025", "UP"),
                    ("Sun Oct  5 10:13:50 2025", "DOWN"),
                    ("Sun Oct  5 10:13:35 2025", "UP"),
                ),
            )
        ],
    ),
    (
        "hccn_link_stat_device_prefix.doc.txt",
        "hccn_tool -i 0 -link_stat -g",
        [
            (
                0,
                stat(
                    2,
                    None,
                    "Wed Jun  7 10:08:28 2023",
                    ("Tue Jun  6 16:32:12 2023", "UP"),
                    ("Tue Jun  6 16:32:10 2023", "DOWN"),
                    ("Tue Jun  6 16:31:55 2023", "UP"),
                ),
            )
        ],
    ),
    (
        "hccn_link_stat_down.2023.txt",
        "hccn_tool -i 2 -link_stat -g",
        [
            (
                2,
                stat(
                    2,
                    None,
                    "Fri Sep  1 06:37:26 2023",
                    ("Fri Sep  1 06:34:43 2023", "DOWN"),
                    ("Thu Aug 31 07:30:46 2023", "UP"),
                    ("Thu Aug 31 07:30:44 2023", "DOWN"),
                ),
            )
        ],
    ),
    (
        "hccn_link_stat.a5.doc.txt",
        "hccn_tool -g -link_stat -i 0 -u 0 -p 4",
        [
            (
                0,
                a5.PortLinkStat(
                    2,
                    2,
                    (
                        {**PORT, "Link_Status": "LINK_UP", "Time_Stamp": "Mon Feb 9 21:45:51 2026"},
                        {**PORT, "Link_Status": "LINK_DOWN", "Time_Stamp": "Mon Feb 9 21:45:47 2026"},
                        {**PORT, "Link_Status": "LINK_UP", "Time_Stamp": "Mon Feb 9 21:43:04 2026"},
                        {**PORT, "Link_Status": "LINK_DOWN", "Time_Stamp": "Mon Feb 9 21:42:59 2026"},
                    ),
                ),
            )
        ],
    ),
    (
        "hccn_stat_short.a1.txt",
        "hccn_tool -i 0 -stat -g",
        [(0, hccn.Statistics({"roce_rx_err_pkt_num": 0, "roce_tx_err_pkt_num": 0}))],
    ),
    (
        "hccn_stat_elided.doc.txt",
        "hccn_tool -i 0 -stat -g",
        [
            (
                0,
                hccn.Statistics(
                    {
                        "mac_tx_mac_pause_num": 0,
                        "mac_rx_mac_pause_num": 0,
                        "mac_tx_pfc_pkt_num": 0,
                        "roce_qp_status_err_num": 0,
                        "nic_tx_all_pkg_num": 122404,
                        "nic_tx_all_oct_num": 16921741,
                        "nic_rx_all_pkg_num": 6414803,
                        "nic_rx_all_oct_num": 482237805,
                    },
                    elided=True,
                ),
            )
        ],
    ),
    (
        "hccn_stat.a5.doc.txt",
        "hccn_tool -g -stat -i 0 -u 0 -p 4",
        [(0, hccn.Statistics({"port_id": 4, **dict.fromkeys(A5_COUNTERS.split(), 0)}))],
    ),
    (
        "hccn_hw_stats.a2.txt",
        "hccn_tool -i 3 -hw_stats -g",
        [
            (
                3,
                hccn.Statistics(
                    {
                        "pd_alloc": 1,
                        "pd_dealloc": 0,
                        "mr_alloc": 0,
                        "mr_dealloc": 0,
                        "cq_alloc": 1,
                        "cq_dealloc": 0,
                        "qp_alloc": 1,
                        "qp_dealloc": 0,
                        "pd_active": 1,
                        "mr_active": 0,
                        "cq_active": 1,
                        "qp_active": 1,
                        "aeqe": 0,
                        "ceqe": 0,
                    }
                ),
            )
        ],
    ),
    (
        "hccn_bandwidth.a5.doc.txt",
        "hccn_tool -g -bandwidth -i 0 -u 0 -p 4 -time 3000",
        [(0, hccn.Bandwidth(0.0, 266.84))],
    ),
    (
        "hccn_optical_elided.doc.txt",
        "hccn_tool -i 0 -optical -g",
        [
            (
                0,
                hccn.Optical(
                    present=False,
                    temperature_c=None,
                    vcc_mv=None,
                    tx_power_mw=(4.4035,),
                    rx_power_mw=(1.0189,),
                    tx_bias_ma=(7.936,),
                    temperature_range=hccn.Range(0.0, 70.0),
                    vcc_range=hccn.Range(3135.0, 3465.0),
                    tx_power_range=hccn.Range(0.2818, 3.5481),
                    rx_power_range=hccn.Range(0.1445, 3.5481),
                    tx_los=0,
                    rx_los=0xFF,
                    tx_lol=0,
                    rx_lol=0xFF,
                    vendor="",
                    part="",
                    serial="",
                    fields=OPTICAL,
                    elided=True,
                ),
            )
        ],
    ),
    (
        "hccn_ping_ok.a2.txt",
        "hccn_tool -i 0 -ping -g address 10.12.165.80",
        [(0, ping(0, "10.12.165.80", 0.114, 0.067, 0.063))],
    ),
    (
        "hccn_ping_ok_pkt64.a2.txt",
        "hccn_tool -i 0 -ping -g address 10.0.0.21 pkt 64",
        [(0, ping(0, "10.0.0.21", 0.181, 0.055, 0.048))],
    ),
    (
        "hccn_ping_ok_slow_first.a2.txt",
        "hccn_tool -i 3 -ping -g address 10.1.137.205",
        [(3, ping(3, "10.1.137.205", 1.418, 0.034, 0.040))],
    ),
    (
        "hccn_ping_partial_loss.a2.doc.txt",
        "hccn_tool -i 0 -ping -g address 10.0.0.1",
        [(0, ping(None, "", 0.097, 0.066, lost=1))],
    ),
    (
        "hccn_hccs_ping_ok_line_only.a3.txt",
        "hccn_tool -i 0 -hccs_ping -g address 192.0.2.1",
        [(0, Failure.UNREADABLE)],
    ),
    ("hccn_fec_none.a1.txt", "hccn_tool -i 0 -fec -g", [(0, hccn.Fec("no"))]),
    ("hccn_fec_rs.doc.txt", "hccn_tool -i 0 -fec -g", [(0, hccn.Fec("rs"))]),
    (
        "hccn_fec.a5.doc.txt",
        "hccn_tool -g -fec -i 0 -u 0 -p 4",
        [
            (
                0,
                a5.Grid(({**PORT, "rs_mode": "128 T4", "auto_change_mode": "Static", "itlv_mode": "Interweave"},)),
            )
        ],
    ),
    (
        "hccn_speed.a5.doc.txt",
        "hccn_tool -g -speed -i 0 -u 0 -p 4",
        [(0, a5.Grid(({**PORT, "Speed": "400 G", "Cap": "X4", "Width": "X4", "Status": "normal"},)))],
    ),
    ("hccn_process.a5.doc.txt", "hccn_tool -g -process -i 0", [(0, hccn.HccpProcess(exists=True))]),
    ("hccn_cfg_recovery.a5.doc.txt", "hccn_tool -g -cfg_recovery -i 0", [(0, hccn.ConfigStatus("NONE"))]),
    (
        "hccn_status_ethtool_backplane_elided.a2.txt",
        "hccn_tool -i 3 -status -g",
        [
            (
                3,
                hccn.Netdev(
                    "eth3",
                    200000,
                    None,
                    {
                        "Supported ports": "[ Backplane ]",
                        "Supported link modes": "1000baseKX/Full 100000baseKR4/Full",
                        "Supported pause frame use": "Symmetric",
                        "Supports auto-negotiation": "No",
                        "Supported FEC modes": "None        RS",
                        "Advertised link modes": "Not reported",
                        "Speed": "200000Mb/s",
                    },
                ),
            )
        ],
    ),
    (
        "hccn_ub_connect_partial.a5.doc.txt",
        "hccn_tool -g -ub_connect -i 0",
        [(0, a5.UbConnect("PARTIAL LINK", {4: "UP", 5: "DOWN", 6: "PARTIAL UP"}))],
    ),
    (
        "hccn_version.a5.doc.txt",
        "hccn_tool -g -version -i 0",
        [
            (
                0,
                a5.Fields({"Network Driver Version": "25.7.rc1", "Network Firmware Version": "B0202_1053"}),
            )
        ],
    ),
    (
        "hccn_conf_address_only.a2.txt",
        "cat /etc/hccn.conf",
        [
            (
                None,
                HccnConf(
                    {device: {"address": f"10.9.11.{11 + device}", "netmask": MASK} for device in range(8)},
                    {f"{key}_{d}": 2 * d + at for d in range(8) for key, at in (("address", 1), ("netmask", 2))},
                    (),
                ),
            )
        ],
    ),
    (
        "hccn_conf_tls.a2.fixture.txt",
        "ssh node1 sudo cat /etc/hccn.conf",
        [
            (
                None,
                HccnConf(
                    {
                        0: {"address": "127.0.0.45", **FIXTURE},
                        1: {"address": "127.0.0.226", **FIXTURE},
                        2: {"address": "127.0.0.83", **FIXTURE},
                    },
                    {
                        f"{key}_{device}": 6 * device + at
                        for device in range(3)
                        for at, key in enumerate(("address", *FIXTURE), 1)
                    },
                    (),
                ),
            )
        ],
    ),
    (
        "firmware_version_info.a1.txt",
        "cat /usr/local/Ascend/firmware/version.info",
        [
            (
                None,
                VersionFile(
                    "7.1.0.11.220",
                    "23.0.7",
                    {
                        "Version": "7.1.0.11.220",
                        "firmware_version": "1.0",
                        "package_version": "23.0.7",
                        "compatible_version_drv": "[23.0.rc3,23.0.rc3.],[23.0.0,23.0.0.]",
                    },
                ),
            )
        ],
    ),
]
"""File, the command that it answers, and for each device what a person reads in it (or why nothing)."""

OF_CHANGES = {"hccn_set_ok.a2.txt": "hccn_tool -i 0 -tls -s enable 0"}
"""Answers of commands that change something: no reading."""


def comparable(value: object) -> object:
    """Return a value as the table has it."""
    if isinstance(value, hccn.LinkStat):
        records = [(record.at, record.status) for record in value.records]
        return stat(value.up_count, value.down_count, value.device_time, *records)
    return value


@pytest.mark.parametrize(
    ("name", "command", "expected"), ROWS, ids=[f"{row[0]}-{i}" for i, row in enumerate(ROWS)]
)
def test_a_sample_says_what_a_person_reads(
    name: str, command: str, expected: list[tuple[int | None, object]]
) -> None:
    asked = find(command)
    found = []
    for device, answer in split(asked, Answer(command, sample(name))):
        reading = asked.kind.read(answer)
        found.append((device, reading.failure or comparable(reading.value)))
    assert found == expected


def test_no_sample_is_left_out() -> None:
    files = {path.name for pattern in ("hccn_*", "firmware_*") for path in (DATA / "hccn").glob(pattern)}
    assert len(files) == 54
    assert files == {name for name, *_ in ROWS} | OF_CHANGES.keys()


@pytest.mark.parametrize(("name", "command"), OF_CHANGES.items())
def test_what_changes_something_has_no_reading(name: str, command: str) -> None:
    with pytest.raises(UsageError, match="changes something"):
        find(command)
    assert hccn.read_tls(Answer(command, sample(name))).failure is Failure.UNREADABLE


def test_records_of_a_link_are_dated_by_the_device_s_own_clock() -> None:
    value = hccn.read_link_stat(Answer("", sample("hccn_link_stat_flap.a2a3.txt"))).value
    assert value is not None
    assert value.records[0].ago == 23 * 86400 + 11 * 3600 + 32 * 60 + 55
    assert value.records[1].ago - value.records[0].ago == 1
