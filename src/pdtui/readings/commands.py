"""What is asked of a node's vendor tools, as argv: queries that change no state, and nothing else.

hccn_tool's `-s`, `-c`, `-t` and `-cfg recovery`, and npu-smi's `set`, `clear`, `upgrade` and `-t reset` change
state; `-ping` and `-hccs_ping` inject traffic; `info proc` and `info watch` never end.
The tools are called by bare name; whoever runs them sets PATH, LD_LIBRARY_PATH and LC_ALL.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pdtui.topology.model import Platform


class Query(StrEnum):
    """Something that can be asked; all but `TABLE` are asked of one device."""

    TABLE = "table"
    LINK = "link"
    NET_HEALTH = "net_health"
    VNIC = "vnic"
    IP = "ip"
    GATEWAY = "gateway"
    NETDETECT = "netdetect"
    LLDP = "lldp"
    TLS = "tls"
    LINK_STAT = "link_stat"


_ROCE = (
    Query.LINK,
    Query.NET_HEALTH,
    Query.IP,
    Query.GATEWAY,
    Query.NETDETECT,
    Query.LLDP,
    Query.TLS,
    Query.LINK_STAT,
)

QUERIES: Mapping[Platform, tuple[Query, ...]] = {
    "a2": (Query.TABLE, *_ROCE),
    "a3": (Query.TABLE, Query.VNIC, *_ROCE),
    "a5": (Query.TABLE, Query.VNIC, Query.TLS),
    "cpu": (),
}
"""What makes sense on a platform. A5 asks links by port, after a discovery that is not made here."""


def argv_of(query: Query, platform: Platform, device: int | None = None) -> tuple[str, ...]:
    """Return the argv of a query. Raises `ValueError` when the platform has none, or the device is missing."""
    if query not in QUERIES[platform]:
        raise ValueError(f"{query} is not asked on {platform}")
    if query is Query.TABLE:
        return ("npu-smi", "info")
    if device is None or device < 0:
        raise ValueError(f"{query} needs a device")
    if platform == "a5":
        return ("hccn_tool", "-g", f"-{query}", "-i", str(device))
    return ("hccn_tool", "-i", str(device), f"-{query}", "-g")
