"""What a device counts, and how much it grew: only growth means anything, and a reset begins anew."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pdtui.readings.hccn.counters import LinkStat, Statistics
from pdtui.readings.npu_smi_blocks import Card
from pdtui.readings.npu_smi_identity import Hccs
from pdtui.readings.npu_smi_values import BitErrors, Ecc

_BAD = re.compile(
    r"mac_[rt]x_bad_pkt_num|mac_rx_fcs_err_pkt_num|roce_(?:[rt]x|verification)_err_(?:pkt_)?num|roce_new_pkt_rty_num"
)
"""Counters of `-stat` whose growth is damage or loss; pauses and congestion marks are traffic."""


@dataclass(frozen=True, slots=True)
class Step:
    """Growth between two answers."""

    at: float
    """When the later one was given."""
    since: float
    """When the earlier one was given."""
    amounts: Mapping[str, int]


def counters_of(value: object) -> Mapping[str, int]:
    """Return the counters of a value whose growth is judged, by name."""
    match value:
        case Statistics():
            return {name: count for name, count in value.counters.items() if _BAD.fullmatch(name)}
        case LinkStat():
            return {"up": value.up_count} | ({} if value.down_count is None else {"down": value.down_count})
        case Hccs():
            retries = {f"link {i} retries": count for i, count in enumerate(value.retries)}
            return retries | {f"link {i} errors": count for i, count in enumerate(value.errors)}
        case Card(chips=(Ecc() as ecc, *_)):
            return _bit_errors("HBM", ecc.hbm) | _bit_errors("DDR", ecc.ddr)
        case _:
            return {}


def _bit_errors(memory: str, errors: BitErrors | None) -> dict[str, int]:
    if errors is None:
        return {}
    pages = (
        errors.single_isolated_pages,
        errors.double_isolated_pages,
        errors.single_next_isolated_pages,
        errors.double_next_isolated_pages,
    )
    known = [count for count in pages if count is not None]
    found = {f"{memory} isolated pages": sum(known)} if known else {}
    return found | ({} if errors.single is None else {f"{memory} single-bit errors": errors.single})


def growth(old: object, new: object) -> Mapping[str, int] | None:
    """Return what grew between two values; None when a counter shrank: the device was reset."""
    before, after = counters_of(old), counters_of(new)
    if any(after[name] < count for name, count in before.items() if name in after):
        return None
    return {name: count - before[name] for name, count in after.items() if count > before.get(name, count)}
