"""Measure by hand what watching costs: `python -m tests.bench.watch_nodes [--nodes 64] [--seconds 60]`.

A fleet over servers in memory, at their real pace: 16 NPUs each, all ranks ready. Prints the CPU of one second
without and with `Watch` and Prometheus (a scrape each 15 s); the servers' own answers are in both, in the same
process. Then the memory: so many changes as fast as they can be told, with a hook, and how much more is held after
each tenth of them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import resource
import tempfile
import time
import tracemalloc
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

from prometheus_client import CollectorRegistry, generate_latest

from pdtui.clock import SystemClock
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import StartRanks
from pdtui.fleet.snapshot import RankState
from pdtui.fleet.transitions import Follower
from pdtui.fleet.watching.exporter import Exporter, serve
from pdtui.fleet.watching.hook import Hook
from pdtui.fleet.watching.watch import Watch
from pdtui.readings.verdict import Reason, Verdict
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan
from tests.fleet.npu_tools import Tools, ToolsLink
from tests.support.fake_fleet import FakeFleet, with_npu, with_rank
from tests.support.memory_node import MemoryNode
from tests.support.waiting import eventually
from tests.topology.generate import large

SERVED = "served_name: m, kind: dense}\nstart: {stagger: 0s, warm_up: false}"


def cpu() -> float:
    """Return the seconds of CPU that this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def of(seconds: float) -> float:
    """Return the CPU of one second, in per cent of a core."""
    began, spent = time.monotonic(), cpu()
    await asyncio.sleep(seconds)
    return 100 * (cpu() - spent) / (time.monotonic() - began)


async def measure(folder: Path, nodes: int, seconds: float) -> None:
    """Print the CPU."""
    file = folder / "large.yaml"
    file.write_text(large(nodes).replace("served_name: m}", SERVED))
    topology = load_checked(file)
    plan = make_plan(topology)
    clock = SystemClock()
    servers = {name: MemoryNode(name, clock) for name in topology.nodes}
    for node in servers.values():
        node.handler = Tools(clock).handle
    links = {name: ToolsLink(node, Tools(clock)) for name, node in servers.items()}
    fleet = Fleet(topology, plan, clock=clock, read_only=False, by="bench", journal_dir=folder, links=links)
    async with fleet:
        await fleet.settled(60)
        await fleet.submit(StartRanks(tuple(rank.id for rank in plan.ranks)))
        await eventually(lambda: {rank.state for rank in fleet.snapshot.ranks} == {RankState.READY}, within=600)
        print(f"{nodes} nodes, {len(plan.ranks)} ranks ready: {await of(seconds):.1f} % of a core without it")
        told: list[object] = []
        watch = Watch(fleet, clock=clock, by="bench", folder=folder, tell=told.append, complain=print)
        exporter = Exporter(lambda: fleet.store.snapshot, clock.wall, transitions=watch.counts)
        server, thread = serve(exporter, 0)
        task = asyncio.ensure_future(watch.run())
        scraping = asyncio.ensure_future(scrapes(server.server_port))
        print(f"{await of(seconds):.1f} % with watching and a scrape each 15 s, {len(told)} told")
        task.cancel()
        scraping.cancel()
        server.shutdown()
        server.server_close()
        thread.join()


def pieces(nodes: int) -> None:
    """Print the CPU of one look at a picture in which every NPU was read anew, and of one scrape."""
    well = FakeFleet.healthy(nodes=nodes).snapshot
    anew = replace(
        well,
        nodes=tuple(
            replace(node, npus=tuple(replace(npu, temperature_c=61.0) for npu in node.npus)) for node in well.nodes
        ),
        ranks=tuple(replace(rank, run=rank.run + 1) for rank in well.ranks),
    )
    follower, registry = Follower(well), CollectorRegistry()
    registry.register(Exporter(lambda: well, time.time, transitions={}))
    for what, act in (
        ("a look", lambda: (follower.take(anew), follower.take(well))),
        ("a scrape", lambda: (generate_latest(registry), generate_latest(registry))),
    ):
        spent = time.process_time()
        for _ in range(5):
            act()
        print(f"{nodes} nodes, {len(well.ranks)} ranks: {what}: {100 * (time.process_time() - spent):.1f} ms")


async def scrapes(port: int) -> None:
    while True:
        began = time.monotonic()
        data = await asyncio.to_thread(lambda: urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read())
        print(f"  a scrape: {len(data)} bytes, {time.monotonic() - began:.2f} s")
        await asyncio.sleep(15)


async def grow(folder: Path, changes: int) -> None:
    """Print how much more memory is held after so many changes."""
    fake = FakeFleet.healthy(nodes=8)
    watch = Watch(
        fake,
        clock=SystemClock(),
        by="bench",
        folder=folder,
        tell=lambda _: None,
        complain=print,
        hook=Hook(("true",), clock=SystemClock(), tell=lambda _: None),
    )
    well = fake.snapshot
    reason = Reason(Verdict.FAILED, "link DOWN", id="link-down")
    tracemalloc.start()
    for number in range(changes):
        made = with_npu(well, f"node{number % 8 + 1}", number % 16, verdict=Verdict.FAILED, reasons=(reason,))
        made = replace(with_rank(made, "decode/3", state=RankState.FAILED), made_at=well.made_at + number)
        for one in (*watch._follower.take(made), *watch._follower.take(well)):
            watch._pass_on(one)
        if number % max(1, changes // 10) == 0:
            gc.collect()
            held, _ = tracemalloc.get_traced_memory()
            files = sum(path.stat().st_size for path in folder.glob("transitions*"))
            print(f"{number:8} changes: {held / 1024:.0f} KB held, {files / 1024:.0f} KB of journal")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--changes", type=int, default=20_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(grow(Path(folder), asked.changes))
        pieces(asked.nodes)
        asyncio.run(measure(Path(folder), asked.nodes, asked.seconds))


if __name__ == "__main__":
    main()
