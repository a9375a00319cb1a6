"""Questions to a server, and what is kept of its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.engines.requests import Ask
from tests.engines.server import Server

Seen = dict[str, Any]


def send(server: Server, ask: Ask, *, timeout: float = 90) -> Seen:
    """Ask, and return the answer as JSON can hold it."""
    answer = server.request(ask.method, ask.path, ask.body, ask.headers, timeout=timeout)
    return {
        "status": answer.status,
        "headers": [list(pair) for pair in answer.headers],
        "body": "left out" if ask.only_status else answer.body.decode("utf-8", "replace"),
        "counted": ask.counted,
        "mixed": ask.mixed,
    }


def text_of(answer: Seen) -> str:
    """Return the text of a completion's first choice."""
    return str(json.loads(answer["body"])["choices"][0]["text"])


def samples(server: Server) -> dict[str, float]:
    """Return the samples of /metrics by name and labels, as written."""
    text = server.request("GET", "/metrics").body.decode()
    values = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            values[series] = float(value)
    return values


def grown(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Return by how much samples have changed; those that have not are left out."""
    grown = {series: value - before.get(series, 0.0) for series, value in after.items()}
    return {series: value for series, value in grown.items() if value and "_created" not in series}
