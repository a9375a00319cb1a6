"""How lines look: styles by what they mean, and signs. Widgets of our own take one `Look` and ask it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from rich.style import Style

from pdtui.console.glyphs import UNICODE, Glyphs
from pdtui.fleet.snapshot import WRONG_STATES, NodeState, RankState, RankStatus
from pdtui.readings.verdict import Verdict


@dataclass(frozen=True)
class Styles:
    """Styles by meaning; a theme file gives each in words (`bold #ff5f5f`)."""

    text: Style
    dim: Style
    """Labels, ages, what is secondary."""
    healthy: Style
    """The sign of a healthy NPU: almost nothing."""
    good: Style
    starting: Style
    warning: Style
    failed: Style
    unknown: Style
    stale: Style
    """Values that are no longer current."""
    rule: Style
    title: Style
    rule_focused: Style
    title_focused: Style
    cursor: Style
    """Laid over the row that the cursor is on, in the focused area."""
    cursor_idle: Style
    """The same in an area without the focus."""
    mark: Style
    key: Style
    key_label: Style
    key_disabled: Style
    key_danger: Style
    cluster: Style
    protected: Style
    read_only: Style
    headline_warning: Style
    headline_error: Style
    match: Style
    """What a search found."""
    match_current: Style

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names that a theme file may use."""
        return tuple(field.name for field in fields(cls))

    @classmethod
    def parse(cls, words: Mapping[str, str]) -> Styles:
        """Build from words. Raises `rich.errors.StyleSyntaxError` and KeyError."""
        return cls(**{name: Style.parse(words[name]) for name in cls.names()})

    def colourless(self) -> Styles:
        """Return the same without any colour; what colour alone would have shown becomes reverse or underline."""
        plain = Styles(**{name: getattr(self, name).without_color for name in self.names()})
        reverse, bold = Style(reverse=True), Style(bold=True)
        return replace(
            plain,
            cursor=reverse,
            cursor_idle=Style(underline=True),
            title_focused=Style(bold=True, reverse=True),
            protected=reverse,
            read_only=reverse,
            headline_error=bold,
            failed=bold,
            match=Style(underline=True),
            match_current=reverse,
        )


@dataclass(frozen=True)
class Look:
    """Everything that decides how a line looks."""

    styles: Styles
    glyphs: Glyphs = UNICODE

    def verdict(self, verdict: Verdict) -> Style:
        """Return the style of an NPU's verdict."""
        return {
            Verdict.HEALTHY: self.styles.healthy,
            Verdict.DEGRADED: self.styles.warning,
            Verdict.FAILED: self.styles.failed,
            Verdict.UNKNOWN: self.styles.unknown,
            Verdict.NA: self.styles.dim,
        }[verdict]

    def rank(self, state: RankState) -> Style:
        """Return the style of a rank's state."""
        return {
            RankState.UNKNOWN: self.styles.unknown,
            RankState.STOPPED: self.styles.dim,
            RankState.STARTING: self.styles.starting,
            RankState.READY: self.styles.good,
            RankState.UNHEALTHY: self.styles.warning,
            RankState.STALLED: self.styles.warning,
            RankState.STOPPING: self.styles.starting,
            RankState.FAILED: self.styles.failed,
            RankState.LOST: self.styles.unknown,
            RankState.UNMANAGED: self.styles.warning,
            RankState.UNKEPT: self.styles.warning,
        }[state]

    def rank_sign(self, rank: RankStatus, *, lone: bool = False) -> tuple[str, Style]:
        """Return the sign of a rank with its style: an alarm is seen though the rank is ready.

        `lone`: its group is lost, which is seen likewise.
        """
        if rank.state in WRONG_STATES or not (rank.alarms or lone):
            return self.glyphs.rank(rank.state), self.rank(rank.state)
        error = any(alarm.severity == "error" for alarm in rank.alarms)
        return self.glyphs.degraded, self.styles.failed if error else self.styles.warning

    def node(self, state: NodeState) -> Style:
        """Return the style of a node's trouble: one that will not pass by itself is an error."""
        return self.styles.failed if state is NodeState.FAILED else self.styles.warning

    def severity(self, severity: str) -> Style:
        """Return the style of an event's or log line's severity."""
        return {
            "error": self.styles.failed,
            "warning": self.styles.warning,
            "good": self.styles.good,
        }.get(severity, self.styles.text)
