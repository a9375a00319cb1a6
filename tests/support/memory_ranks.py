"""Rank directories and the process table of a server in memory, by the rules of the real agent.

What the agent of `pdtui.remote` reads from /proc and from disk is kept here as values; what belongs to a rank,
when it counts as running, unkept or exited, and what a start or a stop does to it follow that code, rule by rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from pdtui.remote.messages.ranks import ProcessState, RankRecord, WarmUp

Key = tuple[str, str]
"""Cluster and rank."""


@dataclass(slots=True)
class Behaviour:
    """How a rank that is started behaves; seconds are counted from its start."""

    ready_after: float = 3.0
    dies_after: float | None = None
    exit_status: int = 1
    ignores_term: bool = False
    term_takes: float = 0.0
    """Seconds from TERM to its end."""
    health: int | None = 200
    """Status of /health once ready; None: no answer."""
    metrics: str = ""
    warm_up: WarmUp = WarmUp("ok", tokens=1)  # noqa: RUF009
    """What its first completion comes to."""
    warm_up_takes: float = 0.0
    log: str = ""
    """What it writes to its log at its start."""


@dataclass(slots=True)
class Process:
    """One process of a server."""

    pid: int
    start: int
    """Never the same twice, also when a pid is."""
    parent: int
    session: int
    marker: str = ""
    """Its PDTUI_RANK variable."""
    reaper: bool = False
    """Orphans below it become its children (a subreaper)."""
    ports: tuple[int, ...] = ()
    """On which it listens, apart from a rank's API port."""


@dataclass(slots=True)
class Run:
    """One start of a rank."""

    record: RankRecord
    """As the keeper wrote it; the fields that change are worked out by `RankDirectories.view`."""
    behaviour: Behaviour
    boot: str
    start: int
    keeper_start: int
    born: float
    """Monotonic."""
    told: float | None = None
    """Monotonic time of the first TERM."""
    exit: tuple[int | None, int | None, float] | None = None
    """exit.json: status, signal, when (wall clock of the node)."""
    stop: tuple[str, float] | None = None
    """stop.json: who asked for the end, and when."""


@dataclass
class ProcessTable:
    """The processes of one boot."""

    boot: int = 1
    version: int = 0
    """Counts up with every change."""
    by_pid: dict[int, Process] = field(default_factory=dict)
    _pid: int = 1000
    _start: int = 0

    @property
    def boot_id(self) -> str:
        """Name of this boot."""
        return f"boot-{self.boot}"

    def add(
        self, *, parent: int = 1, session: int | None = None, marker: str = "", pid: int | None = None
    ) -> Process:
        """Add a process, with a free pid unless one is given; by default in a session of its own."""
        if pid is None:
            self._pid += 1
            while self._pid in self.by_pid:
                self._pid += 1
            pid = self._pid
        self._start += 1
        self.version += 1
        process = Process(pid, self._start, parent, pid if session is None else session, marker)
        self.by_pid[pid] = process
        return process

    def remove(self, pids: Iterable[int]) -> None:
        """End processes; their children go to init."""
        self.version += 1
        parents = {pid: process.parent for pid, process in self.by_pid.items()}
        gone = {pid for pid in pids if self.by_pid.pop(pid, None) is not None}
        for process in self.by_pid.values():
            if process.parent in gone:
                above = process.parent
                while above in parents and not (above in self.by_pid and self.by_pid[above].reaper):
                    above = parents[above]
                process.parent = above

    def alive(self, pid: int | None, start: int) -> bool:
        """Return whether this very process runs."""
        return pid is not None and pid in self.by_pid and self.by_pid[pid].start == start

    def below(self, pid: int) -> set[int]:
        """Return the descendants of a process."""
        found: set[int] = set()
        todo = [pid]
        while todo:
            above = todo.pop()
            inner = [p.pid for p in self.by_pid.values() if p.parent == above and p.pid not in found]
            found.update(inner)
            todo.extend(inner)
        return found

    def reboot(self) -> None:
        """End everything; pids begin again, so that numbers in old records mean other processes."""
        self.version += 1
        self.by_pid.clear()
        self.boot += 1
        self._pid = 1000


class RankDirectories:
    """What is on disk of the ranks of a server, and which processes are theirs."""

    def __init__(self, table: ProcessTable, *, monotonic: Callable[[], float], wall: Callable[[], float]) -> None:
        self.table = table
        self.runs: dict[Key, list[Run]] = {}
        self._pids: dict[Key, tuple[tuple[int, int], frozenset[int]]] = {}
        self._monotonic = monotonic
        self._wall = wall

    def newest(self, key: Key) -> Run | None:
        """Return the last start of a rank."""
        runs = self.runs.get(key)
        return runs[-1] if runs else None

    def pids(self, key: Key) -> frozenset[int]:
        """Return what belongs to a rank: by variable, by descent from its keeper or itself, by session."""
        now = (self.table.version, len(self.runs.get(key, ())))
        known = self._pids.get(key)
        if known is None or known[0] != now:
            known = self._pids[key] = (now, frozenset(self._find(key)))
        return known[1]

    def _find(self, key: Key) -> set[int]:
        marker, table = f"{key[0]}:{key[1]}", self.table
        found = {process.pid for process in table.by_pid.values() if process.marker == marker}
        run = self.newest(key)
        if run is None or run.boot != table.boot_id or run.record.pid is None:
            return found
        pid, keeper = run.record.pid, run.record.keeper
        if keeper is not None and table.alive(keeper, run.keeper_start):
            found |= table.below(keeper)
        if table.alive(pid, run.start):
            found |= {pid} | table.below(pid)
        if pid not in table.by_pid or table.alive(pid, run.start):
            found |= {process.pid for process in table.by_pid.values() if process.session == pid}
        return found - {keeper}

    def serves(self, run: Run) -> bool:
        """Return whether the server of a start lives."""
        return run.boot == self.table.boot_id and self.table.alive(run.record.pid, run.start)

    def is_kept(self, run: Run) -> bool:
        """Return whether the keeper of a start lives."""
        return run.boot == self.table.boot_id and self.table.alive(run.record.keeper, run.keeper_start)

    def add(self, key: Key, record: RankRecord, behaviour: Behaviour, *, pid: int | None = None) -> Run:
        """Start the processes of a rank: keeper, server, engine; the engine holds all ports but the API's."""
        marker = f"{key[0]}:{key[1]}"
        keeper = self.table.add()
        keeper.reaper = True
        server = self.table.add(parent=keeper.pid, marker=marker, pid=pid)
        engine = self.table.add(parent=server.pid, session=server.pid, marker=marker)
        engine.ports = tuple(port for port in record.ports if port != record.api_port)
        record = replace(record, pid=server.pid, keeper=keeper.pid)
        run = Run(record, behaviour, self.table.boot_id, server.start, keeper.start, self._monotonic())
        self.runs.setdefault(key, []).append(run)
        return run

    def end(self, run: Run, pids: Iterable[int], *, status: int | None = None, signal: int | None = None) -> None:
        """End processes of a start; its keeper notes how the server ended, and goes with the last of them."""
        served, keeper = self.serves(run), run.record.keeper
        self.table.remove(pids)
        if keeper is None or not self.is_kept(run):
            return
        if served and not self.serves(run):
            run.exit = (status, signal, self._wall())
        if not self.table.below(keeper):
            self.table.remove({keeper})

    def settle(self) -> None:
        """Let end what is due."""
        now = self._monotonic()
        for key, runs in self.runs.items():
            run = runs[-1]
            if not self.serves(run):
                continue
            behaviour = run.behaviour
            if behaviour.dies_after is not None and now - run.born >= behaviour.dies_after:
                self.end(run, self.pids(key), status=behaviour.exit_status)
            elif run.told is not None and not behaviour.ignores_term and now - run.told >= behaviour.term_takes:
                self.end(run, self.pids(key), status=0)

    def view(self, key: Key) -> RankRecord | None:
        """Return what the agent says of a rank; None where there is nothing of it."""
        run, pids = self.newest(key), self.pids(key)
        if run is None:
            if not pids:
                return None
            return RankRecord(*key, ProcessState.UNKEPT, processes=tuple(sorted(pids)))
        kept = self.is_kept(run)
        if run.exit is not None or not (kept or self.serves(run)):
            state = ProcessState.EXITED
        else:
            state = ProcessState.RUNNING if kept else ProcessState.UNKEPT
        status, signal, ended = run.exit or (None, None, None)
        runs = self.runs[key]
        last = run.stop or (runs[-2].stop if len(runs) > 1 else None)
        return replace(
            run.record,
            state=state,
            exit_status=status,
            exit_signal=signal,
            ended=ended,
            stop_requested=run.stop is not None,
            stopped_by=last[0] if last is not None else "",
            stopped_at=last[1] if last is not None else None,
            processes=tuple(sorted(pids)),
            evidence=next((one.record.evidence for one in reversed(runs) if one.record.evidence), ""),
        )
