"""What watching 64 nodes of 16 NPUs and 8 ranks costs the console's engine, in steady state.

By hand: `python -m tests.bench.watching [--nodes 64] [--ranks 8] [--seconds 120]`.

Each node is a channel in memory that speaks the agent's protocol with answers of real size: the tools' texts, what
an agent keeps of a recorded /metrics, the census of servers with their environment. Above it everything is the
console's own: RPC, readers, verdicts, alarms. Time is virtual, so `--seconds` pass as fast as they can be worked
off; CPU is of this process without what the nodes took. Compare the figures of one run with each other: `decoding`
is what reading the same frames with json and base64 alone costs.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pdtui.fleet.lookout import CALM_INTERVAL
from pdtui.fleet.metering import Meters
from pdtui.fleet.monitor import NpuMonitor
from pdtui.fleet.ranks import metrics_interval
from pdtui.fleet.snapshot import NpuStatus
from pdtui.fleet.strangers import Census
from pdtui.readings.vllm_metrics import KEEP
from pdtui.remote.channel import Channel, ExitInfo
from pdtui.remote.client import AgentClient
from pdtui.remote.interface import NodeAgent
from pdtui.remote.messages.commands import Command, Facts
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan
from tests.fleet.npu_tools import Tools, ToolsLink
from tests.support.memory_node import MemoryNode
from tests.support.virtual_time import VirtualClock, VirtualLoop, run_virtual

ROOT = Path(__file__).parents[2]
METRICS = ROOT / "tests" / "readings" / "data" / "vllm" / "metrics_decode.txt"
ENVIRONMENT = {f"VARIABLE_{i}": f"/usr/local/Ascend/some/folder/of/a/node/{i}" for i in range(40)}
"""Of a server; the file of a real rank sets about as many."""


def _kept() -> str:
    """Return what an agent keeps of a recorded answer."""
    names = set(KEEP)
    lines = METRICS.read_text().split("\n")
    return "\n".join(line for line in lines if line.split("{")[0].split(" ")[0] in names) + "\n"


class FarEnd:
    """A node: answers what is written to it, and counts the time that this takes."""

    seconds = 0.0
    """CPU of all nodes."""
    frames: list[bytes] = []  # noqa: RUF012 - of all nodes, on purpose

    def __init__(self, tools: Tools, ranks: int) -> None:
        self.tools = tools
        self.ranks = ranks
        self.reader = asyncio.StreamReader(limit=1 << 24)
        self.metrics = _kept()
        self.asked = 0

    def write(self, data: bytes) -> None:
        """Take requests and answer them."""
        begin = time.thread_time()
        for line in data.splitlines():
            request = json.loads(line)
            for frame in self._frames(request["id"], request["op"], request["args"]):
                raw = json.dumps(frame, separators=(",", ":")).encode() + b"\n"
                if len(FarEnd.frames) < 20000:
                    FarEnd.frames.append(raw)
                self.reader.feed_data(raw)
        FarEnd.seconds += time.thread_time() - begin

    async def drain(self) -> None:
        """Everything is taken at once."""

    def close(self) -> None:
        """End."""
        self.reader.feed_eof()

    def _frames(self, number: int, op: str, args: Any) -> Sequence[dict[str, Any]]:
        if op == "batch":
            frames: list[dict[str, Any]] = []
            for n, wire in enumerate(args["commands"]):
                done = self.tools.handle(Command(tuple(wire["argv"]), device=wire.get("device")))
                item = {"status": done.status, "timed_out": False, "truncated": False, "seconds": 0.51}
                frames.append({"id": number, "data": [f"{n}.stdout", base64.b64encode(done.stdout).decode()]})
                frames.append({"id": number, "item": item, "n": n})
            return [*frames, {"id": number, "ok": {}}]
        if op == "http":
            self.asked += 1
            text = self.metrics.replace('engine="0"', f'engine="{id(self) + self.asked % self.ranks}"')
            body = text.replace(" 0.0\n", f" {self.asked}.0\n", 3).encode()
            return [
                {"id": number, "data": ["body", base64.b64encode(body).decode()]},
                {"id": number, "ok": {"status": 200, "seconds": 0.01}},
            ]
        if op == "processes":
            known = {pid for pid, _ in args["known"]}
            return [{"id": number, "ok": {"processes": [self._process(i, known) for i in range(self.ranks)]}}]
        if op == "read":
            return [{"id": number, "error": {"code": "not_found", "message": "no such file"}}]
        return [{"id": number, "ok": {"wall": 1_800_000_000.0}}]

    def _process(self, i: int, known: set[int]) -> dict[str, Any]:
        pid = 4000 + 10 * i
        view: dict[str, Any] = {
            "pid": pid,
            "start": 1,
            "ppid": 1,
            "tree": [pid + k for k in range(1, 4)],
            "output": {"kind": "file", "path": f"/var/log/rank{i}.log", "name": "", "id": str(i)},
        }
        if pid not in known:
            argv = ["vllm", "serve", "/models/r1", *(f"--flag-{k}={k}" for k in range(40))]
            view.update(session=pid, started=1.0, argv=argv, env=ENVIRONMENT, user="root", rank="", inner=0)
        return view


class Rack:
    """The nodes, and a console's clients of them."""

    def __init__(self, nodes: int, ranks: int, loop: VirtualLoop) -> None:
        self.clock = VirtualClock(loop)
        self.ranks = ranks
        self.tools = [Tools(self.clock) for _ in range(nodes)]
        self.ends = [FarEnd(tools, ranks) for tools in self.tools]
        closed: asyncio.Future[ExitInfo] = loop.create_future()
        facts = Facts(1, "3.11", "root", 0, "n", "m", "b", 0.0, "/state")
        self.agents = [AgentClient(Channel(end.reader, end, closed), facts, self.clock) for end in self.ends]


async def measure(rack: Rack, seconds: float, work: Callable[[Rack], Sequence[Awaitable[object]]]) -> float:
    """Return the share of a core that something takes, its first half minute left out."""
    tasks = [asyncio.ensure_future(one) for one in work(rack)]
    await rack.clock.sleep(100.0)
    begin, apart = time.thread_time(), FarEnd.seconds
    await rack.clock.sleep(seconds)
    used = time.thread_time() - begin - (FarEnd.seconds - apart)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return used / seconds


def nothing(_rack: Rack) -> Sequence[Awaitable[object]]:
    """Keep the connections alive."""
    return ()


def npus(rack: Rack) -> Sequence[Awaitable[object]]:
    """Poll all NPUs."""
    topology = load_checked(ROOT / "sample_configs" / "demo.yaml")
    plan, node = make_plan(topology), next(iter(topology.nodes))

    def publish(_node: str, _npus: tuple[NpuStatus, ...], _at: float, _error: str) -> None:
        """Throw it away."""

    runs = []
    for i, (agent, tools) in enumerate(zip(rack.agents, rack.tools, strict=True)):
        link = _Link(MemoryNode(node, rack.clock), tools, agent)
        runs.append(NpuMonitor(link, node, topology, plan, clock=rack.clock, publish=publish, chance=str(i)).run())
    return runs


class _Link(ToolsLink):
    """A link that hands out a real client."""

    def __init__(self, node: MemoryNode, tools: Tools, agent: NodeAgent) -> None:
        super().__init__(node, tools)
        self._client = agent

    @property
    def host_agent(self) -> NodeAgent | None:
        return self._client


def metrics(rack: Rack) -> Sequence[Awaitable[object]]:
    """Read the metrics of all ranks."""
    topology = load_checked(ROOT / "sample_configs" / "demo.yaml")
    rank = make_plan(topology).ranks[0]
    meters = Meters(clock=rack.clock)
    every = metrics_interval(len(rack.agents) * rack.ranks)

    async def poll(agent: NodeAgent, i: int, n: int) -> None:
        await rack.clock.sleep(every * (i * 8 + n) / (len(rack.agents) * 8))
        while True:
            await meters.read(agent, replace(rank, id=f"r{i}/{n}"), "192.0.2.1")
            await rack.clock.sleep(every)

    return [poll(agent, i, n) for i, agent in enumerate(rack.agents) for n in range(rack.ranks)]


def censuses(rack: Rack) -> Sequence[Awaitable[object]]:
    """Ask for servers and their environment."""

    async def poll(agent: NodeAgent, i: int) -> None:
        census = Census()
        await rack.clock.sleep(i / 10)
        while True:
            await census.read(
                agent, env=tuple(ENVIRONMENT), pids=range(4000, 4000 + 10 * rack.ranks, 10), skip="c:"
            )
            await rack.clock.sleep(CALM_INTERVAL)

    return [poll(agent, i) for i, agent in enumerate(rack.agents)]


def decoding() -> float:
    """Return the seconds that json and base64 take for a frame, of those that were sent."""
    begin = time.thread_time()
    for raw in FarEnd.frames:
        frame = json.loads(raw)
        if "data" in frame:
            base64.b64decode(frame["data"][1])
    return (time.thread_time() - begin) / max(1, len(FarEnd.frames))


def main() -> None:
    """Measure each part by itself."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    shares = {}
    for name, work in (("connections", nothing), ("npus", npus), ("metrics", metrics), ("environ", censuses)):
        FarEnd.frames.clear()
        loop = VirtualLoop()
        asyncio.set_event_loop(loop)

        async def run(loop: VirtualLoop, work: Callable[[Rack], Sequence[Awaitable[object]]]) -> float:
            return await measure(Rack(options.nodes, options.ranks, loop), options.seconds, work)

        shares[name] = run_virtual(run(loop, work), loop)
        size = sum(map(len, FarEnd.frames)) / max(1, len(FarEnd.frames))
        print(
            f"{name:12} {100 * shares[name]:6.2f} % of a core"
            f"   ({size:.0f} bytes a frame, decoding one {1e6 * decoding():.0f} us)"
        )
    both = shares["metrics"] + shares["environ"] - 2 * shares["connections"]
    print(f"metrics and environ together, without the connections: {100 * both:.2f} % of a core")


if __name__ == "__main__":
    main()
