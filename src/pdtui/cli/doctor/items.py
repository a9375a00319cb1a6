"""What the doctor says: items in sections, as text and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import click

from pdtui.text import clean_line, width

Level = Literal["ok", "warn", "fail"]

_COLOURS: Mapping[Level, str] = {"ok": "green", "warn": "yellow", "fail": "red"}
_ORDER: Sequence[Level] = ("ok", "warn", "fail")
_NARROWEST = 40
"""Columns; text is not broken into shorter lines than fit this."""


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that was looked at. Texts are cleaned here: most come from outside."""

    name: str
    level: Level
    text: str
    remedy: str = ""
    """What helps; empty when nothing is wrong, or nothing is known to."""

    def __post_init__(self) -> None:
        """Clean what is shown."""
        for name in ("name", "text", "remedy"):
            object.__setattr__(self, name, clean_line(getattr(self, name)))


@dataclass(frozen=True, slots=True)
class Section:
    """Items that belong together."""

    name: str
    items: tuple[Item, ...]
    samples: tuple[str, ...] = ()
    """Lines to look at on a terminal, escape sequences included; never in JSON."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """What belongs to a bug report."""

    what: str
    """A path, or a command whose output it is."""
    holds: str


def ok(name: str, text: str) -> Item:
    """Return an item about which nothing is wrong."""
    return Item(name, "ok", text)


def warn(name: str, text: str, remedy: str = "") -> Item:
    """Return an item that pdtui can work with."""
    return Item(name, "warn", text, remedy)


def fail(name: str, text: str, remedy: str = "") -> Item:
    """Return an item that stops pdtui, or a part of it that everything needs."""
    return Item(name, "fail", text, remedy)


def counted(number: int, what: str) -> str:
    """Return `1 node` or `2 nodes`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def worst(sections: Iterable[Section]) -> Level:
    """Return the worst level of all items."""
    levels = [item.level for section in sections for item in section.items]
    return max(levels, key=_ORDER.index, default="ok")


def summary(sections: Iterable[Section]) -> str:
    """Return one line that says how much is wrong, and where it is worst."""
    items = [item for section in sections for item in section.items]
    fails = [item.name for item in items if item.level == "fail"]
    warnings = sum(item.level == "warn" for item in items)
    said = f"{len(fails)} failing" + (f" ({', '.join(dict.fromkeys(fails))})" if fails else "")
    return f"{said}, {counted(warnings, 'warning')}"


def as_dict(sections: Sequence[Section], attachments: Sequence[Attachment]) -> dict[str, object]:
    """Return what `--json` prints: an interface."""
    return {
        "schema_version": 1,
        "verdict": worst(sections),
        "sections": [
            {
                "name": section.name,
                "items": [
                    {"name": item.name, "level": item.level, "text": item.text, "remedy": item.remedy}
                    for item in section.items
                ],
            }
            for section in sections
        ],
        "attach": [{"what": one.what, "holds": one.holds} for one in attachments],
    }


def as_text(sections: Sequence[Section], columns: int | None) -> list[str]:
    """Return lines for people; `columns`: of the terminal, None leaves every line whole."""
    lines: list[str] = []
    for section in sections:
        lines += ["", click.style(section.name, bold=True)] if lines else [click.style(section.name, bold=True)]
        wide = max((width(item.name) for item in section.items), default=0)
        if columns is not None:
            wide = min(wide, max(8, columns // 4))
        for item in section.items:
            lines += _item(item, wide, columns)
        lines += [f"        {line}" for line in section.samples]
    return lines


def _item(item: Item, wide: int, columns: int | None) -> list[str]:
    sign = click.style(f"{item.level:<4}", fg=_COLOURS[item.level])
    indent = " " * (wide + 10)
    room = None if columns is None else max(_NARROWEST, columns) - wide - 10
    name = item.name + " " * (wide - width(item.name))
    if room is not None and width(item.name) > wide:
        first, rest = [f"  {sign}  {item.name}"], paragraph(item.text, room)
        lines = first + [indent + line for line in rest]
    else:
        head, *rest = paragraph(item.text, room) or [""]
        lines = [f"  {sign}  {name}  {head}".rstrip(), *(indent + line for line in rest)]
    if item.remedy:
        head, *rest = paragraph(item.remedy, None if room is None else room - 3)
        lines += [f"{indent}-> {head}", *(f"{indent}   {line}" for line in rest)]
    return lines


def paragraph(text: str, room: int | None) -> list[str]:
    """Return a text in lines of so many columns; words, so also paths, stay whole."""
    if room is None:
        return [text]
    return textwrap.wrap(text, max(10, room), break_long_words=False, break_on_hyphens=False)
