"""Looks at the servers of one house from outside, once, in an order that wastes no start; raw, as it came."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from tests.engines.asking import Seen, grown, samples, send, text_of
from tests.engines.ends import deaths, failures
from tests.engines.flow import pull_flow
from tests.engines.houses import SEATS, House
from tests.engines.requests import PLAIN, completion
from tests.engines.server import Server, wait_for


def observe(house: House) -> Seen:
    """Return everything seen, by the name of what was tried."""
    if not house.whole:
        return _observe_answers(house)
    with ThreadPoolExecutor(1) as pool:
        # Where a start costs nothing, those that fail need not wait for the others.
        failing = None if house.live else pool.submit(observe_failures, house)
        seen = _observe_servers(house)
        return {**seen, **(failing.result() if failing else observe_failures(house))}


def _observe_answers(house: House) -> Seen:
    seen: Seen = {}
    with ExitStack() as stack:
        plain = _kept(stack, house.plain("plain"))
        plain.ready(house.start_s)
        _attempt(seen, "http", lambda: dict(_ask_all(plain)))
    return seen


def _observe_servers(house: House) -> Seen:
    seen: Seen = {}
    with ExitStack() as stack:
        plain = _kept(stack, house.plain("plain"))
        prefill = _kept(stack, house.side("prefill", "kv_producer"))
        decode = _kept(stack, house.side("decode", "kv_consumer"))
        servers = (plain, prefill, decode)
        for server in servers:
            server.ready(house.start_s)
        _attempt(seen, "start", lambda: {server.name: _start(server) for server in servers})
        _attempt(seen, "http", lambda: dict(_ask_all(plain)))
        _attempt(seen, "load", lambda: _load(plain))
        _attempt(seen, "kv", lambda: dict(pull_flow(plain, prefill, decode)))
        _attempt(seen, "metrics", lambda: {server.name: _metrics(server) for server in servers})
        _attempt(seen, "log", lambda: {server.name: _worked(server).log for server in servers})
        _attempt(seen, "exit", lambda: dict(deaths(house, stack, plain, prefill, decode)))
    return seen


def _kept(stack: ExitStack, server: Server) -> Server:
    stack.callback(server.close)
    return server


def observe_failures(house: House, names: frozenset[str] = frozenset()) -> Seen:
    """Return what became of the starts that cannot succeed; `names`: of these alone."""
    seen: Seen = {}
    _attempt(seen, "fail", lambda: dict(failures(house, names)))
    return seen


def _attempt(seen: Seen, name: str, look: Callable[[], Any]) -> None:
    """Keep what broke as an observation: it is compared like any other."""
    try:
        seen[name] = look()
    except Exception:
        seen[name] = {"broke": traceback.format_exc()}


# -- a server that has started --


def _start(server: Server) -> Seen:
    members = server.members()
    numbers = {member.pid: place for place, member in enumerate(members)}
    return {
        "health": server.health(),
        "log": server.log,
        "seconds": server.age,
        "processes": [[m.name, m.command, numbers.get(m.parent, -1)] for m in members],
        "ports": {use: list(held) for use, held in server.listening().items()},
    }


# -- HTTP --


def _ask_all(plain: Server) -> Iterator[tuple[str, Any]]:
    for ask in PLAIN:
        yield ask.name, send(plain, ask)
    text = text_of(send(plain, completion("x", {"prompt": "Who are you?", "max_tokens": 12})))
    stop = text.strip()[3:5]
    for name, body in (("stop string", {}), ("stop string, stream", {"stream": True}),
                       ("stop string, kept", {"include_stop_str_in_output": True})):  # fmt: skip
        asked = {"prompt": "Who are you?", "max_tokens": 12, "stop": [stop], **body}
        answer = send(plain, completion(name, asked))
        answer["body"] = answer["body"].replace(json.dumps(stop, ensure_ascii=False), '"<stop>"')
        yield f"completions: {name}", answer


def _worked(server: Server) -> Server:
    """Wait for the lines that say, every ten seconds, how much it works and what it has transferred."""
    wait_for(lambda: "Avg generation throughput" in server.log, within=15)
    if server.name != "plain":
        wait_for(lambda: "KV Transfer metrics" in server.log, within=15)
    return server


def _metrics(server: Server) -> str:
    return server.request("GET", "/metrics").body.decode()


def _load(plain: Server) -> Seen:
    """More requests than seats: how many run, how many wait, and what remains when their clients leave."""
    before = samples(plain)
    ask = completion("x", {"max_tokens": 1500, "stream": True})
    clients = [plain.opened(ask.path, ask.body or b"") for _ in range(SEATS + 2)]
    full = wait_for(lambda: _busy(samples(plain), SEATS + 2), within=30)
    time.sleep(0.3)
    during = samples(plain)
    # Who waits goes first: a seat that is free would be taken.
    for client in reversed(clients):
        client.close()
    wait_for(lambda: _busy(samples(plain), 0), within=30)
    after = samples(plain)
    return {
        "full": bool(full),
        "during": {**grown(before, during), **_gauges(during)},
        "after": {**grown(before, after), **_gauges(after)},
    }


def _gauges(values: Mapping[str, float]) -> dict[str, float]:
    return {series: value for series, value in values.items() if series.startswith("vllm:num_requests")}


def _busy(values: Mapping[str, float], wanted: int) -> bool:
    names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    return sum(value for series, value in values.items() if series.startswith(names)) == wanted
