"""A small cluster in memory: two prefill groups, one decode group over two nodes, and a fleet over it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from pdtui.fleet.fleet import Fleet
from pdtui.fleet.snapshot import RankState
from pdtui.topology.load import load_checked
from pdtui.topology.model import Topology
from pdtui.topology.plan import Plan
from pdtui.topology.planner import make_plan
from tests.support.manual_clock import ManualClock, settle
from tests.support.memory_node import MemoryNode

T = TypeVar("T")

FILE = """
pdtui: 1
name: {name}
platform: {platform}
vllm_ascend: "0.22.1rc1"
safety: {{protected: {protected}}}
start: {start}
model: {{path: /models/r1, served_name: ds_r1, kind: moe}}
kv: {{connector: MooncakeConnectorV1}}
nodes:
  node1: {{host: 192.0.0.1, nic: eth0}}
  node2: {{host: 192.0.0.2, nic: eth0}}
  node3: {{host: 192.0.0.3, nic: eth0}}
  node4: {{host: 192.0.0.4, nic: eth0}}
defaults:
  env: {{OMP_NUM_THREADS: 10, HF_TOKEN: very-secret}}
  args: {{enable-expert-parallel: true, max-model-len: {max_model_len}}}
roles:
  decode: {{args: {{max-num-seqs: 40}}}}
groups:
  p1: {{role: prefill, nodes: [node1], dp_size: 1, tp_size: 8, api_port: 7100, rpc_port: 12321, kv_port: 14000}}
  p2: {{role: prefill, nodes: [node2], dp_size: 1, tp_size: 8, api_port: 7100, rpc_port: 12321, kv_port: 14100}}
  decode:
    {{role: decode, nodes: [node3, node4], dp_size: 4, tp_size: 1,
      api_port: 7100, rpc_port: 12321, kv_port: 14200}}
proxy: {{node: node1, listen: 0.0.0.0, port: 1999}}
"""

ALL = ("p1/0", "p2/0", "decode/0", "decode/1", "decode/2", "decode/3")
DECODE = ALL[2:]


def write_file(folder: Path, **changes: object) -> Path:
    """Write the cluster's file."""
    values: dict[str, object] = {
        "name": "tiny",
        "platform": "a3",
        "protected": "false",
        "start": "{}",
        "max_model_len": 40000,
    }
    path = folder / "cluster.yaml"
    path.write_text(FILE.format(**{**values, **changes}))
    return path


class Cluster:
    """The nodes, the clock, and fleets over them."""

    def __init__(self, folder: Path, **changes: object) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.load(write_file(folder, **changes))
        self.nodes: Mapping[str, MemoryNode] = {name: MemoryNode(name, self.clock) for name in self.topology.nodes}

    def load(self, path: Path) -> None:
        """Load a file; the nodes stay as they are."""
        self.topology: Topology = load_checked(path)
        self.plan: Plan = make_plan(self.topology)

    def node_of(self, rank: str) -> MemoryNode:
        """Return the server of a rank."""
        return self.nodes[self.plan.by_id[rank].node]

    @asynccontextmanager
    async def fleet(self, *, by: str = "ann@desk", settled: bool = True, **options: Any) -> AsyncIterator[Fleet]:
        """Run another console's fleet."""
        links = {name: node.link() for name, node in self.nodes.items()}
        fleet = Fleet(
            self.topology,
            self.plan,
            clock=self.clock,
            read_only=options.pop("read_only", False),
            by=by,
            journal_dir=options.pop("journal_dir", self.folder / "journal"),
            links=links,
            **options,
        )
        async with fleet:
            if settled:
                assert await self.drive(fleet.settled(10))
            yield fleet

    async def drive(self, work: Awaitable[T], *, limit: float = 4000.0, step: float = 0.5) -> T:
        """Let time pass until `work` is done."""
        task = asyncio.ensure_future(work)
        await settle()
        end = self.clock.monotonic() + limit
        while not task.done():
            assert self.clock.monotonic() < end, "not done in time"
            await self.clock.advance(step)
        return await task

    async def until(self, probe: Callable[[], object], *, limit: float = 60.0) -> float:
        """Let time pass until `probe` is true; returns how many seconds that took."""
        start = self.clock.monotonic()
        while not probe():
            assert self.clock.monotonic() - start < limit, "not true in time"
            await self.clock.advance(0.25)
        return self.clock.monotonic() - start

    def states(self, fleet: Fleet) -> Mapping[str, RankState]:
        """Return every rank's state as a fleet sees it."""
        return {rank.id: rank.state for rank in fleet.store.ranks.values()}
