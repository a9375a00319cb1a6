"""What `hccn_tool` can be asked, by the word that asks it, for A1 to A3 and for A5."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pdtui.readings.hccn import a5, counters, lldp, network, optical, ping, port, tls
from pdtui.readings.kinds import Kind, Reader

_DEVID = re.compile(r"\[(?:devid|device) (\d{1,9})\]")
_DEV_ID = re.compile(r"dev_id:(\d{1,9}),")
_PINGS = re.compile(r"device (\d{1,9}) PING ")


def _line(name: str, title: str, read: Reader, begins: str, *, command: str = "") -> Kind:
    """Return a kind of A1 to A3 whose answers begin with a line of their own."""
    return Kind(name, command or f"hccn_tool -i N -{name} -g", title, read, re.compile(begins))


def _a5(name: str, title: str, read: Reader, *, port: bool = True, word: str = "") -> Kind:
    """Return a kind of A5; `port`: asked of one port of a device."""
    where = " -u 0 -p PORT" if port else ""
    return Kind(name, f"hccn_tool -g -{word or name} -i N{where}", title, read)


_KINDS = (
    _line("link", "RoCE link", network.read_link, r"link status ?:"),
    _line("net_health", "the device's probe of its detect address", network.read_net_health, "net health status:"),
    _line("netdetect", "the detect address", network.read_netdetect, "netdetect addr"),
    _line("gateway", "default gateway", network.read_gateway, "default gateway:"),
    _line("ip", "RoCE address", network.read_ip, "ipaddr:|ipv6_address:"),
    _line("vnic", "port of the HCCS plane", network.read_vnic, "vnic link status:"),
    Kind(
        "tls",
        "hccn_tool -i N -tls -g",
        "TLS switch and certificates",
        tls.read_tls,
        re.compile(r"dev_id:\d{1,9}, tls switch"),
        ends_with_words=True,
        device=_DEV_ID,
    ),
    Kind(
        "lldp",
        "hccn_tool -i N -lldp -g",
        "the switch port that it hears",
        lldp.read_lldp,
        re.compile(r"Chassis ID TLV"),
        bare=re.compile(r"\s+Ifname:"),
    ),
    Kind(
        "link_stat",
        "hccn_tool -i N -link_stat -g",
        "how often the link changed",
        counters.read_link_stat,
        re.compile(r"\[(?:devid|device) \d{1,9}\]current time"),
        device=_DEVID,
    ),
    _line("stat", "packet counters", counters.read_stat, "packet statistics:"),
    Kind(
        "hw_stats",
        "hccn_tool -i N -hw_stats -g",
        "what the RDMA unit has allocated",
        counters.read_hw_stats,
        re.compile(r"\[devid \d{1,9}\] pd_alloc:"),
        device=_DEVID,
    ),
    _line("bandwidth", "traffic now", counters.read_bandwidth, "Bandwidth TX:"),
    _line("optical", "optical module", optical.read_optical, "optical info:"),
    Kind(
        "ping",
        "hccn_tool -i N -ping -g address ADDRESS",
        "ping over RoCE",
        ping.read_ping,
        re.compile(r"device \d{1,9} PING "),
        ends_with_words=True,
        device=_PINGS,
    ),
    Kind(
        "hccs_ping",
        "hccn_tool -i N -hccs_ping -g address ADDRESS",
        "ping over the HCCS plane",
        ping.read_hccs_ping,
        re.compile(r"device \d{1,9} PING "),
        device=_PINGS,
    ),
    _line("fec", "forward error correction", port.read_fec, "fec mode:"),
    _line("speed", "speed of the port", port.read_speed, "Speed:"),
    _line("duplex", "duplex of the port", port.read_duplex, "Duplex:"),
    _line("mac", "hardware address of the port", port.read_mac, "mac addr:"),
    _line("mtu", "MTU of the port", port.read_mtu, "mtu:"),
    _line("process", "the network process on the device", port.read_process, "device hccp process:"),
    _line(
        "cfg",
        "what became of hccn.conf at boot",
        port.read_config_status,
        "config status:",
        command="hccn_tool -i N -cfg status",
    ),
    _line("status", "the port as ethtool tells", port.read_netdev, "Netdev status:"),
    _line("route", "routes of the device", port.read_route, "Destination"),
    Kind("arp", "hccn_tool -i N -arp -g", "ARP entries of the device", port.read_arp),
)

HCCN: Mapping[str, Kind] = {kind.name: kind for kind in _KINDS}
"""A1, A2 and A3: `hccn_tool -i N -WORD -g`."""

HCCN_A5: Mapping[str, Kind] = {
    **{name: HCCN[name] for name in ("link", "vnic", "tls", "process", "bandwidth")},
    "stat": HCCN["stat"],
    "dev_info": _a5("dev_info", "ports, interfaces and EIDs of a device", a5.read_grids, port=False),
    "speed": _a5("a5-speed", "speed of a port", a5.read_grid, word="speed"),
    "fec": _a5("a5-fec", "forward error correction of a port", a5.read_grid, word="fec"),
    "link_stat": _a5("a5-link_stat", "how often a port changed", a5.read_port_link_stat, word="link_stat"),
    "port_info": _a5("port_info", "what a port is set to", a5.read_port_info),
    "ub_connect": _a5("ub_connect", "whether the ports are connected", a5.read_ub_connect, port=False),
    "version": _a5("version", "driver and firmware of the network", a5.read_version, port=False),
    "cfg_recovery": HCCN["cfg"],
    "ub_ping": Kind(
        "ub_ping", "hccn_tool -t -ub_ping -i N -src_eid EID -dst_eid EID", "ping over UB", ping.read_ping
    ),
}
"""A5: `hccn_tool -g -WORD -i N`; some answers are those of the other generations."""
