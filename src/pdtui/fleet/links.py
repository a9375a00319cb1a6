"""Shows where each node's connection stands in the store."""

from __future__ import annotations

from contextlib import suppress

from pdtui.clock import Clock
from pdtui.errors import RemoteError
from pdtui.fleet.conditions import conditions
from pdtui.fleet.snapshot import NodeState
from pdtui.fleet.store import Store
from pdtui.remote.interface import LinkState, NodeLink
from pdtui.remote.messages.commands import Facts
from pdtui.text import clean_line
from pdtui.topology.model import Runtime

_STATES = {
    LinkState.CONNECTING: NodeState.CONNECTING,
    LinkState.CONNECTED: NodeState.CONNECTED,
    LinkState.RECONNECTING: NodeState.RECONNECTING,
    LinkState.FAILED: NodeState.FAILED,
    LinkState.CLOSED: NodeState.RECONNECTING,
}

LOOK_INTERVAL = 5.0
"""Seconds after which the state is read again though nothing was said to have changed."""

OFFSET_INTERVAL = 60.0
"""Seconds between two measurements of a node's clock."""


class LinkWatcher:
    """One node's connection."""

    def __init__(self, link: NodeLink, store: Store, runtime: Runtime, *, clock: Clock) -> None:
        self._link = link
        self._runtime = runtime
        self._store = store
        self._clock = clock
        self._offset_at = float("-inf")

    @property
    def failed(self) -> bool:
        """Whether there is a reason why the node cannot be asked."""
        status = self._link.status
        return status.state is LinkState.FAILED or status.error is not None

    async def run(self) -> None:
        """Follow the connection until cancelled."""
        while True:
            self._show()
            await self._measure()
            with suppress(TimeoutError):
                async with self._clock.timeout(LOOK_INTERVAL):
                    await self._link.changed()

    def _show(self) -> None:
        status = self._link.status
        agent, host = self._link.rank_agent, self._link.host_agent
        known = self._store.nodes[self._link.name]
        self._store.update_node(
            self._link.name,
            state=_STATES[status.state],
            since=status.since,
            error=clean_line(status.error.message) if status.error is not None else "",
            remedy=status.error.remedy if status.error is not None else "",
            attempt=status.attempt,
            next_try=status.next_try,
            facts=_facts_line(agent.facts) if agent is not None else known.facts,
            conditions=conditions(host.facts if host is not None else None, agent.facts, self._runtime)
            if agent is not None
            else known.conditions,
        )

    async def _measure(self) -> None:
        agent = self._link.rank_agent
        now = self._clock.monotonic()
        if agent is None or now - self._offset_at < OFFSET_INTERVAL:
            return
        self._offset_at = now
        try:
            async with self._clock.timeout(10.0):
                self._store.update_node(self._link.name, clock_offset=round(await agent.clock_offset(), 2))
        except (RemoteError, TimeoutError):
            self._offset_at = float("-inf")


def _facts_line(facts: Facts) -> str:
    kept = facts.state_dir_error or facts.state_dir
    where = ", in a container" if facts.in_container else ""
    return clean_line(f"{facts.user}@{facts.hostname}, Python {facts.python}, state in {kept}{where}")
