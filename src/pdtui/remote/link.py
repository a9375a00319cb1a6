"""A connection to one node that keeps itself up."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from weakref import WeakKeyDictionary

from pdtui.clock import Clock
from pdtui.errors import ConnectError
from pdtui.remote.channel import Transport
from pdtui.remote.client import AgentClient
from pdtui.remote.interface import LinkState, LinkStatus, NodeAgent

FIRST_WAIT = 1.0
LONGEST_WAIT = 30.0
SLOW_WAIT = 60.0
CONTAINER_WAIT = 10.0
"""Longest pause between two tries to get into a container: whoever has started it is waiting."""
SLOW_KINDS = frozenset(
    {"unknown_host_key", "changed_host_key", "auth", "forbidden", "no_python", "no_container", "protocol"}
)
"""What does not come right by itself: tried again, slowly."""


class Link:
    """Implements `NodeLink`. `connect` makes a transport; `run` does everything else."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], Awaitable[Transport]],
        *,
        clock: Clock,
        sudo: bool = False,
        user: str = "",
        container: Sequence[str] = (),
        state_dir: str | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Prepare a link.

        `container` is the prefix of an argv that runs where ranks run; empty when that is the host itself.
        """
        self._name = name
        self._connect = connect
        self._clock = clock
        self._sudo = ("sudo", "-n") if sudo else ()
        self._user = user
        self._container = tuple(container)
        self._state_dir = state_dir
        self._rng = rng or random.Random()  # noqa: S311 - jitter
        self._status = LinkStatus(LinkState.CONNECTING, clock.wall())
        self._transport: Transport | None = None
        self._host_agent: AgentClient | None = None
        self._rank_agent: AgentClient | None = None
        self._forwards: dict[tuple[str, int], asyncio.Future[tuple[str, int]]] = {}
        self._version = 1
        self._seen: WeakKeyDictionary[asyncio.Task[object], int] = WeakKeyDictionary()
        self._news: asyncio.Future[None] | None = None
        self._hurry = asyncio.Event()

    @property
    def name(self) -> str:
        """The node's name."""
        return self._name

    @property
    def status(self) -> LinkStatus:
        """Where it stands. Connected with an error: the host answers, its container does not."""
        return self._status

    @property
    def host_agent(self) -> NodeAgent | None:
        """The agent on the host; None while there is no connection."""
        return self._host_agent

    @property
    def rank_agent(self) -> NodeAgent | None:
        """The agent where ranks run; None while there is none."""
        return self._rank_agent if self._container else self._host_agent

    async def changed(self) -> None:
        """Return when `status` or an agent has changed since this task's last call; at once on its first."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        while self._seen.get(task, 0) == self._version:
            if self._news is None:
                self._news = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._news)
        self._seen[task] = self._version

    def _tell(self) -> None:
        """Wake everyone in `changed`."""
        self._version += 1
        if self._news is not None:
            self._news.set_result(None)
            self._news = None

    def _set(self, state: LinkState, *, error: ConnectError | None = None, wait: float | None = None) -> None:
        """Change the status; `since` stays while the state does."""
        now = self._clock.wall()
        since = self._status.since if self._status.state is state else now
        attempt = 0 if state is LinkState.CONNECTED else self._status.attempt
        self._status = LinkStatus(state, since, attempt, None if wait is None else now + wait, error)
        self._tell()

    def retry_now(self) -> None:
        """Do not wait for the next try; nothing while connected."""
        self._hurry.set()

    async def forward(self, host: str, port: int) -> tuple[str, int]:
        """Return a loopback address that leads to `host:port`; ask for each use, a reconnect makes a new one."""
        key = (host, port)
        if key not in self._forwards:
            if self._transport is None:
                raise ConnectError(f"{self._name} is not connected", kind="lost")
            self._forwards[key] = asyncio.ensure_future(self._transport.forward(host, port))
        future = self._forwards[key]
        try:
            return await asyncio.shield(future)
        except ConnectError:
            self._forwards.pop(key, None)
            raise

    async def run(self) -> None:
        """Keep the connection up until cancelled."""
        try:
            while True:
                try:
                    error = await self._session()
                    # Said before what is open is closed, which takes seconds where nobody answers.
                    longest = self._failed(error)
                finally:
                    await self._drop()
                await self._pause(error, longest)
        finally:
            self._set(LinkState.CLOSED)

    async def _session(self) -> ConnectError:
        """Connect, stay, and return why it ended."""
        attempt = self._status.attempt + 1
        state = self._status.state
        if state is LinkState.CONNECTED:
            state = LinkState.RECONNECTING
        self._status = LinkStatus(state, self._status.since, attempt, None, self._status.error)
        self._tell()
        try:
            try:
                self._transport = await self._connect()
            finally:
                _heed_cancellation()
            self._host_agent = await AgentClient.connect(
                self._transport, clock=self._clock, prefix=self._sudo, state_dir=self._state_dir, user=self._user
            )
            self._set(LinkState.CONNECTED)
            if self._container:
                container = asyncio.create_task(self._keep_container(self._transport))
                try:
                    lost = await self._host_agent.ended()
                finally:
                    container.cancel()
                    await asyncio.gather(container, return_exceptions=True)
            else:
                lost = await self._host_agent.ended()
            return ConnectError(lost.message, kind="lost", remedy="it connects again by itself; ranks run on")
        except ConnectError as error:
            return error

    async def _drop(self) -> None:
        """Close what is open, to the end also when this task is cancelled meanwhile."""
        agents = [agent for agent in (self._rank_agent, self._host_agent) if agent is not None]
        transport, forwards = self._transport, list(self._forwards.values())
        self._rank_agent = self._host_agent = self._transport = None
        self._forwards.clear()
        for future in forwards:
            future.cancel()
        closing = asyncio.ensure_future(_close(forwards, agents, transport))
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            await closing
            raise

    async def _keep_container(self, transport: Transport) -> None:
        """Keep an agent in the container; its absence is an error of a connected link."""
        wait = FIRST_WAIT
        while True:
            try:
                self._rank_agent = await AgentClient.connect(
                    transport,
                    clock=self._clock,
                    prefix=(*self._sudo, *self._container),
                    state_dir=self._state_dir,
                    machine=self._host_agent.facts.machine_id if self._host_agent is not None else "",
                    user=self._user,
                )
                wait = FIRST_WAIT
                self._set(LinkState.CONNECTED)
                lost = await self._rank_agent.ended()
                error = ConnectError(f"container {self._container[-1]}: {lost.message}", kind="lost")
                await self._rank_agent.close()
            except ConnectError as problem:
                error = problem
            self._rank_agent = None
            pause = wait * self._rng.uniform(0.5, 1.0)
            wait = min(CONTAINER_WAIT, wait * 2)
            self._hurry.clear()
            self._set(LinkState.CONNECTED, error=error, wait=pause)
            await self._wait(pause)

    def _failed(self, error: ConnectError) -> float:
        """Say that there is no connection, and why; returns the longest pause before the next try."""
        slow = error.kind in SLOW_KINDS
        attempt = self._status.attempt
        longest = SLOW_WAIT if slow else min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(attempt - 1, 10))
        if self._status.state is LinkState.CONNECTED:
            longest = FIRST_WAIT
        once = self._status.state in (LinkState.CONNECTED, LinkState.RECONNECTING)
        state = LinkState.FAILED if slow else LinkState.RECONNECTING if once else LinkState.CONNECTING
        self._hurry.clear()
        self._set(state, error=error)
        return longest

    async def _pause(self, error: ConnectError, longest: float) -> None:
        """Wait before the next try: one second, then twice as long each time, with jitter."""
        wait = longest * self._rng.uniform(0.5, 1.0)
        self._set(self._status.state, error=error, wait=wait)
        await self._wait(wait)

    async def _wait(self, seconds: float) -> None:
        """Sleep, or less when somebody is in a hurry."""
        with contextlib.suppress(TimeoutError):
            async with self._clock.timeout(seconds):
                await self._hurry.wait()


async def _close(
    forwards: Sequence[asyncio.Future[tuple[str, int]]], agents: Sequence[AgentClient], transport: Transport | None
) -> None:
    """Close what a session has left."""
    await asyncio.gather(*forwards, return_exceptions=True)
    for agent in agents:
        await agent.close()
    if transport is not None:
        await transport.close()


def _heed_cancellation() -> None:
    """Raise the cancellation of this task that was lost on the way, if one was.

    `asyncio.wait_for` (Python 3.11; asyncssh connects in it) drops a cancellation that comes in the very moment in
    which what it waits for ends, and a link that goes on would keep its program from ending.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
