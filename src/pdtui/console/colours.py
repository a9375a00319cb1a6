"""How many colours the terminal is taken to have, decided as the console's own library decides."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from rich.console import Console
from textual import constants

Depth = Literal["none", "16", "256", "true"]

_DEPTHS: Mapping[str | None, Depth] = {
    None: "none",
    "standard": "16",
    "windows": "16",
    "256": "256",
    "truecolor": "true",
}


def colour_depth(environ: Mapping[str, str]) -> tuple[Depth, str]:
    """Return what the console would use, and the variable that decides it."""
    if "NO_COLOR" in environ:
        return "none", "NO_COLOR is set"
    forced = constants.COLOR_SYSTEM
    # The system by name, or `auto`; Rich's type of it has the names one by one.
    console = Console(color_system=forced, force_terminal=True, legacy_windows=False, _environ=environ)  # type: ignore[arg-type]
    depth = _DEPTHS[console.color_system]
    if os.environ.get("TEXTUAL_COLOR_SYSTEM"):
        return depth, f"TEXTUAL_COLOR_SYSTEM={forced}"
    if environ.get("COLORTERM", "").strip().lower() in ("truecolor", "24bit"):
        return depth, f"COLORTERM={environ['COLORTERM']}"
    return depth, f"TERM={environ.get('TERM', '')}" if environ.get("TERM") else "TERM is not set"
