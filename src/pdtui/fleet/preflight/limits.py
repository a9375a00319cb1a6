"""How long a preflight waits, and how much it asks at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pdtui.readings.commands import Plane


@dataclass(frozen=True, slots=True)
class Limits:
    """How long is waited, in seconds, and how much is asked at once."""

    connect: float = 20.0
    """For the first answer of a node."""
    call: float = 10.0
    """For one call of a vendor tool, on the node."""
    node: float = 120.0
    """For everything that one node is asked, once it is connected."""
    parallel: int = 6
    """Devices of a node that are asked at the same time."""
    busy_tries: int = 3
    """Further tries before a busy tool is reported."""
    busy_pause: float = 1.0
    """Before the first of them, then twice as long each time."""
    hanging: int = 3
    """Devices of a node on which a tool hangs, after which it is not called on the others."""
    probe: float = 120.0
    """For one probe, whatever it asks for itself."""
    grace: float = 3.0
    """That an agent has beyond the time of a program to say that it is over."""
    ping: Mapping[Plane, float] = field(default_factory=lambda: {"roce": 20.0, "hccs": 65.0})
    """For one ping; the tool itself gives up on HCCS after a minute."""
    sources: int = 8
    """Pings that begin on one node at the same time."""
    look: float = 0.5
    """Between two looks at a connection of which nothing was heard."""
