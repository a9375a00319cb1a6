"""A DP group as its engines see it: rank 0's address and RPC port is where all meet, and where an end is noticed."""

import contextlib
import json
import socket
from typing import Any

from .config import Config, local_address
from .process import Signals


class Mismatch(Exception):
    """A rank of the group runs with other settings; the text is vLLM's."""


class PeerLost(Exception):
    """Another engine of the group is gone; the text says which and where."""


def mismatch(rank: int) -> str:
    """Return vLLM's words for a rank whose settings differ."""
    return (
        f"Configuration mismatch detected for engine {rank}. All DP workers must have identical configurations for "
        "parameters that affect collective communication (e.g., enable_eplb, eplb_config.log_balancedness, "
        "expert_parallel_size)"
    )


class Group:
    """One engine's place in its group."""

    def __init__(self, config: Config, listener: socket.socket | None, signals: Signals) -> None:
        self._config = config
        self._listener = listener
        self._signals = signals
        self._peers: dict[socket.socket, int] = {}

    @property
    def sockets(self) -> list[socket.socket]:
        """Connections to watch for the end of a peer."""
        return list(self._peers)

    def meet(self) -> None:
        """Wait, without a word, until every rank is there. Raises `Mismatch`, `PeerLost`."""
        if self._config.dp < 2:
            return
        if self._listener is not None:
            self._gather(self._listener)
        else:
            self._join()

    def _gather(self, listener: socket.socket) -> None:
        while len(self._peers) < self._config.dp - 1:
            for ready in self._signals.wait([listener, *self._peers]):
                if ready is listener:
                    connection, _ = listener.accept()
                    self._welcome(connection)
                else:
                    rank = self._peers.pop(ready)
                    ready.close()
                    raise PeerLost(f"engine {rank}")
        for connection in self._peers:
            connection.sendall(b'{"go": true}\n')
        if self._config.cpu:
            # The socket at which all met is there for the start only.
            listener.close()
            self._listener = None

    def _welcome(self, connection: socket.socket) -> None:
        connection.settimeout(5)
        try:
            hello = json.loads(_line(connection))
            rank, fingerprint = int(hello["rank"]), str(hello["fingerprint"])
        except (OSError, ValueError, KeyError, TypeError):
            connection.close()
            return
        connection.settimeout(None)
        if fingerprint != self._config.fingerprint() or rank in self._peers.values():
            self._answer(connection, {"mismatch": rank})
            connection.close()
            raise Mismatch(mismatch(rank))
        self._peers[connection] = rank

    def _answer(self, connection: socket.socket, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(json.dumps(message).encode() + b"\n")

    def _join(self) -> None:
        config = self._config
        while True:
            try:
                host = local_address(config.dp_address, config.address)
                connection = socket.create_connection((host, config.rpc_port), timeout=5)
            except OSError:
                self._signals.pause(0.2)
                continue
            connection.settimeout(None)
            break
        hello = {"rank": config.dp_rank, "fingerprint": config.fingerprint()}
        self._peers[connection] = 0
        self._answer(connection, hello)
        self._signals.wait([connection])
        try:
            answer = json.loads(_line(connection) or b"{}")
        except (OSError, ValueError):
            answer = {}
        if "mismatch" in answer:
            raise Mismatch(mismatch(int(answer["mismatch"])))
        if not answer.get("go"):
            raise PeerLost("engine 0")

    def lost(self, ready: list[Any]) -> str:
        """Return which peer's connection ended, or an empty string."""
        for connection in ready:
            if connection in self._peers:
                with contextlib.suppress(OSError):
                    if connection.recv(4096):
                        continue
                rank = self._peers.pop(connection)
                peer = _peer(connection)
                connection.close()
                return f"engine {rank} [{peer}]"
        return ""

    def close(self) -> None:
        """Leave the group."""
        for connection in self._peers:
            connection.close()
        self._peers.clear()
        if self._listener is not None:
            self._listener.close()


def _line(connection: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and (piece := connection.recv(4096)):
        data += piece
    return data


def _peer(connection: socket.socket) -> str:
    try:
        host, port = connection.getpeername()[:2]
    except OSError:
        return "?"
    return f"{host}:{port}"
