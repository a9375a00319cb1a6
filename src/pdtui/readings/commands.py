"""What is asked of a node's vendor tools, as argv: queries that change no state, and nothing else.

hccn_tool's `-s`, `-c`, `-t` and `-cfg recovery`, and npu-smi's `set`, `clear`, `upgrade` and `-t reset` change
state; `-ping` and `-hccs_ping` inject traffic; `info proc` and `info watch` never end (`hccn.md` 0, 10).
The tools are called by bare name; whoever runs them sets PATH, LD_LIBRARY_PATH and LC_ALL (2.1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
"""What makes sense on a platform. A5 asks links by port, after a discovery that is not made here (3.15)."""

_A5_ORDER = {"a5"}
"""Platforms whose hccn_tool wants `-g -<query> -i <id>` instead of `-i <id> -<query> -g`."""


def argv_of(query: Query, platform: Platform, device: int | None = None) -> tuple[str, ...]:
    """Return the argv of a query. Raises `ValueError` when the platform has none, or the device is missing."""
    if query not in QUERIES[platform]:
        raise ValueError(f"{query} is not asked on {platform}")
    if query is Query.TABLE:
        return ("npu-smi", "info")
    if device is None or device < 0:
        raise ValueError(f"{query} needs a device")
    if platform in _A5_ORDER:
        return ("hccn_tool", "-g", f"-{query}", "-i", str(device))
    return ("hccn_tool", "-i", str(device), f"-{query}", "-g")


def is_read_only(argv: Sequence[str]) -> bool:
    """Return whether an argv is exactly one of the queries above: the last gate before a node."""
    for platform, queries in QUERIES.items():
        for query in queries:
            device = next((int(word) for word in argv if word.isascii() and word.isdigit()), None)
            if query is not Query.TABLE and device is None:
                continue
            if tuple(argv) == argv_of(query, platform, device):
                return True
    return False
