"""The lines around the areas: header, headline, titles, the NPU under the cursor, footer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pdtui.console.actions import Offer, Situation, footer
from pdtui.console.describe import hbm_text
from pdtui.console.lines import Line, wrap
from pdtui.console.look import Look
from pdtui.console.selection import TABS, Tab
from pdtui.console.strings import S
from pdtui.console.timing import clock_time, count, duration, elapsed, latency
from pdtui.fleet.snapshot import Acknowledgement, NodeState, NodeStatus, ServingStatus, Snapshot
from pdtui.fleet.troubles import reason_id
from pdtui.readings.verdict import Verdict
from pdtui.text import clean_line
from pdtui.topology.model import Topology

NARROW = 100
"""Below this width the header leaves out what the areas say anyway."""
_MORE = 12
"""Cells that the footer of a narrow screen has for more than an action's name: `stop 6 marked`."""
_WORD_STYLES = {
    "SERVING": "good",
    "DEGRADED": "warning",
    "DOWN": "failed",
    "STARTING": "starting",
    "STOPPED": "dim",
    "UNKNOWN": "unknown",
}


def header(snapshot: Snapshot, topology: Topology, look: Look, width: int, now: float, *, read_only: bool) -> Line:
    """Return the line that answers «is it serving?»."""
    styles, serving = look.styles, snapshot.serving
    line = Line(look.glyphs.ellipsis).add(" ").add(snapshot.cluster, styles.cluster).add("  ")
    if topology.safety.protected:
        line.add(S.protected, styles.protected).add("  ")
    word = S.serving[serving.word]
    since = f" {elapsed(now, serving.since)}" if serving.since else ""
    line.add(f"{word}{since}", getattr(styles, _WORD_STYLES[serving.word]))
    gap = "   " if width >= NARROW else "  "
    for letter, ready, total in (
        (S.role_short_prefill, serving.prefill_ready, serving.prefill_total),
        (S.role_short_decode, serving.decode_ready, serving.decode_total),
    ):
        line.add(gap).add(f"{letter} ", styles.dim)
        line.add(f"{ready}/{total}", styles.text if ready == total else styles.warning)
    right = _header_right(snapshot, topology, look, width, now, read_only=read_only)
    for part in _traffic(serving):
        if line.length + len(gap) + len(part) + right.length + 1 <= width:
            line.add(gap).add(part, styles.text)
    return line.right(right, width)


def _traffic(serving: ServingStatus) -> list[str]:
    parts = []
    if serving.running is not None:
        parts.append(S.in_flight.format(n=serving.running))
    if serving.tokens_per_s is not None:
        parts.append(S.tokens_per_s.format(n=count(serving.tokens_per_s)))
    if serving.ttft_s is not None:
        # The mean that decode ranks themselves measure: a request also waits for its prefill before that.
        parts.append(S.ttft.format(t=latency(serving.ttft_s)))
    return parts


def _header_right(
    snapshot: Snapshot, topology: Topology, look: Look, width: int, now: float, *, read_only: bool
) -> Line:
    styles = look.styles
    line = Line(look.glyphs.ellipsis)
    if snapshot.file_broken:
        line.add(S.file_broken, styles.failed).add("  ")
    elif snapshot.file_removed:
        line.add(S.file_removed, styles.warning).add("  ")
    elif snapshot.file_changed:
        line.add(S.file_changed, styles.warning).add("  ")
    if read_only:
        line.add(S.read_only, styles.read_only).add("  ")
    if width >= NARROW:
        number = len(snapshot.nodes)
        nodes = S.one_node if number == 1 else S.nodes.format(n=number)
        line.add(f"{topology.platform}  {nodes}  ", styles.dim)
    return line.add(f"{clock_time(now)} ", styles.dim)


def headline(snapshot: Snapshot, look: Look, width: int, *, leads: bool) -> list[Line]:
    """Return what is wrong in one sentence, on two lines where it is long. `leads`: enter goes there."""
    wrong = snapshot.headline
    if wrong is None:
        return []
    error = wrong.severity == "error"
    style = look.styles.headline_error if error else look.styles.headline_warning
    sign = look.glyphs.failed if error else look.glyphs.degraded
    go = Line().add(f"{S.go_there} ", look.styles.key)
    pieces = wrap(clean_line(wrong.message), width - 4 - (go.length + 1 if leads else 0))
    lines = [Line(look.glyphs.ellipsis).add(f" {sign} {pieces[0].rstrip()} ", style)]
    if len(pieces) > 1:
        lines.append(Line(look.glyphs.ellipsis).add(f"   {''.join(pieces[1:]).strip()} ", style))
    if leads:
        lines[0].right(go, width)
    return lines


@dataclass(frozen=True, slots=True)
class Title:
    """What a rule says: a name, choices of which one is on, and a note at the right."""

    name: str
    choices: tuple[str, ...] = ()
    chosen: int = -1
    note: str = ""
    key: str = ""


def rule(title: Title, look: Look, width: int, *, focused: bool) -> Line:
    """Return the thin line above an area, bright when it has the focus."""
    styles, glyphs = look.styles, look.glyphs
    bar = styles.rule_focused if focused else styles.rule
    name_style = styles.title_focused if focused else styles.title
    line = Line(glyphs.ellipsis).add(glyphs.rule, bar).add(f" {title.name} ", name_style)
    right = Line(glyphs.ellipsis)
    if title.note:
        right.add(f" {title.note} ", styles.title).add(glyphs.rule, bar)
    if title.choices and not focused and line.length + right.length + _cells(title) > width:
        right = Line(glyphs.ellipsis)
    if title.choices:
        target = Line(glyphs.ellipsis)
        if title.key:
            target.add(f" {title.key}: ", styles.key)
        for number, choice in enumerate(title.choices):
            on = number == title.chosen
            target.add("" if number == 0 else " ").add(
                f"[{choice}]" if on else choice, name_style if on else styles.dim
            )
        if line.length + target.length + right.length + 2 <= width:
            line.extend(target)
        elif title.chosen >= 0:
            line.add(f"[{title.choices[title.chosen]}]", name_style)
    room = width - line.length - right.length
    if room < 1:
        return line.add(glyphs.rule * max(0, width - line.length), bar)
    line.add(" " if title.choices else "").add(glyphs.rule * (room - (1 if title.choices else 0)), bar)
    return line.extend(right)


def _cells(title: Title) -> int:
    """Return the cells that the choices of a title need."""
    return sum(len(choice) + 1 for choice in title.choices) + 3 + (len(title.key) + 3 if title.key else 0)


def detail_title(subject: str, tab: Tab, note: str) -> Title:
    """Return the title of the detail pane with its tabs."""
    names = {
        "log": S.tab_log,
        "describe": S.tab_describe,
        "metrics": S.tab_metrics,
        "reasons": S.tab_reasons,
        "events": S.tab_events,
        "ports": S.tab_ports,
        "progress": S.tab_progress,
        "test": S.tab_test,
    }
    if tab == "test":
        return Title(subject)
    shown = [one for one in TABS if one != "test" and (one not in ("ports", "progress") or tab == one)]
    return Title(subject, tuple(names[one] for one in shown), shown.index(tab), note)


def node_line(line: Line, node: NodeStatus, look: Look, width: int) -> bool:
    """Begin a line about a node; True when its trouble is all that there is to say."""
    styles = look.styles
    line.add(f"{node.name}  ", styles.title)
    if node.error:
        line.add(f"{node.error}  ", look.node(node.state)).add(node.remedy, styles.key_label)
        line.right(Line().add(f"{S.try_again}  ", styles.key), width)
        return True
    if node.conditions and not node.tool_error:
        line.add(f"{node.conditions[0].message}  ", styles.warning)
        line.add(node.conditions[0].remedy, styles.key_label)
        return True
    return False


def npu_line(
    node: NodeStatus | None,
    npu: int | None,
    look: Look,
    width: int,
    now: float,
    known: Callable[[str], Acknowledgement | None],
) -> Line:
    """Return the NPU under the cursor in one line, with the key that shows more; `known`: what is acknowledged."""
    styles = look.styles
    line = Line(look.glyphs.ellipsis).add("  ")
    if node is None:
        return line
    status = next((one for one in node.npus if one.id == npu), None)
    if status is None or node.state is not NodeState.CONNECTED or node.error:
        if node_line(line, node, look, width):
            return line
        return line.add(node.tool_error or (S.never_polled if npu is not None else node.facts), styles.dim)
    quiet = status.verdict in (Verdict.HEALTHY, Verdict.NA)
    line.add(f"{S.npu_line.format(node=node.name, npu=status.id)}  ", styles.title)
    words = S.verdicts[status.verdict]
    if status.reasons:
        told = [one for one in status.reasons if known(f"{node.name}/{status.id}:{reason_id(one)}") is None]
        words = S.verdicts[told[0].verdict] if told else f"{S.known}, {words}"
        words += f": {(told or status.reasons)[0].summary}"
    line.add(f"{words}   ", styles.dim if quiet else look.verdict(status.verdict))
    values = [hbm_text(status)]
    if status.temperature_c is not None:
        values.append(f"{status.temperature_c:.0f} C")
    if status.utilization is not None:
        values.append(f"{status.utilization} %")
    foreign = next((one for one in node.foreign if status.id in one.npus), None)
    if foreign is not None:
        values.append(S.foreign_uses.format(who=foreign.rank or f"{foreign.command[:24]} ({foreign.pid})"))
    values += [status.rank, S.ago.format(t=duration(now - status.observed_at)) if status.observed_at else ""]
    line.add("   ".join(value for value in values if value), styles.dim if quiet else styles.text)
    return line if quiet else line.right(Line().add(f"{S.raw_output}  ", styles.key), width)


def footer_line(situation: Situation, look: Look, width: int, keys: Mapping[str, str]) -> Line:
    """Return what the keys would do now, as many as fit, help always last."""
    styles = look.styles
    line = Line(look.glyphs.ellipsis).add(" ")
    narrow = width < NARROW
    tail = Line()
    for key, name in ((":", "palette"), ("?", "help")) if not situation.typing else ():
        if name == "help" or not (narrow or situation.preflight is not None):
            tail.add(f"{keys.get(name, key)} ", styles.key).add(f"{S.actions[name]} ", styles.key_label)
    for action, offer in footer(situation):
        short = narrow and len(offer.label) > len(action.label) + _MORE
        label = action.label if short else offer.label
        gap = "  " if narrow else "   "
        piece = _footer_piece(keys.get(action.id, action.shown_key), label, gap, look, offer, danger=action.danger)
        if line.length + piece.length + tail.length < width:
            line.extend(piece)
    return line.right(tail, width)


def _footer_piece(key: str, label: str, gap: str, look: Look, offer: Offer, *, danger: bool) -> Line:
    styles = look.styles
    piece = Line(look.glyphs.ellipsis)
    if not offer.enabled:
        return piece.add(f"{key} {label}{gap}", styles.key_disabled)
    piece.add(f"{key} ", styles.key_danger if danger else styles.key)
    return piece.add(f"{label}{gap}", styles.key_label)
