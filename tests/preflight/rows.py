"""How each check is made to pass, to fail, to be unknown and to hang on simulated nodes: one row for each.

All rows of one scene are shown by one preflight, so its faults must not get into each other's way: what fails is
on node2, what cannot be read on node3, what hangs on node4, each query on an NPU of its own. node1 is well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pdtui.fleet.preflight.outcome import Outcome
from pdtui.topology.model import Topology

Shown = Literal["pass", "bad", "unknown", "hang"]
"""`bad`: fails, or warns where that is the worst that the check says."""

SHOWN: tuple[Shown, ...] = ("pass", "bad", "unknown", "hang")

ALLOWED: dict[Shown, tuple[Outcome, ...]] = {
    "pass": (Outcome.PASS,),
    "bad": (Outcome.FAIL, Outcome.WARN),
    "unknown": (Outcome.UNKNOWN,),
    "hang": (Outcome.UNKNOWN,),
}

WELL = "well"
"""The scene without faults, in which every check passes."""

MAIN = "main"
"""The scene of its subject in which most faults are set at once: `npus`, `roce`, `places`, `links`."""


FILE_SCENE = "file"
"""The scene in which the file says what is not so on the nodes, and nothing can be run where ranks do."""

APART = "apart"
"""The scene in which connections break and stand still while nodes are asked, and a clock is wrong."""


@dataclass(frozen=True, slots=True)
class Row:
    """One check in one state."""

    check: str
    shown: Shown
    faults: tuple[str, ...] = ()
    """Lines as for `pdtui demo --fault`."""
    subject: str = ""
    """Of the result that shows it; empty: any."""
    words: tuple[str, ...] = ()
    """Words of its summary, its reason or its evidence."""
    scene: str = MAIN
    during: str = ""
    """A fault that is switched while its node is asked."""
    edit: Callable[[Topology], Topology] | None = None
    """Of the file: what is asked for does not fit what is there."""


def hangs(check: str, subject: str, fault: str, *words: str, scene: str = MAIN) -> Row:
    """Return the row of a check that hangs: it is unknown, and says that it hangs."""
    return Row(check, "hang", (fault,), subject, ("hangs", *words), scene)


def lost(check: str, *words: str) -> Row:
    """Return the row of a check whose node is lost while it is asked."""
    faults = ("sshd-freeze node3",)
    return Row(check, "unknown", faults, "node3", ("connection was lost", *words), APART, "sshd-kill node3")


def frozen(check: str, *words: str) -> Row:
    """Return the row of a check whose node stops answering while it is asked."""
    said = ("no answer to all of it within 3 s", *words)
    return Row(check, "hang", ("sshd-freeze node4",), "node4", said, APART)
