"""The table of ranks that `pdtui status` prints: states, the figures that there is room for, notes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from pdtui.cli.live import clock_time
from pdtui.cli.output import columns
from pdtui.fleet.rank_words import exit_words
from pdtui.fleet.snapshot import WRONG_STATES, RankMetrics, RankState, RankStatus
from pdtui.text import width as cells
from pdtui.topology.model import Role

_ORDER = (
    RankState.FAILED,
    RankState.STALLED,
    RankState.UNHEALTHY,
    RankState.LOST,
    RankState.UNMANAGED,
    RankState.UNKEPT,
    RankState.STOPPING,
    RankState.STARTING,
    RankState.UNKNOWN,
    RankState.STOPPED,
    RankState.READY,
)
_NOTE = 24
"""Cells that notes may ask for before figures: longer ones go on in the next line of the terminal anyway."""

KNOWN = "[acknowledged]"

_Text = Callable[[RankStatus, RankMetrics], str]


def _share(value: float | None) -> str:
    return f"{value * 100:.0f} %" if value is not None else ""


def _number(value: float | None) -> str:
    return f"{value:.0f}" if value is not None else ""


def _time(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def _of_decode(rank: RankStatus, text: str) -> str:
    return text if rank.role is Role.DECODE else ""


_FIGURES: tuple[tuple[str, _Text], ...] = (
    ("RUN", lambda _, metrics: _number(metrics.running)),
    ("WAIT", lambda _, metrics: _number(metrics.waiting)),
    ("KV", lambda _, metrics: _share(metrics.kv_usage)),
    ("IN/S", lambda _, metrics: _number(metrics.prompt_tokens_per_s)),
    ("OUT/S", lambda _, metrics: _number(metrics.generation_tokens_per_s)),
    ("TTFT", lambda _, metrics: _time(metrics.ttft_s)),
    ("TPOT", lambda rank, metrics: _of_decode(rank, _time(metrics.tpot_s))),
    ("EXT", lambda rank, metrics: _of_decode(rank, _share(metrics.external_share))),
    ("PREEMPT", lambda _, metrics: _number(metrics.preemptions)),
    ("ACCEPT", lambda _, metrics: _share(metrics.acceptance)),
)
"""Figures in the order in which they get room; tokens of prompts and of answers a second, EXT: share of prompt
tokens whose KV came from a prefill rank."""


def rank_table(ranks: Sequence[RankStatus], width: int | None, known: Collection[str] = ()) -> list[str]:
    """Return the ranks as aligned lines, what is wrong first; `width`: cells of the terminal, None without one.

    Figures that no rank has are left out, and with a width those that have no room. `known`: ranks whose trouble
    is acknowledged.
    """
    ranks = sorted(ranks, key=_place)
    head = ["RANK", "NODE", "STATE", "SINCE", "PID"]
    rows = [[rank.id, rank.node, rank.state.value, clock_time(rank.since or None), _pid(rank)] for rank in ranks]
    notes = [", ".join(filter(None, (KNOWN if rank.id in known else "", rank_note(rank)))) for rank in ranks]
    note = min(max(map(cells, ("NOTE", *notes))), _NOTE)
    room = (
        None
        if width is None
        else width - note - sum(_wide(column) + 2 for column in zip(head, *rows, strict=True))
    )
    for name, text in _FIGURES:
        column = [(text(rank, rank.metrics) if rank.metrics is not None else "") or "-" for rank in ranks]
        if all(cell == "-" for cell in column):
            continue
        if room is not None:
            room -= _wide((name, *column)) + 2
            if room < 0:
                break
        head.append(name)
        rows = [[*row, cell] for row, cell in zip(rows, column, strict=True)]
    return columns([*head, "NOTE"], [[*row, words] for row, words in zip(rows, notes, strict=True)])


def _place(rank: RankStatus) -> tuple[int, bool]:
    return _ORDER.index(rank.state), not rank.alarms


def _wide(column: Sequence[str]) -> int:
    return max(map(cells, column))


def _pid(rank: RankStatus) -> str:
    return str(rank.pid) if rank.pid is not None else "-"


def rank_note(rank: RankStatus) -> str:
    """Return what there is to say about a rank besides its state."""
    notes: list[str] = []
    if rank.state is RankState.FAILED and rank.exit_status is not None:
        notes.append(exit_words(rank.exit_status))
    if rank.state is RankState.LOST and rank.last_state is not None:
        notes.append(f"was {rank.last_state}")
    if rank.stage:
        notes.append(rank.stage)
    if rank.state not in (RankState.READY, RankState.STARTING) and rank.health:
        notes.append(f"/health {rank.health}")
    if rank.state in WRONG_STATES and rank.diagnosis is not None:
        notes.append(rank.diagnosis.summary)
    notes += [alarm.message for alarm in rank.alarms]
    if rank.state is RankState.UNMANAGED:
        notes.append(f"started by hand{f' by {rank.by}' if rank.by else ''}")
        notes += [rank.log_note] if rank.log_note else []
    notes.extend(rank.flags)
    if rank.difference:
        notes.append("; ".join(rank.difference))
    return ", ".join(notes)
