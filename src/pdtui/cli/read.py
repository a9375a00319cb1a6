"""`pdtui read`: what saved text of a vendor tool says, as JSON."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import cast

import click

from pdtui.cli.output import columns, print_json
from pdtui.errors import FileError, UsageError
from pdtui.readings.answer import Answer, Reading
from pdtui.readings.assess import Assessment, Place, assess_reading, place_of
from pdtui.readings.catalogue import Asked, Generation, find, kinds, split
from pdtui.readings.hccn import a5
from pdtui.readings.npu_smi import Table
from pdtui.readings.verdict import SEVERITY, Verdict
from pdtui.readings.words import failure_words, remedy_of

SCHEMA_VERSION = 1


@click.command("read")
@click.argument("line", metavar="COMMAND", default="")
@click.option("-f", "file", type=click.Path(path_type=Path), help="Read the text from FILE instead of stdin.")
@click.option(
    "--platform",
    type=click.Choice(["a2", "a3", "a5"]),
    default=None,
    help="Generation of the server; without it a verdict is given where A2 and A3 agree.",
)
@click.option("--status", type=int, default=0, metavar="N", help="Exit status that the command had.")
@click.option("--stderr", type=click.Path(path_type=Path), help="Its stderr, where that was saved apart.")
@click.option("--list", "show", is_flag=True, help="List everything that can be read.")
def command(
    line: str, file: Path | None, platform: str | None, status: int, stderr: Path | None, show: bool
) -> int:
    """Print as JSON what the saved output of COMMAND says: pdtui read 'hccn_tool -i 0 -link -g' < saved.txt

    COMMAND is the line as it was typed; sudo, paths, docker exec, a loop around it and a grep behind it are passed
    over. The output of a loop is read as one answer for each device.

    Exit status: 1 when an answer has no value or says that something failed, 2 for a COMMAND that is not known.
    """
    if show:
        for row in columns(("COMMAND", "WHAT IT TELLS"), [(kind.command, kind.title) for kind in kinds()]):
            click.echo(row)
        return 0
    if not line:
        raise UsageError("say which command the text is from", remedy="pdtui read --list shows what can be read")
    generation = cast("Generation | None", platform)
    asked = find(line, generation)
    answer = Answer(line, _input(file), _bytes(stderr) if stderr is not None else b"", status)
    found = [_Read.of(asked, device, part, generation) for device, part in split(asked, answer)]
    print_json(as_dict(asked, line, generation, found))
    return 1 if any(one.reading.value is None or one.verdict is Verdict.FAILED for one in found) else 0


def _input(file: Path | None) -> bytes:
    if file is not None:
        return _bytes(file)
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError("the text is read from stdin", remedy="append < saved.txt, or use -f saved.txt")
    return sys.stdin.buffer.read()


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FileError(f"{path}: {error.strerror or error}") from None


@dataclasses.dataclass(frozen=True, slots=True)
class _Read:
    """One answer, read and assessed."""

    device: int | None
    reading: Reading[object]
    told: Assessment | None
    """None where nothing is judged: A5, cards, and where it depends on the platform, which was not said."""

    @property
    def verdict(self) -> Verdict | None:
        """The verdict, if there is one."""
        return self.told.verdict if self.told is not None else None

    @staticmethod
    def of(asked: Asked, device: int | None, answer: Answer, platform: Generation | None) -> _Read:
        """Read and assess one answer."""
        reading = asked.kind.read(answer)
        return _Read(device, reading, _assess(asked, device, reading, platform))


def _assess(
    asked: Asked, device: int | None, reading: Reading[object], platform: Generation | None
) -> Assessment | None:
    if platform == "a5" or isinstance(reading.value, _NOT_JUDGED) or _is_card(reading.value):
        return None
    platforms: tuple[Generation, ...] = ("a2", "a3") if platform is None else (platform,)
    found = [assess_reading(asked.kind.name, reading, one, _place(asked, device, one)) for one in platforms]
    judged = [one for one in found if one.verdict is not Verdict.NA] or found
    return judged[0] if len({one.verdict for one in judged}) == 1 else None


def _place(asked: Asked, device: int | None, platform: Generation) -> Place:
    """Return the ids of what was asked; npu-smi counts cards, which have two chips on A3."""
    if device is None:
        return Place()
    if not asked.by_card:
        return place_of(device, platform)
    chip = asked.chip if platform == "a3" else asked.chip or 0
    if chip is None:
        return Place(npu=str(device))
    return Place(str(2 * device + chip if platform == "a3" else device), str(device), str(chip))


_NOT_JUDGED = (a5.Grid, a5.Grids, a5.PortLinkStat, a5.UbConnect, a5.Fields)


def _is_card(value: object) -> bool:
    """Return whether a table is of cards (300I, 300I Duo, 310B), which serve no cluster."""
    return isinstance(value, Table) and any(chip.name.startswith("310") for chip in value.chips)


def as_dict(asked: Asked, line: str, platform: Generation | None, found: list[_Read]) -> dict[str, object]:
    """Return what is printed: an interface.

    `values`, `failure`, `verdict` and `reason` are those of the only answer; with several they are null but for
    the worst verdict. Each answer is in `answers`, which holds the only one too.
    """
    answers = [_answer(one) for one in found]
    one = answers[0] if len(answers) == 1 else dict.fromkeys(answers[0])
    verdicts = [one.verdict for one in found if one.verdict is not None]
    worst = max(verdicts, key=lambda verdict: SEVERITY[verdict]) if len(verdicts) == len(found) else None
    return {
        "schema_version": SCHEMA_VERSION,
        "kind": asked.kind.name,
        "command": line,
        "platform": platform,
        **one,
        "verdict": worst.value if worst is not None else None,
        "answers": answers,
    }


def _answer(one: _Read) -> dict[str, object]:
    reading, told = one.reading, one.told
    failure = None
    if reading.failure is not None:
        failure = {
            "class": reading.failure.value,
            "words": failure_words(reading),
            "remedy": remedy_of(reading),
        }
    reason = None
    if told is not None and told.verdict not in (Verdict.HEALTHY, Verdict.NA):
        reason = {"id": told.id, "summary": told.summary, "meaning": told.meaning, "remedy": told.remedy}
    return {
        "device": one.device,
        "values": plain(reading.value),
        "failure": failure,
        "verdict": told.verdict.value if told is not None else None,
        "reason": reason,
    }


def plain(value: object) -> object:
    """Return a value of a reader as what JSON knows, without text as printed, which is no part of the value."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value) if field.compare
        }
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list | frozenset):
        return [plain(item) for item in value]
    return value
