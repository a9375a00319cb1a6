"""The rank under the cursor of the grid of ranks, in one line."""

from __future__ import annotations

from pdtui.console.chrome import node_line
from pdtui.console.describe import has_reasons, is_lone
from pdtui.console.figures import figures
from pdtui.console.lines import Line
from pdtui.console.look import Look
from pdtui.console.rank_order import state_word
from pdtui.console.strings import S
from pdtui.console.timing import duration, elapsed
from pdtui.fleet.snapshot import WRONG_STATES, GroupStatus, NodeState, NodeStatus, RankStatus


def rank_line(
    node: NodeStatus | None,
    rank: RankStatus | None,
    look: Look,
    width: int,
    now: float,
    group: GroupStatus | None = None,
) -> Line:
    """Return how the rank is and what it does, or what is wrong with its node, with the key that shows more.

    A node that cannot be asked goes before its ranks; what it only warns of goes behind what is wrong with a rank.
    """
    line = Line(look.glyphs.ellipsis).add("  ")
    if node is None:
        return line
    lone = rank is not None and is_lone(rank, group)
    wrong = rank is not None and (rank.state in WRONG_STATES or has_reasons(rank, group))
    warned = bool(node.conditions) and not wrong
    if node.state is not NodeState.CONNECTED or node.error or warned or rank is None:
        if not node_line(line, node, look, width):
            words = S.no_rank_here if rank is None else S.node_states[node.state]
            line.add(node.facts or words, look.styles.dim)
        return line
    styles = look.styles
    line.add(f"{node.name} {rank.id}  ", styles.title)
    state = f"{state_word(rank, lone=lone)} {elapsed(now, rank.since)}   "
    line.add(state, look.rank_sign(rank, lone=lone)[1] if rank.state in WRONG_STATES or lone else styles.dim)
    if wrong and rank.diagnosis is not None:
        line.add(rank.diagnosis.summary, styles.text)
    elif rank.exit_status is not None:
        text = S.exit_status if rank.exit_status >= 0 else S.signal
        line.add(text.format(n=abs(rank.exit_status)), styles.failed)
    elif lone:
        line.add(S.group_must_restart.format(group=rank.group), styles.text)
    elif rank.alarms:
        line.add(rank.alarms[0].message, look.rank_sign(rank)[1])
    elif rank.stage:
        line.add(rank.stage, styles.starting)
    else:
        values = [figure.text.strip() for figure in figures(rank, roomy=True)]
        if rank.metrics is not None:
            values.append(S.ago.format(t=duration(now - rank.metrics.observed_at)))
        line.add("   ".join(value for value in values if value), styles.dim)
    return line.right(Line().add(f"{S.more_of_rank}  ", styles.key), width) if wrong else line
