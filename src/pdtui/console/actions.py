"""The one registry of what keys do: bindings, footer, help, palette and key map ids are made from it.

An action says, for a snapshot and a selection, what it would do now (`Offer`), or why it would not. The supervisor
decides in the end; this only mirrors it, so that the footer does not promise what would be refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from textual.binding import Binding, BindingType

from pdtui.console.selection import Selection
from pdtui.console.strings import S, nodes_of, ranks_of
from pdtui.fleet.scope import restarted_with
from pdtui.fleet.snapshot import ALIVE_STATES, NodeState, RankState, RankStatus, Snapshot

Group = Literal["act", "look", "move", "log", "text", "test", "prompt", "preflight", "console"]
Scope = Literal["screen", "ranks", "log", "text", "test", "prompt", "preflight", "app"]
Typing = Literal["", "test", "prompt"]


@dataclass(frozen=True, slots=True)
class PreflightView:
    """What availability depends on while the screen of preflight is open."""

    where: str = ""
    """Where the next run asks: `all 4 nodes`."""
    running: bool = False
    known: bool = False
    """There are results."""
    compares: bool = False
    """There was a run before."""
    only_new: bool = False
    check: str = ""
    """The check under the cursor."""
    narrowed: int = 0
    """How many checks a filter leaves; 0: there is none."""
    not_good: int = 0
    """Checks that are not all good."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What availability depends on."""

    snapshot: Snapshot
    selection: Selection
    read_only: bool = False
    headline_open: bool = False
    """There is a headline and the selection is not on its subject."""
    searching: bool = False
    """A log is searched: `n` goes to the next match."""
    quiet: bool = True
    """The log leaves out health checks."""
    asking: bool = False
    """A test completion runs."""
    typing: Typing = ""
    """What letters go into: keys of the screen do nothing then."""
    npus: bool = True
    """Ranks run on NPUs: there is health to read, and the grid is of NPUs."""
    moe: bool = True
    """A group restarts as a whole."""
    finding: str = ""
    """Key of the finding that is read, or of the first of the selection; empty: none that can be acknowledged."""
    finding_known: bool = False
    """Somebody has acknowledged it."""
    bell: bool = True
    """The bell rings when something gets worse."""
    all_ports: bool = False
    """The port map shows all nodes."""
    preflight: PreflightView | None = None
    """The screen of preflight is open."""
    contained: bool = False
    """Ranks run in containers."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What an action would do now."""

    label: str
    why_not: str = ""
    """Empty when it can be done."""

    @property
    def enabled(self) -> bool:
        """Whether it can be done now."""
        return not self.why_not


@dataclass(frozen=True)
class Action:
    """One thing that keys can do."""

    id: str
    keys: tuple[str, ...]
    group: Group
    scope: Scope
    offer_of: Callable[[Situation], Offer | str] | None = None
    """Returns an offer, or the label alone; None: always possible, under its own name."""
    danger: bool = False
    footer: int = 0
    """Rank in the footer, small first; 0 never."""
    key_label: str = ""
    """How the footer and help write the key."""

    @property
    def label(self) -> str:
        """Its name without a selection."""
        return S.actions[self.id]

    def available(self, situation: Situation) -> Offer:
        """Return what it would do now, or why it would not."""
        made = self.offer_of(situation) if self.offer_of else self.label
        offer = Offer(made) if isinstance(made, str) else made
        if self.danger and situation.read_only and offer.enabled:
            return Offer(offer.label, S.why_read_only)
        return offer

    @property
    def shown_key(self) -> str:
        """The key as the footer writes it."""
        return self.key_label or self.keys[0]


def _targets(situation: Situation) -> list[RankStatus]:
    found = (situation.snapshot.rank(rank) for rank in situation.selection.targets)
    return [rank for rank in found if rank is not None]


def _verb_label(situation: Situation, verb: str) -> str:
    marks = situation.selection.marks
    return S.offer_marked.format(verb=verb, n=len(marks)) if marks else verb


_STARTABLE = (RankState.STOPPED, RankState.FAILED)


def startable(situation: Situation) -> tuple[str, ...]:
    """Return the ranks that `start` is about: the marked ones that do not run, else all that do not."""
    marks = set(situation.selection.marks)
    return tuple(
        rank.id
        for rank in situation.snapshot.ranks
        if (rank.id in marks and rank.state in _STARTABLE if marks else rank.state is RankState.STOPPED)
    )


def failed_ranks(situation: Situation) -> tuple[str, ...]:
    """Return the ranks that `restart failed` is about."""
    return tuple(rank.id for rank in situation.snapshot.ranks if rank.state is RankState.FAILED)


def restarted_with_failed(snapshot: Snapshot, *, moe: bool) -> int:
    """Return how many ranks `restart failed` touches."""
    failed = {rank.id for rank in snapshot.ranks if rank.state is RankState.FAILED}
    return len(restarted_with(failed, snapshot.ranks, moe=moe))


def _start(situation: Situation) -> Offer:
    ids = startable(situation)
    if situation.selection.marks:
        label = S.offer_start_marked.format(n=len(ids))
    elif len(ids) == len(situation.snapshot.ranks):
        label = S.offer_start_all.format(ranks=ranks_of(len(ids)))
    else:
        label = S.offer_start_stopped.format(ranks=ranks_of(len(ids)))
    return Offer(label) if ids else Offer(S.actions["start"], S.why_none_stopped)


def _stop(situation: Situation) -> Offer:
    label = _verb_label(situation, S.actions["stop"])
    targets = _targets(situation)
    if not targets:
        return Offer(label, S.why_nothing_selected)
    if not any(rank.state in ALIVE_STATES or rank.state is RankState.LOST for rank in targets):
        return Offer(label, S.why_none_running)
    return Offer(label)


def _restart(situation: Situation) -> Offer:
    label = _verb_label(situation, S.actions["restart"])
    targets = _targets(situation)
    if not targets:
        return Offer(label, S.why_nothing_selected)
    if all(rank.state is RankState.UNMANAGED for rank in targets):
        return Offer(S.offer_take_over.format(restart=label))
    return Offer(label)


def _restart_failed(situation: Situation) -> Offer:
    failed = set(failed_ranks(situation))
    if not failed:
        return Offer(S.actions["restart_failed"], S.why_none_failed)
    groups = {rank.group for rank in situation.snapshot.ranks if rank.id in failed}
    ranks = ranks_of(restarted_with_failed(situation.snapshot, moe=situation.moe))
    if situation.moe and len(groups) == 1:
        return Offer(S.offer_failed_group.format(group=groups.pop(), ranks=ranks))
    return Offer(S.offer_failed.format(ranks=ranks))


def _needs_rank(name: str) -> Callable[[Situation], Offer]:
    def offer(situation: Situation) -> Offer:
        label = S.actions[name]
        return Offer(label) if situation.selection.rank else Offer(label, S.why_no_rank)

    return offer


def _needs_node(name: str) -> Callable[[Situation], Offer]:
    def offer(situation: Situation) -> Offer:
        node = situation.selection.node
        return Offer(f"{S.actions[name]} {node}") if node else Offer(S.actions[name], S.no_node)

    return offer


def container_nodes(situation: Situation) -> tuple[str, ...]:
    """Return the nodes that `container ...` is about: those of the marked ranks, else the one under the cursor."""
    selection = situation.selection
    marked = (situation.snapshot.rank(rank) for rank in selection.marks)
    nodes = dict.fromkeys(rank.node for rank in marked if rank is not None)
    return tuple(nodes) or ((selection.node,) if selection.node else ())


def _container(name: str) -> Callable[[Situation], Offer]:
    def offer(situation: Situation) -> Offer:
        label = S.actions[name]
        if not situation.contained:
            return Offer(label, S.why_no_container)
        nodes = container_nodes(situation)
        if not nodes:
            return Offer(label, S.no_node)
        return Offer(f"{label} {nodes[0] if len(nodes) == 1 else nodes_of(len(nodes))}")

    return offer


def _go(situation: Situation) -> Offer:
    return Offer(S.offer_go if situation.headline_open else S.actions["go"])


def _next(situation: Situation) -> Offer:
    return Offer(S.offer_next_match if situation.searching else S.actions["log_next"])


def _previous(situation: Situation) -> Offer:
    return Offer(S.offer_previous_match if situation.searching else S.actions["log_previous"])


def _checks(situation: Situation) -> Offer:
    return Offer(S.offer_show_checks if situation.quiet else S.offer_hide_checks)


def _leave_test(situation: Situation) -> Offer:
    return Offer(S.offer_cancel_answer if situation.asking else S.actions["test_leave"])


def _poll(situation: Situation) -> Offer | str:
    """Without NPUs there is no health to read, but a node that does not answer can be tried at once."""
    if situation.npus:
        return S.actions["poll"]
    chosen = situation.selection.node if situation.selection.area == "grid" else ""
    troubled = [
        node
        for node in situation.snapshot.nodes
        if (node.state is not NodeState.CONNECTED or node.error) and chosen in ("", node.name)
    ]
    return Offer(S.offer_try_again, "" if troubled else S.why_all_reached)


def _reasons(situation: Situation) -> str:
    return S.actions["reasons"] if situation.npus else S.tab_reasons


def _ports(situation: Situation) -> str:
    """The first press shows the ports of a node, the next those of all, and back."""
    if situation.selection.tab != "ports":
        return S.actions["ports"]
    return S.offer_ports_here if situation.all_ports else S.offer_ports_all


def _filter(situation: Situation) -> str:
    selection = situation.selection
    on_ports = selection.area == "detail" and selection.tab == "ports"
    return S.offer_filter_ports if on_ports else S.actions["filter"]


def _bell(situation: Situation) -> str:
    return S.offer_bell_off if situation.bell else S.actions["bell"]


def _acknowledge(situation: Situation) -> Offer:
    label = S.offer_unacknowledge if situation.finding_known else S.actions["acknowledge"]
    return Offer(label, "" if situation.finding else S.why_no_finding)


def _cancel(situation: Situation) -> Offer:
    running = [operation for operation in situation.snapshot.operations if operation.state == "running"]
    label = S.actions["cancel_operation"]
    return Offer(label) if running else Offer(label, S.why_no_operation)


def _progress(situation: Situation) -> Offer:
    snapshot = situation.snapshot
    label = S.actions["progress"]
    moving = any(rank.state in (RankState.STARTING, RankState.STOPPING) for rank in snapshot.ranks)
    return Offer(label) if moving or snapshot.operations else Offer(label, S.why_nothing_moves)


_NO_PREFLIGHT = PreflightView()


def _in_preflight(make: Callable[[PreflightView], Offer | str]) -> Callable[[Situation], Offer | str]:
    return lambda situation: make(situation.preflight or _NO_PREFLIGHT)


def _unless_running(view: PreflightView, label: str, why_not: str = "") -> Offer:
    return Offer(label, S.why_preflight_runs if view.running else why_not)


def _preflight_run(view: PreflightView) -> Offer:
    if view.narrowed:
        return _unless_running(view, S.offer_run_checks.format(n=view.narrowed, where=view.where))
    return _unless_running(view, S.offer_run_all.format(where=view.where))


def _preflight_again(view: PreflightView) -> Offer:
    label = S.offer_again.format(check=view.check) if view.check else S.actions["preflight_again"]
    return _unless_running(view, label, "" if view.check else S.why_no_check)


def _preflight_bad(view: PreflightView) -> Offer:
    label = S.offer_again_bad.format(n=view.not_good) if view.not_good else S.actions["preflight_bad"]
    return _unless_running(view, label, "" if view.not_good else S.why_all_good)


def _preflight_pings(situation: Situation) -> Offer:
    view = situation.preflight or _NO_PREFLIGHT
    return _unless_running(view, S.actions["preflight_pings"], "" if situation.npus else S.why_no_npus)


def _preflight_cancel(view: PreflightView) -> Offer:
    return Offer(S.actions["preflight_cancel"], "" if view.running else S.why_no_preflight)


def _preflight_new(view: PreflightView) -> Offer:
    label = S.offer_show_all if view.only_new else S.actions["preflight_new"]
    return Offer(label, "" if view.compares else S.why_one_preflight)


def _preflight_save(view: PreflightView) -> Offer:
    return Offer(S.actions["preflight_save"], "" if view.known else S.why_no_results)


ACTIONS: tuple[Action, ...] = (
    Action("restart_failed", ("R",), "act", "screen", _restart_failed, danger=True, footer=1),
    Action("start", ("S",), "act", "screen", _start, danger=True, footer=2),
    Action("restart", ("r",), "act", "screen", _restart, danger=True, footer=3),
    Action("stop", ("x",), "act", "screen", _stop, danger=True, footer=4),
    Action("container_up", ("U",), "act", "screen", _container("container_up"), danger=True),
    Action("container_down", ("D",), "act", "screen", _container("container_down"), danger=True),
    Action("container_recreate", ("C",), "act", "screen", _container("container_recreate"), danger=True),
    Action("cancel_operation", ("X",), "act", "screen", _cancel, danger=True, footer=5),
    Action("test", ("t",), "act", "screen", footer=9),
    Action("poll", ("c",), "act", "screen", _poll, footer=10),
    Action("acknowledge", ("a",), "act", "screen", _acknowledge, danger=True, footer=10),
    Action("edit", ("e",), "act", "screen"),
    Action("shell", ("s",), "act", "screen", _needs_node("shell"), danger=True, footer=12),
    Action("go", ("enter",), "look", "screen", _go),
    Action("logs", ("l",), "look", "screen", _needs_rank("logs"), footer=7),
    Action("describe", ("d",), "look", "screen", footer=8),
    Action("metrics", ("m",), "look", "screen", _needs_rank("metrics"), footer=13),
    Action("reasons", ("i",), "look", "screen", _reasons, footer=14),
    Action("events", ("E",), "look", "screen"),
    Action("ports", ("b",), "look", "screen", _ports),
    Action("progress", ("P",), "look", "screen", _progress, footer=6),
    Action("preflight", ("p",), "act", "screen", footer=11),
    Action("mode", ("v",), "look", "screen"),
    Action("zoom", ("z",), "look", "screen"),
    Action("next_tab", ("right_square_bracket",), "look", "screen", key_label="]"),
    Action("previous_tab", ("left_square_bracket",), "look", "screen", key_label="["),
    Action("mark", ("space",), "act", "ranks", footer=15),
    Action("mark_range", ("M",), "act", "ranks"),
    Action("filter", ("slash",), "look", "screen", _filter, key_label="/", footer=11),
    Action("next_area", ("tab",), "move", "screen"),
    Action("previous_area", ("shift+tab",), "move", "screen"),
    Action("back", ("escape",), "move", "screen", key_label="esc"),
    Action("log_search", ("slash",), "log", "log", key_label="/", footer=1),
    Action("log_next", ("n",), "log", "log", _next, footer=2),
    Action("log_previous", ("N",), "log", "log", _previous),
    Action("log_follow", ("f",), "log", "log", footer=3),
    Action("log_filter", ("ampersand",), "log", "log", key_label="&", footer=4),
    Action("log_context", ("plus",), "log", "log", key_label="+"),
    Action("log_wrap", ("w",), "log", "log", footer=5),
    Action("log_times", ("T",), "log", "log"),
    Action("log_checks", ("h",), "log", "log", _checks, footer=6),
    Action("log_copy", ("y",), "log", "log", footer=7),
    Action("log_save", ("o",), "log", "log", footer=8),
    Action("text_copy", ("y",), "text", "text"),
    Action("test_send", ("enter",), "test", "test", footer=1),
    Action("test_leave", ("escape",), "test", "test", _leave_test, key_label="esc", footer=2),
    Action("prompt_keep", ("enter",), "prompt", "prompt", footer=1),
    Action("prompt_drop", ("escape",), "prompt", "prompt", key_label="esc", footer=2),
    Action("preflight_run", ("p",), "preflight", "preflight", _in_preflight(_preflight_run), footer=2),
    Action("preflight_cancel", ("X",), "preflight", "preflight", _in_preflight(_preflight_cancel), footer=1),
    Action("preflight_open", ("enter",), "preflight", "preflight", footer=3),
    Action("preflight_again", ("r",), "preflight", "preflight", _in_preflight(_preflight_again), footer=4),
    Action("preflight_bad", ("R",), "preflight", "preflight", _in_preflight(_preflight_bad), footer=5),
    Action("preflight_filter", ("slash",), "preflight", "preflight", key_label="/", footer=6),
    Action("preflight_where", ("w",), "preflight", "preflight", footer=7),
    Action("preflight_new", ("n",), "preflight", "preflight", _in_preflight(_preflight_new), footer=9),
    Action("preflight_save", ("o",), "preflight", "preflight", _in_preflight(_preflight_save), footer=10),
    Action("preflight_pings", ("P",), "preflight", "preflight", _preflight_pings, danger=True, footer=11),
    Action("preflight_acknowledge", ("a",), "preflight", "preflight", _acknowledge, danger=True, footer=8),
    Action("preflight_area", ("tab", "shift+tab"), "preflight", "preflight", footer=12),
    Action("preflight_zoom", ("z",), "preflight", "preflight"),
    Action("preflight_back", ("escape",), "preflight", "preflight", key_label="esc", footer=13),
    Action("preflight_leave", ("q",), "preflight", "preflight"),
    Action("preflight_help", ("question_mark",), "preflight", "preflight", key_label="?"),
    Action("bell", ("B",), "console", "screen", _bell),
    Action("theme", ("ctrl+t",), "console", "screen"),
    Action("palette", ("colon",), "console", "screen", key_label=":"),
    Action("help", ("question_mark",), "console", "screen", key_label="?"),
    Action("quit", ("q",), "console", "screen"),
    Action("interrupt", ("ctrl+c",), "console", "app"),
)

BY_ID: Mapping[str, Action] = {action.id: action for action in ACTIONS}


def bindings(scope: Scope) -> list[BindingType]:
    """Return Textual's bindings of one scope; a widget's run on its screen. Their ids are the key map's."""
    return [
        Binding(
            ",".join(action.keys),
            f"screen.do('{action.id}')" if scope != "app" else f"app.do('{action.id}')",
            action.label,
            show=False,
            id=action.id,
            priority=scope == "app",
        )
        for action in ACTIONS
        if action.scope == scope
    ]


def footer(situation: Situation) -> list[tuple[Action, Offer]]:
    """Return what the footer may show, most important first.

    What cannot be done now is left out, except for what read-only forbids: that is shown dimmed.
    """
    area, tab = situation.selection.area, situation.selection.tab
    on_rank = area == "ranks" or (area == "grid" and not situation.npus)
    scopes: tuple[Scope, ...] = ("screen", "ranks") if on_rank else ("screen",)
    if situation.typing:
        scopes = (situation.typing,)
    elif situation.preflight is not None:
        scopes = ("preflight",)
    elif area == "detail" and tab == "log":
        scopes = ("log",)
    chosen = (action for action in ACTIONS if action.footer and action.scope in scopes)
    shown = []
    for action in sorted(chosen, key=lambda action: action.footer):
        offer = action.available(situation)
        if offer.enabled or offer.why_not == S.why_read_only:
            shown.append((action, offer))
    return shown
