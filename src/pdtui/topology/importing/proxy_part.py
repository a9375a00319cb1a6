"""The proxy as the file says it, and what of its lists is no rank."""

from __future__ import annotations

from typing import Any

from pdtui.topology.build import is_ip
from pdtui.topology.importing import compared
from pdtui.topology.importing.observed import ProxyCommand
from pdtui.topology.importing.report import Kind, note
from pdtui.topology.importing.targets import aimed_elsewhere
from pdtui.topology.importing.work import Work
from pdtui.topology.model import Role


def proxy_host(work: Work, proxy: ProxyCommand) -> str:
    """Return the host of a proxy: where it listens, else where the prefill ranks are."""
    by_address = {address: name for name, address in work.addresses.items()}
    if proxy.host:
        return by_address.get(proxy.host, proxy.host)
    listen = proxy.listen.text if proxy.listen is not None else ""
    listen = by_address.get(listen, listen)
    known = {rank.host for rank in work.ranks}
    if listen in known or (is_ip(listen) and listen not in {"0.0.0.0", "127.0.0.1", "::"}):  # noqa: S104 - read
        return listen
    first = next((rank.host for rank in work.ranks if rank.role is Role.PREFILL), "")
    return first or next((rank.host for rank in work.ranks if rank.host), "")


def proxy(work: Work) -> dict[str, Any]:
    """Return the file's `proxy`, empty without one; what its lists say otherwise than the ranks is told."""
    if not work.proxies:
        return {}
    proxy, *others = work.proxies
    for other in others:
        message = "there is a second proxy; a topology has one, and the first was taken"
        work.notes.append(note(Kind.CONTRADICTION, message, proxy.origin, other.origin))
    work.notes += compared.proxy_lists(proxy, [rank for group in work.groups for rank in group.ranks], work.places)
    host = proxy_host(work, proxy)
    listen = proxy.listen.text if proxy.listen is not None else "localhost"
    if not proxy.host and not any(listen in (place.address, place.host) for place in work.places.values()):
        message = f"the proxy was put on {host or 'the first node'}: it listens on {listen}, which names no node"
        work.notes.append(note(Kind.ASSUMPTION, message, proxy.origin, path="proxy.node"))
    served = [rank.served for rank in work.ranks if rank.served is not None]
    ports = frozenset(rank.api_port for rank in work.ranks)
    work.notes += aimed_elsewhere(work.seen.targets, proxy.port, ports, served)
    message = f"{proxy.script} -> the proxy of pdtui, with the same lists: they follow from the groups"
    work.notes.append(note(Kind.TRANSLATION, message, proxy.origin, path="proxy"))
    port = proxy.port.number if proxy.port is not None else 8000
    node = work.places.get(host) or next(iter(work.places.values()))
    said: dict[str, Any] = {"node": node.name, "listen": listen}
    said["port"] = port if port is not None and 0 < port < 65536 else 8000
    return said
