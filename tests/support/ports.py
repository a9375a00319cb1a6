"""Ports for servers that a test starts: free, and such that nobody gets them by asking for any."""

from __future__ import annotations

import contextlib
import random
import socket

_RANGE = range(20000, 32000)
"""Below those that the kernel gives to clients, and outside of what rules keep for HCCL."""

_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback that nobody has; sorted; a server may bind them seconds later."""
    found: list[int] = []
    while len(found) < count:
        port = random.choice(_RANGE)
        if port not in _given and is_free(port):
            _given.add(port)
            found.append(port)
    return sorted(found)


def free_port() -> int:
    """Return one free port of the loopback."""
    return free_ports(1)[0]


def free_run(count: int) -> int:
    """Return the first of `count` free ports in a row: a group's ranks count up from its first."""
    while True:
        first = random.choice(_RANGE[:-count])
        run = range(first, first + count)
        if _given.isdisjoint(run) and all(map(is_free, run)):
            _given.update(run)
            return first


def is_free(port: int) -> bool:
    """Return whether a port of the loopback can be bound now."""
    with contextlib.suppress(OSError):
        socket.create_server(("127.0.0.1", port)).close()
        return True
    return False
