"""What is known about a rank, a node or an NPU, as rows of text; no widgets. Secrets are never in it."""

from __future__ import annotations

from collections.abc import Sequence

from pdtui.console.rank_order import device_list
from pdtui.console.rows import BLANK, Row, heading
from pdtui.console.strings import S
from pdtui.console.timing import clock_time, day_and_time, duration, elapsed
from pdtui.fleet.polling import Pace
from pdtui.fleet.snapshot import (
    ForeignProcess,
    GroupStatus,
    NodeStatus,
    NpuStatus,
    RankState,
    RankStatus,
    Snapshot,
)
from pdtui.fleet.targets import in_short
from pdtui.topology.plan import Plan, RankPlan
from pdtui.topology.redact import redacted
from pdtui.topology.script import command_line


def _field(label: str, value: str, style: str = "text") -> list[Row]:
    return [Row(value, style, label)] if value else []


def at_and_age(wall: float | None, now: float) -> str:
    """Return a time of day and how long ago that was; empty for None."""
    if wall is None:
        return ""
    return f"{clock_time(wall)}  {S.ago.format(t=duration(now - wall))}"


def diagnosis_rows(rank: RankStatus) -> list[Row]:
    """Return why a rank is as it is; empty when nothing is known to be wrong."""
    diagnosis = rank.diagnosis
    if diagnosis is None:
        return []
    rows = _field(S.why, diagnosis.summary, "failed" if rank.exit_status is not None else "warning")
    rows += _field(S.first_cause, diagnosis.first_cause)
    rows += _field(S.shown_by, diagnosis.line)
    rows += _field(S.remedy, diagnosis.remedy, "key_label")
    rows += _field(S.last_work, diagnosis.last_work)
    return rows


def alarm_rows(rank: RankStatus, now: float) -> list[Row]:
    """Return what a rank's metrics say is wrong: what it means, since when, and what to do."""
    rows: list[Row] = []
    for alarm in rank.alarms:
        style = "failed" if alarm.severity == "error" else "warning"
        rows += _field(S.alarm, alarm.message, style)
        rows += _field(S.alarm_means, S.alarms[alarm.id])
        rows += _field(S.since, at_and_age(alarm.since, now))
        rows += _field(S.remedy, alarm.remedy, "key_label")
    return rows


def describe_rank(rank: RankStatus, plan: Plan, now: float, group: GroupStatus | None = None) -> list[Row]:
    """Return everything about a rank: how it is, what would be and was started, and where."""
    planned = plan.by_id.get(rank.id)
    state = S.rank_states[rank.state]
    if rank.exit_status is not None:
        text = S.exit_status if rank.exit_status >= 0 else S.signal
        state = f"{state}  {text.format(n=abs(rank.exit_status))}"
    rows = [heading(f"{rank.id}  {rank.role.value}")]
    rows += _field(S.state, f"{state}  {elapsed(now, rank.since)}")
    if rank.state is RankState.UNMANAGED:
        rows += _field(S.why, S.unmanaged_why, "warning")
        rows += _field(S.remedy, S.unmanaged_remedy, "key_label")
    rows += diagnosis_rows(rank)
    rows += alarm_rows(rank, now)
    rows += group_rows(rank, group)
    since = f"  {elapsed(now, rank.stage_since)}" if rank.stage and rank.stage_since else ""
    rows += _field(S.stage, f"{rank.stage}{since}")
    rows += _field(S.health, f"{rank.health}  ({clock_time(rank.observed_at)})" if rank.health else "")
    rows += _field(S.node, f"{rank.node}  {planned.host if planned else ''}")
    rows += _field(S.devices, device_list(rank.devices))
    kv = f"  KV {_port_range(planned.kv_ports)}" if planned and planned.kv_ports else ""
    rows += _field(S.ports, f"API {rank.api_port}{kv}")
    rows += _field(S.process, str(rank.pid) if rank.pid is not None else "")
    rows += _field(S.run_number, str(rank.run) if rank.run else "")
    rows += _field(S.started_by, rank.by)
    rows += _field(S.started, at_and_age(rank.started, now))
    rows += _field(S.ended, at_and_age(rank.ended, now))
    rows += _field(S.last_start, duration(rank.last_start_s) if rank.last_start_s is not None else "")
    rows += _field(S.log_file, rank.log)
    rows += _field(S.log_note, rank.log_note, "warning")
    rows += _field(S.evidence, rank.evidence)
    if rank.difference:
        rows += [BLANK, heading(S.difference)]
        rows += [Row(line, "warning", indent=2) for line in rank.difference]
    rows += [BLANK, *command_rows(planned)]
    return rows


def group_rows(rank: RankStatus, group: GroupStatus | None) -> list[Row]:
    """Return what a rank's group as a whole has to do with it."""
    if group is None:
        return []
    rows: list[Row] = []
    if rank.id in group.must_restart:
        rows += _field(S.group, S.group_must_restart.format(group=group.name), "failed")
    elif rank.id in group.late:
        rows += _field(S.group, S.group_late.format(group=group.name), "failed")
    if group.waits_for:
        missing = S.group_waits_for.format(ranks=in_short(group.waits_for), nodes=", ".join(group.waits_on))
        since = f"  {S.group_since.format(t=clock_time(group.waiting_since))}" if group.waiting_since else ""
        rows += _field(S.group, f"{missing}{since}", "failed")
    if group.after:
        rows += _field(S.group, S.group_after.format(rank=group.after, s=f"{group.after_s:.0f}"), "warning")
    if len(group.deaths) > 1 or (group.deaths and group.deaths[0].rank != rank.id):
        rows += _death_rows(group)
    return rows


_DEATHS_SHOWN = 8


def _death_rows(group: GroupStatus) -> list[Row]:
    first = group.deaths[0].at
    rows = []
    for number, death in enumerate(group.deaths[:_DEATHS_SHOWN]):
        ended = S.exit_status if (death.exit_status or 0) >= 0 else S.signal
        words = ended.format(n=abs(death.exit_status)) if death.exit_status is not None else ""
        if number and first is not None and death.at is not None:
            when = f"+{death.at - first:.1f} s"
        else:
            when = clock_time(death.at)
        rows.append(Row(f"{number + 1}. {death.rank}  {when}  {words}", label=S.deaths if number == 0 else " "))
    if len(group.deaths) > _DEATHS_SHOWN:
        rows.append(Row(S.more_deaths.format(n=len(group.deaths) - _DEATHS_SHOWN), "dim", " "))
    return rows


def command_rows(planned: RankPlan | None) -> list[Row]:
    """Return the exact command and environment of a planned rank, secrets hidden."""
    if planned is None:
        return [Row(S.not_in_plan, "dim")]
    argv, env = redacted(planned.argv, planned.env)
    rows = [heading(S.command)]
    rows += [Row(line, indent=2 if number == 0 else 4) for number, line in enumerate(command_lines(argv))]
    rows += [BLANK, heading(S.environment)]
    return rows + [Row(f"{name}={value}", indent=2) for name, value in env.items()]


def command_lines(argv: Sequence[str]) -> list[str]:
    """Return a command as bash reads it, one flag with its values a line."""
    parts: list[list[str]] = []
    for word in argv:
        if word.startswith("--") or not parts:
            parts.append([])
        parts[-1].append(word)
    return [command_line(part) for part in parts]


def _port_range(ports: tuple[int, ...]) -> str:
    if len(ports) > 2 and ports[-1] - ports[0] == len(ports) - 1:
        return f"{ports[0]}-{ports[-1]}"
    return " ".join(str(port) for port in ports)


def describe_node(node: NodeStatus, now: float) -> list[Row]:
    """Return everything about a node."""
    rows = [heading(node.name)]
    rows += _field(S.node_host, node.host)
    rows += _field(S.state, f"{S.node_states[node.state]}  {elapsed(now, node.since)}")
    rows += _field(S.node_error, node.error, "failed")
    rows += _field(S.node_error, node.tool_error, "warning")
    rows += _field(S.remedy, node.remedy, "key_label")
    for condition in node.conditions:
        rows += _field(S.condition, condition.message, "warning")
        rows += _field(S.remedy, condition.remedy, "key_label")
    rows += _field(S.node_facts, node.facts)
    rows += _field(S.metric_age, at_and_age(node.observed_at, now))
    if abs(node.clock_offset) >= 0.5:
        rows += _field(S.node_clock, f"{node.clock_offset:+.1f} s", "warning")
    return rows + foreign_rows(node)


def foreign_rows(node: NodeStatus) -> list[Row]:
    """Return what uses a node and is no part of this cluster."""
    if not (node.foreign or node.ownerless):
        return []
    rows = [BLANK, heading(S.foreign)]
    for one in node.foreign:
        rows.append(Row(foreign_words(one), "warning" if one.hits else "text", indent=2))
        rows += [Row(text, "dim", indent=4) for text in (one.command, one.note) if text]
    rows += [
        Row(S.ownerless.format(npu=one.npu, used=one.used_mb / 1024), "warning", indent=2)
        for one in node.ownerless
    ]
    return rows


def foreign_words(one: ForeignProcess) -> str:
    """Return who a foreign process is, what it holds and where that hurts."""
    words = [S.foreign_pid.format(pid=one.pid) if one.pid is not None else S.foreign_nobody]
    words += [S.foreign_of.format(user=one.user)] if one.user else []
    words += [S.foreign_rank.format(rank=one.rank)] if one.rank else []
    words += [S.foreign_since.format(t=clock_time(one.since))] if one.since is not None else []
    words += [S.foreign_npus.format(npus=device_list(one.npus))] if one.npus else []
    words += [f"{one.hbm_mb / 1024:.1f} GB"] if one.hbm_mb is not None else []
    words += [S.foreign_ports.format(ports=" ".join(map(str, one.ports)))] if one.ports else []
    words += [S.foreign_hits.format(ranks=" ".join(one.hits[:4]))] if one.hits else []
    return ", ".join(words)


def npu_values(node: NodeStatus, npu: NpuStatus, now: float) -> list[tuple[str, str]]:
    """Return what was read of an NPU with its labels, and when."""
    values = [
        (S.planned_rank, npu.rank),
        (S.link, npu.link or ""),
        (S.net_health, npu.net_health or ""),
        (S.address, npu.address or ""),
        (S.vnic, "  ".join(word for word in (npu.vnic, npu.vnic_address) if word)),
        (S.npu_health, npu.health or ""),
        (S.hbm, hbm_text(npu)),
        (S.temperature, f"{npu.temperature_c:.0f} C" if npu.temperature_c is not None else ""),
        (S.utilization, f"{npu.utilization} %" if npu.utilization is not None else ""),
        (S.power, f"{npu.power_w:.0f} W" if npu.power_w is not None else ""),
        (S.last_polled, at_and_age(npu.observed_at, now) or S.never_polled),
        (S.next_try, S.next_try_in.format(t=duration(npu.next_try - now)) if npu.next_try is not None else ""),
        (S.polled_every, _intervals()),
    ]
    values += [
        (S.processes if number == 0 else " ", f"{pid}  {name}  {memory} MB")
        for number, (pid, name, memory) in enumerate(npu.processes)
    ]
    return [(label, text) for label, text in values if text]


def _intervals() -> str:
    """Return how often what is asked of an NPU."""
    pace = Pace()
    return S.intervals.format(
        table=duration(pace.table),
        ports=duration(pace.network),
        probe=duration(pace.probe),
        slow=duration(pace.slow),
    )


def hbm_text(npu: NpuStatus) -> str:
    """Return `64.9 / 65.5 GB`, or nothing when it is not known."""
    if npu.hbm_used_mb is None or not npu.hbm_total_mb:
        return ""
    return f"{npu.hbm_used_mb / 1000:.1f} / {npu.hbm_total_mb / 1000:.1f} GB"


def is_lone(rank: RankStatus, group: GroupStatus | None) -> bool:
    """Return whether a rank runs on although its group is lost."""
    return group is not None and rank.id in group.must_restart


def has_reasons(rank: RankStatus, group: GroupStatus | None) -> bool:
    """Return whether something is known to be wrong with a rank itself."""
    return rank.diagnosis is not None or bool(rank.alarms) or is_lone(rank, group)


_LINE_PART = 160
"""Cells that tell one line from another; the diagnosis cuts long ones."""
_EVENT_STYLES = {"info": "text", "good": "good", "warning": "warning", "error": "failed"}


def acknowledgement_rows(snapshot: Snapshot) -> list[Row]:
    """Return what is acknowledged: by whom, until when, why."""
    if not snapshot.acknowledgements:
        return []
    rows = [heading(S.acknowledgements.format(n=len(snapshot.acknowledgements)))]
    for known in snapshot.acknowledgements:
        words = S.acknowledged_by.format(who=known.by, until=day_and_time(known.expires), reason=known.reason)
        rows.append(Row(f"{known.key}  {words}", indent=2))
    return [*rows, BLANK, heading(S.events)]


def events_rows(snapshot: Snapshot) -> list[Row]:
    """Return what happened, newest first."""
    known = acknowledgement_rows(snapshot)
    if not snapshot.events:
        return [*known, Row(S.no_events, "dim")]
    return known + [
        Row(
            f"{event.subject}  {event.message}",
            _EVENT_STYLES[event.severity],
            clock_time(event.at),
            label_width=10,
        )
        for event in reversed(snapshot.events)
    ]


def cause_line(snapshot: Snapshot, rank_id: str) -> str:
    """Return the part of a log line that explains a rank, as its log has it; empty without one.

    A rank that others name as their first cause may have died without a word: then it is theirs.
    """
    rank = snapshot.rank(rank_id)
    own = rank.diagnosis if rank is not None else None
    if own is not None and own.first_cause in ("", rank_id):
        line = own.line
    else:
        of_others = (one.diagnosis for one in snapshot.ranks if one.diagnosis is not None)
        line = next((one.line for one in of_others if one.first_cause == rank_id and one.line), "")
    return line.partition(" / ")[0][:_LINE_PART]
