"""Disks that are full, read-only, without locks or without holes: clear words, and nothing half done or lost."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pdtui.errors import AgentError
from pdtui.remote import parse
from pdtui.remote.client import AgentClient
from pdtui.remote.messages.commands import Command
from pdtui.remote.messages.ranks import ProcessState, RankRecord
from pdtui.remote.transports.local import LocalTransport
from tests.remote.conftest import CLOCK, Connect, carriers, following, spec
from tests.remote.injected import inject, need_namespaces
from tests.support.waiting import eventually


@pytest.fixture
async def on_disk(tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """Start agents whose state directory is a small file system of its own, in a namespace of its own."""
    need_namespaces("-Urm")
    local = LocalTransport(CLOCK)
    clients: list[AgentClient] = []
    disk = tmp_path / "disk"
    disk.mkdir()

    async def start(options: str = "size=1m", kind: str = "tmpfs", then: str = "true") -> AgentClient:
        mount = f'mount -t {kind} -o {options} none "$0" && {then} && exec "$@"'
        prefix = ("unshare", "-Urm", "sh", "-c", mount, str(disk))
        clients.append(await AgentClient.connect(local, clock=CLOCK, prefix=prefix, state_dir=str(disk)))
        return clients[-1]

    yield start
    for client in clients:
        await client.close()
    await local.close()


async def shell(agent: AgentClient, script: str) -> str:
    """Run something in the agent's namespace."""
    done = await agent.run(Command(("sh", "-c", script), timeout=60))
    assert done.status == 0, done.stderr
    return done.stdout.decode()


async def only(agent: AgentClient, cluster: str) -> RankRecord:
    """Return the record of the cluster's only rank."""
    (record,) = await agent.ranks(cluster)
    return record


async def until(agent: AgentClient, cluster: str, wanted: Callable[[RankRecord], object]) -> RankRecord:
    """Wait for a record."""

    async def probe() -> list[RankRecord]:
        return [record for record in await agent.ranks(cluster) if wanted(record)]

    found: list[RankRecord] = await eventually(probe)
    return found[0]


@asynccontextmanager
async def refused(code: str, word: str) -> AsyncIterator[None]:
    """Expect an agent's error that says what and what to do."""
    with pytest.raises(AgentError, match=word) as caught:
        yield
    assert (caught.value.code, bool(caught.value.remedy)) == (code, True)


async def test_a_disk_that_fills_up_under_ranks(on_disk: Callable[..., Any], cluster: str) -> None:
    """Nothing starts and nothing is half made; what runs goes on, is listed, stopped and its end recorded."""
    agent: AgentClient = await on_disk("size=1m")
    log = Path(
        (await agent.start_rank(spec(cluster, "trap 'exit 7' TERM; while :; do sleep 0.05; done"))).record.log
    )
    fill = f"cat /dev/zero > {log.parents[3]}/filler 2>/dev/null; true"
    await shell(agent, fill)
    async with refused("disk_full", "No space left"):
        await agent.check_state()
    async with refused("disk_full", "No space left"):
        await agent.start_rank(spec(cluster, rank="decode/1"))
    assert (await shell(agent, f"ls {log.parents[2]}/decode.1 2>/dev/null; true")).split() in ([], ["lock"])
    with pytest.raises(AgentError):
        await agent.journal(cluster, {"entry": "x" * 9000})
    assert (await only(agent, cluster)).state is ProcessState.RUNNING
    assert (await agent.run(Command(("echo", "npu"), device=0, max_age=5))).stdout == b"npu\n"
    stopped = await agent.stop_rank(cluster, "decode/0", grace=20, by="x")
    assert stopped.outcome == "stopped"
    record = await only(agent, cluster)
    assert (record.exit_status, record.stop_requested, record.stopped_by) == (7, True, "x")
    await shell(agent, f"rm {log.parents[3]}/filler")
    await agent.check_state()
    await agent.journal(cluster, {"entry": "whole"})
    lines = (await agent.read_file(f"{log.parents[2]}/journal.jsonl")).splitlines()
    assert json.loads(lines[-1])["entry"] == "whole"
    assert (await agent.start_rank(spec(cluster, rank="decode/1"))).outcome == "started"
    await agent.stop_rank(cluster, "decode/1", grace=20, by="x")


async def test_a_log_that_cannot_be_rotated_for_want_of_room_says_so_and_is_rotated_later(
    on_disk: Callable[..., Any], cluster: str
) -> None:
    agent: AgentClient = await on_disk("size=2m")
    script = "head -c 900000 /dev/zero; while :; do sleep 0.05; echo more; done"
    args = {"spec": asdict(spec(cluster, script)), "rotate": 100_000, "pieces": 3, "interval": 0.2}
    state = agent.facts.state_dir
    await shell(agent, f"head -c 900000 /dev/zero > {state}/filler")
    await agent.request("start", **args)
    await until(agent, cluster, lambda record: "No space left" in record.log_note)
    assert (await only(agent, cluster)).state is ProcessState.RUNNING
    await shell(agent, f"rm {state}/filler")
    await until(agent, cluster, lambda record: record.log_note == "")
    await agent.stop_rank(cluster, "decode/0", grace=20, by="x")


async def test_a_disk_that_goes_read_only_keeps_no_rank_alive_and_no_end_secret(
    on_disk: Callable[..., Any], cluster: str
) -> None:
    agent: AgentClient = await on_disk("size=1m")
    script = "trap 'exit 9' TERM; while :; do sleep 0.05; done"
    first = (await agent.start_rank(spec(cluster, script))).record
    await agent.check_state()
    disk = Path(first.log).parents[4]
    await shell(agent, f"mount --bind {disk} {disk} && mount -o remount,bind,ro {disk}")
    assert (await only(agent, cluster)).state is ProcessState.RUNNING
    async with refused("read_only", "Read-only"):
        await agent.check_state()
    async with refused("read_only", "Read-only"):
        await agent.start_rank(spec(cluster, rank="decode/1"))
    stopped = await agent.stop_rank(cluster, "decode/0", grace=20, by="x")
    assert stopped.outcome == "stopped"
    record = await only(agent, cluster)
    assert (record.state, record.exit_status, record.processes) == (ProcessState.EXITED, 9, ())
    assert record.ended is not None
    await shell(agent, f"umount {disk}")

    async def written() -> bool:
        return b'"empty": true' in await agent.read_file(str(Path(first.log).with_name("exit.json")))

    done: bool = await eventually(written, what="the keeper writes the end as soon as it can")
    assert done
    await eventually(lambda: not carriers(f"/{cluster}/"))
    assert (await only(agent, cluster)).exit_status == 9


async def test_a_disk_without_holes_keeps_the_whole_log_and_says_why(
    on_disk: Callable[..., Any], cluster: str
) -> None:
    agent: AgentClient = await on_disk("mode=755", kind="ramfs")
    script = "head -c 900000 /dev/zero; exec sleep 1000"
    args = {"spec": asdict(spec(cluster, script)), "rotate": 100_000, "pieces": 3, "interval": 0.2}
    value, _ = await agent.request("start", **args)
    log = Path(parse.start_result(value).record.log)
    record = await until(agent, cluster, lambda record: record.log_note)
    assert "not supported" in record.log_note
    assert (await shell(agent, f"ls {log.parent} | grep -c '^log\\.'; stat -c %s {log}; true")).split() == [
        "0",
        "900000",
    ]
    async with asyncio.timeout(30), following(agent, log) as stream:
        chunk = await anext(stream)
    assert (chunk.offset, chunk.gap) == (0, False)
    await agent.stop_rank(cluster, "decode/0", grace=20, by="x")


async def test_a_disk_without_locks_starts_nothing_and_stops_all(
    connect: Connect, cluster: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As NFS without its lock daemon."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    first = await connect()
    record = (await first.start_rank(spec(cluster))).record
    refuse = "def _refuse(*_): raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))\nfcntl.flock = _refuse\n"
    inject(monkeypatch, refuse)
    agent = await connect()
    async with refused("no_locks", "no lock can be had"):
        await agent.check_state()
    async with refused("no_locks", "no lock can be had"):
        await agent.start_rank(spec(cluster, rank="decode/1"))
    assert not (Path(record.log).parents[2] / "decode.1" / "run-1").exists()
    assert (await agent.stop_rank(cluster, "decode/0", grace=20, by="x")).outcome == "stopped"


async def test_a_rank_without_its_folder_is_stopped_on_a_full_disk(
    on_disk: Callable[..., Any], cluster: str
) -> None:
    agent: AgentClient = await on_disk("size=1m,nr_inodes=60")
    record = (await agent.start_rank(spec(cluster))).record
    folder = Path(record.log).parents[1]
    await shell(agent, f"rm -r {folder}; cat /dev/zero > {folder.parent}/filler 2>/dev/null; true")
    await shell(agent, f"i=0; while mkdir {folder.parent}/$i 2>/dev/null; do i=$((i+1)); done; true")
    assert (await agent.stop_rank(cluster, "decode/0", grace=20, by="x")).outcome == "stopped"


async def test_a_record_that_cannot_be_read_is_shown_and_not_started_over(connect: Connect, cluster: str) -> None:
    agent = await connect()
    record = (await agent.start_rank(spec(cluster))).record
    await agent.start_rank(spec(cluster, "exit 0", rank="decode/1"))
    folder = Path(record.log).parents[1]
    folder.rename(folder.with_name("kept"))
    folder.symlink_to(folder)  # Too many levels of symbolic links: as good as an input/output error.
    records = {r.rank: r for r in await agent.ranks(cluster)}
    assert set(records) == {"decode/0", "decode/1"}
    assert (records["decode/0"].state, records["decode/0"].processes) == (ProcessState.UNKEPT, (record.pid,))
    assert "cannot be read" in records["decode/0"].log_note
    with pytest.raises(AgentError):
        await agent.start_rank(spec(cluster))
    folder.unlink()
    folder.with_name("kept").rename(folder)
    assert (await agent.stop_rank(cluster, "decode/0", grace=20, by="x")).outcome == "stopped"


async def test_a_read_only_home_is_told_and_reading_goes_on(tmp_path: Path, cluster: str) -> None:
    need_namespaces("-Urm")
    home = tmp_path / "home"
    local = LocalTransport(CLOCK)
    mount = 'mount -t tmpfs -o ro none "$0" && mount -t tmpfs -o ro none /var/lib && HOME="$0" exec "$@"'
    prefix = ("unshare", "-Urm", "sh", "-c", mount, str(home))
    agent = await AgentClient.connect(local, clock=CLOCK, prefix=prefix)
    try:
        assert agent.facts.state_dir == ""
        assert agent.facts.state_dir_error.count("Read-only") == 2
        async with refused("no_state_dir", "Read-only"):
            await agent.ranks(cluster)
        assert isinstance(await agent.ports(), list)
    finally:
        await agent.close()
        await local.close()


async def test_who_stopped_is_readable_whatever_the_alphabet(connect: Connect, cluster: str) -> None:
    agent = await connect()
    for by in ("运维" * 100 + "@控制台", "short"):
        await agent.start_rank(spec(cluster, "trap '' TERM; while :; do sleep 0.05; done"))
        await agent.stop_rank(cluster, "decode/0", grace=0, by="运维" * 100)
        await agent.stop_rank(cluster, "decode/0", grace=0, by=by)
        record = await only(agent, cluster)
        assert record.stop_requested
        assert by.startswith(record.stopped_by) or record.stopped_by.startswith("运维")
        assert Path(record.log).with_name("stop.json").stat().st_size == 256


async def test_a_state_directory_that_is_no_absolute_path_is_told() -> None:
    local = LocalTransport(CLOCK)
    agent = await AgentClient.connect(local, clock=CLOCK, state_dir="records")
    assert agent.facts.state_dir_error == "records: is no absolute path"
    await agent.close()
    await local.close()
