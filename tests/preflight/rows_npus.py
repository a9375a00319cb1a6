"""Rows of the checks that ask npu-smi and version files."""

from __future__ import annotations

from tests.preflight.rows import Row, frozen, hangs

_TABLE = "table"
"""The scene without a whole table: pings need it, too."""

_HANGS = "hang node4 npu-smi table"

_CUT = "half node3 npu-smi table"

ROWS: tuple[Row, ...] = (
    Row("tools", "bad", ("denied node2/13 hccn_tool tls",), "node2/13", ("hccn_tool answers", "to root only")),
    Row("tools", "unknown", ("garble node3/13 hccn_tool tls",), "node3/13", ("hccn_tool", "cannot be read")),
    hangs("tools", "node4", _HANGS, "npu-smi", "no answer from npu-smi", scene=_TABLE),
    Row("npu-count", "bad", ("gone node2/9",), "node2/9", ("not in npu-smi's table (15 of 16 are)",), _TABLE),
    Row("npu-count", "unknown", (_CUT,), "node3", ("NPU 2-15: npu-smi's table is cut",), _TABLE),
    hangs("npu-count", "node4", _HANGS, "no answer from npu-smi", scene=_TABLE),
    Row("npu-health", "bad", ("npu node2/10 Critical",), "node2/10", ("npu-smi health Critical, error code",)),
    Row("npu-health", "unknown", ("garble node3/9 npu-smi health",), "node3/9", ("cannot be read",)),
    hangs("npu-health", "node4/8", "hang node4/8 npu-smi health", "no answer from npu-smi"),
    Row("vnic", "bad", ("vnic node2/11 DOWN",), "node2/11", ("vnic link DOWN",)),
    Row("vnic", "unknown", ("empty node3/10 hccn_tool vnic",), "node3/10", ("an empty answer",)),
    hangs("vnic", "node4/10", "hang node4/10 hccn_tool vnic", "no answer from hccn_tool"),
    Row("spod", "bad", ("spod node2/12 index 7",), "node2/12", ("server index 7; most NPUs of this node say",)),
    Row("spod", "unknown", ("denied node3/11 npu-smi spod-info",), "node3/11", ("(-8005)",)),
    hangs("spod", "node4/9", "hang node4/9 npu-smi spod-info", "no answer from npu-smi"),
    Row("hbm", "bad", ("hbm node2/3 30000",), "node2/3", ("29.3 GB held by no process",)),
    Row("hbm", "unknown", ("hbm node3/1 30000", _CUT), "node3/1", ("29.3 GB in use", "table is cut"), _TABLE),
    hangs("hbm", "node4", _HANGS, "no answer from npu-smi", scene=_TABLE),
    Row("driver", "bad", ("version node2 driver 24.1.rc3",), "node2", ("driver 24.1.rc3; ",)),
    Row("driver", "unknown", ("version node3 driver garble",), "node3", ("cannot be read",)),
    Row("firmware", "bad", ("version node2 firmware 7.5.0.1.129",), "node2", ("firmware 7.5.0.1.129; ",)),
    Row("firmware", "unknown", ("version node3 firmware missing",), "node3", ("the file is not there",)),
    frozen("driver", "hangs"),
    frozen("firmware", "hangs"),
)

EXCEPT: dict[tuple[str, str], str] = {}
"""What cannot be shown here, and why."""
