"""Arguments that several commands take, and mean the same by."""

from __future__ import annotations

import re
from pathlib import Path

import click

from pdtui.fleet.intents import DRAIN
from pdtui.text import clean_line

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def span_seconds(text: str) -> float | None:
    """Return the seconds of `90s`, `30m`, `2h`, `3d`; None for anything else."""
    match = _SPAN.fullmatch(text.strip())
    return float(match[1]) * _SECONDS[match[2]] if match else None


class Span(click.ParamType[float]):
    """A length of time: `90s`, `30m`, `8h`, `3d`."""

    name = "TIME"

    def convert(self, value: str | float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return it in seconds, or fail with a usage error."""
        if isinstance(value, float):
            return value
        seconds = span_seconds(value)
        if seconds is None:
            self.fail(f"{clean_line(value)!r} is no length of time: 90m, 8h, 3d", param, ctx)
        return seconds


file = click.argument("file", type=click.Path(path_type=Path))

as_json = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")

reason = click.option("--reason", default="", help="Why; kept in the journal.")

confirm = click.option("--confirm", default="", metavar="NAME", help="The cluster's name, where it is protected.")

override = click.option(
    "--override",
    multiple=True,
    metavar="BLOCKER",
    help="Pass over a blocker, such as port:node3:7100; needs --reason. May be given several times.",
)

break_lease = click.option(
    "--break-lease",
    default="",
    metavar="REASON",
    help="Take over from another console that works on these ranks: its operation ends where it is.",
)

unmanaged = click.option(
    "--unmanaged",
    is_flag=True,
    help="Also stop ranks that were started by hand; without it only those whose rank or group is named.",
)

grace = click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between TERM and KILL.",
)

drain = click.option(
    "--drain",
    type=click.FloatRange(min=0),
    default=DRAIN,
    show_default=True,
    metavar="SECONDS",
    help="How long running requests have to end before TERM cuts them off.",
)

timeout = click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=None,
    metavar="SECONDS",
    help="How long a rank may take until it is ready; default: the file's start.deadline, else an hour.",
)
