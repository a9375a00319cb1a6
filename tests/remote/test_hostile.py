"""What a node says is hostile: no shape of JSON gets past the parsers or brings the client down."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtui.clock import Clock
from pdtui.errors import AgentError, AgentLost, ConnectError
from pdtui.remote import parse
from pdtui.remote.channel import Channel, ExitInfo
from pdtui.remote.client import AgentClient
from pdtui.remote.loader import parse_facts
from pdtui.remote.messages.commands import Command, Facts
from pdtui.remote.messages.ranks import ProcessState
from tests.remote.conftest import CLOCK
from tests.support.manual_clock import ManualClock, settle

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
NAMES = [
    "state",
    "pid",
    "keeper",
    "run",
    "started",
    "by",
    "digest",
    "argv",
    "env",
    "api_port",
    "address",
    "ports",
    "devices",
    "hbm_before",
    "exit_status",
    "ended",
    "stop_requested",
    "log",
    "processes",
    "format",
    "record",
    "outcome",
    "survivors",
    "port",
    "command",
    "rank",
    "ppid",
    "session",
    "user",
    "status",
    "body",
    "error",
    "seconds",
    "offset",
    "gap",
    "at",
    "timed_out",
]


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=12))
def test_parsers_take_anything(raw: dict[str, Any]) -> None:
    parse.rank_record(raw)
    parse.start_result(raw)
    parse.stop_result(raw)
    parse.listener(raw)
    parse.process(raw)
    parse.http_reply(raw, {})
    parse.log_chunk("/log", raw, b"")
    parse.completed(Command(("x",)), raw, {})


def test_remote_text_is_cleaned() -> None:
    record = parse.rank_record(
        {"state": "running", "by": "a\x1b]0;owned\x07b\nc", "argv": ["\x1b[2Jx"], "env": {"A\x1b[1m": "\x9b31m"}}
    )
    assert (record.by, record.argv, dict(record.env)) == ("ab c", ("x",), {"A": ""})


def test_an_unknown_state_is_never_taken_for_free() -> None:
    assert parse.rank_record({"state": "sleeping"}).state is ProcessState.UNKEPT
    assert parse.stop_result({"outcome": "whatever"}).outcome == "still_running"
    assert parse.start_result({}).outcome == "already_running"


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"{", b'{"protocol": 1e999}', b"[" * 100_000])
def test_a_damaged_hello_is_a_protocol_error(text: bytes) -> None:
    with pytest.raises(ConnectError) as caught:
        parse_facts(text)
    assert caught.value.kind == "protocol"


def test_another_protocol_is_refused_by_number() -> None:
    facts = {
        "protocol": 99,
        **dict.fromkeys(
            ("python", "user", "hostname", "machine_id", "boot_id", "state_dir", "state_dir_error"), ""
        ),
        "uid": 0,
        "wall": 0.0,
        "in_container": False,
    }
    with pytest.raises(ConnectError, match="protocol 99"):
        parse_facts(json.dumps(facts).encode())


class Sink:
    """A writer that goes nowhere."""

    def __init__(self) -> None:
        self.sent = bytearray()

    def write(self, data: bytes) -> None:
        self.sent += data

    async def drain(self) -> None:
        await asyncio.sleep(0)

    def close(self) -> None:
        return


def fake(*, limit: int = 1 << 20, clock: Clock = CLOCK) -> tuple[AgentClient, asyncio.StreamReader, Sink]:
    """Return a client whose agent is the test."""
    reader, sink = asyncio.StreamReader(limit=limit), Sink()
    closed: asyncio.Future[ExitInfo] = asyncio.get_running_loop().create_future()
    closed.set_result(ExitInfo(0))
    facts = Facts(1, "3.6.0", "u", 0, "h", "m", "b", 0.0, "/s")
    return AgentClient(Channel(reader, sink, closed), facts, clock), reader, sink


@pytest.mark.parametrize(
    "frame",
    [
        b"garbage\n",
        b"[]\n",
        b"{}\n",
        b'{"id": 2, "ok": 5}\n',
        b'{"id": 2, "data": 7}\n',
        b'{"id": 2, "data": ["x", "***"]}\n',
        b'{"id": 2, "ok": {"b64": 3}}\n',
        b"[" * 100_000 + b"\n",
        b"x" * 300_000,
    ],
)
async def test_bad_frames_end_the_connection_and_fail_its_requests(frame: bytes) -> None:
    client, reader, _ = fake()
    request = asyncio.create_task(client.run(Command(("x",))))
    await asyncio.sleep(0)
    reader.feed_data(frame)
    with pytest.raises(AgentLost):
        await request
    await client.close()


async def test_frames_for_nobody_are_dropped_and_errors_are_clean() -> None:
    client, reader, _ = fake()
    request = asyncio.create_task(client.run(Command(("x",))))
    await asyncio.sleep(0)
    for number in range(50, 60):
        reader.feed_data(b'{"id": %d, "ok": {}}\n' % number)
    for number in range(1, 4):
        error = {"id": number, "error": {"code": "perm\x1b[31mission", "message": "no\x1b[2J way"}}
        reader.feed_data(json.dumps(error).encode() + b"\n")
    with pytest.raises(AgentError) as caught:
        await request
    assert (caught.value.code, caught.value.message) == ("permission", "no way")
    assert client.lost is None
    await client.close()


async def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("pdtui.remote.rpc.BLOB_LIMIT", 1000)
    client, reader, _ = fake()
    request = asyncio.create_task(client.read_file(str(tmp_path)))
    await asyncio.sleep(0)
    for number in (1, 2, 3):
        reader.feed_data(b'{"id": %d, "data": ["data", "%s"]}\n' % (number, b"QUFB" * 400))
    with pytest.raises(AgentLost):
        await request
    await client.close()


async def test_parts_that_were_taken_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch may bring more than the limit, one result after the other; what nobody takes may not."""
    monkeypatch.setattr("pdtui.remote.rpc.BLOB_LIMIT", 2000)
    client, reader, _ = fake()
    taken: list[bytes] = []

    async def take() -> None:
        async for _, result in client.batch([Command(("x",))] * 10):
            taken.append(result.stdout)

    request = asyncio.create_task(take())
    await settle()
    blob = base64.b64encode(b"x" * 900)
    for number in range(10):
        for request_id in (1, 2):  # One of them is the ping.
            reader.feed_data(b'{"id": %d, "data": ["%d.stdout", "%s"]}\n' % (request_id, number, blob))
            reader.feed_data(b'{"id": %d, "n": %d, "item": {}}\n' % (request_id, number))
        await settle()
        if client.lost is not None:
            break
    assert len(taken) >= 2
    request.cancel()
    await client.close()


async def test_an_agent_that_talks_and_never_answers_is_lost_in_the_end() -> None:
    clock = ManualClock()
    client, reader, _ = fake(clock=clock)
    for _ in range(20):
        reader.feed_data(b'{"id": 4711, "item": {}}\n')
        await clock.advance(5)
        if client.lost is not None:
            break
    assert client.lost is not None
    assert "no answer for" in client.lost.message
    assert 55 <= clock.monotonic() <= 90
    closing = asyncio.create_task(client.close())
    await clock.advance(10)
    await closing


async def test_a_ping_that_is_refused_does_not_end_the_pings() -> None:
    clock = ManualClock()
    client, reader, sink = fake(clock=clock)
    await settle()
    reader.feed_data(b'{"id": 1, "error": {"code": "busy", "message": "no"}}\n')
    await settle()
    await clock.advance(6)
    assert sink.sent.count(b'"ping"') == 2
    for _ in range(8):
        await clock.advance(10)
    assert client.lost is not None
    closing = asyncio.create_task(client.close())
    await clock.advance(10)
    await closing


@pytest.mark.parametrize("whose", ["node", "console"])
async def test_a_clock_that_is_set_shows_at_once(whose: str) -> None:
    """The offset of the node's clock is the one of the quickest answer, but of no answer before a jump."""
    clock, jump = ManualClock(), 0.0
    client, reader, sink = fake(clock=clock)
    answered = 0
    for turn in range(8):
        await settle()
        jump = 0.0 if turn < 4 else 7200.0
        pings = [json.loads(line) for line in bytes(sink.sent).splitlines() if b'"ping"' in line]
        await clock.advance(0.0 if turn < 4 else 0.3)
        node = clock.wall() + (jump if whose == "node" else -jump)
        for ping in pings[answered:]:
            reader.feed_data(json.dumps({"id": ping["id"], "ok": {"wall": node}}).encode() + b"\n")
        answered = len(pings)
        await settle()
        await clock.advance(5)
    assert abs(abs(await client.clock_offset()) - 7200.0) < 1.0
    closing = asyncio.create_task(client.close())
    await clock.advance(10)
    await closing
