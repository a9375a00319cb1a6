"""Imports of what stays until the end, which nobody needs to look through for garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def lasting() -> Iterator[None]:
    """Look for no garbage inside, where modules are imported, and never at what is there at the end.

    That is a fifth of the time that a command takes until it begins; and no pause of a console looks through all
    modules later.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
