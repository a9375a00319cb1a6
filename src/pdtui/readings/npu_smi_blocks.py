"""The `key : value` answers of `npu-smi info -t ...`: one block a chip, and one for the card's microcontroller.

Most types print the values first and `Chip ID` last, `common` prints it first; asked with `-c`, and on A5, there
is no chip id at all. The microcontroller's block has `Chip Name : mcu` in its place (the tool's published source,
hicann/driver; recorded answers of A1, A2, 300I Duo and A5).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import Field, dataclass
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from pdtui.readings.answer import Answer, is_whole, stdout_lines


class OfChip(Protocol):
    """What an answer says of one chip: a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def chip(self) -> int | None:
        """Its chip id; None where the answer names none: it is the chip that was asked for."""
        ...


T_co = TypeVar("T_co", bound=OfChip, covariant=True)


@dataclass(frozen=True, slots=True)
class Card(Generic[T_co]):
    """What one answer says of the chips of a card."""

    npu: int | None
    """NPU ID; None where the answer does not name it."""
    chips: tuple[T_co, ...]
    mcu: T_co | None = None
    """The card's microcontroller, where it reports something."""

    def of(self, chip: int) -> T_co | None:
        """Return what is said of a chip."""
        return next((one for one in self.chips if one.chip in (chip, None)), None)


@dataclass(frozen=True, slots=True)
class Block:
    """The values of one chip, by the key as printed."""

    chip: int | None
    values: Mapping[str, str]

    def text(self, *keys: str) -> str:
        """Return the value of the first key that is there; what the tool prints for `none` is empty."""
        value = next((self.values[key] for key in keys if key in self.values), "")
        return "" if value in _NOTHING else value

    def integer(self, *keys: str) -> int | None:
        """Return a whole number, None when there is none."""
        return whole_number(self.text(*keys))

    def number(self, *keys: str) -> float | None:
        """Return a number, None when there is none."""
        value = self.text(*keys)
        return float(value) if _NUMBER.fullmatch(value) else None


@dataclass(frozen=True, slots=True)
class Blocks:
    """A whole answer."""

    npu: int | None
    chips: tuple[Block, ...]
    mcu: Block | None


_NOTHING = frozenset({"NA", "N/A", "-", "--"})
_LINE = re.compile(r"\s*(\S.*?)?\s*:(?:\s(.*))?$")
_PADDED = re.compile(r"\s*(\S.*?)\s+:(?:\s+(.*))?$")
_INTEGER = re.compile(r"-?\d{1,20}")
_NUMBER = re.compile(r"-?\d{1,12}(?:\.\d{1,6})?")
_MCU = "mcu"


def whole_number(text: str) -> int | None:
    """Return the whole number that a text is, None when it is none."""
    return int(text) if _INTEGER.fullmatch(text) else None


def pair_of(line: str) -> tuple[str, str] | None:
    """Return key and value of a line; the key is padded, so a value may hold colons. None: no such line."""
    match = _PADDED.match(line) or _LINE.match(line)
    return ((match[1] or "").strip(), (match[2] or "").strip()) if match else None


class _Splitter:
    """Puts pairs into blocks; `failed` when they cannot be of one whole answer."""

    def __init__(self) -> None:
        self.npu: int | None = None
        self.counted = False
        self.first: bool | None = None
        """The id stands before its values; None before that is seen."""
        self.id: str | None = None
        self.values: dict[str, str] = {}
        self.chips: list[Block] = []
        self.mcu: Block | None = None
        self.failed = False

    def take(self, key: str, value: str) -> None:
        """Take one line."""
        if key == "NPU ID":
            self.failed = self.failed or self.npu is not None or (npu := whole_number(value)) is None or npu < 0
            self.npu = whole_number(value)
        elif key == "Chip Count" and not self.values and not self.chips:
            self.failed = self.failed or self.counted
            self.counted = True  # Of the card, also when one chip was asked for.
        elif key == "Chip ID" or (key == "Chip Name" and value.lower() == _MCU):
            self._id(value)
        elif key in self.values:
            self.failed = True
        else:
            if self.first is None:
                self.first = False
            self.values[key] = value

    def _id(self, value: str) -> None:
        if self.first is None:
            self.first = True
        if not self.first:
            self._close(value)
            return
        if self.id is not None:
            self._close(self.id)
        self.id = value

    def _close(self, chip: str | None) -> None:
        """End a block."""
        values, self.values = self.values, {}
        if chip is not None and chip.lower() == _MCU:
            self.failed = self.failed or self.mcu is not None
            self.mcu = Block(None, values)
            return
        number = None if chip is None else whole_number(chip)
        known = {block.chip for block in self.chips}
        self.failed = self.failed or number in known or (chip is not None and number is None)
        self.chips.append(Block(number, values))

    def end(self) -> Blocks | None:
        """Return the blocks of a whole answer."""
        if self.id is not None:
            self._close(self.id)
        elif self.values:
            self.failed = self.failed or bool(self.chips) or self.mcu is not None
            self._close(None)
        if self.failed or not self.chips:
            return None
        return Blocks(self.npu, tuple(self.chips), self.mcu)


def read_blocks(answer: Answer) -> Blocks | None:
    """Return the blocks of an answer; None when it is cut, mixed of two, or no such answer."""
    if not is_whole(answer):
        return None
    splitter = _Splitter()
    for line in stdout_lines(answer):
        pair = pair_of(line)
        if pair is None or not pair[0]:
            return None
        splitter.take(*pair)
    return splitter.end()


def read_block(answer: Answer) -> Block | None:
    """Return the only block of an answer about one chip or card, its NPU ID and chip among the values."""
    if not is_whole(answer):
        return None
    values: dict[str, str] = {}
    for line in stdout_lines(answer):
        pair = pair_of(line)
        if pair is None or not pair[0] or pair[0] in values:
            return None
        values[pair[0]] = pair[1]
    return Block(whole_number(values.get("Chip ID", "")), values) if values else None
