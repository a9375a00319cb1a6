"""Simulations for tests: one of two nodes, fast."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pdtui.sim.simulation import Simulation
from tests.sim.support import CLUSTER, FAST


@pytest.fixture
async def simulation(tmp_path: Path) -> AsyncIterator[Simulation]:
    """A running simulation of the small cluster."""
    async with Simulation(CLUSTER, tmp_path / "sim", speed=FAST) as running:
        yield running


@pytest.fixture
def namespaces(simulation: Simulation) -> None:
    """Skip where the kernel gives no pid namespaces."""
    if simulation.isolated:
        return
    reason = next(node.processes.refused for node in simulation.nodes.values())
    if os.environ.get("PDTUI_REQUIRE_ALL"):
        pytest.fail(f"no pid namespaces here: {reason}")
    pytest.skip(f"no pid namespaces here: {reason}")
