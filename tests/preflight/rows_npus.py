"""Rows of the checks that ask npu-smi and version files."""

from __future__ import annotations

from tests.preflight.rows import Row

ROWS: tuple[Row, ...] = ()

EXCEPT: dict[tuple[str, str], str] = {}
"""What cannot be shown here, and why."""
