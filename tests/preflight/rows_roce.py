"""Rows of the checks that ask hccn_tool and hccn.conf."""

from __future__ import annotations

from tests.preflight.rows import Row, hangs

ROWS: tuple[Row, ...] = (
    Row("link", "bad", ("link node2/0 down",), "node2/0", ("DOWN",)),
    Row("link", "unknown", ("garble node3/0 hccn_tool link",), "node3/0", ("cannot be read",)),
    hangs("link", "node4/0", "hang node4/0 hccn_tool link", "no answer from hccn_tool within 1 s"),
)

EXCEPT: dict[tuple[str, str], str] = {}
"""What cannot be shown here, and why."""
