"""What a console would show of ranks while another one starts them."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from pdtui.clock import SystemClock
from pdtui.fleet.engine import EngineThread
from pdtui.topology.load import load_checked
from pdtui.topology.planner import make_plan


class StageWatch:
    """Notes every stage that a read-only engine shows. A context manager."""

    def __init__(self, file: Path, journal_dir: Path) -> None:
        self.stages: dict[str, list[str]] = {}
        topology = load_checked(file)
        self._engine = EngineThread(
            topology,
            make_plan(topology),
            clock=SystemClock(),
            read_only=True,
            by="watch@tests",
            journal_dir=journal_dir,
        )

    def __enter__(self) -> Self:
        """Begin to watch."""
        self._engine.__enter__()
        self._engine.subscribe(self._look)
        self._look()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self._engine.__exit__(kind, error, trace)

    def _look(self) -> None:
        for rank in self._engine.snapshot.ranks:
            seen = self.stages.setdefault(rank.id, [])
            if rank.stage and seen[-1:] != [rank.stage]:
                seen.append(rank.stage)
