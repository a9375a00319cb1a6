"""Bytes to and from a process on a node: what each way there gives."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ExitInfo:
    """How a process ended, as far as the transport knows."""

    status: int | None
    signal: str | None = None
    stderr: str = ""
    """The last few KiB of stderr, cleaned."""


class ByteWriter(Protocol):
    """The sending half of a channel."""

    def write(self, data: bytes) -> None:
        """Queue bytes."""
        ...

    async def drain(self) -> None:
        """Wait until the queue is short again."""
        ...

    def close(self) -> None:
        """End the channel; the remote process sees end of file and is ended."""
        ...


class ByteReader(Protocol):
    """The receiving half of a channel."""

    async def read(self, limit: int = -1) -> bytes:
        """Return at most `limit` bytes; empty at the end."""
        ...

    async def readline(self) -> bytes:
        """Return a line with its newline; what is left at the end."""
        ...

    async def readexactly(self, count: int) -> bytes:
        """Return exactly `count` bytes. Raises `asyncio.IncompleteReadError`."""
        ...


@dataclass(frozen=True, slots=True)
class Channel:
    """One process at the far end: its stdin, its stdout, and its end."""

    reader: ByteReader
    writer: ByteWriter
    closed: asyncio.Future[ExitInfo]


class Transport(Protocol):
    """A way to a node: asyncssh, this machine, or memory. Bytes only."""

    async def open(self, argv: Sequence[str]) -> Channel:
        """Start a process. Raises `ConnectError`."""
        ...

    async def forward(self, host: str, port: int) -> tuple[str, int]:
        """Return a loopback address that leads to `host:port` as the node sees it. Raises `ConnectError`."""
        ...

    async def close(self) -> None:
        """End the connection and everything on it."""
        ...
