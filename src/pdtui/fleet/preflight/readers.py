"""Which reader understands the answer to a query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pdtui.readings import hccn
from pdtui.readings import npu_smi_identity as identity
from pdtui.readings import npu_smi_lists as lists
from pdtui.readings import npu_smi_values as values
from pdtui.readings.answer import Answer, Reading
from pdtui.readings.commands import Query
from pdtui.readings.npu_smi import read_table

Reader = Callable[[Answer], Reading[Any]]

READERS: Mapping[Query, Reader] = {
    Query.TABLE: read_table,
    Query.LINK: hccn.read_link,
    Query.NET_HEALTH: hccn.read_net_health,
    Query.VNIC: hccn.read_vnic,
    Query.IP: hccn.read_ip,
    Query.GATEWAY: hccn.read_gateway,
    Query.NETDETECT: hccn.read_netdetect,
    Query.LLDP: hccn.read_lldp,
    Query.TLS: hccn.read_tls,
    Query.LINK_STAT: hccn.read_link_stat,
    Query.STAT: hccn.read_stat,
    Query.OPTICAL: hccn.read_optical,
    Query.LIST: lists.read_list,
    Query.MAP: lists.read_map,
    Query.HEALTH: identity.read_health,
    Query.SPOD: identity.read_spod,
    Query.HCCS: identity.read_hccs,
    Query.BOARD: identity.read_board,
    Query.ECC: values.read_ecc,
    Query.USAGES: values.read_usages,
    Query.COMMON: values.read_common,
    Query.MEMORY: values.read_memory,
    Query.TEMP: values.read_temp,
    Query.POWER: values.read_power,
    Query.PROC_MEM: values.read_proc_mem,
}
"""One for every query."""
