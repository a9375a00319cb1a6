"""An operator's own commands where a rank or a node lives: who may, in which environment, noted in the journal."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pdtui.clock import Clock
from pdtui.errors import ActionRefused, ConnectError, RemoteError, UsageError
from pdtui.fleet.journal import Journal
from pdtui.fleet.targets import resolve
from pdtui.remote.interface import Execution, NodeAgent, NodeLink
from pdtui.remote.messages.commands import ExecSpec
from pdtui.topology.model import Runtime, Topology
from pdtui.topology.plan import Plan, RankPlan
from pdtui.topology.redact import shown_command
from pdtui.topology.script import run_script

REACH_TIMEOUT = 30.0
"""Seconds to a connection: ten for SSH, some for the agents behind it."""

JOURNAL_TIMEOUT = 5.0
COMMAND_KEPT = 2000
"""Characters of a command in the journal."""

_SCRIPT = "PDTUI_EXEC_SCRIPT"
# The environment of a rank begins with an interactive login shell (images keep CANN's variables in ~/.bashrc),
# whose own words and what that file prints are kept away. The script comes in a variable: arguments are for all to
# read.
_IN_RANK = (
    "sh",
    "-c",
    "exec 3>&1 4>&2 >/dev/null 2>&1; "
    f"""exec bash -ic 'exec bash -c '\\''eval "${_SCRIPT}"'\\'' >&3 2>&4 3>&- 4>&-'""",
)


def as_rank(rank: RankPlan, runtime: Runtime, argv: Sequence[str]) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return a command that runs another one in a rank's environment, and the variables that it needs for that."""
    script = f"unset {_SCRIPT}\n{run_script(replace(rank, argv=tuple(argv)), runtime)}"
    return _IN_RANK, {_SCRIPT: script}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command runs."""

    name: str
    """`decode/17`, or `@node3`."""
    node: str
    rank: str = ""
    """Empty: on the host itself."""


def places(targets: Sequence[str], topology: Topology, plan: Plan) -> tuple[Place, ...]:
    """Return where the targets are: `@node3` is the host, everything else its ranks. Raises `UsageError`."""
    if "failed" in targets:
        raise UsageError("which ranks have failed may change while this runs: name them or their group")
    hosts = [target for target in dict.fromkeys(targets) if target.startswith("@")]
    resolve(hosts, topology, plan)  # They must exist.
    ranks = resolve([target for target in targets if target not in hosts], topology, plan)
    return (
        *(Place(host, host[1:]) for host in hosts),
        *(Place(rank, plan.by_id[rank].node, rank) for rank in ranks),
    )


class Commands:
    """The one door to commands of an operator."""

    def __init__(
        self,
        topology: Topology,
        plan: Plan,
        links: Mapping[str, NodeLink],
        *,
        clock: Clock,
        journal: Journal,
        read_only: bool,
    ) -> None:
        self._topology = topology
        self._plan = plan
        self._links = links
        self._clock = clock
        self._journal = journal
        self._read_only = read_only or topology.safety.read_only
        self._notes: set[asyncio.Task[None]] = set()
        self._last_note: dict[str, asyncio.Task[None]] = {}
        """By node: what was noted last."""

    def check(self, where: Sequence[Place], confirm: str) -> None:
        """Raise `ActionRefused` where nothing may be changed, or a protected cluster's name is missing."""
        if self._read_only:
            raise ActionRefused("read-only: a command may change things", kind="read_only")
        name = self._topology.name
        if self._topology.safety.protected and len(where) > 1 and confirm != name:
            raise ActionRefused(
                f"{name} is protected: a command in {len(where)} places needs the cluster's name",
                kind="protected",
                remedy=f"--confirm {name}",
            )

    def spec(self, place: Place, argv: Sequence[str], tty: tuple[int, int] | None, term: str = "") -> ExecSpec:
        """Return what the agent starts: on the host the command, else the command in the rank's environment."""
        env = {"TERM": term} if tty is not None and term else {}
        if not place.rank:
            return ExecSpec(tuple(argv), env, tty)
        words, variables = as_rank(self._plan.by_id[place.rank], self._topology.runtime, argv)
        return ExecSpec(words, {**env, **variables}, tty)

    async def begin(self, place: Place, spec: ExecSpec, argv: Sequence[str]) -> Execution:
        """Return the command, ready to run; it is in the journals then. Raises `RemoteError`."""
        agent = await self._reach(place)
        self._note(
            place,
            "exec",
            command=shown_command(argv)[:COMMAND_KEPT],
            terminal=True if spec.tty is not None else None,
        )
        return agent.execute(spec)

    def end(self, place: Place, argv: Sequence[str], result: str) -> None:
        """Note how a command ended."""
        self._note(place, "exec ended", command=shown_command(argv)[:COMMAND_KEPT], result=result)

    async def close(self) -> None:
        """Wait until the nodes' journals have what was noted."""
        await asyncio.gather(*self._notes, return_exceptions=True)

    async def _reach(self, place: Place) -> NodeAgent:
        link = self._links[place.node]
        try:
            async with self._clock.timeout(REACH_TIMEOUT):
                while True:
                    agent = link.rank_agent if place.rank else link.host_agent
                    if agent is not None:
                        return agent
                    if link.status.error is not None:
                        raise link.status.error
                    await link.changed()
        except TimeoutError:
            raise ConnectError(f"no connection within {REACH_TIMEOUT:.0f} s", kind="timeout") from None

    def _note(self, place: Place, event: str, **what: object) -> None:
        where: dict[str, object] = {"ranks": [place.rank]} if place.rank else {"node": place.node}
        entry = self._journal.write(event, **where, **what)
        before = self._last_note.get(place.node)
        task = asyncio.get_running_loop().create_task(self._note_there(place, entry, before))
        self._last_note[place.node] = task
        self._notes.add(task)
        task.add_done_callback(self._notes.discard)

    async def _note_there(
        self, place: Place, entry: Mapping[str, object], before: asyncio.Task[None] | None
    ) -> None:
        if before is not None:
            await asyncio.wait({before})  # A node notes what it receives at the same time in any order.
        # Beside the ranks' records, wherever the command itself runs.
        agent = self._links[place.node].rank_agent
        if agent is None or agent.facts.state_dir_error:
            return
        try:
            async with self._clock.timeout(JOURNAL_TIMEOUT):
                await agent.journal(self._topology.name, entry)
        except (RemoteError, TimeoutError):
            return  # It is in the journal here.
