"""`pdtui watch` and `pdtui ack` as an operator runs them, on a simulated cluster over SSH."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from pdtui.cli.root import main
from pdtui.cli.watch import as_summary
from pdtui.fleet.snapshot import Diagnosis, RankState
from pdtui.sim.simulation import Simulation
from tests.fleet.test_over_ssh import Rack
from tests.support.fake_fleet import FakeFleet, with_rank
from tests.support.waiting import eventually

FILE = """
pdtui: 1
name: tiny
platform: a3
vllm_ascend: "0.22.1rc1"
model: {path: /models/r1, served_name: ds_r1, kind: dense}
kv: {connector: MooncakeConnectorV1}
nodes:
  node1: {host: 192.0.0.1, nic: eth0}
  node2: {host: 192.0.0.2, nic: eth0}
groups:
  p: {role: prefill, nodes: [node1], dp_size: 1, tp_size: 8, api_port: 7100, rpc_port: 12321, kv_port: 14000}
  d: {role: decode, nodes: [node2], dp_size: 1, tp_size: 1, api_port: 7100, rpc_port: 12321, kv_port: 14200}
"""

Told = list[dict[str, Any]]


@pytest.fixture
async def rack(tmp_path: Path) -> AsyncIterator[Rack]:
    source = tmp_path / "cluster.yaml"
    source.write_text(FILE)
    async with Simulation(source, tmp_path / "sim", speed=60.0) as simulation:
        yield Rack(simulation, tmp_path / "home")


async def listen(stream: asyncio.StreamReader, told: Told) -> None:
    """Collect lines of JSON."""
    while line := await stream.readline():
        told.append(json.loads(line))


async def narration(stream: asyncio.StreamReader, heard: list[str]) -> None:
    while line := await stream.readline():
        heard.append(line.decode().strip())


def scraped(url: str) -> str:
    with urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
        return text


async def heard_of(told: Told, **wanted: object) -> Mapping[str, Any]:
    """Wait for something that is told."""

    def found() -> Told:
        return [one for one in told if all(one.get(key) == value for key, value in wanted.items())]

    return (await eventually(found, within=60, what=str(wanted)))[0]


def test_the_state_at_the_start_names_no_rank_that_another_one_took_with_it() -> None:
    died = FakeFleet.healthy().snapshot
    for rank in ("decode/8", "decode/9", "decode/10"):
        why = Diagnosis("link" if rank == "decode/9" else "lost its group", first_cause="decode/9")
        died = with_rank(died, rank, state=RankState.FAILED, diagnosis=why)
    line = as_summary(died)
    assert "3 wrong (decode/9 failed" in line
    assert line.endswith("link, and 2 more)")


@pytest.mark.slow
async def test_a_killed_rank_and_a_link_that_goes_down(rack: Rack, tmp_path: Path) -> None:
    assert (await rack.run("start", "all"))[0] == 0
    hooked = tmp_path / "hooked"
    watch = await rack.begin("watch", "--json", "--prometheus", "0", "--hook", f"sh -c 'cat >>{hooked}; exit 4'")
    assert watch.stdout is not None
    assert watch.stderr is not None
    told: Told = []
    heard: list[str] = []
    readers = [
        asyncio.ensure_future(listen(watch.stdout, told)),
        asyncio.ensure_future(narration(watch.stderr, heard)),
    ]
    await eventually(lambda: told, within=60, what="the summary")
    first = told[0]
    assert (first["kind"], first["serving"], first["nodes"], first["troubles"]) == (
        "summary",
        "SERVING",
        [2, 2],
        [],
    )
    url = next(line.partition(": ")[2] for line in heard if line.startswith("Prometheus: "))

    # A link goes down, its rank dies: the NPUs of its node are read at once.
    await rack.simulation.fault("link node2/3 down")
    for pid in rack.pids("d/0", "vllm serve"):
        os.kill(pid, signal.SIGKILL)
    died = await heard_of(told, kind="rank", subject="d/0", worse=True)
    assert (died["before"], died["after"], died["key"], died["cluster"]) == (
        "ready",
        "failed",
        "d/0:failed",
        "tiny",
    )
    assert "signal 9" in died["summary"]
    await heard_of(told, kind="service", after="DOWN")
    down = await heard_of(told, kind="npu", subject="node2/3", after="failed")
    assert down["key"] == "node2/3:link-down"

    def handed() -> list[Mapping[str, Any]]:
        return [json.loads(line) for line in hooked.read_text().splitlines()] if hooked.exists() else []

    await eventually(lambda: died in handed() and down in handed(), what="the hook")
    await eventually(lambda: [line for line in heard if line == "hook exit 4"], what="its failure")
    text = await asyncio.to_thread(scraped, url)
    for sample in (
        'pdtui_npu_verdict{node="node2",npu="3",verdict="failed"} 1.0',
        'pdtui_rank_state{group="d",node="node2",rank="d/0",role="decode",state="failed"} 1.0',
        'pdtui_serving{word="DOWN"} 1.0',
        'pdtui_trouble{acknowledged="false",id="link-down",kind="npu",severity="error",subject="node2/3"} 1.0',
    ):
        assert sample in text
    assert 'pdtui_hook_runs_total{result="failed"} 0.0' not in text

    # Both are known from now on: by another console, on all nodes, for the one that watches too.
    given = await asyncio.gather(
        rack.run("ack", "node2/*:link-down", "--reason", "cables are moved", "--for", "2d"),
        rack.run("ack", "d/0:failed", "--reason", "test", "--json"),
    )
    assert [code for code, _, _ in given] == [0, 0], given
    assert json.loads(given[1][1])["acknowledgement"]["troubles"] == ["d/0:failed"]
    code, out, _ = await rack.run("status")
    assert code == 0, out
    assert "cables are moved" in out
    await eventually(lambda: "pdtui_acknowledgements 2.0" in scraped(url), within=60)
    assert "pdtui_healthy 1.0" in await asyncio.to_thread(scraped, url)
    await rack.run("ack", "node2/*:link-down", "--remove")
    again = await heard_of(told, subject="node2/3", before="failed", after="failed")
    assert again["summary"] == "no longer acknowledged: link DOWN"
    await eventually(lambda: again in handed(), what="the hook, again")

    # The file is edited: said, and not loaded.
    rack.file.write_text(rack.file.read_text() + "\nnonsense: [")
    await heard_of(told, kind="file", after="broken")
    watch.terminate()
    assert await asyncio.wait_for(watch.wait(), 60) == 0
    await asyncio.gather(*readers)

    text = rack.file.read_text()
    rack.file.write_text(text[: text.index("\nnonsense")])
    other, (_, lines, _) = await asyncio.gather(
        rack.begin("watch", "--only", "worse"), rack.run("journal", "--transitions")
    )
    for words in ("watch: began", "WORSE  d/0  ready -> failed", "acknowledge  key: d/0:failed", "watch: ended"):
        assert words in lines
    # Another one does not tell it all again.
    assert other.stdout is not None
    line = (await asyncio.wait_for(other.stdout.readline(), 60)).decode()
    assert "watching: tiny DOWN, P 1/1 D 0/1, 2/2 nodes, 1 wrong (node2/3 link DOWN)" in line
    assert "1 acknowledged" in line
    other.send_signal(signal.SIGINT)
    rest, err = await asyncio.wait_for(other.communicate(), 60)
    assert (other.returncode, rest) == (130, b""), err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("watch", "--hook", "nonsuch-program x"), "no program nonsuch-program"),
        (("watch", "--prometheus", "99999"), "'--prometheus'"),
        (("ack", "node2/3:link-down"), "needs --reason"),
        (("ack", "x", "--reason", "r", "--for", "soon"), "'soon' is no length of time"),
        (("ack", "--remove"), "--remove needs a KEY"),
    ],
)
def test_what_cannot_work_is_said_before_anything_begins(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(FILE)
    with pytest.raises(SystemExit) as end:
        main([words[0], str(file), *words[1:]])
    assert end.value.code == 2
    assert said in capsys.readouterr().err
