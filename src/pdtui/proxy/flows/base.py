"""What a flow gets and what it writes to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pdtui.proxy.trace import Trace


@dataclass(frozen=True, slots=True)
class Call:
    """A client's request, read and parsed."""

    id: str
    path: str
    body: dict[str, Any]
    """As the client sent it; what it says about `kv_transfer_params` must reach no rank."""
    size: int
    """Bytes of the body as it came, for the policy."""
    headers: Mapping[str, str]
    """The client's."""
    trace: Trace


class Sink(Protocol):
    """The client's side of a request. Every method raises `ClientGone` when nobody is there any more."""

    @property
    def started(self) -> bool:
        """Whether the head of an answer has gone out."""
        ...

    async def start(self, content_type: str) -> None:
        """Send the head of a streamed answer."""
        ...

    async def write(self, data: bytes) -> None:
        """Send a piece of a streamed answer; waits while the client does not read."""
        ...

    async def whole(self, content_type: str, body: bytes) -> None:
        """Send an answer in one piece, status 200."""
        ...


class Flow(Protocol):
    """Takes a request across the roles."""

    async def serve(self, call: Call, sink: Sink) -> None:
        """Answer a request; raises `ProxyError` for what could not be done, before or after `sink.start`."""
        ...
