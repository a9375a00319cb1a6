"""Rows of the checks that ask hccn_tool and hccn.conf."""

from __future__ import annotations

from tests.preflight.rows import Row, hangs, lost
from tests.preflight.rows_places import LOGIN

PORT = "400GE1/9/9:1"
HANGS = "hang node4/0 hccn_tool"
"""A tool that hangs on one question is not asked another on that NPU, so all checks say so."""

UNREADABLE = "cannot be read"

ROWS: tuple[Row, ...] = (
    Row("link", "bad", ("link node2/0 down",), "node2/0", ("link DOWN",)),
    Row("link", "unknown", ("garble node3/0 hccn_tool link",), "node3/0", (UNREADABLE,)),
    hangs("link", "node4/0", HANGS, "no answer"),
    Row("net-health", "bad", ("net_health node2/1 Unreachable",), "node2/1", ("net health Unreachable",)),
    Row("net-health", "unknown", ("garble node3/1 hccn_tool net_health",), "node3/1", (UNREADABLE,)),
    hangs("net-health", "node4/0", HANGS, "no answer"),
    Row("gateway", "bad", ("gateway node2/2 10.99.0.1",), "node2/2", ("10.99.0.1 is outside its subnet",)),
    Row("gateway", "unknown", ("garble node3/2 hccn_tool gateway",), "node3/2", (UNREADABLE,)),
    hangs("gateway", "node4/0", HANGS, "no answer"),
    Row("netdetect", "bad", ("netdetect node2/3 off",), "node2/3", ("no detect address is set",)),
    Row("netdetect", "unknown", ("garble node3/3 hccn_tool netdetect",), "node3/3", (UNREADABLE,)),
    hangs("netdetect", "node4/0", HANGS, "no answer"),
    Row(
        "lldp",
        "bad",
        (f"lldp node2/5 {PORT}", f"lldp node2/7 {PORT}"),
        "node2/5",
        (f"hears {PORT} of ", "as does node2/7"),
    ),
    Row("lldp", "unknown", ("garble node3/4 hccn_tool lldp",), "node3/4", (UNREADABLE,)),
    hangs("lldp", "node4/0", HANGS, "no answer"),
    Row("lldp-order", "bad", (f"lldp node2/5 {PORT}",), "node2", ("not in the order of node1", f"NPU 5 {PORT}")),
    Row("lldp-order", "unknown", ("garble node3/4 hccn_tool lldp",), "node3", ("NPU 4 hears no port", UNREADABLE)),
    hangs("lldp-order", "node4", HANGS, "NPU 0 hears no port"),
    Row("tls", "bad", ("tls node2/8 on",), "node2/8", ("TLS is on", "have it off")),
    Row("tls", "unknown", ("garble node3/8 hccn_tool tls",), "node3/8", (UNREADABLE,)),
    hangs("tls", "node4/0", HANGS, "no answer"),
    Row(
        "hccn-conf",
        "bad",
        ("conf node2/6 address 10.9.9.9",),
        "node2/6",
        ("address_6=10.9.9.9 in the file (line ", " runs"),
    ),
    Row("hccn-conf", "unknown", ("garble node3/6 hccn_tool ip",), "node3/6", (UNREADABLE,)),
    hangs("hccn-conf", "node4/0", HANGS, "no answer"),
    Row(
        "hccn-conf-container",
        "bad",
        ("conf node2 missing",),
        "node2",
        ("is in the container, but on the host there is no",),
        LOGIN,
    ),
    lost("hccn-conf-container"),
    hangs("hccn-conf-container", "node4", "container node4 pause", scene=LOGIN),
)

EXCEPT: dict[tuple[str, str], str] = {}
"""What cannot be shown here, and why."""
