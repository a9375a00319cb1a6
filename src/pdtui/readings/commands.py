"""What is asked of a node's vendor tools, as argv: queries that change no state, and nothing else.

hccn_tool's `-s`, `-c`, `-t` and `-cfg recovery`, and npu-smi's `set`, `clear`, `upgrade` and `-t reset` change
state; `-ping` and `-hccs_ping` inject traffic; `info proc` and `info watch` never end. `is_read_only` is the list
of what may be sent; pings stand apart. Whatever is sent to a node goes through `may_be_sent`.
The tools are called by bare name; whoever runs them sets PATH, LD_LIBRARY_PATH and LC_ALL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Literal

from pdtui.topology.model import Platform

Plane = Literal["roce", "hccs"]
"""The network between NPUs that a ping goes over."""


class Query(StrEnum):
    """Something that can be asked; all but `NODE_QUERIES` are asked of one device."""

    TABLE = "table"
    LIST = "list"
    MAP = "map"
    LINK = "link"
    NET_HEALTH = "net_health"
    VNIC = "vnic"
    IP = "ip"
    GATEWAY = "gateway"
    NETDETECT = "netdetect"
    LLDP = "lldp"
    TLS = "tls"
    LINK_STAT = "link_stat"
    STAT = "stat"
    OPTICAL = "optical"
    HEALTH = "health"
    SPOD = "spod-info"
    ECC = "ecc"
    HCCS = "hccs"
    BOARD = "board"
    USAGES = "usages"
    COMMON = "common"
    MEMORY = "memory"
    TEMP = "temp"
    POWER = "power"
    PROC_MEM = "proc-mem"


_NODE: Mapping[Query, tuple[str, ...]] = {
    Query.TABLE: ("npu-smi", "info"),
    Query.LIST: ("npu-smi", "info", "-l"),
    Query.MAP: ("npu-smi", "info", "-m"),
}

NODE_QUERIES = frozenset(_NODE)
"""What is asked once for all devices of a node."""

_ROCE = (
    Query.LINK,
    Query.NET_HEALTH,
    Query.IP,
    Query.GATEWAY,
    Query.NETDETECT,
    Query.LLDP,
    Query.TLS,
    Query.LINK_STAT,
    Query.STAT,
    Query.OPTICAL,
)

_SMI = (
    Query.HEALTH,
    Query.ECC,
    Query.BOARD,
    Query.USAGES,
    Query.COMMON,
    Query.MEMORY,
    Query.TEMP,
    Query.POWER,
    Query.PROC_MEM,
)

QUERIES: Mapping[Platform, tuple[Query, ...]] = {
    "a2": (*_NODE, *_ROCE, *_SMI, Query.HCCS),
    "a3": (*_NODE, Query.VNIC, *_ROCE, *_SMI, Query.HCCS, Query.SPOD),
    "a5": (*_NODE, Query.VNIC, Query.TLS, *_SMI, Query.SPOD),
    "cpu": (),
}
"""What makes sense on a platform. A5 asks links by port, after a discovery that is not made here."""

_SMI_TYPES = frozenset((*_SMI, Query.HCCS, Query.SPOD))
_CARD_ONLY = frozenset((Query.BOARD,))
"""What names the versions and the PCI device only when the whole card is asked."""


def argv_of(query: Query, platform: Platform, device: int | None = None) -> tuple[str, ...]:
    """Return the argv of a query. Raises `ValueError` when the platform has none, or the device is missing."""
    if query not in QUERIES[platform]:
        raise ValueError(f"{query} is not asked on {platform}")
    if query in _NODE:
        return _NODE[query]
    if device is None or device < 0:
        raise ValueError(f"{query} needs a device")
    if query in _SMI_TYPES:
        npu, chip = npu_and_chip(platform, device)
        card = ("npu-smi", "info", "-t", query.value, "-i", str(npu))
        return card if platform == "a5" or query in _CARD_ONLY else (*card, "-c", str(chip))
    if platform == "a5":
        return ("hccn_tool", "-g", f"-{query}", "-i", str(device))
    return ("hccn_tool", "-i", str(device), f"-{query}", "-g")


def npu_and_chip(platform: Platform, device: int) -> tuple[int, int]:
    """Return what npu-smi calls a device: NPU ID and chip; A3 has two chips an NPU, the others one."""
    return divmod(device, 2) if platform == "a3" else (device, 0)


def ping_argv(device: int, address: str, plane: Plane, *, packets: int | None = None) -> tuple[str, ...]:
    """Return the argv of a ping from one NPU to the address of another; it injects traffic.

    `packets`: how many (the tools' default is 3); only the ping over HCCS can be told.
    Raises `ValueError` for anything but an IPv4 address and an id.
    """
    if device < 0 or not _IPV4.fullmatch(address):
        raise ValueError(f"no NPU to ping: {device} -> {address}")
    if plane == "roce":
        return ("hccn_tool", "-i", str(device), "-ping", "-g", "address", address)
    count = () if packets is None else ("cnt", str(packets))
    return ("hccn_tool", "-i", str(device), "-hccs_ping", "-g", "address", address, *count)


_IPV4 = re.compile(r"(?:\d{1,3}\.){3}\d{1,3}")
_ID = r"\d{1,6}"
_ALLOWED = re.compile(
    r"hccn_tool(?: -i {id} -(?:{roce}) -g| -g -(?:vnic|tls) -i {id})"
    r"|npu-smi info(?: -[lm]| -t (?:{smi}) -i {id}(?: -c {id})?)?".format(
        id=_ID, roce="|".join((*_ROCE, Query.VNIC)), smi="|".join(sorted(_SMI_TYPES))
    )
)


def is_read_only(argv: Sequence[str]) -> bool:
    """Return whether an argv is a query that may be sent to a vendor tool: it changes nothing, and it ends."""
    return not any(re.search(r"\s", word) for word in argv) and _ALLOWED.fullmatch(" ".join(argv)) is not None


_PING = re.compile(
    rf"hccn_tool -i {_ID} -(?:ping -g address {_IPV4.pattern}"
    rf"|hccs_ping -g address {_IPV4.pattern}(?: cnt [1-9]\d{{0,2}})?)"
)


def is_ping(argv: Sequence[str]) -> bool:
    """Return whether an argv is a ping between NPUs, which preflight alone sends: it injects traffic and ends."""
    return not any(re.search(r"\s", word) for word in argv) and _PING.fullmatch(" ".join(argv)) is not None


def may_be_sent(argv: Sequence[str]) -> bool:
    """Return whether a command may be sent to a node: one that names a vendor tool has to be on the list."""
    names_tool = any(tool in word for word in argv for tool in TOOLS)
    return not names_tool or is_read_only(argv) or is_ping(argv)


TOOLS = ("hccn_tool", "npu-smi")
"""The vendor tools."""
