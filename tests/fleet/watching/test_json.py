"""The lines of `pdtui watch --json`, which hooks get too: an interface."""

from __future__ import annotations

import json

from pdtui.fleet.transitions import transitions
from pdtui.fleet.watching.watch import as_json, summary
from tests.support.fake_fleet import FakeFleet, faulty

WELL = FakeFleet.healthy().snapshot


def test_the_shape_of_a_transition_is_an_interface() -> None:
    (first, *_) = transitions(WELL, faulty(WELL))
    found = json.loads(as_json(first, "big"))
    assert set(found) == {
        "schema_version", "cluster", "at", "kind", "subject", "before", "after", "worse", "summary", "key",
        "acknowledged", "because",
    }  # fmt: skip
    assert (found["schema_version"], found["cluster"], found["worse"]) == (1, "big", True)


def test_the_shape_of_the_summary_is_an_interface() -> None:
    found = json.loads(json.dumps(summary(faulty(WELL))))
    assert set(found) == {
        "schema_version", "cluster", "at", "kind", "serving", "prefill", "decode", "nodes", "healthy", "troubles"
    }  # fmt: skip
    assert (found["schema_version"], found["kind"], found["healthy"]) == (1, "summary", False)
    assert set(found["troubles"][0]) == {"key", "severity", "summary", "acknowledged"}
