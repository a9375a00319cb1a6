"""The command line: parse, call one thing below, print."""

from __future__ import annotations

from pdtui.cli.root import main

__all__ = ["main"]
