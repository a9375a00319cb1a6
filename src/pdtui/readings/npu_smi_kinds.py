"""What `npu-smi` can be asked, by the word that asks it: a type (`-t health`), an option (`-l`) or nothing."""

from __future__ import annotations

from collections.abc import Mapping

from pdtui.readings.kinds import Kind
from pdtui.readings.npu_smi import read_table

NPU_SMI: Mapping[str, Kind] = {
    "": Kind("table", "npu-smi info", "all chips and the processes on them", read_table),
}
