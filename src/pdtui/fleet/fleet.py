"""The live cluster on one asyncio loop: connections, watchers, supervisor, embedded proxy.

Implements everything of `fleet.handle.FleetHandle` on that loop; `engine` puts it into a thread of its own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pdtui.clock import Clock
from pdtui.errors import ConnectError, UsageError
from pdtui.fleet.acknowledging import AckBook
from pdtui.fleet.crew import Crew
from pdtui.fleet.diagnostician import Diagnostician
from pdtui.fleet.evidence import Saved
from pdtui.fleet.file_watch import FileWatch
from pdtui.fleet.handle import LogLine, LogView
from pdtui.fleet.intents import Acknowledge, Intent, Preview, Unacknowledge
from pdtui.fleet.journal import Journal, default_dir, unwritable
from pdtui.fleet.leases import LEASE_TTL, LeaseDesk
from pdtui.fleet.links import LinkWatcher
from pdtui.fleet.logs import LogBook, LogSource, log_source
from pdtui.fleet.metering import Meters
from pdtui.fleet.monitor import NpuMonitor
from pdtui.fleet.polling import closing
from pdtui.fleet.preflight.desk import PreflightDesk
from pdtui.fleet.preflight.events import PreflightEvent
from pdtui.fleet.preflight.report import PreflightReport
from pdtui.fleet.preflight.request import PreflightRequest, nodes_asked
from pdtui.fleet.ranks import RankWatcher
from pdtui.fleet.running import Running, compare_running
from pdtui.fleet.serving import backend_states, proxy_settings
from pdtui.fleet.snapshot import BROKEN_STATES, OperationStatus, Snapshot
from pdtui.fleet.stages import StageTails
from pdtui.fleet.store import Store
from pdtui.fleet.supervisor import Supervisor
from pdtui.fleet.waiting import first_of
from pdtui.proxy.interface import Ask, AskProgress, BackendState
from pdtui.remote.connections import Connections
from pdtui.remote.interface import NodeAgent, NodeLink
from pdtui.topology.differences import Differences
from pdtui.topology.lease import kv_lease
from pdtui.topology.model import Topology
from pdtui.topology.plan import Plan

if TYPE_CHECKING:
    from pdtui.proxy.embedded import EmbeddedProxy

RESTART_PAUSE = 5.0
"""Seconds before a part of the engine that broke begins again."""


@dataclass(slots=True, eq=False)
class Subscription:
    """Someone who wants to know of new snapshots."""

    wake: Callable[[], None]
    outstanding: bool = False
    """Called, and the snapshot not read since."""


class Fleet:
    """The live cluster. `async with Fleet(...) as fleet:`; leaving it touches no rank."""

    def __init__(
        self,
        topology: Topology,
        plan: Plan,
        *,
        clock: Clock,
        read_only: bool,
        by: str,
        journal_dir: Path | None = None,
        links: Mapping[str, NodeLink] | None = None,
        ready_deadline: float | None = None,
        lease_ttl: float = LEASE_TTL,
    ) -> None:
        """Prepare; nothing is reached before the context is entered.

        `lease_ttl`: seconds after which the leases of this console end when it is gone.

        `links` takes the place of the connections that the file describes (tests), `ready_deadline` (seconds) that
        of the file's `start.deadline`.
        """
        self.topology = topology
        self.plan = plan
        self.read_only = read_only or topology.safety.read_only
        self.store = Store(topology, plan, clock=clock)
        self._clock = clock
        self._by = by
        self._journal = Journal(
            journal_dir or default_dir(topology.name), clock=clock, by=by, trouble=self._note_journal
        )
        self._given_links = links
        self._lease_ttl = lease_ttl
        self._links: Mapping[str, NodeLink] = {}
        self._proxy: EmbeddedProxy | None = None
        self._proxy_lock = asyncio.Lock()
        self._backends: tuple[BackendState, ...] = ()
        self._ready_deadline = topology.start.deadline if ready_deadline is None else ready_deadline
        self._stack = AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._subscriptions: tuple[Subscription, ...] = ()

    async def __aenter__(self) -> Self:
        """Connect to the nodes and begin to watch; returns at once."""
        async with AsyncExitStack() as stack:
            await self._open(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End everything that runs here; ranks stay as they are."""
        await self._stack.aclose()

    async def _open(self, stack: AsyncExitStack) -> None:
        if self._given_links is not None:
            self._links = self._given_links
        else:
            connections = await stack.enter_async_context(Connections(self.topology, clock=self._clock))
            self._links = connections.links
        stack.push_async_callback(self._cancel_tasks)
        desk = LeaseDesk(
            self._links,
            cluster=self.topology.name,
            clock=self._clock,
            by=self._by,
            origin=self._journal.origin,
            ttl=self._lease_ttl,
        )
        self._note_journal(unwritable(self._journal.path))
        self._acks = AckBook(
            self._links,
            self.store,
            cluster=self.topology.name,
            clock=self._clock,
            by=self._by,
            journal=self._journal,
            read_only=self.read_only,
        )
        self._logs = LogBook(self._links, self._log_source, clock=self._clock)
        self._link_watchers = {
            name: LinkWatcher(link, self.store, self.topology.runtime, clock=self._clock)
            for name, link in self._links.items()
        }
        self._monitors = {
            name: NpuMonitor(link, name, self.topology, self.plan, clock=self._clock, publish=self.store.set_npus)
            for name, link in self._links.items()
        }
        self._watchers = self._rank_watchers(stack, desk)
        self._crew = Crew(
            topology=self.topology,
            plan=self.plan,
            store=self.store,
            clock=self._clock,
            links=self._links,
            watchers=self._watchers,
            journal=self._journal,
            leases=desk,
            by=self._by,
            poll_npus=self.poll_now,
            has_npus=self.topology.has_npus,
        )
        self._preflights = PreflightDesk(
            self.topology,
            self.plan,
            self._links,
            clock=self._clock,
            by=self._by,
            journal=None if self.read_only else self._journal,
            publish=self.store.set_preflight,
        )
        self._supervisor = Supervisor(self._crew, read_only=self.read_only, ready_deadline=self._ready_deadline)
        stack.push_async_callback(self._supervisor.close)
        stack.push_async_callback(self._close_proxy)
        self.store.on_publish(self._published)
        self._begin_tasks()

    def _rank_watchers(self, stack: AsyncExitStack, desk: LeaseDesk) -> Mapping[str, RankWatcher]:
        """Return what watches the ranks of each node."""
        stages = StageTails(self._links, clock=self._clock)
        stack.push_async_callback(stages.close)
        diagnose = Diagnostician(
            self._links,
            self.plan,
            clock=self._clock,
            ranks=lambda: self.store.ranks,
            nodes=lambda: self.store.nodes,
            npus=self._npu_addresses,
            together=self.topology.model.kind == "moe",
            cluster=self.topology.name,
        )
        starts = self._journal.last_starts()
        leases = {group.name: kv_lease(self.topology, group) for group in self.topology.groups.values()}
        return {
            name: RankWatcher(
                link,
                self.store,
                self.topology,
                self.plan,
                clock=self._clock,
                stages=stages,
                meter=Meters(clock=self._clock, leases=leases),
                diagnose=diagnose,
                on_ready=self._journal.write_ready,
                last_starts=starts,
                holder=desk.holder,
                acks=self._acks,
            )
            for name, link in self._links.items()
        }

    def _begin_tasks(self) -> None:
        parts: dict[str, Callable[[], Awaitable[None]]] = {
            "snapshots": self.store.run,
            "file": FileWatch(self.topology, self.store, clock=self._clock).run,
            "logs": self._logs.run,
            "acknowledgements": self._acks.run,
        }
        for name in self._links:
            if self._given_links is not None:
                parts[f"link of {name}"] = self._links[name].run
            parts[f"state of {name}"] = self._link_watchers[name].run
            parts[f"ranks of {name}"] = self._watchers[name].run
            parts[f"NPUs of {name}"] = self._monitors[name].run
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._guard(what, part), name=what) for what, part in parts.items()]

    async def _guard(self, what: str, part: Callable[[], Awaitable[None]]) -> None:
        """Run a part until it ends; one that breaks is reported and begins again, the others go on.

        The one place of this layer that catches everything: a bug in one part must not blind the rest.
        """
        while True:
            try:
                await part()
            except Exception as error:
                self.store.event("error", what, f"internal error, beginning again: {error!r}")
                await self._clock.sleep(RESTART_PAUSE)
            else:
                return

    async def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- what it shows

    @property
    def snapshot(self) -> Snapshot:
        """The newest picture; reading it allows the next wake-up. Safe from any thread."""
        for subscription in self._subscriptions:
            subscription.outstanding = False  # Before the picture is taken, so that no change is missed.
        return self.store.snapshot

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` when the snapshot changed; one call outstanding at most. Returns a function that ends it."""
        subscription = Subscription(wake)
        self._subscriptions = (*self._subscriptions, subscription)

        def end() -> None:
            self._subscriptions = tuple(one for one in self._subscriptions if one is not subscription)

        return end

    def _published(self) -> None:
        self._update_proxy()
        for subscription in self._subscriptions:
            if not subscription.outstanding:
                subscription.outstanding = True
                subscription.wake()

    async def settled(self, timeout: float, *, npus: bool = True, nodes: Collection[str] | None = None) -> bool:
        """Wait until these nodes (all if None) have given first answers or an error; False when time ran out.

        `timeout`: seconds. Of NPUs the first reading suffices (`poll_now` reads all); without `npus` none is
        waited for.
        """
        names = self._links if nodes is None else nodes
        try:
            async with self._clock.timeout(timeout):
                await asyncio.gather(*(self._settle(name, npus) for name in names))
        except TimeoutError:
            return False
        finally:
            self.store.publish()
        return True

    async def _settle(self, name: str, npus: bool) -> None:
        link = self._link_watchers[name]
        while self._links[name].rank_agent is None:
            if link.failed:
                return
            await first_of(self.store.changed(), self._clock.sleep(0.5))
        while not (link.failed or (self._watchers[name].answered and (not npus or self._has_reading(name)))):
            await first_of(self.store.changed(), self._clock.sleep(0.5))

    @property
    def is_reading(self) -> bool:
        """Whether logs are still being read: for how far a rank is that starts, or why one is as it is."""
        unexplained = any(
            rank.state in BROKEN_STATES and rank.log and rank.diagnosis is None
            for rank in self.store.ranks.values()
        )
        return unexplained or any(watcher.is_reading for watcher in self._watchers.values())

    def silent(self) -> Sequence[str]:
        """Return the nodes that have said nothing yet: neither what runs there nor that it cannot be reached."""
        return [
            name
            for name, watcher in self._watchers.items()
            if not (watcher.answered or self._link_watchers[name].failed)
        ]

    def _has_reading(self, name: str) -> bool:
        node = self.store.nodes[name]
        known = any(npu.hbm_used_mb is not None for npu in node.npus)
        return not self._crew.has_npus or known or bool(node.tool_error)

    async def poll_now(self, nodes: Sequence[str] = (), *, hanging: bool = True) -> None:
        """Read the NPUs and ranks of these nodes (all if none) now; one that is unreachable is tried at once.

        Without `hanging` a tool that has just timed out is not asked again. Raises `UsageError` for an unknown
        node.
        """
        unknown = [name for name in nodes if name not in self._links]
        if unknown:
            raise UsageError(f"no node {', '.join(unknown)}")
        names = nodes or tuple(self._links)
        for name in names:
            self._links[name].retry_now()
            self._watchers[name].poke()
        await asyncio.gather(*(self._monitors[name].poll_now(hanging=hanging) for name in names))

    def agent(self, node: str) -> NodeAgent | None:
        """Return the agent where a node's ranks run; None while it is unreachable."""
        return self._links[node].rank_agent

    def differences(self) -> Differences:
        """Return how what runs differs from the plan, as last seen."""
        ranks = {
            rank_id: Running(status, watcher.record(rank_id), watcher.unmanaged(rank_id))
            for rank_id, status in self.store.ranks.items()
            for watcher in (self._watchers[status.node],)
        }
        return compare_running(self.topology, self.plan, ranks, tuple(self.store.nodes.values()))

    # --- what it does

    async def preview(self, intent: Intent) -> Preview:
        """Say what an intent would do. Raises `ActionRefused`."""
        return await self._supervisor.preview(intent)

    async def submit(self, intent: Intent) -> str:
        """Begin; returns the operation's id. Raises `ActionRefused`."""
        return await self._supervisor.submit(intent)

    async def cancel(self, operation: str) -> None:
        """Stop an operation where it is. Raises `UsageError` for an unknown id."""
        await self._supervisor.cancel(operation)

    async def wait(self, operation: str) -> OperationStatus:
        """Return an operation's status when it has ended. Raises `UsageError` for an unknown id."""
        return await self._supervisor.wait(operation)

    async def preflight(self, request: PreflightRequest) -> AsyncIterator[PreflightEvent]:
        """Look over nodes and yield what is found; leaving early ends it.

        Raises `UsageError` for a target or check that is none, `ActionRefused` while another one runs.
        """
        nodes = nodes_asked(request.targets, self.topology, self.plan, self.store.ranks.values())
        async with closing(self._preflights.run(request, nodes)) as events:
            async for event in events:
                yield event

    @property
    def last_preflight(self) -> PreflightReport | None:
        """What the last preflight said, whole or as far as it came; None: there was none. Safe from any thread."""
        return self._preflights.last

    async def acknowledge(self, intent: Acknowledge | Unacknowledge) -> Mapping[str, str]:
        """Acknowledge a trouble, or take that back; returns nodes that lack it yet. Raises `ActionRefused`."""
        return await self._acks.carry_out(intent)

    @property
    def journal_error(self) -> str:
        """Why the last entry of this machine's journal could not be written, or empty."""
        return self._journal.error

    async def save_evidence(self, ids: Sequence[str]) -> Mapping[str, Saved]:
        """Keep on the nodes what explains how ranks are now. Raises `ActionRefused` where that is read-only."""
        return await self._supervisor.save_evidence(ids)

    # --- logs

    def log(self, rank: str) -> LogView:
        """Follow a rank's log (from the first call on) and say where it stands."""
        return self._logs.log(rank)

    def log_lines(self, rank: str, first: int, count: int) -> Sequence[LogLine]:
        """Return held lines from sequence number `first`."""
        return self._logs.log_lines(rank, first, count)

    def unfollow(self, rank: str) -> None:
        """Stop following a rank's log."""
        self._logs.unfollow(rank)

    def _log_source(self, rank: str) -> LogSource | None:
        status = self.store.ranks.get(rank)
        if status is None:
            return None
        return log_source(status, self.store.nodes[status.node].clock_offset)

    # --- the embedded proxy

    async def ask(self, request: Ask, progress: Callable[[AskProgress], None]) -> AskProgress:
        """Send a completion through the embedded proxy. Raises `ProxyError`; cancelling cancels both legs."""
        async with self._proxy_lock:
            if self._proxy is None:
                # Here, since most fleets end without a completion, and aiohttp takes a third of a start.
                from pdtui.proxy.ask import KEY_VARIABLE
                from pdtui.proxy.embedded import EmbeddedProxy

                proxy = EmbeddedProxy(
                    served_name=self.topology.model.served_name,
                    resolver=self._resolve,
                    clock=self._clock,
                    settings=proxy_settings(self.topology),
                    key=os.environ.get(KEY_VARIABLE, ""),
                )
                await proxy.start()
                self._proxy = proxy
                self._backends = ()
            self._update_proxy()
        return await self._proxy.ask(request, progress)

    async def _resolve(self, rank_id: str) -> tuple[str, int]:
        rank = self.plan.by_id.get(rank_id)
        if rank is None:
            raise ConnectError(f"no rank {rank_id}", kind="refused")
        host, port = self._watchers[rank.node].address(rank_id)
        return await self._links[rank.node].forward(host, port)

    def _update_proxy(self) -> None:
        if self._proxy is None:
            return
        backends = backend_states(self.topology, self.store.ranks.values())
        if backends != self._backends:
            self._backends = backends
            self._proxy.update(backends)

    async def _close_proxy(self) -> None:
        if self._proxy is not None:
            await self._proxy.close()

    # --- the rest

    def _npu_addresses(self) -> Mapping[str, tuple[str, int]]:
        return {
            address: (name, device)
            for name, monitor in self._monitors.items()
            for address, device in monitor.addresses.items()
        }

    def _note_journal(self, error: str) -> None:
        if not self.read_only:  # Nothing is done here that belongs into it.
            self.store.set_journal_error(error)
