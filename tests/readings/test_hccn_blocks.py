"""Answers of which no recording exists, by the layouts in the tool's published source."""

from __future__ import annotations

import pytest

from pdtui.readings import hccn
from pdtui.readings.answer import Answer, Failure
from pdtui.readings.hccn import a5
from pdtui.readings.hccn_conf import parse_hccn_conf, read_hccn_conf
from pdtui.readings.versions import read_cann_version, read_version_file
from tests.readings.samples import said

LOST = (
    "device 3 PING 10.0.0.9\nrecv time out seq=0\nDestination Host Unreachable\nrecv time out seq=2\n"
    "3 packets transmitted, 0 received, 100.00% packet loss\n"
)


@pytest.mark.parametrize("status", [0, 1])
def test_a_ping_that_lost_everything_says_so_whatever_the_status(status: int) -> None:
    reading = hccn.read_ping(said(LOST, "Command execute failed!", status))
    assert reading.value == hccn.Ping(3, "10.0.0.9", 3, 0, (), ("time out", "Destination Host Unreachable"))
    assert reading.failure is None
    assert "100.00%" in reading.raw


@pytest.mark.parametrize(
    "text",
    [
        LOST.rpartition("3 packets")[0],
        LOST.replace("0 received", "2 received"),
        LOST.replace("0 received", "4 received"),
        LOST.replace("100.00%", "0.00%"),
        LOST.replace("3 packets", "0 packets"),
    ],
)
def test_a_ping_that_contradicts_itself_is_unreadable(text: str) -> None:
    assert hccn.read_ping(said(text)).failure is Failure.UNREADABLE
    assert hccn.read_ping(said(text, "Command execute failed!", 1)).failure is Failure.ERROR


def test_a_ping_that_hung_is_a_time_out_whatever_it_printed() -> None:
    assert hccn.read_ping(Answer("", LOST.encode(), status=None, timed_out=True)).failure is Failure.TIMEOUT
    assert hccn.read_ping(said(LOST, status=124)).failure is Failure.TIMEOUT


HCCS = """device 0 PING 192.1.2.198

This pkt ping success!
recv seq 0, time = 31.250us, L1 plane check result = 0x0

This pkt {word}!
{second}
2 packets transmitted, {received} received, {loss}% packets loss
max time 31.250us
min time 31.250us
average time 31.250us
TP95 time 31.250us
Cmd executed successfully!
"""
SECOND = "recv seq 1, time = 29.000us, L1 plane check result = 0x{plane}\n"


def test_hccs_ping() -> None:
    text = HCCS.format(word="ping success", second=SECOND.format(plane="0"), received=2, loss="0.00")
    value = hccn.read_hccs_ping(said(text)).value
    assert value == hccn.HccsPing(0, "192.1.2.198", 2, 2, (31.25, 29.0), (0, 0), (), 31.25, 31.25, 31.25)
    odd = HCCS.format(word="ping success", second=SECOND.format(plane="4"), received=2, loss="0.00")
    value = hccn.read_hccs_ping(said(odd)).value
    assert value is not None
    assert value.planes == (0, 4)


def test_hccs_ping_claims_success_also_when_packets_were_lost() -> None:
    text = HCCS.format(word="check recv msg fail", second="", received=1, loss="50.00")
    value = hccn.read_hccs_ping(said(text)).value
    assert value is not None
    assert (value.sent, value.received, value.problems) == (2, 1, ("check recv msg fail",))
    assert hccn.read_hccs_ping(said(text, status=1)).failure is Failure.ERROR
    assert hccn.read_hccs_ping(said("Cmd executed successfully!")).failure is Failure.UNREADABLE
    busy = said("", "The device is occupied. Please try again later.", 31)
    assert hccn.read_hccs_ping(busy).failure is Failure.BUSY


def test_ub_ping() -> None:
    text = "recv seq:0,time:0.286000ms\n1 packets transmitted, 1 received, 0.00% packet loss\n"
    value = hccn.read_ping(said(text)).value
    assert value is not None
    assert value.times_ms == (0.286,)


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (hccn.read_speed, "Speed: 200000 Mb/s", hccn.Speed(200000)),
        (hccn.read_speed, "Speed: Unknown!", hccn.Speed(None)),
        (hccn.read_duplex, "Duplex: Full", hccn.Duplex("Full")),
        (hccn.read_mac, "mac addr: 00:00:5E:00:53:01", hccn.Mac("00:00:5e:00:53:01")),
        (hccn.read_mtu, "mtu:8192", hccn.Mtu(8192)),
        (hccn.read_process, "device hccp process: not exist", hccn.HccpProcess(exists=False)),
        (hccn.read_config_status, "config status:FAULT", hccn.ConfigStatus("FAULT")),
        (hccn.read_netdetect, "netdetect addr: 0.0.0.0", hccn.NetDetect("")),
        (hccn.read_netdetect, "netdetect address:", hccn.NetDetect("")),
        (hccn.read_ip, "ipv6_address:fd00::1\nprefix_length:64", hccn.Address("fd00::1", "64")),
        (
            hccn.read_ip,
            "ipaddr:10.0.0.1\nnetmask:255.0.0.0\nipaddr:10.0.1.1\nnetmask:255.0.0.0",
            hccn.Address("10.0.0.1", "255.0.0.0", (("10.0.1.1", "255.0.0.0"),)),
        ),
    ],
)
def test_small_answers(read: object, text: str, value: object) -> None:
    assert callable(read)
    assert read(said(text)).value == value


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (hccn.read_speed, "Speed: fast"),
        (hccn.read_mac, "mac addr: 00:00:5E:00:53"),
        (hccn.read_process, "device hccp process: maybe"),
        (hccn.read_process, "device hccp process: not"),
        (hccn.read_ip, "ipaddr:10.0.0.1"),
        (hccn.read_ip, "ipaddr:10.0.0.1\nnetmask:255.0.255.0"),
        (hccn.read_gateway, "default gateway:10.0.0., Iface:eth0"),
        (hccn.read_netdetect, "netdetect addr: 10.0.0."),
        (hccn.read_stat, "roce_rx_err_pkt_num:0"),
        (hccn.read_stat, "packet statistics:\nroce_rx_err_pkt_num:many"),
        (hccn.read_optical, "optical info:\npresent : present\ntemperature : hot"),
        (hccn.read_optical, "optical info:\npresent : present\nVcc : 3.3 V"),
        (hccn.read_optical, "optical info:\ntemperature : 40 C"),
        (hccn.read_lldp, "Port ID TLV\n\tIfname: 400GE1/1/2"),
    ],
)
def test_what_does_not_fit_is_unreadable(read: object, text: str) -> None:
    assert callable(read)
    assert read(said(text)).failure is Failure.UNREADABLE


def test_a_module_with_four_lanes() -> None:
    text = (
        "optical info:\npresent              : present\ntemperature          : 45 C\n"
        "Vcc                  : 3301.20 mV\n"
        "vendor name          : ACME: optics\n"
        + "".join(f"Tx Power{lane}            : 1.{lane}000 mW\n" for lane in range(4))
        + "Rx Power0            : NA\nHost SNR Lane0       : not supported\nTx Los Flag          : 0xf"
    )
    value = hccn.read_optical(said(text)).value
    assert value is not None
    assert (value.present, value.temperature_c, value.vcc_mv) == (True, 45.0, 3301.2)
    assert value.tx_power_mw == (1.0, 1.1, 1.2, 1.3)
    assert (value.rx_power_mw, value.tx_los, value.rx_los) == ((None,), 15, None)
    assert value.vendor == "ACME: optics"


def test_a_link_that_never_changed() -> None:
    text = (
        "[devid 3]current time        : Tue Oct 28 21:46:46 2025\n[devid 3]link up count       : 0\n"
        "[devid 3]link down count     : 0\n[devid 3]link change records :NA\n"
    )
    value = hccn.read_link_stat(said(text)).value
    assert value == hccn.LinkStat(0, 0, (), "Tue Oct 28 21:46:46 2025")
    assert hccn.read_link_stat(said(text.replace("Oct 28", "Oct 48"))).failure is Failure.UNREADABLE
    assert hccn.read_link_stat(said(text + "[devid 4]link up count : 3")).failure is Failure.UNREADABLE


SWITCH = "dev_id:0, tls switch[1](0:disable, 1:enable), tls alarm time threshold[60]days\n"
CERT = "dev_id:0, [pub cert] info:\n\t subject[a]\n\t issuer[b]\n\t start_time[x GMT]\n\t end_time[y GMT]\n"
EXPIRED = "\t tls expiration status[2](0:normal, 1:near expiration, 2:has expired)"


def test_an_expired_certificate_is_told_on_stderr_and_belongs_to_the_block_without_a_status() -> None:
    value = hccn.read_tls(said(SWITCH + CERT, EXPIRED)).value
    assert value is not None
    assert value.expiration == 2
    assert [certificate.expiration for certificate in value.certificates] == [2]
    assert hccn.read_tls(said(SWITCH + CERT)).failure is Failure.UNREADABLE, "a block that was cut"


def test_the_switch_counts_though_there_are_no_certificates() -> None:
    none = "No certificate found, please set certs firstly!"
    value = hccn.read_tls(said(SWITCH, none, 14)).value
    assert value is not None
    assert value.enabled
    assert hccn.read_tls(said("", none, 14)).failure is Failure.NOT_CONFIGURED


def test_routes_and_neighbours() -> None:
    text = (
        "Kernel IP routing table\n"
        "Destination     Gateway         Genmask         Flags Metric Ref    Use Iface\n"
        "default         10.0.0.1        0.0.0.0         UG    0      0        0 eth0\n"
        "10.0.0.0        *               255.255.0.0     U     0      0        0 eth0\n"
    )
    routes = hccn.read_route(said(text)).value
    assert routes is not None
    assert [(route.destination, route.gateway) for route in routes] == [("default", "10.0.0.1"), ("10.0.0.0", "")]
    arp = "? (10.0.0.7) at 00:00:5E:00:53:07 [ether]  on eth0\n? (10.0.0.9) at <incomplete>  on eth0\n"
    assert hccn.read_arp(said(arp)).value == (
        hccn.Neighbour("10.0.0.7", "00:00:5e:00:53:07", "eth0"),
        hccn.Neighbour("10.0.0.9", "", "eth0"),
    )


def test_tables_of_a5() -> None:
    rule = "+----+----+\n"
    text = f"{rule}| A  | B  |\n{rule}| 1  | x  |\n{rule}{rule}| C  | D  |\n{rule}| 2  | y  |\n{rule}"
    value = a5.read_grids(said(text)).value
    assert value == a5.Grids((a5.Grid(({"A": "1", "B": "x"},)), a5.Grid(({"C": "2", "D": "y"},))))
    assert a5.read_grids(said(text.rpartition(rule)[0])).failure is Failure.UNREADABLE
    info = "[link]\nport_link: link\nport_enable: on\n"
    fields = a5.read_port_info(said(info)).value
    assert fields is not None
    assert fields.fields == {"link.port_link": "link", "link.port_enable": "on"}


CONF = """# written by hand
address_0=10.0.0.1
netmask_0 = 255.255.255.0
gateway_0=10.0.9.1
address_1=10.0.0.1
netmask_1=255.0.255.0
address_2=10.0.0.300
address_3=10.0.0.4
netdetect_3=10.9.9.9
netmask_3=255.255.255.0
address_3=10.0.0.5
IPv6route_address_fd00::/64=fd00::1
send_arp_status_0=1
oops
"""


def test_problems_of_a_file_have_their_lines() -> None:
    conf = parse_hccn_conf(CONF)
    assert [(problem.line, problem.device, problem.serious) for problem in conf.problems] == [
        (4, 0, True),
        (5, 1, True),
        (6, 1, True),
        (7, 2, True),
        (9, 3, False),
        (11, 3, True),
        (14, None, False),
    ]
    words = [problem.summary for problem in conf.problems]
    assert words[0] == "gateway_0=10.0.9.1 is outside the subnet of address_0 (10.0.0.0/24)"
    assert words[1] == "address_1=10.0.0.1 is the address of NPU 0 too"
    assert "is no netmask" in words[2]
    assert "is no IPv4 address" in words[3]
    assert "stands also in line 8" in words[5]
    assert (conf.value(3, "address"), conf.line(3, "address")) == ("10.0.0.5", 11)


def test_files_that_are_not_there() -> None:
    gone = said("", "cat: /etc/hccn.conf: No such file or directory", 1)
    for read in (read_hccn_conf, read_version_file, read_cann_version):
        assert read(gone).failure is Failure.MISSING
        assert read(said("")).failure is Failure.EMPTY
        assert read(said("", "cat: /x: Permission denied", 1)).failure is Failure.PERMISSION
        assert read(said("no setting at all")).failure is Failure.UNREADABLE


def test_versions() -> None:
    driver = read_version_file(
        said("Version=24.1.rc3\npackage_version=24.1.rc3\nInnerversion=V100R001C19\n")
    ).value
    assert driver is not None
    assert (driver.version, driver.package) == ("24.1.rc3", "24.1.rc3")
    cfg = "# version: 1.0\nruntime_running_version=[7.6.0:8.0.0]\ntoolkit_running_version=[7.6.0:8.0.1]\n"
    cann = read_cann_version(said(cfg)).value
    assert cann is not None
    assert cann.version == "8.0.1"
    info = read_cann_version(said("package_name=Ascend-cann-toolkit\nversion=8.5.0\narch=aarch64\n")).value
    assert info is not None
    assert info.version == "8.5.0"
    assert read_cann_version(said("runtime_upgrade_version=[1:2]")).failure is Failure.UNREADABLE
    assert read_version_file(said("Version=\x1b[31m")).failure is Failure.UNREADABLE
