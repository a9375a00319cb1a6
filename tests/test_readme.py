"""The README: what it tells people to write, to type and to open is there, and is right."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pdtui.cli.root import COMMANDS, OWN_OPTIONS, LazyGroup
from pdtui.topology.load import load_bytes

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CODE = re.compile(r"```(?:sh|bash)\n(.*?)```|`([^`\n]+)`", re.DOTALL)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
SOURCES = ("src/pdtui", "src/pdtui/topology", "src/pdtui/topology/importing", "src/pdtui/fleet/discovering", ".")


def typed() -> Iterator[tuple[str, list[str]]]:
    """Yield the words of each `pdtui ...` that stands in the README, with the whole of it."""
    for block, span in CODE.findall(README):
        for line in (block or span).splitlines():
            for part in re.split(r"&&|\||#", line):
                words = part.split()
                if words and words[0] in ("pdtui", ".venv/bin/pdtui") and len(words) > 1:
                    yield part.strip(), words[1:]


def option_names(command: click.Command) -> set[str]:
    names = {*OWN_OPTIONS}
    for one in (command, *(command.commands.values() if isinstance(command, click.Group) else ())):
        names |= {name for option in one.params for name in (*option.opts, *option.secondary_opts)}
    return names


def test_its_smallest_file_has_no_finding() -> None:
    found = re.search(r"```yaml\n(pdtui: 1\n.*?)```", README, re.DOTALL)
    assert found is not None
    loaded = load_bytes(found[1].encode(), Path("my-cluster.yaml"))
    assert loaded.topology is not None
    assert loaded.findings == ()


def test_what_it_says_to_type_exists() -> None:
    seen = set()
    root = LazyGroup()
    for text, (name, *rest) in typed():
        if re.search(r"\.yaml$|^FILE$|^--|^is$", name):
            continue
        command = root.get_command(click.Context(root), name)
        assert command is not None, text
        own = rest[: rest.index("--")] if "--" in rest else rest
        options = set(OPTION.findall(" ".join(own)))
        assert options <= option_names(command), text
        seen.add(name)
    assert len(seen) > 10


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "console"])
def test_its_table_has_every_command(name: str) -> None:
    table = README.partition("| command | does |")[2].partition("\n\n")[0]
    assert re.search(rf"^\| [^|]*`(?:pdtui )?{name}\b", table, re.MULTILINE), name


def test_the_places_that_it_names_for_changes_exist() -> None:
    section = README.partition("## For those who change it")[2]
    named = [word for word in re.findall(r"`([\w./-]+(?:\.py|/\w[\w./-]*))`", section) if "SUBJECT" not in word]
    assert len(named) > 10
    for word in named:
        assert any((ROOT / base / word).exists() for base in SOURCES), word
