"""What the layers above see of the proxy: its backends, where they are, and a test completion."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Resolver = Callable[[str], Awaitable[tuple[str, int]]]
"""Rank id -> host and port that lead to its API server. Raises `pdtui.errors.ConnectError`.

A tunnel always looks like a loopback port; on the cluster's own network it is the rank's address.
"""


@dataclass(frozen=True, slots=True)
class BackendState:
    """One rank as the proxy should treat it."""

    rank: str
    """`group/dp_rank`."""
    group: str
    role: Literal["prefill", "decode"]
    usable: bool
    """Ready, and no member of its MoE group dead or stalled."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A test completion."""

    prompt: str
    model: str = ""
    """Served name; empty: the cluster's."""
    max_tokens: int = 64
    temperature: float | None = None
    chat: bool = True
    stream: bool = True
    messages: Sequence[Mapping[str, str]] = field(default_factory=tuple)
    """Chat messages instead of `prompt`."""


@dataclass(frozen=True, slots=True)
class AskProgress:
    """A test completion so far; the last one has `done`. Durations in seconds."""

    request_id: str = ""
    text: str = ""
    done: bool = False
    error: str = ""
    status: int | None = None
    """HTTP status of the answer."""
    prefill: str = ""
    """Rank id of P."""
    decode: str = ""
    """Rank id of D."""
    queue_s: float | None = None
    prefill_s: float | None = None
    transfer_s: float | None = None
    """From P's answer to D's first token."""
    ttft_s: float | None = None
    tokens: int | None = None
    tokens_per_s: float | None = None
    finish_reason: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
