"""One preflight as the console sees it, beside the run before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from pdtui.console.preflight_run import Run
from pdtui.fleet.preflight.events import Began, Ended
from pdtui.fleet.preflight.outcome import Outcome, Result
from pdtui.fleet.preflight.report import PreflightReport
from pdtui.fleet.preflight.request import PreflightRequest
from pdtui.topology.plan import Plan

PLAN = cast("Plan", SimpleNamespace(by_id={}))


def run(*results: Result, before: Run | None = None) -> Run:
    made = Run(PreflightRequest(), PLAN, before, 1.0)
    made.take(Began(("node1", "node2"), ("link", "ping"), 1.0))
    made.take(Ended(PreflightReport("big", "", "", 1.0, 2.0, ("node1", "node2"), ("link", "ping"), results)))
    return made


@pytest.mark.parametrize(
    ("now", "gone"),
    [
        (Result("link", "node1", Outcome.PASS, "all UP"), True),
        (Result("link", "cluster", Outcome.PASS, "all UP"), True),
        (Result("link", "node1/4", Outcome.FAIL, "link DOWN"), False),
        (Result("link", "node1", Outcome.UNKNOWN, "hangs"), False),
        (Result("link", "node1", Outcome.NOT_RUN, "", because="node1 is not reached"), False),
        (Result("link", "cluster", Outcome.NOT_RUN, "", because="nobody asked"), False),
    ],
)
def test_only_what_is_known_to_be_good_is_no_longer_wrong(now: Result, gone: bool) -> None:
    before = run(Result("link", "node1/3", Outcome.FAIL, "link DOWN"))
    assert bool(run(now, before=before).gone()) is gone
