"""What a node says is hostile: no shape of JSON gets past the parsers or brings the client down."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtui.errors import AgentError, AgentLost, ConnectError
from pdtui.remote import parse
from pdtui.remote.client import AgentClient
from pdtui.remote.interface import Channel, Command, ExitInfo, Facts, ProcessState
from pdtui.remote.loader import parse_facts
from tests.remote.conftest import CLOCK

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


def fake(*, limit: int = 1 << 20) -> tuple[AgentClient, asyncio.StreamReader, Sink]:
    """Return a client whose agent is the test."""
    reader, sink = asyncio.StreamReader(limit=limit), Sink()
    closed: asyncio.Future[ExitInfo] = asyncio.get_running_loop().create_future()
    closed.set_result(ExitInfo(0))
    facts = Facts(1, "3.6.0", "u", 0, "h", "m", "b", 0.0, "/s")
    return AgentClient(Channel(reader, sink, closed), facts, CLOCK), reader, sink


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
    monkeypatch.setattr("pdtui.remote.client.BLOB_LIMIT", 1000)
    client, reader, _ = fake()
    request = asyncio.create_task(client.read_file(str(tmp_path)))
    await asyncio.sleep(0)
    for number in (1, 2, 3):
        reader.feed_data(b'{"id": %d, "data": ["data", "%s"]}\n' % (number, b"QUFB" * 400))
    with pytest.raises(AgentLost):
        await request
    await client.close()
