from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pdtui.errors import ConnectError
from pdtui.fleet.handle import LogLine
from pdtui.fleet.logs import LogBook, LogSource, Merger, _Ring, follow_merged, read_tail
from pdtui.fleet.stages import StageTails
from pdtui.readings.lines import LineSplitter
from pdtui.remote.messages.commands import LogChunk
from pdtui.remote.messages.ranks import ProcessState, RankRecord
from pdtui.topology.model import Role
from pdtui.topology.plan import RankPlan
from tests.support.manual_clock import ManualClock, settle
from tests.support.memory_node import MemoryAgent, MemoryLink, MemoryNode

RANK = "decode/3"


class Bench:
    def __init__(self, limit: int = 1000, tail: int = 1 << 18) -> None:
        self.clock = ManualClock()
        self.node = MemoryNode("node1", self.clock)
        self.link = MemoryLink(self.node)
        self.link.refresh()
        self.node.links.append(self.link)
        self.sources: dict[str, LogSource] = {RANK: LogSource("node1", "/log/1", 1)}
        self.book = LogBook({"node1": self.link}, self.sources.get, clock=self.clock, limit=limit, tail=tail)

    async def pass_by(self, seconds: float = 3.0) -> None:
        for _ in range(round(seconds * 2)):
            await self.clock.advance(0.5)
            await settle()

    def write(self, text: str, path: str = "/log/1") -> None:
        self.node.append(path, text.encode())

    def texts(self, rank: str = RANK) -> list[str]:
        view = self.book.log(rank)
        lines = self.book.log_lines(rank, view.first_seq, view.next_seq - view.first_seq)
        assert [line.seq for line in lines] == list(range(view.first_seq, view.next_seq))
        return [line.text for line in lines]


@asynccontextmanager
async def following(bench: Bench) -> AsyncIterator[Bench]:
    task = asyncio.create_task(bench.book.run())
    await settle()
    try:
        yield bench
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_lines_come_from_the_first_look_on() -> None:
    bench = Bench()
    bench.write("one\n\x1b[31mERROR 11-30 12:00:00 [x.py:1] two\x1b[0m\nhalf")
    async with following(bench):
        assert bench.book.log(RANK).next_seq == 0
        await bench.pass_by(1)
        assert bench.texts() == ["one", "ERROR 11-30 12:00:00 [x.py:1] two"]
        assert [line.severity for line in bench.book.log_lines(RANK, 0, 9)] == ["", "error"]
        assert bench.book.log(RANK).partial == "half"
        bench.write(" done\nthree\n")
        await bench.pass_by(1)
        assert bench.texts()[2:] == ["half done", "three"]
        assert bench.book.log(RANK).partial == ""


async def test_a_rank_without_a_log_says_so_and_its_log_comes_when_it_starts() -> None:
    bench = Bench()
    bench.sources.clear()
    async with following(bench):
        bench.book.log(RANK)
        await bench.pass_by(1)
        assert "not been started" in bench.book.log(RANK).error
        bench.write("hello\n")
        bench.sources[RANK] = LogSource("node1", "/log/1", 1)
        await bench.pass_by(2)
        assert bench.texts() == ["hello"]
        assert bench.book.log(RANK).error == ""


async def test_a_node_that_was_never_reached_is_named_with_its_error() -> None:
    bench = Bench()
    bench.sources[RANK] = LogSource("node1", "")
    bench.node.cut(ConnectError("127.0.0.1:2222: connection refused", kind="refused"))
    async with following(bench):
        bench.book.log(RANK)
        await bench.pass_by(1)
        said = bench.book.log(RANK).error
        assert said.startswith("node1 is not connected: 127.0.0.1:2222: connection refused")
        bench.node.restore()
        await bench.pass_by(1)
        assert "not been started" in bench.book.log(RANK).error


async def test_after_a_lost_connection_the_log_goes_on_where_it_stopped() -> None:
    bench = Bench()
    bench.write("one\ntw")
    async with following(bench):
        bench.book.log(RANK)
        await bench.pass_by(1)
        bench.node.cut()
        await bench.pass_by(2)
        assert "not connected" in bench.book.log(RANK).error
        assert bench.texts() == ["one"]
        bench.write("o\nthree\n")
        bench.node.restore()
        await bench.pass_by(3)
        assert bench.texts() == ["one", "two", "three"]
        assert bench.book.log(RANK).error == ""
        assert bench.book.log(RANK).dropped == 0


async def test_a_new_run_is_marked_and_its_log_follows() -> None:
    bench = Bench()
    bench.write("old\nlast words")
    async with following(bench):
        bench.book.log(RANK)
        await bench.pass_by(1)
        bench.sources[RANK] = LogSource("node1", "/log/2", 2)
        bench.write("new\n", "/log/2")
        await bench.pass_by(4)
        assert bench.texts() == ["old", "last words", "--- run 2 on node1 ---", "new"]


async def test_only_the_end_of_a_long_log_is_fetched_and_what_is_missing_is_said() -> None:
    bench = Bench(tail=1000)
    bench.write("".join(f"line {i:05d}\n" for i in range(10_000)))
    async with following(bench):
        bench.book.log(RANK)
        await bench.pass_by(1)
        texts = bench.texts()
        assert texts[0] == "--- 106 KiB before this are not shown ---"
        assert texts[1].startswith("line ")
        assert len(texts[1]) == len("line 00000")
        assert texts[-1] == "line 09999"
        assert 8000 < bench.book.log(RANK).dropped < 12_000


class ScriptedAgent(MemoryAgent):
    """An agent whose followed file says exactly this."""

    def __init__(self, node: MemoryNode, chunks: Sequence[LogChunk]) -> None:
        super().__init__(node)
        self.chunks = chunks

    async def follow(
        self, path: str, *, offset: int | None = None, tail: int = 65536, mark: bool = False
    ) -> AsyncIterator[LogChunk]:
        for chunk in self.chunks:
            yield chunk
        await asyncio.Event().wait()


async def test_a_gap_is_marked_and_no_line_is_glued_together_over_it() -> None:
    bench = Bench()
    bench.link._agent = ScriptedAgent(
        bench.node,
        [
            LogChunk("/log/1", 0, b"one\nhal", 7),
            LogChunk("/log/1", 5007, b"f of another\nwhole\n", 5026, gap=True),
        ],
    )
    async with following(bench):
        bench.book.log(RANK)
        await bench.pass_by(1)
        assert bench.texts() == ["one", "hal", "--- 5 KiB before this are gone ---", "whole"]
        assert bench.book.log(RANK).dropped > 100


async def test_the_ring_keeps_the_newest_and_numbers_go_on() -> None:
    bench = Bench(limit=1000)
    async with following(bench):
        bench.book.log(RANK)
        bench.write("")
        await bench.pass_by(1)
        for block in range(50):
            bench.write("".join(f"{block * 100 + i}\n" for i in range(100)))
            await bench.pass_by(0.5)
        view = bench.book.log(RANK)
        assert view.next_seq == 5000
        assert 1000 <= view.next_seq - view.first_seq <= 1600
        assert bench.texts() == [str(i) for i in range(view.first_seq, 5000)]
        assert bench.book.log_lines(RANK, 0, 10) == ()
        assert [line.text for line in bench.book.log_lines(RANK, 4998, 10)] == ["4998", "4999"]


async def test_progress_bars_take_one_line() -> None:
    bench = Bench()
    async with following(bench):
        bench.book.log(RANK)
        bench.write("")
        await bench.pass_by(1)
        for percent in range(0, 100, 20):
            bench.write(f"\rLoading: {percent}%")
            await bench.pass_by(0.5)
            assert bench.book.log(RANK).partial == f"Loading: {percent}%"
        bench.write("\rLoading: 100%\n")
        await bench.pass_by(0.5)
        assert bench.texts() == ["Loading: 100%"]


async def test_times_are_ours() -> None:
    bench = Bench()
    bench.node.skew = 3600.0
    bench.sources[RANK] = LogSource("node1", "/log/1", 1, clock_offset=3600.0)
    bench.write("one\n")
    async with following(bench):
        bench.book.log(RANK)
        await bench.pass_by(1)
        assert abs(bench.book.log_lines(RANK, 0, 1)[0].at - bench.clock.wall()) < 5


async def test_unfollow_ends_it_and_a_new_look_begins_anew() -> None:
    bench = Bench()
    bench.write("one\n")
    async with following(bench):
        bench.book.log(RANK)
        await bench.pass_by(1)
        bench.book.unfollow(RANK)
        await bench.pass_by(1)
        assert not [task for task in asyncio.all_tasks() if task.get_name() == f"log of {RANK}"]
        assert bench.book.log_lines(RANK, 0, 10) == ()
        bench.book.log(RANK)
        await bench.pass_by(1)
        assert bench.texts() == ["one"]


async def test_another_thread_reads_whole_states_while_lines_come_in() -> None:
    bench = Bench(limit=500)
    stop = threading.Event()
    wrong: list[str] = []
    reads = 0

    def reader() -> None:
        nonlocal reads
        while not stop.is_set():
            view = bench.book.log(RANK)
            lines = bench.book.log_lines(RANK, view.next_seq - 50, 50)
            reads += 1
            wrong.extend(line.text for line in lines if line.text != str(line.seq))
            time.sleep(0.001)

    async with following(bench):
        bench.book.log(RANK)
        bench.write("")
        await bench.pass_by(1)
        thread = threading.Thread(target=reader)
        thread.start()
        try:
            for block in range(200):
                bench.write("".join(f"{block * 50 + i}\n" for i in range(50)))
                await bench.clock.advance(0.01)
                await asyncio.sleep(0.001)
        finally:
            stop.set()
            thread.join()
        assert bench.book.log(RANK).next_seq == 10_000
    assert wrong == []
    assert reads > 10


def test_a_first_look_from_another_thread_wakes_the_loop() -> None:
    async def main() -> None:
        bench = Bench()
        bench.write("one\n")
        async with following(bench):
            await asyncio.to_thread(bench.book.log, RANK)
            await asyncio.sleep(0)
            await bench.pass_by(1)
            assert bench.texts() == ["one"]

    asyncio.run(main())


def test_five_thousand_lines_a_second_cost_a_few_per_cent() -> None:
    line = b"(EngineCore_DP3 pid=77) INFO 11-30 13:22:15 [core.py:133] a line of the usual length, some more\n"
    data = line * 500
    ring, splitter = _Ring(20_000), LineSplitter()
    begin = time.process_time()
    for _ in range(100):
        ring.append(splitter.feed(data), 1.0)
    per_line = (time.process_time() - begin) / 50_000
    assert per_line < 20e-6


def line(seq: int, text: str, at: float = 1_796_000_000.0) -> LogLine:
    return LogLine(seq, at, text)


def test_logs_of_several_ranks_are_put_on_one_clock() -> None:
    first = [
        line(0, "starts"),
        line(1, "INFO 11-30 13:00:05 [x] a"),
        line(2, "  continued"),
        line(3, "INFO 11-30 13:00:09 [x] d"),
    ]
    second = [line(0, "INFO 11-30 13:00:06 [x] b"), line(1, "INFO 11-30 13:00:07 [x] c")]
    merged = Merger().merge({"p1/0": first, "p2/0": second})
    assert [(rank, entry.seq) for rank, entry in merged] == [
        ("p1/0", 0), ("p1/0", 1), ("p1/0", 2), ("p2/0", 0), ("p2/0", 1), ("p1/0", 3),
    ]  # fmt: skip
    ahead = Merger({"p2/0": 2.0}).merge({"p1/0": first, "p2/0": second})
    assert [(rank, entry.seq) for rank, entry in ahead][:2] == [("p2/0", 0), ("p1/0", 0)]


async def test_merged_logs_are_followed() -> None:
    bench = Bench()
    bench.sources["p1/0"] = LogSource("node1", "/log/p", 1)
    bench.write("".join(f"INFO 11-30 13:00:{i:02d} [x] d{i}\n" for i in range(0, 10, 2)))
    bench.write("".join(f"INFO 11-30 13:00:{i:02d} [x] p{i}\n" for i in range(1, 10, 2)), "/log/p")
    async with following(bench):
        bench.book.log(RANK)
        bench.book.log("p1/0")
        await bench.pass_by(1)
        stream = follow_merged(bench.book, [RANK, "p1/0"], clock=bench.clock, last=3)
        first = await anext(stream)
        assert [entry.text[-2:] for _, entry in first] == ["d4", "p5", "d6", "p7", "d8", "p9"]
        bench.write("INFO 11-30 13:00:20 [x] late\n")
        coming = asyncio.ensure_future(anext(stream))
        await bench.pass_by(1)
        assert [(rank, entry.text[-4:]) for rank, entry in await coming] == [(RANK, "late")]
        await stream.aclose()  # type: ignore[attr-defined]


async def test_the_tail_of_a_log_as_it_stands() -> None:
    bench = Bench()
    bench.write("".join(f"line {i}\n" for i in range(1000)) + "no newline")
    agent = bench.link.rank_agent
    assert agent is not None
    reading = asyncio.create_task(read_tail(agent, "/log/1", clock=bench.clock, tail=200))
    await bench.pass_by(2)
    lines = await reading
    assert [entry.text for entry in lines[-2:]] == ["line 999", "no newline"]
    assert lines[0].text.startswith("line ")
    assert len(lines) < 25


async def test_stages_are_read_while_a_rank_starts_and_over_a_lost_connection() -> None:
    bench = Bench()
    rank = RankPlan(RANK, "decode", Role.DECODE, "node1", "10.0.0.1", 3, 0, (3,), 7100, (), (), {}, "")
    record = RankRecord("c", RANK, ProcessState.RUNNING, run=1, log="/log/1")
    stages = StageTails({"node1": bench.link}, clock=bench.clock)
    bench.write("Loading safetensors checkpoint shards:  63% Completed | 1/2")
    stages.watch(rank, record)
    stages.watch(rank, record)
    await bench.pass_by(1)
    assert stages.stage(RANK) == "weights 63 %"
    assert not stages.was_ready(RANK)
    bench.node.cut()
    await bench.pass_by(1)
    bench.write("\nINFO:     Application startup complete.\n")
    bench.node.restore()
    await bench.pass_by(2)
    assert stages.stage(RANK) == "ready"
    assert stages.was_ready(RANK)
    again = RankRecord("c", RANK, ProcessState.RUNNING, run=2, log="/log/2")
    bench.write("INFO [x] Starting to load model x\n", "/log/2")
    stages.watch(rank, again)
    await bench.pass_by(1)
    assert stages.stage(RANK) == "weights"
    await stages.close()
    assert stages.stage(RANK) == ""
