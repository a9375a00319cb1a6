"""What the parts of one import share while a file is made."""

from __future__ import annotations

from dataclasses import dataclass, field

from pdtui.topology.importing.groups import Formed
from pdtui.topology.importing.observed import Observed, ProxyCommand, Wanted
from pdtui.topology.importing.places import Place
from pdtui.topology.importing.ranks import Rank
from pdtui.topology.importing.report import Note


@dataclass(eq=False)
class Work:
    """One import on its way to a file; each step fills in its own."""

    seen: Observed
    wanted: Wanted
    notes: list[Note]
    asked: list[tuple[tuple[str | int, ...], str]] = field(default_factory=list)
    """What the user must write: path in the file, and why; the same words are told once."""
    proxies: list[ProxyCommand] = field(default_factory=list)
    ranks: list[Rank] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)
    """By the host that ranks name."""
    addresses: dict[str, str] = field(default_factory=dict)
    """Host that ranks name -> its address in the cluster."""
    groups: list[Formed] = field(default_factory=list)
    kind: str = "moe"
    platform: str = ""

    @property
    def is_cpu(self) -> bool:
        """Whether these are servers without NPUs."""
        return self.platform == "cpu"
