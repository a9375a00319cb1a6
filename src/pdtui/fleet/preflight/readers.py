"""Which reader understands the answer to a query."""

from __future__ import annotations

from collections.abc import Mapping

from pdtui.readings.commands import Query
from pdtui.readings.hccn.kinds import HCCN
from pdtui.readings.kinds import Reader
from pdtui.readings.npu_smi_kinds import NPU_SMI

READERS: Mapping[Query, Reader] = {
    Query(kind.name): kind.read
    for kind in (*HCCN.values(), *NPU_SMI.values())
    if kind.name in tuple(query.value for query in Query)
}
"""One for every query."""
