"""How commands print on stdout: JSON, and rows in columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import click

from pdtui.text import width


def print_json(value: Mapping[str, object]) -> None:
    """Print what `--json` asks for; each command's shape carries a `schema_version` of its own."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    if any("\ud800" <= sign <= "\udfff" for sign in text):  # The name of a file that is no text.
        text = json.dumps(value, indent=2)
    click.echo(text)


def columns(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return rows in aligned columns below their head."""
    table = [list(head), *map(list, rows)]
    widths = [max(width(row[index]) for row in table) for index in range(len(head))]
    return [
        "  ".join(cell + " " * (wide - width(cell)) for cell, wide in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]
