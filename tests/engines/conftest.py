"""The houses that are held to the contract, each looked at once in a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engines import houses
from tests.engines.contract import facts_of
from tests.engines.failures import FAILURES
from tests.engines.observe import observe
from tests.engines.outline import outline
from tests.support.real_vllm import real_vllm

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

    def leaves_out(self, fact: str) -> str:
        """Return why a fact is not looked at in this house; empty when it is."""
        kind, _, name = fact.partition(": ")
        if self.house == "ascend" and kind != "http":
            return "only what vLLM answers over HTTP is the same on Ascend"
        if self.house == "real" and kind == "fail" and not any(f.live for f in FAILURES if f.name == name):
            return "recorded once from real vLLM; each such start takes 15 s of both processors"
        return ""


def _parameters() -> Iterator[Any]:
    for name in HOUSES:
        marks = [
            pytest.mark.xdist_group(f"engines-{name}"),
            pytest.mark.timeout(900 if name == "real" else 300),
        ]
        yield pytest.param(name, marks=[*marks, pytest.mark.real] if name == "real" else marks)


@pytest.fixture(scope="session", params=list(_parameters()))
def observed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """What is to be seen of a house, once for all tests."""
    name = str(request.param)
    house = HOUSES[name](tmp_path_factory.mktemp(f"engines-{name}"))
    return Observed(name, facts_of(observe(house)))
