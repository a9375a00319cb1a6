"""Rows of the checks that look at where ranks run, and between nodes."""

from __future__ import annotations

from tests.preflight.rows import Row

ROWS: tuple[Row, ...] = ()

EXCEPT: dict[tuple[str, str], str] = {}
"""What cannot be shown here, and why."""
