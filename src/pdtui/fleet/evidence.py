"""Evidence: what explains the end of ranks, kept on their nodes before a restart overwrites the scene.

Logs' ends and the vendor's own logs are copied by the agent where they lie; tools are asked on the host.
Everything is bounded in time and size: a hung tool or a full disk is told and holds nothing up.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pdtui.errors import RemoteError
from pdtui.fleet.crew import Crew
from pdtui.fleet.headline import clock_time
from pdtui.fleet.rank_words import exit_words
from pdtui.fleet.snapshot import BROKEN_STATES
from pdtui.readings.commands import QUERIES, Query, argv_of
from pdtui.remote.interface import NodeAgent
from pdtui.remote.messages.commands import Command
from pdtui.remote.messages.ranks import RankRecord
from pdtui.text import decode
from pdtui.topology.redact import redacted

PATIENCE = 40.0
"""Seconds that a node has for all of it."""

TOOL_TIMEOUT = 5.0
TEXT_LIMIT = 24_000
"""Characters kept of what one tool says: a file travels in one request of at most 64 KiB."""

_LINKS = (Query.LINK, Query.NET_HEALTH, Query.VNIC)


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of a rank's evidence."""

    folder: str = ""
    """On its node; empty when nothing was kept."""
    error: str = ""
    """What is missing, and why."""


async def save_evidence(crew: Crew, ids: Iterable[str]) -> Mapping[str, Saved]:
    """Keep the evidence of these ranks; those that were never started here are left out. Never raises."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(crew.clock.wall()))
    nodes: dict[str, list[tuple[str, RankRecord]]] = {}
    unseen: dict[str, Saved] = {}
    for rank_id in in_order_of_death(crew, ids):
        record, node = crew.watcher_of(rank_id).record(rank_id), crew.store.ranks[rank_id].node
        if record is not None and record.run:
            nodes.setdefault(node, []).append((rank_id, record))
        elif crew.links[node].rank_agent is None:  # Whether it was ever started there is not known.
            unseen[rank_id] = Saved(error=crew.unreachable(node))
    found = await asyncio.gather(*(_save_on(crew, node, ranks, stamp) for node, ranks in nodes.items()))
    return {rank_id: saved for of_node in (*found, unseen) for rank_id, saved in of_node.items()}


def in_order_of_death(crew: Crew, ids: Iterable[str]) -> Sequence[str]:
    """Return ranks in the order in which they ended; what tools say is kept with the first of a node."""

    def end(rank_id: str) -> float:
        ended = crew.store.ranks[rank_id].ended
        return ended if ended is not None else float("inf")

    return sorted(ids, key=end)


async def _save_on(
    crew: Crew, node: str, ranks: Sequence[tuple[str, RankRecord]], stamp: str
) -> Mapping[str, Saved]:
    link, saved = crew.links[node], dict[str, Saved]()
    agent = link.rank_agent
    if agent is None:
        return {rank_id: Saved(error=crew.unreachable(node)) for rank_id, _ in ranks}
    try:
        async with crew.clock.timeout(PATIENCE):
            for rank_id, record in ranks:  # What may be lost first: logs before tools that may hang.
                files = {"command.txt": _command(record), "deaths.txt": _deaths(crew, rank_id)}
                saved[rank_id] = await _keep(agent, record, stamp, files, collect=True)
            first, record = ranks[0]
            if link.host_agent is not None and saved[first].folder:
                devices = tuple(dict.fromkeys(device for _, one in ranks for device in one.devices))
                async for name, text in _tools(crew, link.host_agent, devices):
                    more = await _keep(agent, record, stamp, {name: text}, collect=False)
                    if more.error and not saved[first].error:
                        saved[first] = Saved(saved[first].folder, more.error)
    except TimeoutError:
        late = f"not all of it within {PATIENCE:.0f} s"
        for rank_id, _ in ranks:
            if not saved.get(rank_id, Saved()).folder:
                saved[rank_id] = Saved(error=late)
        saved[ranks[0][0]] = Saved(saved[ranks[0][0]].folder, late)
    return saved


async def _keep(
    agent: NodeAgent, record: RankRecord, stamp: str, files: Mapping[str, str], *, collect: bool
) -> Saved:
    try:
        kept = await agent.save_evidence(record.cluster, record.rank, stamp=stamp, files=files, collect=collect)
    except RemoteError as error:
        return Saved(error=error.message)
    return Saved(kept.folder, "; ".join(kept.errors))


async def _tools(crew: Crew, agent: NodeAgent, devices: Sequence[int]) -> AsyncIterator[tuple[str, str]]:
    """Yield the name and text of each file that tools on the host fill."""
    plain = {
        "processes.txt": ("ps", "-eo", "pid,ppid,stat,etime,rss,comm"),
        "dmesg.txt": ("dmesg", "-T"),
    }
    for name, argv in plain.items():
        yield name, await _asked(agent, [Command(argv, timeout=TOOL_TIMEOUT)])
    platform = crew.topology.platform
    asked = QUERIES[platform]
    if Query.TABLE in asked:
        yield "npu-smi.txt", await _asked(agent, [Command(argv_of(Query.TABLE, platform), timeout=TOOL_TIMEOUT)])
        commands = [
            Command(argv_of(query, platform, device), timeout=TOOL_TIMEOUT, device=device)
            for device in devices
            for query in _LINKS
            if query in asked
        ]
        yield "hccn.txt", await _asked(agent, commands)


async def _asked(agent: NodeAgent, commands: Sequence[Command]) -> str:
    """Return what commands say, the end of each, under the command itself."""
    parts: list[str] = []
    try:
        async for command, done in agent.batch(commands):
            said = decode(done.stdout + done.stderr)
            why = done.error or ("timed out" if done.timed_out else f"status {done.status}" if done.status else "")
            parts.append(f"$ {' '.join(command.argv)}{f'  ({why})' if why else ''}\n{said}")
    except RemoteError as error:
        parts.append(f"({error.message})")
    return "\n".join(parts)[-TEXT_LIMIT:]


def _command(record: RankRecord) -> str:
    argv, env = redacted(record.argv, record.env)
    facts = {
        "rank": record.rank,
        "run": record.run,
        "started_by": record.by,
        "started": record.started,
        "ended": record.ended,
        "exit_status": record.exit_status,
        "exit_signal": record.exit_signal,
        "devices": record.devices,
        "argv": argv,
        "env": env,
    }
    return json.dumps(facts, indent=1, default=list)[:TEXT_LIMIT]


def _deaths(crew: Crew, rank_id: str) -> str:
    """Return in which order the ranks of its group ended, and why as far as that is known."""
    mates = [rank for rank in crew.store.ranks.values() if rank.group == crew.store.ranks[rank_id].group]
    lines = []
    for rank in sorted(mates, key=lambda rank: rank.ended if rank.ended is not None else float("inf")):
        if rank.state in BROKEN_STATES:
            at = clock_time(rank.ended) if rank.ended is not None else "-"
            how = exit_words(rank.exit_status) if rank.exit_status is not None else str(rank.state)
            why = rank.diagnosis.summary if rank.diagnosis is not None else ""
            lines.append(f"{at}  {rank.id}  {rank.node}  {how}  {why}".rstrip())
    return "\n".join(lines)[:TEXT_LIMIT]
