"""1,000 random sequences of actions and mishaps on nodes in memory, in a time that does not pass.

A failure prints the shortest sequence found that fails as well, as a call of `replay`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pdtui.fleet import fleet, observation, store
from pdtui.fleet.journal import Journal
from pdtui.fleet.observation import RankMemory
from pdtui.fleet.snapshot import RankState
from pdtui.fleet.starting import Starting
from pdtui.remote.messages.ranks import RankRecord, StopResult
from tests.sequences import steps
from tests.sequences.steps import Step
from tests.support.memory_leases import Leases
from tests.support.memory_node import MemoryNode
from tests.support.memory_ranks import Key, RankDirectories

SEQUENCES = 1000
BATCHES = 8


class NoNpus:
    """In place of the watch over NPUs, which has no part in this."""

    addresses: dict[str, int] = {}  # noqa: RUF012 - shared and empty

    def __init__(self, *_: object, **__: object) -> None:
        """Take what a monitor takes."""

    async def run(self) -> None:
        """Watch nothing."""

    async def poll_now(self, *, hanging: bool = True) -> None:
        """Read nothing."""


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what costs time and decides nothing here."""
    monkeypatch.setattr(fleet, "NpuMonitor", NoNpus)
    monkeypatch.setattr(store, "SNAPSHOT_INTERVAL", 1.0)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_whatever_is_done_a_rank_runs_once_and_is_shown_as_it_is(batch: int, tmp_path: Path) -> None:
    for seed in range(batch, SEQUENCES, BATCHES):
        kind, sequence = steps.make(seed)
        if steps.fails(kind, sequence, tmp_path):
            shortest = steps.shrink(kind, sequence, tmp_path)
            lines = "".join(f"    {step!r},\n" for step in shortest)
            words = steps.fails(kind, shortest, tmp_path)
            pytest.fail(f"sequence {seed}: {words}\nreplay({kind!r}, [\n{lines}])", pytrace=False)


def replay(kind: str, sequence: Sequence[Step], files: Path) -> None:
    """Run a sequence that a failure has printed, with its traceback."""
    steps.run(kind, sequence, files)


@pytest.mark.parametrize("gap", [0.0, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("target", ["d", "d/0"])
def test_consoles_with_different_files_never_run_a_rank_on_two_nodes(
    gap: float, target: str, tmp_path: Path
) -> None:
    for kind in ("moe", "dense"):
        both: list[Step] = [("act", 0, "start", target), ("wait", gap), ("act", 1, "start", target)]
        words = steps.fails(kind, [("open", 0, 0), ("open", 1, 1), ("wait", 3.0), *both, ("wait", 4.0)], tmp_path)
        assert not words


def _forgets_what_runs(patch: pytest.MonkeyPatch) -> None:
    honest = RankDirectories.view

    def view(self: RankDirectories, key: Key) -> RankRecord | None:
        record = honest(self, key)
        return record and replace(record, processes=())

    patch.setattr(RankDirectories, "view", view)


def _stops_nothing(patch: pytest.MonkeyPatch) -> None:
    async def stop(self: MemoryNode, cluster: str, rank: str, *_: object, **__: object) -> StopResult:
        return StopResult("stopped", False, (), self.ranks.view((cluster, rank)))

    patch.setattr(MemoryNode, "stop", stop)


def _takes_others_for_ours(patch: pytest.MonkeyPatch) -> None:
    def pids(self: RankDirectories, key: Key) -> frozenset[int]:
        return frozenset(p.pid for p in self.table.by_pid.values() if p.marker.endswith(key[1]))

    patch.setattr(RankDirectories, "pids", pids)


def _shows_what_was(patch: pytest.MonkeyPatch) -> None:
    honest = observation.state_of

    def state_of(memory: RankMemory, *, stopping: bool) -> RankState:
        return RankState.READY if memory.was_ready else honest(memory, stopping=stopping)

    patch.setattr(observation, "state_of", state_of)


def _takes_a_stop_for_a_crash(patch: pytest.MonkeyPatch) -> None:
    def note(self: RankMemory, record: RankRecord | None, at: float) -> None:
        honest(self, record and replace(record, stop_requested=False), at)

    honest = RankMemory.take_record
    patch.setattr(RankMemory, "take_record", note)


def _waits_for_the_dead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Starting, "_ended", lambda *_: None)


def _loses_the_result(patch: pytest.MonkeyPatch) -> None:
    honest = Journal.write

    def write(self: Journal, event: str, **what: object) -> Mapping[str, object]:
        return {} if event.endswith("ended") else honest(self, event, **what)

    patch.setattr(Journal, "write", write)


def _keeps_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leases, "release", lambda *_: None)
    patch.setattr(Leases, "_counts", lambda _, held: held.end is None)


@pytest.mark.parametrize(
    "mistake",
    [
        _forgets_what_runs,
        _stops_nothing,
        _takes_others_for_ours,
        _shows_what_was,
        _takes_a_stop_for_a_crash,
        _waits_for_the_dead,
        _loses_the_result,
        _keeps_leases,
    ],
)
def test_sequences_find_a_mistake(
    mistake: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    assert any(steps.fails(*steps.make(seed), tmp_path) for seed in range(60))
