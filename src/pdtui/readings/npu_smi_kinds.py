"""What `npu-smi` can be asked, by the word that asks it: a type (`-t health`), an option (`-l`) or nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pdtui.readings import npu_smi_identity as identity
from pdtui.readings import npu_smi_lists as lists
from pdtui.readings import npu_smi_values as values
from pdtui.readings.kinds import Kind, Reader
from pdtui.readings.npu_smi import read_table

_CARD = r"\s*NPU ID\s+:"


def _type(name: str, title: str, read: Reader, begins: str = _CARD, *, chip: bool = True) -> Kind:
    """Return a kind of `-t`. `chip`: it can be asked of one chip, and some must be."""
    asked = f"npu-smi info -t {name} -i N{' -c CHIP' if chip else ''}"
    return Kind(name, asked, title, read, re.compile(begins))


_TYPES = (
    _type("health", "health and error codes", identity.read_health, rf"{_CARD}|\s*Health Status\s+:"),
    _type("spod-info", "place in the super pod", identity.read_spod, r"\s*SDID\s+:"),
    _type("hccs", "HCCS links", identity.read_hccs, r"\s*hccs health status\s+:"),
    _type("board", "card, versions, PCI device", identity.read_board),
    _type("product", "name of the card", identity.read_product, chip=False),
    _type("usages", "memory and cores in use", values.read_usages),
    _type("common", "clocks, temperature, power", values.read_common),
    _type("memory", "memories and their clocks", values.read_memory),
    _type("temp", "temperatures", values.read_temp),
    _type("power", "power", values.read_power),
    _type("ecc", "bit errors of the memories", values.read_ecc),
    _type("proc-mem", "processes and their memory", values.read_proc_mem),
)

NPU_SMI: Mapping[str, Kind] = {
    "": Kind("table", "npu-smi info", "all chips and the processes on them", read_table),
    "-l": Kind("list", "npu-smi info -l", "cards of the server", lists.read_list),
    "-m": Kind("map", "npu-smi info -m", "NPU, chip and physical ids", lists.read_map),
    "topo": Kind("topo", "npu-smi info -t topo", "how chips are joined", lists.read_topo),
    **{kind.name: kind for kind in _TYPES},
}
