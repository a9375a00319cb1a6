"""The ranks that the proxy may use, what each carries, and which are out for a while.

All of it is synchronous: a reservation is made and released without an await in between, so that no cancellation
can fall into the gap. `Reservation.release` is the one place where load goes down.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from pdtui.proxy.balance import Cost, Load, Policy, Role
from pdtui.proxy.errors import NoBackend
from pdtui.proxy.interface import BackendState
from pdtui.proxy.settings import ProxySettings


@dataclass(slots=True)
class _Backend:
    state: BackendState
    listed: bool = True
    tokens: float = 0.0
    kv: float = 0.0
    requests: int = 0
    failures: int = 0
    ejected_until: float | None = None
    backoff_s: float = 0.0
    reason: str = ""

    @property
    def load(self) -> Load:
        return Load(self.tokens, self.kv, self.requests)


@dataclass(frozen=True, slots=True)
class BackendView:
    """One rank as the pool sees it."""

    rank: str
    role: Role
    usable: bool
    """What the fleet says."""
    ejected: bool
    """Out because requests to it failed; it is probed."""
    reason: str
    """Why it is out, in words."""
    load: Load


class Reservation:
    """A request's share of a rank's load; a context manager, and `release` may be called any number of times."""

    __slots__ = ("_backend", "_cost", "rank")

    def __init__(self, backend: _Backend, cost: Cost) -> None:
        self.rank = backend.state.rank
        self._backend: _Backend | None = backend
        self._cost = cost
        backend.requests += 1
        backend.tokens += cost.tokens
        backend.kv += cost.kv

    def release(self) -> None:
        """Take the share off again."""
        backend, self._backend = self._backend, None
        if backend is None:
            return
        backend.requests -= 1
        # Sums of floats drift; an idle rank carries nothing.
        backend.tokens = backend.tokens - self._cost.tokens if backend.requests else 0.0
        backend.kv = backend.kv - self._cost.kv if backend.requests else 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Pool:
    """Backends by rank id, in the order of the last `update`."""

    def __init__(self, policy: Policy, settings: ProxySettings, now: Callable[[], float]) -> None:
        self._policy = policy
        self._settings = settings
        self._now = now
        self._backends: dict[str, _Backend] = {}
        self.on_eject: Callable[[], None] = lambda: None
        """Called when a rank was ejected, to wake the prober."""

    def update(self, states: Sequence[BackendState]) -> None:
        """Take over what the fleet says; load of running requests stays with its rank, listed or not."""
        old = self._backends
        new: dict[str, _Backend] = {}
        for state in states:
            backend = old.get(state.rank)
            if backend is None or backend.state.role != state.role:
                backend = _Backend(state)
            elif state.usable and not backend.state.usable:
                _readmit(backend)
            backend.state = state
            backend.listed = True
            new[state.rank] = backend
        for rank, backend in old.items():
            if rank not in new and backend.requests:
                # Kept at the end: a rank that is listed again later must not forget what it carries.
                backend.state = replace(backend.state, usable=False)
                backend.listed = False
                new[rank] = backend
        self._backends = new

    def reserve(
        self, role: Role, body_bytes: int, *, exclude: Collection[str] = (), avoid: Collection[str] = ()
    ) -> Reservation:
        """Choose a rank of `role`, none in `exclude`, one in `avoid` only if there is no other.

        Raises `NoBackend` at once when there is none.
        """
        able = [
            b for b in self._backends.values() if _open(b) and b.state.role == role and b.state.rank not in exclude
        ]
        if not able:
            raise self._none(role, exclude)
        fresh = [b for b in able if b.state.rank not in avoid]
        # min() keeps the first of equals: the order of `update` breaks ties.
        best = min(fresh or able, key=lambda b: self._policy.priority(role, b.load))
        return Reservation(best, self._policy.cost(role, body_bytes))

    def require(self, role: Role) -> None:
        """Raise `NoBackend` when no rank of `role` could take a request now."""
        if not self.usable(role):
            raise self._none(role, ())

    def _none(self, role: Role, exclude: Collection[str]) -> NoBackend:
        of_role = [b for b in self._backends.values() if b.state.role == role and b.listed]
        out = [b for b in of_role if b.state.usable and b.ejected_until is not None]
        wait = float(self._settings.retry_after_s)
        if not of_role:
            message = f"the cluster has no {role} rank"
        elif out:
            waits = [b.ejected_until - self._now() for b in out if b.ejected_until is not None]
            wait = min([wait, *waits])
            message = f"no {role} rank can be used: {out[0].state.rank} is out ({out[0].reason})"
            if len(out) > 1:
                message += f", and {len(out) - 1} more"
        elif exclude and any(b.state.usable for b in of_role):
            message = f"no other {role} rank to try"
        else:
            message = f"no {role} rank is usable: 0 of {len(of_role)} ready"
        return NoBackend(message, retry_after=max(1, round(wait)))

    def succeeded(self, rank: str) -> None:
        """A rank did what was asked: its failures are forgotten."""
        backend = self._backends.get(rank)
        if backend is not None:
            _readmit(backend)

    def failed(self, rank: str, reason: str, *, connected: bool) -> None:
        """A rank failed a request; enough failures in a row, or one that never connected, eject it."""
        backend = self._backends.get(rank)
        if backend is None:
            return
        backend.failures += 1
        if connected and backend.failures < self._settings.eject_after:
            return
        if backend.ejected_until is None:
            backend.backoff_s = self._settings.eject_s
            backend.ejected_until = self._now() + backend.backoff_s
            self.on_eject()
        backend.reason = reason

    def probe_failed(self, rank: str, reason: str) -> None:
        """An ejected rank still does not answer: it is asked again later."""
        backend = self._backends.get(rank)
        if backend is None or backend.ejected_until is None:
            return
        backend.backoff_s = min(2 * backend.backoff_s, self._settings.eject_max_s)
        backend.ejected_until = self._now() + backend.backoff_s
        backend.reason = reason

    def probes(self) -> list[tuple[float, str]]:
        """Return when which ejected rank is to be probed, the next first."""
        return sorted(
            (b.ejected_until, rank)
            for rank, b in self._backends.items()
            if b.ejected_until is not None and b.listed and b.state.usable
        )

    def views(self) -> tuple[BackendView, ...]:
        """Return every rank as it is now."""
        return tuple(
            BackendView(rank, b.state.role, b.state.usable, b.ejected_until is not None, b.reason, b.load)
            for rank, b in self._backends.items()
        )

    def usable(self, role: Role) -> list[str]:
        """Return the ranks of `role` that a request could go to now."""
        return [rank for rank, b in self._backends.items() if b.state.role == role and _open(b)]


def _open(backend: _Backend) -> bool:
    return backend.state.usable and backend.ejected_until is None


def _readmit(backend: _Backend) -> None:
    backend.failures = 0
    backend.ejected_until = None
    backend.reason = ""
