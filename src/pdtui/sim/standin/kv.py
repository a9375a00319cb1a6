"""The pull flow's KV contract: blocks that a prefill keeps until a decode has pulled them or the lease is over."""

import abc
import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .config import Config
from .log import Log
from .metrics import Metrics

PLACE = "mooncake_connector.py"


class PullFailed(Exception):
    """The blocks could not be had; the text is what the log says."""


class EngineKilled(Exception):
    """A request that ends the whole engine; the text is the last line of its traceback."""


@dataclass(slots=True)
class Pinned:
    """Blocks of one finished prefill."""

    blocks: int
    tokens: int
    until: float


class Store(abc.ABC):
    """What a rank knows of its KV blocks; each connector keeps its own books."""

    def __init__(self, config: Config, metrics: Metrics, log: Log) -> None:
        self.config = config
        self.metrics = metrics
        self.log = log
        """Of the engine."""
        self.worker_log = log

    def room(self, tokens: int) -> bool:
        """Say whether a request of this many tokens can begin now."""
        return tokens >= 0

    @abc.abstractmethod
    def running(self, request_id: str, prompt: str, tokens: int) -> contextlib.AbstractContextManager[None]:
        """Hold the blocks of a running request."""

    @abc.abstractmethod
    def grow(self, request_id: str, prompt: str, tokens: int) -> None:
        """Take the blocks that a request of now this many tokens needs."""

    @abc.abstractmethod
    def hand_out(self, request_id: str, tokens: int, produced: int, reason: str) -> dict[str, Any] | None:
        """Keep a finished prefill's blocks and return what the decode needs; None: nothing is kept."""

    @abc.abstractmethod
    def handshake(self, request: str) -> str:
        """Answer the question of another rank."""

    @abc.abstractmethod
    def expire(self) -> None:
        """Free what was not pulled within the lease."""

    @abc.abstractmethod
    def pull(
        self, request_id: str, params: Any, prompt: str, tokens: int, check: Callable[[], None]
    ) -> tuple[str, bool]:
        """Fetch a prompt's KV: (source of the tokens, whether they are the right ones).

        `check` raises when the client has left. Raises `PullFailed` when the blocks cannot be read, `EngineKilled`
        for what the real scheduler does not survive.
        """

    @abc.abstractmethod
    def heartbeat(self, params: Any) -> None:
        """Ask for a longer lease while a request waits for its turn here."""


class KvStore(Store):
    """Blocks of one rank under Mooncake's connectors: taken by running requests, pinned by finished prefills."""

    def __init__(self, config: Config, metrics: Metrics, log: Log) -> None:
        super().__init__(config, metrics, log)
        self._lock = threading.Lock()
        self._pinned: dict[str, Pinned] = {}
        self._next_block = 1

    def blocks_for(self, tokens: int) -> int:
        """Return how many blocks hold this many tokens."""
        return -(-tokens // self.config.block_size)

    def hand_out(self, request_id: str, tokens: int, produced: int, reason: str) -> dict[str, Any] | None:
        """Pin a prefill's blocks and return what the decode needs; the keys grew with the versions (facts 4.2)."""
        # Only a request that ended by length leaves blocks to pull.
        if reason != "length" or produced < 1 or not self.config.is_producer:
            return None
        config = self.config
        count = self.blocks_for(tokens)
        with self._lock:
            first = self._next_block
            self._next_block = (first + count) % 100000
            self._pinned[request_id] = Pinned(count, tokens, time.monotonic() + config.lease)
        self.metrics.blocks(count)
        self.log.info(f"{PLACE}:1138", f"Delaying free of {count} blocks for request {request_id}")
        ids: list[Any] = list(range(first, first + count))
        version = tuple(int(part) for part in config.version.split(".")[:2])
        params: dict[str, Any] = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [ids] if version >= (0, 21) else ids,
            "remote_engine_id": config.engine_id,
            "remote_host": config.host_ip,
            "remote_port": config.kv_base(),
        }
        if version >= (0, 11):
            params["last_token_id"] = 1 + tokens % 1000
        if version >= (0, 13):
            params |= {
                "remote_pcp_size": 1,
                "remote_dcp_size": 1,
                "remote_multi_nodes_meta_mapping": {},
                "num_prompt_blocks": count,
            }
        if version >= (0, 14):
            params["remote_request_id"] = request_id
        if version >= (0, 17):
            params["remote_ptp_size"] = config.tp
        if version >= (0, 23):
            params["remote_block_size"] = config.block_size
        return params

    def handshake(self, request: str) -> str:
        """Answer a decode's pull: `ok TOKENS`, or `unknown` for blocks that are not pinned."""
        try:
            request_id = str(json.loads(request)["request_id"])
        except (ValueError, KeyError, TypeError):
            return "unknown"
        with self._lock:
            pinned = self._pinned.pop(request_id, None)
        if pinned is None:
            return "unknown"
        self.metrics.blocks(-pinned.blocks)
        return f"ok {pinned.tokens}"

    def expire(self) -> None:
        """Free what was not pulled within the lease."""
        now = time.monotonic()
        with self._lock:
            over = [(name, pinned) for name, pinned in self._pinned.items() if pinned.until <= now]
            for name, _ in over:
                del self._pinned[name]
        for name, pinned in over:
            self.metrics.blocks(-pinned.blocks)
            self.log.warning(
                f"{PLACE}:173",
                f"Force freed expired request: {name}, exceeded timeout threshold ({self.config.lease:.0f} seconds)",
            )

    def pull(
        self, request_id: str, params: Any, prompt: str, tokens: int, check: Callable[[], None]
    ) -> tuple[str, bool]:
        """Fetch a prompt's KV; an empty block list kills the engine."""
        if not isinstance(params, dict) or not params.get("do_remote_prefill"):
            if self.config.role == "kv_consumer":
                self.log.warning(
                    f"{PLACE}:1071",
                    f"Got invalid KVTransferParams: {params}. This request will not utilize KVTransfer",
                )
            return "local_compute", True
        needed = ("remote_block_ids", "remote_engine_id", "remote_host", "remote_port")
        if any(params.get(key) is None for key in needed):
            self.log.warning(
                f"{PLACE}:1071",
                f"Got invalid KVTransferParams: {params}. This request will not utilize KVTransfer",
            )
            return "local_compute", True
        if not params["remote_block_ids"]:
            raise EngineKilled("AssertionError")
        started = time.monotonic()
        self.metrics.enter("fetching")
        try:
            reply = self._ask(params, request_id)
        finally:
            self.metrics.leave("fetching")
        took = (time.monotonic() - started) * 1000
        self.log.info(f"{PLACE}:462", f"KV cache transfer for request {request_id} took {took:.2f} ms")
        self.metrics.asked_elsewhere(tokens, found=True)
        # Blocks that were freed and reused are pulled all the same: wrong text, status 200.
        return "external_kv_transfer", reply.startswith("ok")

    def _ask(self, params: dict[str, Any], request_id: str) -> str:
        question = json.dumps({"request_id": params.get("remote_request_id") or request_id}).encode() + b"\n"
        try:
            address = (str(params["remote_host"]), int(params["remote_port"]))
            with socket.create_connection(address, timeout=3) as connection:
                connection.sendall(question)
                reply = b""
                while not reply.endswith(b"\n") and (piece := connection.recv(4096)):
                    reply += piece
        except (OSError, ValueError, OverflowError) as error:
            self.log.error(f"{PLACE}:598", f"Failed to receive data after 3 retries: {error}")
            self.log.error(f"{PLACE}:466", f"Mooncake transfer failed for request {request_id}, ret: -1")
            raise PullFailed(str(error)) from error
        if not reply:
            raise PullFailed("connection closed")
        return reply.decode("utf-8", "replace").strip()

    @contextlib.contextmanager
    def running(self, request_id: str, prompt: str, tokens: int) -> Iterator[None]:
        """Hold the blocks of a running request."""
        count = self.blocks_for(tokens)
        self.metrics.blocks(count)
        try:
            yield
        finally:
            self.metrics.blocks(-count)

    def grow(self, request_id: str, prompt: str, tokens: int) -> None:
        """Do nothing: what a request takes at its beginning is what it holds."""

    def heartbeat(self, params: Any) -> None:
        """Do nothing: Mooncake's leases are not made longer."""
