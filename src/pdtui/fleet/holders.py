"""Who holds a port that a rank needs, in words: for what stands against a start and for why one has failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath

from pdtui.fleet.servers import ENGINE, is_engine, is_left_behind
from pdtui.fleet.strangers import ANY_ADDRESS
from pdtui.remote.messages.processes import Listener, ProcessInfo
from pdtui.topology.plan import RankPlan


def on_port(listeners: Iterable[Listener], rank: RankPlan, port: int) -> Iterable[Listener]:
    """Yield what listens on a port where a rank would bind it."""
    for held in listeners:
        if held.port == port and (held.address in ANY_ADDRESS or held.address == rank.host):
            yield held


def holder_words(held: Listener, cluster: str, owner: str = "", processes: Sequence[ProcessInfo] = ()) -> str:
    """Return who holds a port: `pid 4711 (python3 -m http.server), not started here`.

    `owner`: the rank of this cluster that does, where it is known otherwise. `processes`: what else runs there, by
    which an engine is told to belong to a server, or to be left of one.
    """
    process = f"pid {held.pid}" if held.pid is not None else "another process"
    other_cluster, _, other = held.rank.partition(":")
    if owner or other_cluster == cluster:
        return f"{owner or other}, {process}"
    if held.rank:
        return f"{other} of cluster {other_cluster}, {process}"
    command = short(held.command)
    what = f" ({command})" if command else ""
    if not held.command.startswith(ENGINE):
        return f"{process}{what}, not started here"
    server = next((info for info in processes if held.pid in info.tree and not is_engine(info)), None)
    if server is not None:
        return f"{process}{what} of pid {server.pid} ({short(' '.join(server.argv))}), not started here"
    ended = holds_on(held, processes)
    return f"{process}{what}, {'left behind by a server that has ended' if ended else 'not started here'}"


def holds_on(held: Listener, processes: Sequence[ProcessInfo]) -> bool:
    """Return whether the holder of a port is an engine that outlives its server."""
    return any(info.pid == held.pid and is_left_behind(info) for info in processes)


def short(command: str) -> str:
    """Return the first words of a command line without folders: `python3 vllm serve`."""
    return " ".join(PurePath(word).name for word in command.split()[:4])[:60]
