"""Skips that a laptop may take and CI may not."""

from __future__ import annotations

import os

import pytest


def skip_unless(present: bool, reason: str) -> None:
    """Skip the test when something is missing; fail instead where PDTUI_REQUIRE_ALL is set."""
    if present:
        return
    if os.environ.get("PDTUI_REQUIRE_ALL"):
        pytest.fail(f"required here: {reason}")
    pytest.skip(reason)
