"""Run `python -m pdtui`."""

from __future__ import annotations

from pdtui.cli import main

if __name__ == "__main__":
    main()
