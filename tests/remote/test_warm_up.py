"""A rank's first completion, sent by its agent: every answer that a server may give, and what stays of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pdtui.errors import AgentError
from tests.remote.conftest import Connect, spec
from tests.support.waiting import eventually

BODY = {"model": "m", "prompt": "Hello", "max_tokens": 1}
ANSWER = json.dumps({"choices": [{"text": "x"}], "usage": {"prompt_tokens": 5}})


@asynccontextmanager
async def server(status: str, body: str, asked: list[bytes], *, silent: bool = False) -> AsyncIterator[int]:
    """Run a server that answers one thing; yields its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        asked.append(head.split(b"\r\n")[0] + b" " + await reader.readexactly(length))
        if silent:
            await reader.read()
        else:
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()

    running = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with running:
        yield running.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    ("status", "body", "word", "error"),
    [
        ("200 OK", ANSWER, "ok", ""),
        ("200 OK", "<html>", "failed", "its answer is no completion"),
        ("500 Oops", "EngineCore \x1b[31mencountered", "failed", "HTTP 500 EngineCore encountered"),
        (
            "401 No",
            "key?",
            "skipped",
            "it asks for an API key, and its process was given none that pdtui finds (HTTP 401)",
        ),
        ("501 Unsupported", "", "skipped", "HTTP 501"),
    ],
)
async def test_answer_is_judged_and_stays_with_the_run(
    connect: Connect, cluster: str, status: str, body: str, word: str, error: str
) -> None:
    agent, asked = await connect(), list[bytes]()
    record = (await agent.start_rank(spec(cluster))).record
    assert record.warm_up is None
    async with server(status, body, asked) as port:
        where = replace(record, address="127.0.0.1", api_port=port)
        result = await agent.warm_up(where, BODY, timeout=60, by="ann@desk")
    assert (result.state, result.error, result.tokens) == (word, error, 5 if word == "ok" else 0)
    assert asked[0].startswith(b"POST /v1/completions HTTP/1.1 ")
    assert json.loads(asked[0].partition(b"HTTP/1.1 ")[2]) == BODY
    other = await connect()
    (seen,) = await other.ranks(cluster)
    assert seen.warm_up == result
    path = Path(record.log).parent / "warm-up"
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["by"] == "ann@desk"
    await agent.stop_rank(cluster, "decode/0", grace=20, by="x")
    again = (await agent.start_rank(spec(cluster))).record
    assert again.warm_up is None  # Another run.
    with pytest.raises(AgentError, match="started again"):
        await agent.warm_up(where, BODY, timeout=60, by="ann@desk")


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ("export VLLM_API_KEY='k y'; exec sleep 1000", ""),
        ("exec python3 -c 'import time; time.sleep(1000)' --api-key 'k y' other", ""),
        ("exec python3 -c 'import time; time.sleep(1000)' '--api_key=k y'", ""),
        ("export VLLM_API_KEY=another; exec sleep 1000", "it asks for an API key, and refuses its own (HTTP 401)"),
    ],
    ids=["variable", "flag", "underscored", "wrong"],
)
async def test_server_that_asks_for_a_key_gets_the_one_of_its_own_process(
    connect: Connect, cluster: str, script: str, error: str
) -> None:
    agent, heads = await connect(), list[str]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        status, body = ("200 OK", ANSWER) if "Authorization: Bearer k y\r\n" in heads[-1] else ("401 No", "no")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        writer.close()

    record = (await agent.start_rank(spec(cluster, script))).record
    running = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with running:
        where = replace(record, address="127.0.0.1", api_port=running.sockets[0].getsockname()[1])

        async def warmed_up() -> str:
            result = await agent.warm_up(where, BODY, timeout=60, by="x")
            return f"{result.state} {result.error}".strip() if result.error == error else ""

        # What was just started is bash for a moment, without the key.
        said: str = await eventually(warmed_up, what="the answer")
        assert said == (f"skipped {error}" if error else "ok")
    assert "Authorization" not in heads[0]
    assert "k y" not in (Path(record.log).parent / "warm-up").read_text()


async def test_rank_that_does_not_answer_fails_in_time_and_all_see_it_wait(connect: Connect, cluster: str) -> None:
    agent, other, asked = await connect(), await connect(), list[bytes]()
    record = (await agent.start_rank(spec(cluster))).record
    async with server("", "", asked, silent=True) as port:
        where = replace(record, address="127.0.0.1", api_port=port)
        waiting = asyncio.ensure_future(agent.warm_up(where, BODY, timeout=5, by="x"))
        await eventually(lambda: bool(asked), what="the request")
        (seen,) = await other.ranks(cluster)
        assert seen.warm_up is not None
        assert seen.warm_up.state == "running"
        result = await waiting
        assert (result.state, result.error) == ("failed", "timeout")
    refused = await agent.warm_up(where, BODY, timeout=60, by="x")
    assert (refused.state, refused.error) == ("failed", "refused")


async def test_warm_up_that_nobody_ended_is_as_if_it_had_never_begun(connect: Connect, cluster: str) -> None:
    agent = await connect()
    record = (await agent.start_rank(spec(cluster))).record
    path = Path(record.log).parent / "warm-up"
    path.write_text(json.dumps({"state": "running", "at": record.started - 500, "timeout": 120}))
    (seen,) = await agent.ranks(cluster)
    assert seen.warm_up is None
    path.write_text("{ broken")
    (seen,) = await agent.ranks(cluster)
    assert seen.warm_up is None
