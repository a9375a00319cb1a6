"""What the proxy costs per relayed token and per request, against a client that asks P and D itself.

By hand, on a quiet machine: `python -m tests.bench.proxy_relay`. The ranks, the proxy and the client are processes
of their own; CPU is user + system of each. Compare ratios of one run, not absolute values of two.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp

from pdtui.clock import SystemClock
from pdtui.proxy.embedded import EmbeddedProxy
from pdtui.proxy.flows.pull_body import decode_body, prefill_body
from pdtui.proxy.interface import BackendState

_TICKS = os.sysconf("SC_CLK_TCK")
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _chunk(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


_TOKEN = _chunk(
    b'data: {"id":"cmpl-5f2a","object":"text_completion","created":1800000000,"model":"ds_r1",'
    b'"choices":[{"index":0,"text":" token","logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'
)
_END = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


async def _rank(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, step_s: float) -> None:
    """Serve one request as P or D, whichever its body asks for, as cheaply as asyncio can."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        if body["kv_transfer_params"].get("do_remote_decode"):
            params = {"do_remote_prefill": True, "remote_block_ids": [[1, 2]], "remote_engine_id": "e"}
            answer = json.dumps({"choices": [], "kv_transfer_params": params}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
        else:
            writer.write(_HEAD)
            for _ in range(body["max_tokens"]):
                writer.write(_TOKEN)
                await writer.drain()
                await asyncio.sleep(step_s)
            writer.write(_END)
        await writer.drain()
    writer.close()


async def _serve_rank(step_s: float) -> None:
    server = await asyncio.start_server(lambda r, w: _rank(r, w, step_s), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


async def _serve_proxy(ports: list[int]) -> None:
    ranks = {"prefill/0": ports[0], "decode/0": ports[1]}

    async def resolve(rank: str) -> tuple[str, int]:
        return "127.0.0.1", ranks[rank]

    proxy = EmbeddedProxy(served_name="ds_r1", resolver=resolve, clock=SystemClock())
    _, port = await proxy.start()
    proxy.update([BackendState("prefill/0", "p", "prefill", True), BackendState("decode/0", "d", "decode", True)])
    print(port, flush=True)
    await asyncio.Event().wait()


class _Process:
    """A role of the bench in a process of its own, on a port that it prints."""

    def __init__(self, *argv: str) -> None:
        root = Path(__file__).parents[2]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.proxy_relay", *argv], stdout=subprocess.PIPE, cwd=root, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def cpu(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


async def _post(session: aiohttp.ClientSession, port: int, body: dict[str, Any]) -> dict[str, Any]:
    async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as response:
        answer: dict[str, Any] = json.loads(await response.read())
        return answer


async def _stream(session: aiohttp.ClientSession, port: int, body: dict[str, Any]) -> float:
    """Read a whole stream and return when its first piece came."""
    first = 0.0
    data = bytearray()
    async with session.post(f"http://127.0.0.1:{port}/v1/completions", json=body) as response:
        async for piece in response.content.iter_any():
            first = first or time.perf_counter()
            data += piece
    assert data.count(b" token") == body["max_tokens"]
    assert b"[DONE]" in data
    return first


async def _load(ports: dict[str, int], mode: str, streams: int, tokens: int) -> tuple[float, float]:
    """Run the load; returns seconds of the client's CPU and the median time to the first token."""
    body = {"model": "ds_r1", "prompt": "word " * 200, "max_tokens": tokens, "stream": True}

    async def one(session: aiohttp.ClientSession) -> float:
        began = time.perf_counter()
        if mode == "proxy":
            return await _stream(session, ports["proxy"], body) - began
        answer = await _post(session, ports["prefill"], prefill_body(body))
        return await _stream(session, ports["decode"], decode_body(body, answer["kv_transfer_params"])) - began

    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session:
        cpu = time.process_time()
        firsts = await asyncio.gather(*(one(session) for _ in range(streams)))
        return time.process_time() - cpu, statistics.median(firsts)


def _bench(streams: int, tokens: int, step_ms: float, rounds: int) -> None:
    step = str(step_ms / 1000)
    prefill, decode = _Process("--rank", step), _Process("--rank", step)
    proxy = _Process("--proxy", str(prefill.port), str(decode.port))
    ports = {"prefill": prefill.port, "decode": decode.port, "proxy": proxy.port}
    try:
        for mode in ("direct", "proxy"):
            asyncio.run(_load(ports, mode, 4, 4))
        rows: dict[str, list[tuple[float, float, float]]] = {"direct": [], "proxy": []}
        for _ in range(rounds):
            for mode, row in rows.items():
                before = proxy.cpu()
                client, first = asyncio.run(_load(ports, mode, streams, tokens))
                row.append((client, proxy.cpu() - before, first))
    finally:
        for process in (proxy, prefill, decode):
            process.stop()
    total = streams * tokens
    report = {
        mode: tuple(statistics.median(column) for column in zip(*row, strict=True)) for mode, row in rows.items()
    }
    client_us = report["direct"][0] / total * 1e6
    proxy_us = report["proxy"][1] / total * 1e6
    sys.stdout.write(
        f"{streams} streams of {tokens} tokens at {step_ms:g} ms, median of {rounds}\n"
        f"client, direct   {client_us:8.1f} us CPU/token   first token {report['direct'][2] * 1e3:8.1f} ms\n"
        f"proxy            {proxy_us:8.1f} us CPU/token   first token {report['proxy'][2] * 1e3:8.1f} ms\n"
        f"proxy / client   {proxy_us / client_us:8.2f}\n"
    )


def main() -> None:
    """Run the bench, or one role of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--proxy", type=int, nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank is not None:
        asyncio.run(_serve_rank(args.rank))
    elif args.proxy:
        asyncio.run(_serve_proxy(args.proxy))
    else:
        _bench(args.streams, args.tokens, args.step_ms, args.rounds)


if __name__ == "__main__":
    main()
