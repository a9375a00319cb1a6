"""Signs in three sets: for most terminals, for those that draw ambiguous characters two cells wide, for ASCII.

East-Asian terminals (PuTTY, mintty, older iTerm in a Chinese locale) draw characters of width class «ambiguous»
(`·` `▲` `─` `…` `→`) two cells wide and shear every column behind them; `narrow` uses none of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pdtui.fleet.snapshot import RankState
from pdtui.readings.verdict import Verdict

GlyphSet = Literal["unicode", "narrow", "ascii"]


@dataclass(frozen=True, slots=True)
class Glyphs:
    """One set of signs; each is one cell wide unless it says otherwise."""

    name: GlyphSet
    healthy: str
    degraded: str
    failed: str
    unknown: str
    ready: str
    starting: str
    stopping: str
    stopped: str
    unmanaged: str
    waiting: str
    pending: str
    """Nothing is known yet, and something will be."""
    not_run: str
    blank: str
    """It makes no sense here."""
    cursor: str
    mark: str
    rule: str
    pipe: str
    tee: str
    ellipsis: str
    """One cell, except in `narrow` and `ascii` (two)."""
    spark: str
    """The signs of a sparkline, from nothing to the most."""

    def verdict(self, verdict: Verdict) -> str:
        """Return the sign of an NPU's verdict; blank where it does not apply."""
        return {
            Verdict.HEALTHY: self.healthy,
            Verdict.DEGRADED: self.degraded,
            Verdict.FAILED: self.failed,
            Verdict.UNKNOWN: self.unknown,
            Verdict.NA: " ",
        }[verdict]

    def rank(self, state: RankState) -> str:
        """Return the sign of a rank's state."""
        return {
            RankState.UNKNOWN: self.unknown,
            RankState.STOPPED: self.stopped,
            RankState.STARTING: self.starting,
            RankState.READY: self.ready,
            RankState.UNHEALTHY: self.degraded,
            RankState.STALLED: self.degraded,
            RankState.STOPPING: self.stopping,
            RankState.FAILED: self.failed,
            RankState.LOST: self.unknown,
            RankState.UNMANAGED: self.unmanaged,
            RankState.UNKEPT: self.ready,
        }[state]


UNICODE = Glyphs(
    name="unicode",
    healthy="·",
    degraded="▲",
    failed="✖",
    unknown="?",
    ready="✓",
    starting="◐",
    stopping="◑",
    stopped="○",
    unmanaged="◇",
    waiting="·",
    pending="~",
    not_run="-",
    blank=" ",
    cursor="▸",
    mark="*",
    rule="─",
    pipe="│",
    tee="┬",
    ellipsis="…",
    spark="▁▂▃▄▅▆▇█",
)
NARROW = Glyphs(
    name="narrow",
    healthy=".",
    degraded="!",
    failed="✖",
    unknown="?",
    ready="✓",
    starting="~",
    stopping="~",
    stopped="-",
    unmanaged="%",
    waiting=".",
    pending="~",
    not_run="-",
    blank=" ",
    cursor=">",
    mark="*",
    rule="-",
    pipe="|",
    tee="+",
    ellipsis="..",
    spark="⣀⣄⣤⣦⣶⣷⣿",
)
ASCII = Glyphs(
    name="ascii",
    healthy=".",
    degraded="!",
    failed="X",
    unknown="?",
    ready="+",
    starting="~",
    stopping="~",
    stopped="-",
    unmanaged="%",
    waiting=".",
    pending="~",
    not_run="-",
    blank=" ",
    cursor=">",
    mark="*",
    rule="-",
    pipe="|",
    tee="+",
    ellipsis="..",
    spark="_.-=+*#",
)


_WIDE_LANGUAGES = ("zh", "ja", "ko")


def default_glyphs(environ: Mapping[str, str] | None = None) -> GlyphSet:
    """Return the set for the terminal: what its environment says, not what Python makes of it.

    Python takes the C locale for UTF-8; a tmux or a terminal that does not would draw every sign as the same `_`.
    Terminals of Chinese, Japanese and Korean users often draw signs of ambiguous width two cells wide.
    """
    env = environment() if environ is None else environ
    name = (env.get("LC_ALL") or env.get("LC_CTYPE") or env.get("LANG") or "").lower()
    if "utf" not in name:
        return "ascii"
    return "narrow" if name.startswith(_WIDE_LANGUAGES) else "unicode"


def environment() -> Mapping[str, str]:
    """Return the environment as it was before Python set LC_CTYPE in it (PEP 538)."""
    try:
        raw = Path("/proc/self/environ").read_bytes()
    except OSError:
        return os.environ
    return dict(item.partition("=")[::2] for item in os.fsdecode(raw).split("\0") if "=" in item)


GLYPH_SETS: Mapping[str, Glyphs] = {glyphs.name: glyphs for glyphs in (UNICODE, NARROW, ASCII)}
