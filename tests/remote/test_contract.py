"""What every way to a node must do: in memory, here, over a simulated SSH server, OpenSSH's, and in namespaces."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pdtui.errors import AgentError, AgentLost
from pdtui.remote.channel import Transport
from pdtui.remote.client import AgentClient
from pdtui.remote.messages.commands import Command, LogChunk
from pdtui.remote.messages.processes import ProcessInfo
from pdtui.remote.messages.ranks import ProcessState
from pdtui.remote.transports.local import LocalTransport
from tests.remote.conftest import CLOCK, carriers, following, on_node, spec
from tests.support.ack_rules import check_rules
from tests.support.waiting import eventually


async def test_facts_name_the_machine_and_the_folder(agent: AgentClient, state: Path) -> None:
    assert agent.facts.protocol == 1
    assert agent.facts.uid == os.getuid()
    told = await agent.run(Command(("sh", "-c", "cat /proc/sys/kernel/random/boot_id; uname -n")))
    assert told.stdout.decode().split() == [agent.facts.boot_id, agent.facts.hostname]
    assert Path(agent.facts.state_dir).parent == state
    assert Path(agent.facts.state_dir).stat().st_mode & 0o777 == 0o700


async def test_run_keeps_streams_and_status_apart(agent: AgentClient) -> None:
    result = await agent.run(Command(("sh", "-c", "echo out; echo err >&2; exit 7")))
    assert (result.status, result.stdout, result.stderr) == (7, b"out\n", b"err\n")
    assert not result.timed_out


async def test_run_is_argv_and_never_a_shell_line(agent: AgentClient) -> None:
    words = ("printf", "%s|", "a b", "$HOME", "`id`", "'", '"', "\\", "前")
    result = await agent.run(Command(words))
    assert result.stdout.decode() == "a b|$HOME|`id`|'|\"|\\|前|"


async def test_run_passes_binary_output_unchanged(agent: AgentClient) -> None:
    program = "import sys;sys.stdout.buffer.write(bytes(range(256))*3000)"
    result = await agent.run(Command((sys.executable, "-c", program)))
    assert result.stdout == bytes(range(256)) * 3000
    assert not result.truncated


async def test_run_caps_output_and_says_so(agent: AgentClient) -> None:
    result = await agent.run(Command(("sh", "-c", "yes | head -c 9000000"), limit=100_000))
    assert len(result.stdout) == 100_000
    assert result.truncated
    assert result.status == 0


async def test_run_kills_the_whole_process_group_at_its_time(agent: AgentClient, cluster: str) -> None:
    script = f"sleep 1000 /{cluster}/ & exec sleep 1000"
    result = await agent.run(Command(("sh", "-c", f"X=/{cluster}/; export X; {script}"), timeout=0.4))
    assert result.timed_out
    assert result.status == -signal.SIGKILL
    await eventually(lambda: not carriers(f"/{cluster}/"))


async def test_run_says_why_a_command_cannot_start(agent: AgentClient) -> None:
    result = await agent.run(Command(("no-such-tool-here",)))
    assert result.status is None
    assert "No such file" in result.error


async def test_run_finds_vendor_tools_after_the_users_own(agent: AgentClient) -> None:
    result = await agent.run(Command(("sh", "-c", "echo $PATH; echo $LD_LIBRARY_PATH; echo $LC_ALL")))
    path, libraries, language = result.stdout.decode().splitlines()
    assert path.split(":")[0] != "/usr/local/Ascend/driver/tools"
    assert "/usr/local/Ascend/driver/tools" in path.split(":")
    assert libraries.endswith("/usr/local/Ascend/driver/lib64")
    assert language == "C"


async def test_a_command_that_leaves_a_daemon_behind_does_not_hang(agent: AgentClient, cluster: str) -> None:
    async with asyncio.timeout(90):
        result = await agent.run(Command(("sh", "-c", f"X=/{cluster}/ setsid sleep 1000 & echo done"), timeout=60))
    assert result.stdout == b"done\n"
    assert not result.timed_out


async def test_cancelling_the_caller_kills_the_command(agent: AgentClient, cluster: str) -> None:
    script = f"X=/{cluster}/; export X; sleep 1000; true"
    task = asyncio.create_task(agent.run(Command(("sh", "-c", script), timeout=600)))
    await eventually(lambda: carriers(f"/{cluster}/"))
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await eventually(lambda: not carriers(f"/{cluster}/"))
    assert (await agent.run(Command(("true",)))).status == 0


async def test_a_slow_command_delays_no_other(agent: AgentClient) -> None:
    slow = asyncio.create_task(agent.run(Command(("sleep", "300"), timeout=600)))
    async with asyncio.timeout(60):
        assert (await agent.run(Command(("echo", "quick")))).stdout == b"quick\n"
    assert not slow.done()
    slow.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await slow


async def test_batch_runs_one_at_a_time_per_device(agent: AgentClient, tmp_path: Path) -> None:
    log = tmp_path / "order"
    script = f'echo "+$0" >> {log}; sleep 0.02; echo "-$0" >> {log}; echo "$1"'
    commands = [Command(("sh", "-c", script, str(n % 3), str(n)), device=n % 3, key=str(n)) for n in range(12)]
    results = {c.key: r async for c, r in agent.batch(commands, parallel=3)}
    assert {key: r.stdout.decode().strip() for key, r in results.items()} == {str(n): str(n) for n in range(12)}
    for device in "012":
        lines = [line[0] for line in log.read_text().splitlines() if line[1:] == device]
        assert lines == ["+", "-"] * 4


async def test_batch_yields_quick_ones_before_a_hanging_one_ends(agent: AgentClient) -> None:
    hanging = Command(("sleep", "300"), timeout=600, device=0, key="hang")
    quick = [Command(("echo", "x"), device=n, key=str(n)) for n in range(1, 6)]
    async with asyncio.timeout(60):
        results = agent.batch([hanging, *quick], parallel=2)
        order = [(await anext(results))[0].key for _ in quick]
        assert isinstance(results, AsyncGenerator)
        await results.aclose()
    assert order == ["1", "2", "3", "4", "5"]


async def test_two_consoles_share_readings_and_device_locks(
    agent: AgentClient, transport: Transport, state: Path, tmp_path: Path
) -> None:
    other = await AgentClient.connect(transport, clock=CLOCK, state_dir=str(state))
    try:
        count = tmp_path / "count"
        command = Command(("sh", "-c", f"echo x >> {count}; sleep 0.1; cat {count}"), device=3, max_age=60)
        first, second = await asyncio.gather(agent.run(command), other.run(command))
        assert first.stdout == second.stdout == b"x\n"
        assert count.read_text() == "x\n"
        assert sorted((first.age > 0, second.age > 0)) == [
            False,
            True,
        ]  # The second is told its age.
        fresh = await other.run(Command(command.argv, device=3))
        assert fresh.stdout == b"x\nx\n"

        # A tool that hangs on a device is tried once, whichever tool it is, and what is asked of the node as well.
        hung = Command(("sh", "-c", f"echo h >> {count}; sleep 1000"), device=3, max_age=60, timeout=0.5)
        both = await asyncio.gather(agent.run(hung), other.run(hung))
        assert all(one.timed_out for one in both)
        assert count.read_text().count("h") == 1
        table = Command(("sh", "-c", f"echo t >> {count}; sleep 0.1"), max_age=5)
        await asyncio.gather(agent.run(table), other.run(table))
        assert count.read_text().count("t") == 1
    finally:
        await other.close()


async def test_read_file_and_its_errors(agent: AgentClient, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(range(256)) * 1000)
    assert await agent.read_file(str(tmp_path / "f")) == bytes(range(256)) * 1000
    assert await agent.read_file(str(tmp_path / "f"), limit=3) == b"\0\1\2"
    with pytest.raises(AgentError) as caught:
        await agent.read_file(str(tmp_path / "none"))
    assert caught.value.code == "not_found"
    with pytest.raises(AgentError) as caught:
        await agent.read_file(str(tmp_path))
    assert caught.value.code == "not_a_file"


async def test_journal_appends_lines(agent: AgentClient, cluster: str) -> None:
    await agent.journal(cluster, {"what": "start", "who": "我"})
    await agent.journal(cluster, {"what": "stop"})
    text = await agent.read_file(f"{agent.facts.state_dir}/{cluster}/journal.jsonl")
    assert [json.loads(line)["what"] for line in text.splitlines()] == ["start", "stop"]


async def test_names_cannot_leave_the_state_directory(agent: AgentClient) -> None:
    for name in ("../x", "a/b", "", ".hidden"):
        with pytest.raises(AgentError) as caught:
            await agent.journal(name, {})
        assert caught.value.code == "bad_request"


async def test_clock_offset_of_the_same_machine_is_small(agent: AgentClient) -> None:
    assert abs(await agent.clock_offset()) < 5


LISTEN = """
import os, socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], os.getpid())
"""


async def test_ports_have_owners(agent: AgentClient, transport: Transport) -> None:
    async with on_node(transport, LISTEN + "sys.stdin.read()") as (port, pid):
        found = [entry for entry in await agent.ports() if entry.port == int(port)]
    assert [(entry.address, entry.pid) for entry in found] == [("127.0.0.1", int(pid))]
    assert "py" in found[0].command


async def test_the_address_view_hides_other_nodes_of_one_machine(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDTUI_ADDRESS_VIEW", "127.0.7.1")
    local = LocalTransport(CLOCK)
    client = await AgentClient.connect(local, clock=CLOCK, state_dir=str(state))
    servers = [
        await asyncio.start_server(lambda _r, w: w.close(), address, 0) for address in ("127.0.7.1", "127.0.7.2")
    ]
    ports = {server.sockets[0].getsockname()[1] for server in servers}
    seen = {entry.address for entry in await client.ports() if entry.port in ports}
    assert seen == {"127.0.7.1"}
    for server in servers:
        server.close()
        await server.wait_closed()
    await client.close()
    await local.close()


async def test_processes_with_the_variables_that_were_asked_for(
    agent: AgentClient, transport: Transport, cluster: str
) -> None:
    seconds = f"1000.{os.getpid()}"  # Nobody else's.
    program = f"""
import subprocess, sys
variables = {{"WANTED": "yes", "SECRET": "no", "MARK": "/{cluster}/", "PATH": "/usr/bin:/bin"}}
child = subprocess.Popen(["sleep", {seconds!r}], env=variables, start_new_session=True, stdin=subprocess.DEVNULL)
print(child.pid)
sys.stdin.read()
child.kill()
child.wait()
"""
    async with on_node(transport, program) as (pid,):

        async def sleeping() -> list[ProcessInfo]:
            found = await agent.processes(match=[seconds], env=["WANTED"])
            return [p for p in found if p.argv[0] == "sleep"]

        slept: list[ProcessInfo] = await eventually(sleeping, what="what was started shows its command line")
        assert [(p.pid, p.argv, dict(p.env)) for p in slept] == [(int(pid), ("sleep", seconds), {"WANTED": "yes"})]


METRICS = b'# HELP a x\na 1\nvllm:x{m="1"} 2\nvllm:xy 3\nvllm:z_bucket{le="1"} 4\n'

SERVE_METRICS = f"""
import threading
def serve():
    body = {METRICS!r}
    half = len(body) // 2
    while True:
        client, _ = server.accept()
        while not client.recv(65536).endswith(b"\\r\\n\\r\\n"): pass
        client.sendall(b"HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n")
        client.sendall(b"%x\\r\\n%s\\r\\n" % (half, body[:half]))
        client.sendall(b"%x\\r\\n%s\\r\\n0\\r\\n\\r\\n" % (len(body) - half, body[half:]))
        client.close()
threading.Thread(target=serve, daemon=True).start()
sys.stdin.read()
"""


async def test_http_filters_metrics_on_the_node(agent: AgentClient, transport: Transport) -> None:
    async with on_node(transport, LISTEN + SERVE_METRICS) as (word, _):
        port = int(word)
        whole = await agent.http("127.0.0.1", port, "/metrics")
        part = await agent.http("127.0.0.1", port, "/metrics", keep=["vllm:x", "vllm:z*"])
    assert (whole.status, whole.body) == (200, METRICS)
    assert part.body == b'vllm:x{m="1"} 2\nvllm:z_bucket{le="1"} 4\n'


async def test_http_on_a_port_where_nobody_listens(agent: AgentClient, transport: Transport) -> None:
    bound = """
import socket, sys
server = socket.socket()
server.bind(("127.0.0.1", 0))
print(server.getsockname()[1])
sys.stdin.read()
"""
    async with on_node(transport, bound) as (port,):
        refused = await agent.http("127.0.0.1", int(port), "/health")
    assert (refused.status, refused.error) == (None, "refused")


async def test_http_gives_up_on_a_silent_server(agent: AgentClient, transport: Transport) -> None:
    # The kernel accepts; nobody answers.
    async with on_node(transport, LISTEN + "sys.stdin.read()") as (port, _):
        reply = await agent.http("127.0.0.1", int(port), "/health", timeout=0.2)
    assert (reply.status, reply.error) == (None, "timeout")


async def take(
    agent: AgentClient, path: Path, size: int, *, offset: int | None = 0, tail: int = 65536
) -> list[LogChunk]:
    """Follow until `size` bytes have come."""
    chunks: list[LogChunk] = []
    async with asyncio.timeout(30), following(agent, path, offset=offset, tail=tail) as stream:
        async for chunk in stream:
            chunks.append(chunk)
            if sum(len(c.data) for c in chunks) >= size:
                break
    return chunks


async def test_follow_begins_with_whole_lines_and_resumes_from_an_offset(
    agent: AgentClient, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"line %05d\n" % n for n in range(10000)))
    tail = await take(agent, log, 100, offset=None, tail=115)
    assert tail[0].data.startswith(b"line 09990\n")
    first = await take(agent, log, 1, offset=0)
    rest = await take(agent, log, 110000 - first[0].next_offset, offset=first[0].next_offset)
    assert first[0].data + b"".join(c.data for c in rest) == log.read_bytes()


async def test_follow_survives_rotation_by_rename_and_waits_for_a_file(agent: AgentClient, tmp_path: Path) -> None:
    log = tmp_path / "log"
    got = bytearray()
    async with asyncio.timeout(30), following(agent, log, offset=None) as stream:
        log.write_bytes(b"one\n")
        got += (await anext(stream)).data
        log.rename(tmp_path / "log.1")
        log.write_bytes(b"two\n")
        got += (await anext(stream)).data
        log.write_bytes(b"")
        log.write_bytes(b"3\n")
        chunk = await anext(stream)
    assert bytes(got) == b"one\ntwo\n"
    assert (chunk.data, chunk.offset) == (b"3\n", 0)


@pytest.mark.parametrize("size", [None, 0, 20_000, 80_000])
async def test_follow_says_once_that_all_that_there_was_has_come(
    agent: AgentClient, tmp_path: Path, size: int | None
) -> None:
    log = tmp_path / "log"
    if size is not None:
        log.write_bytes(b"x" * size)
    got = bytearray()
    async with asyncio.timeout(30):
        stream = agent.follow(str(log), offset=0, mark=True)
        async for chunk in stream:
            got += chunk.data
            if not chunk.data:
                break
        assert (len(got), chunk.offset) == (size or 0, size or 0)
        with log.open("ab") as file:
            file.write(b"more")
        chunk = await anext(stream)
        assert (chunk.data, chunk.offset) == (b"more", size or 0)
        assert isinstance(stream, AsyncGenerator)
        await stream.aclose()


async def test_unread_follows_hold_no_more_than_their_credit_and_delay_nothing(
    agent: AgentClient, tmp_path: Path
) -> None:
    big = tmp_path / "big"
    big.write_bytes(b"x" * 99 + b"\n" + b"y" * 3_000_000)
    async with AsyncExitStack() as stack:
        for _ in range(4):
            unread = await stack.enter_async_context(following(agent, big))
            await anext(unread)
        async with asyncio.timeout(60):
            assert (await agent.run(Command(("echo", "quick")))).stdout == b"quick\n"
    whole = await take(agent, big, 3_000_100, offset=0)
    assert b"".join(c.data for c in whole) == big.read_bytes()


async def test_start_list_stop(agent: AgentClient, cluster: str) -> None:
    script = "echo hello $PDTUI_RANK $SPT_NOENV; exec sleep 1000"
    started = await agent.start_rank(spec(cluster, script))
    assert started.outcome == "started"
    record = started.record
    assert (record.state, record.rank, record.run) == (ProcessState.RUNNING, "decode/0", 1)
    assert (record.by, record.digest, record.ports, record.devices) == (
        "tester@console",
        "d1",
        (7100, 36200),
        (0, 1),
    )
    assert dict(record.hbm_before) == {"0": 3000}
    assert await agent.ranks(cluster) == [record]
    text = f"hello {cluster}:decode/0 1\n".encode()
    chunks = await take(agent, Path(record.log), len(text))
    assert b"".join(c.data for c in chunks) == text
    stopped = await agent.stop_rank(cluster, "decode/0", grace=20, by="tester@console")
    assert (stopped.outcome, stopped.killed, stopped.survivors) == ("stopped", False, ())
    (after,) = await agent.ranks(cluster)
    assert (after.state, after.exit_signal, after.stop_requested, after.processes) == (
        ProcessState.EXITED,
        signal.SIGTERM,
        True,
        (),
    )
    assert carriers(f"PDTUI_RANK={cluster}:") == []
    again = await agent.stop_rank(cluster, "decode/0", grace=1, by="x")
    assert again.outcome == "not_running"


async def test_large_requests_and_answers_cross_in_several_frames(agent: AgentClient, cluster: str) -> None:
    filler = "# " + "注" * 100_000 + "\n"
    started = await agent.start_rank(spec(cluster, filler + "exec sleep 1000"))
    script = await agent.read_file(str(Path(started.record.log).with_name("script")))
    assert script.decode().startswith(filler)


async def test_ranks_outlive_the_agent(
    agent: AgentClient, cluster: str, transport: Transport, state: Path
) -> None:
    started = await agent.start_rank(spec(cluster))
    await agent.close()
    with pytest.raises(AgentLost):
        await agent.run(Command(("true",)))
    other = await AgentClient.connect(transport, clock=CLOCK, state_dir=str(state))
    try:
        assert [r.state for r in await other.ranks(cluster)] == [ProcessState.RUNNING]
        assert (await other.start_rank(spec(cluster))).outcome == "already_running"
        assert (await other.ranks(cluster))[0].pid == started.record.pid
    finally:
        await other.close()


async def test_closing_the_agent_kills_its_commands(agent: AgentClient, cluster: str) -> None:
    script = f"X=/{cluster}/; export X; sleep 1000; true"
    task = asyncio.create_task(agent.run(Command(("sh", "-c", script), timeout=600)))
    await eventually(lambda: carriers(f"/{cluster}/"))
    await agent.close()
    with pytest.raises(AgentLost):
        await task
    await eventually(lambda: not carriers(f"/{cluster}/"))


async def test_many_requests_at_once(agent: AgentClient) -> None:
    results = await asyncio.gather(*(agent.run(Command(("echo", str(n)))) for n in range(100)))
    assert [int(r.stdout) for r in results] == list(range(100))


ECHO = """
import threading
def serve():
    while True:
        client, _ = server.accept()
        line = client.makefile("rb").readline()
        if line:
            client.sendall(b"echo " + line)
        client.close()
threading.Thread(target=serve, daemon=True).start()
sys.stdin.read()
"""


async def test_forward_leads_to_the_port(transport: Transport) -> None:
    async with on_node(transport, LISTEN + ECHO) as (word, _):
        host, port = await transport.forward("127.0.0.1", int(word))
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"hi\n")
        assert await reader.read() == b"echo hi\n"
        writer.close()
        await writer.wait_closed()


async def test_acknowledgements_are_kept_and_the_newest_stands(agent: AgentClient) -> None:
    await check_rules(agent, "acknowledged")
