"""How servers end: killed, asked to, or unable to start."""

from __future__ import annotations

import contextlib
import http.client
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from tests.engines.asking import Seen, send
from tests.engines.failures import FAILURES, Failure
from tests.engines.houses import House
from tests.engines.requests import TOKENS, completion
from tests.engines.server import Server, wait_for
from tests.support.ports import free_ports

CONFIGURED = "Using max model len"
"""From this line on a server that is silent waits for something."""


def deaths(
    house: House, stack: ExitStack, plain: Server, prefill: Server, decode: Server
) -> Iterator[tuple[str, Any]]:
    """Yield how servers end that were healthy; the three that are given are gone then."""
    fresh = [house.plain("fresh"), house.plain("doomed")]
    for server in fresh:
        stack.callback(server.close)
    asked = {"prompt": TOKENS * 8, "max_tokens": 6}
    with ThreadPoolExecutor(3) as pool:
        killed = pool.submit(lambda: _after_kill(plain, plain.member("VLLM::Worker").pid))
        orphans = pool.submit(lambda: dict(_orphans(prefill)))
        poisoned = pool.submit(_poison, decode, asked)
        yield "worker killed", killed.result()
        yield "API server killed", orphans.result()
        yield "D is asked for no blocks", poisoned.result()
    for server in fresh:
        server.ready(house.start_s)
    yield "engine killed", _after_kill(fresh[1], fresh[1].member("VLLM::EngineCore").pid)
    yield "TERM while a request streams", _term(fresh[0], house.silence_s)


def _after_kill(server: Server, pid: int) -> Seen:
    before = len(server.log)
    began = time.monotonic()
    server.kill(pid, signal.SIGKILL)
    heard = _healths(server, lambda: server.exit_status(0) is not None, within=60)
    status = server.exit_status(5)
    return {
        "exit": status,
        "seconds": time.monotonic() - began,
        "health": heard,
        "gone": server.gone(15),
        "left": [member.name for member in server.members()],
        "log": server.log[before:],
    }


def _healths(server: Server, over: Callable[[], bool], within: float) -> list[Any]:
    """Ask /health until it is over; return the different answers in their order."""
    heard: list[Any] = []
    deadline = time.monotonic() + within
    while not over() and time.monotonic() < deadline:
        answer = server.health()
        if answer not in heard:
            heard.append(answer)
        time.sleep(0.02)
    return heard


def _orphans(server: Server) -> Iterator[tuple[str, Any]]:
    engine = server.member("VLLM::EngineCore").pid
    server.kill(server.pid, signal.SIGKILL)
    yield "exit", server.exit_status(10)
    time.sleep(2)
    yield "left", [member.name for member in server.members()]
    yield "health", server.health()
    yield "ports", {use: list(held) for use, held in server.listening().items()}
    server.kill(engine, signal.SIGTERM)
    yield "TERM to the engine that is left ends all", server.gone(20)


def _poison(decode: Server, asked: Mapping[str, Any]) -> Seen:
    answer: list[Any] = []
    dead = {
        "do_remote_prefill": True, "do_remote_decode": False, "remote_engine_id": "gone",
        "remote_block_ids": [[1]], "remote_request_id": "cmpl-x", "remote_host": "127.0.0.1",
        "remote_port": free_ports(1)[0], "tp_size": 1,
    }  # fmt: skip

    def ask(params: Mapping[str, Any]) -> None:
        try:
            answer.append(send(decode, completion("x", {**asked, "kv_transfer_params": params}), timeout=60))
        except (OSError, http.client.HTTPException) as error:
            answer.append({"lost": type(error).__name__})

    ask(dead)
    before = len(decode.log)
    thread = threading.Thread(target=ask, args=({**dead, "remote_block_ids": []},))
    thread.start()
    status = decode.exit_status(60)
    thread.join(60)
    return {
        "P is dead": answer[0],
        "no blocks": answer[1],
        "exit": status,
        "gone": decode.gone(15),
        "log": decode.log[before:],
    }


def _term(server: Server, silence_s: float) -> Seen:
    ask = completion("x", {"max_tokens": 1500, "stream": True})
    with server.opened(ask.path, ask.body or b"") as client:
        client.recv(65536)
        began = time.monotonic()
        server.kill(server.pid, signal.SIGTERM)
        client.settimeout(silence_s)
        rest = b""
        with contextlib.suppress(OSError):
            while piece := client.recv(65536):
                rest += piece
    status = server.exit_status(60)
    return {
        "exit": status,
        "seconds": time.monotonic() - began,
        "gone": server.gone(15),
        "stream": rest.decode("utf-8", "replace"),
    }


# -- starts that fail --


def failures(house: House, names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yield what became of the starts that cannot succeed, two at a time; `names`: of these alone."""
    chosen = [each for each in FAILURES if (each.live or not house.live) and (not names or each.name in names)]
    with ThreadPoolExecutor(2) as pool:
        for failure, seen in zip(chosen, pool.map(lambda each: fail(house, each), chosen), strict=True):
            yield failure.name, seen


def _until_it_hangs(house: House, failure: Failure, server: Server) -> int | None:
    """Wait for the line that says why and a little longer, or, where nothing says it, until it is silent."""
    if not failure.cause:
        wait_for(lambda: CONFIGURED in server.log or server.exit_status(0) is not None, within=house.start_s)
        length = -1
        while server.exit_status(0) is None and len(server.log) != length:
            length = len(server.log)
            server.exit_status(house.hang_s)
        return server.exit_status(0)
    wait_for(lambda: failure.cause in server.log or server.exit_status(0) is not None, within=house.start_s)
    return server.exit_status(min(3.0, house.hang_s))


def fail(house: House, failure: Failure) -> Seen:
    """Try one start that cannot succeed."""
    api, side, rpc = free_ports(3)
    ports = {"api": api, "side": side, "rpc": rpc}
    with ExitStack() as stack:
        if failure.taken:
            stack.enter_context(socket.create_server(("127.0.0.1", ports[failure.taken])))
        server = house.failure(failure, ports)
        stack.callback(server.close)
        status = _until_it_hangs(house, failure, server) if failure.hangs else server.exit_status(house.start_s)
        return {
            "exit": status,
            "seconds": server.age,
            "health": None if status is not None or failure.taken == "api" else server.health(),
            "gone": status is not None and server.gone(10),
            "log": server.log,
            "model": house.models.get(failure.model, failure.model),
        }
