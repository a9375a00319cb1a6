"""What is wrong with a selection, as a list to go through: each with what it means, what helps and what shows it.

The same list shows the reasons of a verdict, what is wrong with a node or a rank, and results of a preflight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pdtui.console.describe import at_and_age
from pdtui.console.look import Look
from pdtui.console.rows import BLANK, Row, paragraphs
from pdtui.console.strings import S
from pdtui.console.timing import day_and_time
from pdtui.fleet.snapshot import Acknowledgement

LABEL = 12
"""Cells of the labels below a finding."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What a finding rests on: one command, or one file."""

    command: str
    raw: str
    at: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing to say."""

    subject: str
    """Whose it is, as the operator calls it: `node3 NPU 9`."""
    summary: str
    style: str = "text"
    """Name of the style of its sign and word."""
    sign: str = "text"
    """Which sign it has: the name of a field of `Glyphs`, or the sign itself."""
    word: str = ""
    """`failed`, `degraded`, `warning`."""
    meaning: str = ""
    remedy: str = ""
    shown: tuple[Shown, ...] = ()
    since: float | None = None
    more: tuple[Row, ...] = ()
    """Rows of its own, after what it means."""
    key: str = ""
    """What an acknowledgement names: `node3/9:link-down`; empty: it cannot be acknowledged."""
    also: tuple[str, ...] = ()
    """Further keys, where it is said of several."""
    about: str = ""
    """What it is of, for the screen that lists it: the id of a check."""
    known: Acknowledgement | None = None
    """Somebody knows of it."""


@dataclass(frozen=True, slots=True)
class Findings:
    """A list of them, and what is said below it."""

    items: tuple[Finding, ...] = ()
    below: tuple[Row, ...] = field(default=())
    """Values, or that there is nothing to say."""
    title: str = ""
    """Whose they are in the main."""


def sign_of(finding: Finding, look: Look) -> str:
    """Return the sign of a finding."""
    sign: str = getattr(look.glyphs, finding.sign, finding.sign)
    return sign


def head(finding: Finding) -> str:
    """Return a finding in one line."""
    word = f"{S.known}, " if finding.known is not None else ""
    word += f"{finding.word}: " if finding.word else ""
    return f"{finding.subject}  {word}{finding.summary}" if finding.subject else f"{word}{finding.summary}"


def body(finding: Finding, now: float) -> list[Row]:
    """Return what is said below its first line."""
    rows = labelled(S.acknowledged, known_words(finding.known), "good") if finding.known is not None else []
    rows += labelled(S.alarm_means, finding.meaning)
    rows += [Row(row.text, row.style, row.label, row.label_style, LABEL, 2) for row in finding.more]
    rows += labelled(S.since, at_and_age(finding.since, now)) if finding.since is not None else []
    rows += labelled(S.remedy, finding.remedy, "key_label")
    for shown in finding.shown:
        rows += labelled(S.asked, shown.command)
        rows += labelled(S.answered, at_and_age(shown.at, now))
        if shown.command or shown.raw:
            rows += paragraphs(shown.raw, indent=4) or [Row(S.no_output, "dim", indent=4)]
    return rows


def known_words(known: Acknowledgement) -> str:
    """Return who knows of it, until when, and why."""
    return S.acknowledged_by.format(who=known.by, until=day_and_time(known.expires), reason=known.reason)


def labelled(label: str, text: str, style: str = "text") -> list[Row]:
    """Return a row below a finding; none for an empty text."""
    return [Row(text, style, label, label_width=LABEL, indent=2)] if text else []


def as_text(findings: Sequence[Finding], now: float) -> str:
    """Return findings as text to copy: whole, also what is not open on the screen."""
    lines: list[str] = []
    for finding in findings:
        lines.append(head(finding))
        lines += [f"  {row.label}: {row.text}" if row.label else f"    {row.text}" for row in body(finding, now)]
        lines.append("")
    return "\n".join(lines[:-1])


def separated(parts: Sequence[Sequence[Row]]) -> tuple[Row, ...]:
    """Return parts with a blank row between them."""
    rows: list[Row] = []
    for part in parts:
        if part:
            rows += [BLANK, *part] if rows else part
    return tuple(rows)
