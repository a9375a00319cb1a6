"""A large file costs little."""

from __future__ import annotations

import time

import pytest

from pdtui.topology.planner import make_plan
from tests.topology.examples import loaded
from tests.topology.generate import crowded, large


@pytest.mark.parametrize(("text", "ranks"), [(large(), 64 + 512), (crowded(), 64 * 10)], ids=["large", "crowded"])
def test_64_nodes_are_loaded_and_checked_in_half_a_second_of_cpu(text: str, ranks: int) -> None:
    started = time.process_time()
    result = loaded(text)
    spent = time.process_time() - started
    assert result.findings == ()
    assert result.topology is not None
    assert len(make_plan(result.topology).ranks) == ranks
    assert spent < 0.5


def test_many_findings_cost_little_too() -> None:
    started = time.process_time()
    findings = loaded(large().replace("kv_port: 14000", "kv_port: 20001").replace("rpc_port", "rcp_port")).findings
    assert time.process_time() - started < 2
    assert len(findings) >= 64
