"""Sixty-four servers of eight NPUs, of which two do not answer."""

from __future__ import annotations

from pathlib import Path

from pdtui.fleet.fleet import Fleet
from pdtui.fleet.snapshot import NodeStatus
from pdtui.readings.verdict import Verdict
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan
from tests.fleet.npu_tools import Tools, ToolsLink
from tests.support.memory_node import MemoryNode
from tests.support.virtual_time import virtual, virtual_clock

NODES = [f"n{number}" for number in range(1, 65)]
FILE = """
pdtui: 1
name: large
platform: a2
vllm_ascend: "0.22.1rc1"
model: {{path: /models/r1, served_name: ds_r1, kind: moe}}
kv: {{connector: MooncakeConnectorV1}}
nodes:
{nodes}
groups:
  p: {{role: prefill, nodes: [n1], dp_size: 1, tp_size: 8, api_port: 7100, rpc_port: 12321, kv_port: 14000}}
  d: {{role: decode, nodes: [{decode}], dp_size: 63, tp_size: 8, api_port: 7100, rpc_port: 12321, kv_port: 14100}}
"""

CALL = 0.5
"""Seconds of a call of a tool."""

ROUND = (3 * CALL) * 2 + CALL
"""Seconds for what makes the verdicts of a node: three questions of six NPUs, then of two; the table beside."""


def write_file(folder: Path) -> Path:
    path = folder / "large.yaml"
    nodes = "\n".join(f"  {name}: {{host: 192.0.2.{i}, nic: eth0}}" for i, name in enumerate(NODES, 1))
    path.write_text(FILE.format(nodes=nodes, decode=", ".join(NODES[1:])))
    return path


@virtual
async def test_a_node_that_hangs_and_one_that_falls_silent_delay_no_other(tmp_path: Path) -> None:
    clock = virtual_clock()
    topology = load_checked(write_file(tmp_path))
    links: dict[str, ToolsLink] = {}
    for name in NODES:
        tools = Tools(clock, a3=False)
        tools.takes = CALL
        links[name] = ToolsLink(MemoryNode(name, clock, handler=tools.handle), tools)
    links["n17"].tools.hanging = {None, *range(8)}  # Each call ends with its time-out.
    links["n40"].node.stuck = True  # The agent answers nothing at all.
    fleet = Fleet(
        topology,
        make_plan(topology),
        clock=clock,
        read_only=False,
        by="ann@desk",
        journal_dir=tmp_path / "journal",
        links=links,
    )

    def node(name: str) -> NodeStatus:
        found = fleet.snapshot.node(name)
        assert found is not None
        return found

    well = [name for name in NODES if name not in ("n17", "n40")]
    async with fleet:
        await clock.sleep(ROUND)
        for name in well:
            assert {npu.verdict for npu in node(name).npus} == {Verdict.HEALTHY}, name
        for name in ("n17", "n40"):
            assert {npu.verdict for npu in node(name).npus} <= {Verdict.UNKNOWN}, name

        # The next round comes in its time too, while the two are still being waited for.
        for name in well:
            links[name].tools.link[3] = "DOWN"
        await clock.sleep(30 * 1.15 + ROUND)
        for name in well:
            assert [npu.id for npu in node(name).npus if npu.verdict is Verdict.FAILED] == [3], name
        assert node("n17").tool_error.startswith("npu-smi hangs since")
        assert all("hangs" in npu.reasons[0].summary for npu in node("n17").npus)

        # Nobody asks a device twice at once, and who hangs is left alone.
        assert all(link.tools.most_at_once <= 1 for link in links.values())
        assert len(links["n17"].tools.calls) < 4 * 9
