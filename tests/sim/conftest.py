"""Simulations for tests: one of two nodes, fast."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pdtui.sim.simulation import Simulation
from tests.sim.support import CLUSTER, FAST
from tests.support.required import skip_unless


@pytest.fixture
async def simulation(tmp_path: Path) -> AsyncIterator[Simulation]:
    """A running simulation of the small cluster."""
    async with Simulation(CLUSTER, tmp_path / "sim", speed=FAST) as running:
        yield running


@pytest.fixture
def namespaces(simulation: Simulation) -> None:
    """Skip where the kernel gives no pid namespaces."""
    refused = {node.processes.refused for node in simulation.nodes.values()}
    skip_unless(simulation.isolated, f"no pid namespaces: {', '.join(refused)}")
