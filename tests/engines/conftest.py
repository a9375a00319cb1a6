"""The houses that are held to the contract, each looked at once in a session."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engines import houses
from tests.engines.contract import facts_of
from tests.engines.failures import FAILURES
from tests.engines.observe import observe
from tests.engines.outline import outline
from tests.support.real_vllm import VARIABLE, real_vllm

HOUSES: dict[str, Callable[[Path], houses.House]] = {
    "standin": houses.standin,
    "ascend": houses.ascend,
    "real": lambda folder: houses.real(real_vllm(), folder),
}


@dataclass(frozen=True, slots=True)
class Observed:
    """What was seen of one house."""

    house: str
    facts: dict[str, Any]

    def view(self, fact: Any) -> Any:
        """Return the part of a fact that is compared here: on Ascend vLLM is of another version."""
        return outline(fact) if self.house == "ascend" and fact is not None else fact


def is_looked_at(house: str, fact: str) -> bool:
    """Say whether a fact is tried in a house; what is not has been recorded once from real vLLM.

    On Ascend only what vLLM answers over HTTP is the same. Most real starts that fail are not repeated: each takes
    15 s of both processors. Without real vLLM one skip says so for all facts.
    """
    kind, _, name = fact.partition(": ")
    if house == "ascend":
        return kind == "http"
    if house == "real":
        live = kind != "fail" or any(failure.live for failure in FAILURES if failure.name == name)
        return live and bool(os.environ.get(VARIABLE))
    return True


def marked(house: str, *values: Any) -> Any:
    """Return a test's parameters, first the house, with the marks that belong to it."""
    marks = [pytest.mark.xdist_group(f"engines-{house}"), pytest.mark.timeout(900 if house == "real" else 300)]
    return pytest.param(house, *values, marks=[*marks, pytest.mark.real] if house == "real" else marks)


@pytest.fixture(scope="session")
def look(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Observed]:
    """Look at a house; once, however often it is asked for."""
    seen: dict[str, Observed] = {}

    def look_at(name: str) -> Observed:
        if name not in seen:
            house = HOUSES[name](tmp_path_factory.mktemp(f"engines-{name}"))
            seen[name] = Observed(name, facts_of(observe(house)))
        return seen[name]

    return look_at


@pytest.fixture
def observed(request: pytest.FixtureRequest, look: Callable[[str], Observed]) -> Observed:
    """What is to be seen of the house that is the test's parameter."""
    return look(str(request.param))
