"""Every implementation of `vllm serve` against what real vLLM was seen to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engines.conftest import HOUSES, Observed, is_looked_at, marked
from tests.engines.differences import DIFFERENCES, PROPERTY, departures, unexplained

EXPECTED: dict[str, Any] = json.loads((Path(__file__).parent / "expected.json").read_text(encoding="utf-8"))


EACH_FACT = [marked(house, fact) for house in HOUSES for fact in EXPECTED if is_looked_at(house, fact)]
EACH_HOUSE = [marked(house) for house in HOUSES]


@pytest.mark.parametrize(("observed", "fact"), EACH_FACT, indirect=["observed"])
def test_fact(observed: Observed, fact: str) -> None:
    found = departures(fact, observed.view(EXPECTED[fact]), observed.view(observed.facts.get(fact)))
    left = unexplained(observed.house, found)
    assert not left, "\n".join(map(str, left))


@pytest.mark.parametrize("observed", EACH_HOUSE, indirect=True)
def test_nothing_was_seen_that_nobody_expects(observed: Observed) -> None:
    assert sorted(set(observed.facts) - set(EXPECTED)) == []


@pytest.mark.parametrize("observed", EACH_HOUSE, indirect=True)
def test_every_known_difference_is_still_one(
    observed: Observed, record_property: Callable[[str, object], None]
) -> None:
    found = [
        each
        for fact, real in EXPECTED.items()
        if fact in observed.facts
        for each in departures(fact, observed.view(real), observed.view(observed.facts[fact]))
    ]
    mine = [known for known in DIFFERENCES if known.house == observed.house]
    for known in mine:
        record_property(PROPERTY, str(known))
    outdated = [known for known in mine if not any(known.covers(observed.house, each) for each in found)]
    assert outdated == []
