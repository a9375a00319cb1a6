"""The proxy's lists against the ranks, and names that must be one: both places of what disagrees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pdtui.topology.findings import Severity
from pdtui.topology.importing.observed import Origin, ProxyCommand, Said
from pdtui.topology.importing.places import Place
from pdtui.topology.importing.ranks import Rank
from pdtui.topology.importing.report import Kind, Note, note
from pdtui.topology.model import Role

_SHOWN = 4


def proxy_lists(proxy: ProxyCommand, ranks: Sequence[Rank], places: Mapping[str, Place]) -> Iterator[Note]:
    """Find ranks that the proxy does not list, and entries that are no rank or one of the other role (R71)."""
    addresses: dict[tuple[str, int], Rank] = {}
    for rank in ranks:
        place = places[rank.host]
        for name in {place.address, place.host}:
            addresses[name, rank.api_port] = rank
    listed: set[int] = set()
    surplus: list[tuple[str, Origin]] = []
    for role, backends in ((Role.PREFILL, proxy.prefill), (Role.DECODE, proxy.decode)):
        for backend in backends:
            found = addresses.get((backend.host, backend.port))
            if found is None:
                surplus.append((f"{backend.host}:{backend.port}", backend.origin))
                continue
            listed.add(id(found))
            if found.role is not role:
                other = found.role.value if found.role else "another role"
                message = f"{backend.host}:{backend.port} is listed for {role.value}, but is started for {other}"
                yield _wrong(message, backend.origin, found.origin)
    if surplus:
        message = f"the proxy lists {_some([name for name, _ in surplus])}, where none of the ranks listens"
        yield _wrong(message, *dict.fromkeys(origin for _, origin in surplus))
    missing = [rank for rank in ranks if id(rank) not in listed]
    if missing and (proxy.prefill or proxy.decode):
        names = [f"{places[rank.host].address}:{rank.api_port}" for rank in missing]
        message = f"the proxy does not list {_some(names)}, which would get no request"
        yield _wrong(message, proxy.origin, *dict.fromkeys(rank.origin for rank in missing[:_SHOWN]))


def _wrong(message: str, *origins: Origin) -> Note:
    return note(Kind.CONTRADICTION, message, *origins, rule="R71", severity=Severity.ERROR)


def _some(names: Sequence[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def one_value(
    ranks: Sequence[Rank], said: Callable[[Rank], Said | None], what: str, rule: str
) -> tuple[Said | None, list[Note]]:
    """Return what ranks say of something that a topology says once, and where they disagree."""
    found: dict[str, Said] = {}
    for rank in ranks:
        value = said(rank)
        if value is not None:
            found.setdefault(value.text, value)
    if not found:
        return None, []
    first, *others = found.values()
    notes = [
        note(
            Kind.CONTRADICTION,
            f"the {what} is {first.text} here and {other.text} there; {first.text} was taken",
            first.origin,
            other.origin,
            rule=rule,
            severity=Severity.ERROR,
        )
        for other in others
    ]
    return first, notes
