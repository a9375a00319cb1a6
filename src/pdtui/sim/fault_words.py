"""The words of a fault's line: switches, choices and amounts."""

from __future__ import annotations

from collections.abc import Sequence


def switch(words: Sequence[str], at: int) -> bool:
    """Return the on or off at a place; on when nothing stands there. Raises `KeyError`."""
    return {"on": True, "off": False}[words[at]] if len(words) > at else True


def one(words: Sequence[str], *choices: str) -> str:
    """Return the choice that the only word is. Raises `ValueError`."""
    (word,) = words
    found = next((choice for choice in choices if choice.lower() == word.lower()), "")
    if not found:
        raise ValueError(word)
    return found


def amount(text: str, *units: tuple[str, float]) -> float:
    """Return a number with one of these units, or a number without; off is none. Raises `ValueError`."""
    if text == "off":
        return 0.0
    for unit, factor in units:
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    raise ValueError(text)
