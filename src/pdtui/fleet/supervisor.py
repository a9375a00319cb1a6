"""The one door to actions: says what an intent would do, refuses what must not be, runs the rest.

Read-only and protection are enforced here, so that no view can go around them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count

from pdtui.errors import ActionRefused, UsageError
from pdtui.fleet.blockers import Found, find, find_elsewhere, look, refused_by
from pdtui.fleet.by_hand import doomed_processes, in_all, left_as_they_are
from pdtui.fleet.conditions import start_warnings
from pdtui.fleet.conflicts import check_containers, take_over
from pdtui.fleet.containers.desk import ContainerDesk
from pdtui.fleet.crew import Crew
from pdtui.fleet.evidence import Saved, save_evidence
from pdtui.fleet.intents import (
    ChangeContainers,
    Intent,
    Preview,
    RestartRanks,
    StartRanks,
    StopRanks,
)
from pdtui.fleet.leases import Hold
from pdtui.fleet.operations import Operation, Verb
from pdtui.fleet.rank_work import RankWork
from pdtui.fleet.scope import Scope, describe, in_words, make_scope, whole_groups
from pdtui.fleet.snapshot import LeaseStatus, OperationStatus


class Supervisor:
    """Previews, submits, cancels and waits for operations."""

    def __init__(self, crew: Crew, *, read_only: bool, ready_deadline: float) -> None:
        self._crew = crew
        self._read_only = read_only
        self._ready_deadline = ready_deadline
        self._containers = ContainerDesk(crew)
        self._operations: dict[str, Operation] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._cancelling: set[str] = set()
        """Operations whose end was asked for; those that end with the fleet are not among them."""
        self._number = count(1)

    async def preview(self, intent: Intent) -> Preview:
        """Say what an intent would do. Raises `ActionRefused` for ranks that do not exist."""
        if isinstance(intent, ChangeContainers):
            return await self._containers.preview(intent)
        scope = make_scope(intent, self._crew.topology, self._crew.plan, self._crew.store.ranks)
        found = await self._blockers(scope)
        blockers = [one.blocker for one in found]
        crew = self._crew
        leases = await crew.leases.in_the_way(self._everywhere(scope))
        preview = describe(intent, scope, blockers, leases, crew.topology, crew.plan, crew.store.ranks)
        doomed = await doomed_processes(crew, scope.ids) if scope.verb != "start" else ()
        told = [f"# {line}" for one in doomed for line in one.lines()]
        preview = replace(
            preview,
            note="\n".join(filter(None, (preview.note, in_all(doomed, len(scope.ids))))),
            unmanaged=tuple(one.rank for one in doomed),
            processes=tuple(one.line() for one in doomed),
            commands=(*told, *preview.commands),
        )
        nodes = [self._crew.store.nodes[name] for name in self._by_node(scope)]
        return replace(preview, warnings=start_warnings(nodes) if scope.verb != "stop" else ())

    async def submit(self, intent: Intent) -> str:
        """Begin; returns the operation's id. Raises `ActionRefused`."""
        self._check_read_only()
        if isinstance(intent, ChangeContainers):
            return await self._submit_containers(intent)
        scope = make_scope(intent, self._crew.topology, self._crew.plan, self._crew.store.ranks)
        if scope.needs_name and intent.confirm != self._crew.topology.name:
            groups = ", ".join((*whole_groups(scope.ids, self._crew.plan), *scope.doomed))
            raise ActionRefused(
                f"{self._crew.topology.name} is protected: {scope.verb} touches all of {groups} and needs the"
                " cluster's name",
                kind="protected",
            )
        untouched = {}
        if isinstance(intent, StopRanks | RestartRanks):
            restarting = isinstance(intent, RestartRanks)
            untouched = left_as_they_are(self._crew, scope.ids, intent.unmanaged, restarting=restarting)
        override = intent.override if isinstance(intent, StartRanks | RestartRanks) else ()
        if override and not intent.reason:
            raise ActionRefused("passing over a blocker needs a reason", kind="blocked")
        found = [one for one in await self._blockers(scope) if one.blocker.id not in override]
        left_out = {**self._left_out(scope, found), **untouched}
        hold = await self._crew.leases.take(
            scope.verb,
            in_words(scope.ids, self._crew.plan),
            self._by_node(scope),
            everywhere=self._everywhere(scope),
            breaking=intent.breaking,
        )
        try:
            await self._check_elsewhere(scope, override)
            take_over(self._running(), scope, self._by_node(scope))
        except (ActionRefused, asyncio.CancelledError):
            await hold.release()
            raise
        nodes = list(dict.fromkeys(self._crew.store.ranks[rank_id].node for rank_id in scope.ids))
        operation = self._operation(scope.verb, scope.ids, hold)
        work = RankWork(self._crew, operation, ready_deadline=self._ready_deadline)
        return self._begin(operation, intent, nodes, lambda: work.run(intent, scope.ids, left_out))

    async def _submit_containers(self, intent: ChangeContainers) -> str:
        desk, crew = self._containers, self._crew
        engines, hold = await desk.admit(intent)
        try:
            check_containers(self._running(), intent.nodes, crew.store.ranks)
        except ActionRefused:
            await hold.release()
            raise
        operation = self._operation(intent.verb, intent.nodes, hold)
        return self._begin(operation, intent, intent.nodes, lambda: desk.run(operation, intent, engines))

    def _begin(
        self, operation: Operation, intent: Intent, nodes: Sequence[str], work: Callable[[], Awaitable[None]]
    ) -> str:
        self._operations[operation.id] = operation
        task = asyncio.get_running_loop().create_task(self._run(operation, intent, nodes, work))
        self._tasks[operation.id] = task
        task.add_done_callback(lambda done: self._ended(operation, done))
        return operation.id

    async def cancel(self, operation: str) -> None:
        """Stop an operation where it is: what has not begun does not begin; each rank's line says how it is left.

        Raises `UsageError` for an unknown id.
        """
        if operation not in self._operations:
            raise UsageError(f"no operation {operation}")
        task = self._tasks.get(operation)
        if task is not None and self._operations[operation].running and operation not in self._cancelling:
            self._cancelling.add(operation)
            task.cancel()
        if task is not None:
            await self._operations[operation].finished.wait()

    async def wait(self, operation: str) -> OperationStatus:
        """Return an operation's status when it has ended and the nodes' journals say so.

        Raises `UsageError` for an unknown id.
        """
        if operation not in self._operations:
            raise UsageError(f"no operation {operation}")
        await self._operations[operation].finished.wait()
        if operation in self._tasks:
            # A command closes the fleet next, which would take the entry away from a slow node.
            await asyncio.wait({self._tasks[operation]})
        return self._operations[operation].status

    async def save_evidence(self, ids: Sequence[str]) -> Mapping[str, Saved]:
        """Keep on the nodes what explains how ranks are now. Raises `ActionRefused`."""
        self._check_read_only()
        saved = await save_evidence(self._crew, ids)
        self._crew.journal.write("evidence", ranks=ids, folders={name: one.folder for name, one in saved.items()})
        return saved

    async def close(self) -> None:
        """Cancel what runs; ranks are left as they are."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _check_read_only(self) -> None:
        if self._read_only:
            raise ActionRefused("read-only: nothing is started or stopped from here", kind="read_only")

    async def _blockers(self, scope: Scope) -> Sequence[Found]:
        if scope.verb == "stop":
            return ()
        found = await self._look(scope)
        held = [one for one in found if one.of_npu]
        if held and self._crew.has_npus:
            # Readings are shared and may be older than the end of the rank that they show: look again, now.
            await self._crew.poll_npus(tuple({self._crew.plan.by_id[one.ranks[0]].node for one in held}))
            found = await self._look(scope)
        return found

    async def _look(self, scope: Scope) -> Sequence[Found]:
        crew = self._crew
        nodes = dict.fromkeys(crew.plan.by_id[rank_id].node for rank_id in scope.ids)
        looks = await asyncio.gather(*(look(crew.links[n], crew.topology.name, crew.clock) for n in nodes))
        return find(
            scope.ids,
            dict(zip(nodes, looks, strict=True)),
            crew.topology,
            crew.plan,
            crew.store.nodes,
            crew.store.ranks,
            restarting=scope.verb == "restart",
            coming={rank_id for op in self._running() if op.verb != "stop" for rank_id in op.ids},
        )

    def _left_out(self, scope: Scope, found: Sequence[Found]) -> dict[str, str]:
        """Return the ranks that cannot be started because their node, or one of their group, is unusable.

        Raises `ActionRefused` for blockers of other kinds, and when nothing would be left to do.
        """
        if not found:
            return {}
        refusal = refused_by([one.blocker for one in found])
        if any(not one.of_node for one in found):
            raise refusal
        left_out = {rank_id: one.blocker.message for one in found for rank_id in one.ranks}
        if self._crew.topology.model.kind == "moe":
            plan = self._crew.plan.by_id
            broken = {plan[rank_id].group: message for rank_id, message in left_out.items()}
            for rank_id in scope.ids:
                if plan[rank_id].group in broken:
                    left_out.setdefault(rank_id, f"its group cannot be whole: {broken[plan[rank_id].group]}")
        if set(left_out) >= set(scope.ids):
            raise refusal
        return left_out

    def _running(self) -> Sequence[Operation]:
        return [operation for operation in self._operations.values() if operation.running]

    def _by_node(self, scope: Scope) -> Mapping[str, tuple[str, ...]]:
        """Return the ranks of a scope by node, by the names that their nodes know them by."""
        nodes: dict[str, list[str]] = {}
        for rank_id in scope.ids:
            nodes.setdefault(self._crew.store.ranks[rank_id].node, []).append(rank_id.partition("@")[0])
        return {node: tuple(ids) for node, ids in nodes.items()}

    def _everywhere(self, scope: Scope) -> Mapping[str, tuple[str, ...]]:
        """Return by node the ranks on which no other console may work: its file may have them on other nodes."""
        if scope.verb == "stop":
            return self._by_node(scope)
        return dict.fromkeys(self._crew.links, scope.ids)

    async def _check_elsewhere(self, scope: Scope, override: Sequence[str]) -> None:
        """Look again, under the lease: somebody with another file may have just started these ranks elsewhere.

        Raises `ActionRefused`.
        """
        if scope.verb == "stop":
            return
        crew = self._crew
        found = await find_elsewhere(scope.ids, crew.links, crew.plan, crew.topology.name, crew.clock)
        if left := [one for one in found if one.id not in override]:
            raise refused_by(left)

    def _operation(self, verb: Verb, ids: tuple[str, ...], hold: Hold) -> Operation:
        crew = self._crew
        name = f"op-{next(self._number)}"
        return Operation(name, verb, ids, crew.by, store=crew.store, clock=crew.clock, hold=hold)

    async def _run(
        self, operation: Operation, intent: Intent, nodes: Sequence[str], work: Callable[[], Awaitable[None]]
    ) -> None:
        crew, hold, verb = self._crew, operation.hold, operation.verb
        touched = {"nodes" if operation.status.of_nodes else "ranks": operation.ids}
        overridden = intent.override if not isinstance(intent, StopRanks) else ()
        entries = [self._note_broken(operation, lease, intent.breaking.reason) for lease in hold.ended]
        self._tell_missing(operation, hold)
        entries.append(
            crew.journal.write(
                verb,
                operation=operation.id,
                **touched,
                reason=intent.reason,
                override=overridden,
                unleased=hold.missing or None,
            )
        )
        # Beside the work: a node that hangs must not hold up the others.
        loop = asyncio.get_running_loop()
        of_nodes = operation.status.of_nodes
        noting = loop.create_task(crew.journal_on_nodes(nodes, *entries, hosts=of_nodes))
        keeping = loop.create_task(self._keep(operation, hold))
        try:
            await work()
            if operation.failed(operation.ids) and (end := await hold.lost()):
                operation.interrupted = end  # The nodes refused, before a renewal did.
                self._cut_short(operation)
            await noting
        except asyncio.CancelledError:
            self._cut_short(operation)
            if operation.id not in self._cancelling:
                raise
        finally:
            noting.cancel()
            keeping.cancel()
            self._conclude(operation)
            result = {step.label: f"{step.state}: {step.detail}" for step in operation.rank_steps.values()}
            entry = crew.journal.write(
                f"{verb} ended",
                operation=operation.id,
                **touched,
                state=operation.status.state,
                error=operation.status.error,
                result=result,
            )
            # After a cancellation too: others must not wait for a lease that nobody needs.
            await asyncio.gather(hold.release(), crew.journal_on_nodes(nodes, entry, hosts=of_nodes))

    def _cut_short(self, operation: Operation) -> None:
        left = operation.cut_short()
        operation.finish("cancelled", "; ".join(filter(None, (operation.interrupted, left))))
        words = f"{operation.verb} cancelled: {operation.status.error}"
        self._crew.store.event("warning", operation.id, words)

    async def _keep(self, operation: Operation, hold: Hold) -> None:
        """Renew the operation's lease; end the operation when another console has taken it."""
        end = await hold.kept()
        if operation.running and operation.id not in self._cancelling:
            operation.interrupted = end
            self._cancelling.add(operation.id)
            self._tasks[operation.id].cancel()

    def _note_broken(self, operation: Operation, lease: LeaseStatus, reason: str) -> Mapping[str, object]:
        words = f"{lease.by}: {lease.verb} {lease.what}"
        self._crew.store.event("warning", operation.id, f"lease broken ({reason}) of {words}")
        return self._crew.journal.write(
            "lease broken",
            operation=operation.id,
            ranks=lease.ranks,
            lease={"by": lease.by, "from": lease.origin, "verb": lease.verb, "what": lease.what},
            reason=reason,
        )

    def _tell_missing(self, operation: Operation, hold: Hold) -> None:
        for node, why in hold.missing.items():
            words = f"no lease for {operation.id} ({operation.verb}): {why}; other consoles do not see it there"
            self._crew.store.event("warning", node, words)

    def _conclude(self, operation: Operation) -> None:
        if not operation.running:
            return
        unfinished = [step.label for step in operation.rank_steps.values() if step.state != "done"]
        superseded = [rank_id for rank_id in unfinished if operation.is_superseded(rank_id)]
        bad = [rank_id for rank_id in unfinished if rank_id not in superseded]
        if superseded and len(superseded) == len(operation.ids):
            operation.finish("cancelled", "a later action took over")
        elif bad:
            steps = [operation.rank_steps[rank_id] for rank_id in bad]
            first = next((step for step in steps if step.state == "failed"), steps[0])
            more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            operation.finish("failed", f"{first.label}: {first.detail}{more}")
        else:
            operation.finish("done")
        words = operation.status.error or operation.status.state
        good = operation.status.state == "done"
        self._crew.store.event("good" if good else "error", operation.id, f"{operation.verb}: {words}")

    def _ended(self, operation: Operation, task: asyncio.Task[None]) -> None:
        self._tasks.pop(operation.id, None)
        if operation.running:  # Cancelled before it had begun.
            operation.finish("cancelled", "cancelled before it began")
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._crew.store.event("error", operation.id, f"internal error: {error!r}")
