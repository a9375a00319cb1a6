"""The port map host by host covers the plan's, and bundles hosts that are alike."""

from __future__ import annotations

import pytest

from pdtui.topology.planner import make_plan
from pdtui.topology.port_map import EXACT, alike, port_map_of
from tests.topology.examples import BASE, CPU, loaded
from tests.topology.generate import large


@pytest.mark.parametrize("text", [BASE, CPU, large(8)], ids=["base", "cpu", "large"])
def test_every_port_of_the_plan_stands_in_one_row_of_its_host(text: str) -> None:
    topology = loaded(text).topology
    assert topology is not None
    plan = make_plan(topology)
    maps = {host.host: host for host in port_map_of(topology, plan)}
    assert list(maps) == [node.address for node in topology.nodes.values()]
    for use in plan.ports:
        of_use = [row for row in maps[use.host].rows if row.use == use.use]
        rows = [row for row in of_use if row.first <= use.first and use.last <= row.last]
        assert len(rows) == 1
        assert (use.owner in rows[0].owners) == (use.use in EXACT)
    ports = [row for host in maps.values() for row in host.rows if not row.is_range]
    count = sum(use.last - use.first + 1 for use in plan.ports if use.use in EXACT)
    assert sum(row.last - row.first + 1 for row in ports) == count


def test_hosts_are_alike_that_differ_in_address_ranks_and_kv_ports_only() -> None:
    topology = loaded(large(8)).topology
    assert topology is not None
    bundles = alike(topology, port_map_of(topology, make_plan(topology)))
    assert [[host.node for host in bundle] for bundle in bundles] == [
        ["node0"],
        ["node1", "node2", "node3"],
        ["node4"],
        ["node5", "node6", "node7"],
    ]
