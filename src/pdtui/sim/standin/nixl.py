"""The pull flow over NIXL: the scheduler's books of blocks and leases, and the worker's reads from other engines.

The side channel of a rank is the real one's port. What real workers read over UCX, from ports that they pick by
chance, is read over it too: whoever cannot reach the one could not reach the others.
"""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NoReturn

from .blocks import Blocks, digest
from .config import Config, local_address
from .kv import EngineKilled, PullFailed, Store
from .log import Log, traceback
from .metrics import Metrics
from .process import question_on
from .server import Gone
from .worker import title

HANDSHAKE_SECONDS = 5.0
"""Until a worker gives up on an engine that it does not know and that does not answer."""
REMOTE_KEYS = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port")
LISTENER_PLACE = "vllm/vllm/distributed/kv_transfer/kv_connector/v1/nixl/"


@dataclass(slots=True)
class Lease:
    """Blocks of one finished prefill, kept for whoever pulls them."""

    blocks: list[int]
    until: float


class BlockStore(Store):
    """Blocks of one rank: taken by running requests, leased by finished prefills, read by other engines."""

    def __init__(self, config: Config, metrics: Metrics, log: Log) -> None:
        super().__init__(config, metrics, log)
        self.worker_log = Log(title(config, 0).removeprefix("VLLM::"))
        self._blocks = Blocks(config.blocks, config.block_size)
        self._held: dict[str, list[int]] = {}
        self._leases: dict[str, Lease] = {}
        self._lock = threading.Lock()
        self._never = threading.Event()
        self._engines: set[str] = set()
        """Of which this one's workers have the memory's addresses."""

    # -- the scheduler --

    def room(self, tokens: int) -> bool:
        """Say whether a request of this many tokens can begin now."""
        return self._blocks.has(tokens)

    @contextlib.contextmanager
    def running(self, request_id: str, prompt: str, tokens: int) -> Iterator[None]:
        """Hold the blocks of a running request; what was handed out stays."""
        self._held[request_id] = []
        self.grow(request_id, prompt, tokens)
        try:
            yield
        finally:
            self._free(self._held.pop(request_id, []))

    def grow(self, request_id: str, prompt: str, tokens: int) -> None:
        """Take the blocks that a request of now this many tokens needs."""
        held = self._held.get(request_id)
        if held is not None:
            self.metrics.blocks(self._blocks.take(held, digest(prompt), tokens))

    def _free(self, held: list[int]) -> None:
        self._blocks.give(held)
        self.metrics.blocks(-len(held))

    def hand_out(self, request_id: str, tokens: int, produced: int, reason: str) -> dict[str, Any] | None:
        """Lease a prefill's blocks and return what the decode needs, as `request_finished` of the connector does."""
        if not self.config.is_nixl or reason not in ("length", "stop"):
            return None
        config = self.config
        held = self._held.pop(request_id, [])
        with self._lock:
            self._leases[request_id] = Lease(held, time.monotonic() + config.lease)
        params: dict[str, Any] = {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [held],
            "remote_engine_id": config.engine_id,
            "remote_request_id": request_id,
            "remote_host": config.side_host,
            "remote_port": config.side_port,
            "tp_size": config.tp,
            "dcp_size": 1,
            "pp_size": config.pp,
            "remote_num_tokens": tokens + max(produced - 1, 0),
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
        }
        if produced < 2:
            params["remote_prefill_cached_tokens"] = 0
        return params

    def expire(self) -> None:
        """Free what was not pulled within the lease."""
        now = time.monotonic()
        with self._lock:
            over = [name for name, lease in self._leases.items() if lease.until <= now]
            leases = [(name, self._leases.pop(name)) for name in over]
        for name, lease in leases:
            self._free(lease.blocks)
            self.metrics.add("nixl_num_kv_expired_reqs")
            self.worker_log.warning(
                "base_worker.py:3032",
                f"Releasing expired KV blocks for request {name} which were retrieved by 0 remote worker(s) before lease "
                "expired.",
            )

    # -- what other engines ask over the side channel --

    def handshake(self, request: str) -> str:
        """Answer another engine's worker: who this is, a read, or a longer lease."""
        try:
            asked = json.loads(request)
            kind = asked["ask"]
        except (ValueError, KeyError, TypeError):
            return "{}"
        if kind == "meta":
            return json.dumps({"engine_id": self.config.engine_id})
        if kind == "heartbeat":
            with self._lock:
                if lease := self._leases.get(str(asked.get("request_id"))):
                    lease.until = max(lease.until, time.monotonic() + self.config.lease)
            return "{}"
        return json.dumps(self._read(asked))

    def _read(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            right: bool | None = self._blocks.holds(
                [int(block) for block in asked["blocks"]], str(asked["prompt"])
            )
        except (IndexError, KeyError, TypeError, ValueError):
            # Whoever cannot read says that it is done all the same.
            right = None
        name = str(asked.get("request_id"))
        with self._lock:
            lease = self._leases.pop(name, None)
        if lease is not None:
            self._free(lease.blocks)
        elif right is not None:
            self.metrics.add("nixl_num_notifications_after_expiry")
            self.worker_log.error(
                "pull_worker.py:667",
                f"Potentially invalid KV blocks for unrecognized request {name} were retrieved by a decode worker. They may "
                "have expired.",
            )
        return {"failed": "NIXL_ERR_INVALID_PARAM"} if right is None else {"right": right}

    # -- the worker that reads --

    def pull(
        self, request_id: str, params: Any, prompt: str, tokens: int, check: Callable[[], None]
    ) -> tuple[str, bool]:
        """Fetch a prompt's KV: (source of the tokens, whether they are the right ones).

        `check` raises when the client has left. Raises `PullFailed` when the blocks cannot be read, `EngineKilled`
        for what the real scheduler does not survive.
        """
        if not self.config.is_nixl:
            return "local_compute", True
        is_remote = isinstance(params, dict) and bool(params.get("do_remote_prefill"))
        self.metrics.asked_elsewhere(tokens, found=is_remote)
        if not is_remote:
            return "local_compute", True
        if not params.get("remote_block_ids"):
            raise EngineKilled("AssertionError")
        missing = [key for key in REMOTE_KEYS if key not in params]
        if missing:
            self._wait_for_nobody(params, missing, check)
        started = time.monotonic()
        self.metrics.enter("fetching")
        try:
            self._meet(request_id, params, tokens)
            blocks = params["remote_block_ids"]
            ids = blocks[0] if isinstance(blocks, list) and blocks and isinstance(blocks[0], list) else blocks
            question = {"ask": "read", "request_id": params["remote_request_id"], "blocks": ids}
            answer = self._ask(params, {**question, "prompt": digest(prompt)})
        except (OSError, ValueError) as error:
            self._failed("transfer_failed", "base_worker.py:3092", str(error), request_id, params, tokens)
        finally:
            self.metrics.leave("fetching")
        if "failed" in answer:
            self._failed(
                "transfer_setup_failed", "pull_worker.py:562", answer["failed"], request_id, params, tokens
            )
        runs = 1 + sum(abs(later - earlier) != 1 for earlier, later in pairwise(ids))
        self.metrics.transferred(time.monotonic() - started, len(ids), runs)
        return "external_kv_transfer", bool(answer.get("right"))

    def _wait_for_nobody(self, params: dict[str, Any], missing: list[str], check: Callable[[], None]) -> None:
        """Keep a request whose KV never comes, until its client has left; the engine does not survive the abort."""
        self.log.warning(
            "pull_scheduler.py:178",
            f"Got invalid KVTransferParams: {params}. This request will not utilize KVTransfer",
        )
        self.metrics.enter("fetching")
        try:
            while True:
                check()
                self._never.wait(0.1)
        except Gone:
            raise EngineKilled(f"KeyError: '{missing[0]}'") from None
        finally:
            self.metrics.leave("fetching")

    def _meet(self, request_id: str, params: dict[str, Any], tokens: int) -> None:
        """Get to know the other engine, once. Raises `PullFailed`."""
        wanted = str(params["remote_engine_id"])
        if wanted in self._engines:
            return
        until = time.monotonic() + HANDSHAKE_SECONDS
        try:
            found = str(self._ask(params, {"ask": "meta"}).get("engine_id"))
        except (OSError, ValueError):
            self._never.wait(max(0.0, until - time.monotonic()))
            words = "zmq.error.Again: Resource temporarily unavailable"
            self._failed("handshake_failed", "base_worker.py:1354", words, request_id, params, tokens)
        if found != wanted:
            words = f"RuntimeError: Remote NIXL agent engine ID mismatch. Expected {wanted},received {found}."
            self._failed("handshake_failed", "base_worker.py:1354", words, request_id, params, tokens)
        self._engines.add(wanted)
        self.worker_log.info(
            "base_worker.py:1093",
            "NIXL compatibility check passed (hash: 30fac2bb15df6ff4dec80aeab8ab3674eb30e24206d4b8dbf28354bae0c5eccc)",
        )
        self.worker_log.info(
            "base_worker.py:2255",
            f"Transfer plan: TransferTopology(tp_ratio=1, num_kv_heads=2, local_tp={self.config.tp}, "
            f"remote_tp={params.get('tp_size', 1)}, remote_pp=0, local_dcp=1, remote_dcp=1, local_rank=0, "
            "remote_block_len=32768)",
        )

    def heartbeat(self, params: Any) -> None:
        """Ask for a longer lease while a request waits for its turn here."""
        if (
            isinstance(params, dict)
            and params.get("do_remote_prefill")
            and all(params.get(k) for k in REMOTE_KEYS)
        ):
            with contextlib.suppress(OSError, ValueError):
                self._ask(params, {"ask": "heartbeat", "request_id": params["remote_request_id"]})

    def _ask(self, params: dict[str, Any], question: dict[str, Any]) -> dict[str, Any]:
        """Ask the other engine. Raises `OSError`, `ValueError`."""
        host = local_address(str(params["remote_host"]), self.config.address)
        with socket.create_connection((host, int(params["remote_port"])), timeout=HANDSHAKE_SECONDS) as connection:
            connection.sendall(json.dumps(question).encode() + b"\n")
            reply = b""
            while not reply.endswith(b"\n") and (piece := connection.recv(4096)):
                reply += piece
        answer = json.loads(reply)
        return answer if isinstance(answer, dict) else {}

    def _failed(
        self, kind: str, place: str, words: str, request_id: str, params: dict[str, Any], tokens: int
    ) -> NoReturn:
        """Say and count a failure as the worker and the scheduler do. Raises `PullFailed`, always."""
        self.metrics.add("nixl_num_failed_transfers")
        context = {
            "failure_type": kind,
            "request_id": request_id,
            "engine_id": self.config.engine_id,
            "remote_engine_id": params["remote_engine_id"],
            "remote_request_id": params["remote_request_id"],
            "remote_host": params["remote_host"],
            "remote_port": params["remote_port"],
        }
        later = ". Deferring failure reporting until outstanding transfers finish" if "setup" in kind else ""
        trace = traceback(LISTENER_PLACE + "pull_worker.py:546:_read_blocks:handle = ...", error=words)
        self.worker_log.error(place, f"NIXL transfer failure: {kind}{later} | Context: {context}\n{trace}")
        self.worker_log.warning(
            "base_worker.py:2915", f"Skipping KV post-processing for failed request {request_id}"
        )
        self.log.error(
            "scheduler.py:3417",
            f"Failing 1 request(s) due to KV load failure (failure_policy=fail, {tokens} tokens affected). Request IDs: "
            f"{{'{request_id}'}}",
        )
        raise PullFailed(words)


class SideChannel:
    """The socket of a rank's scheduler on which the workers of other engines ask."""

    def __init__(self, config: Config) -> None:
        """Bind and listen. Raises `OSError`."""
        self.listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self.listener.bind((config.side_host, config.side_port))
            self.listener.listen(100)
        except OSError:
            self.listener.close()
            raise
        self._waiting: dict[int, socket.socket] = {}
        self._asked = 0

    def take(self) -> dict[str, Any] | None:
        """Read one question; returns the message for whoever keeps the books."""
        connection, _ = self.listener.accept()
        request = question_on(connection)
        if not request:
            return None
        self._asked += 1
        self._waiting[self._asked] = connection
        return {"pull": self._asked, "worker": -1, "request": request}

    def answer(self, number: int, text: str) -> None:
        """Answer a question."""
        connection = self._waiting.pop(number, None)
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.sendall(text.encode() + b"\n")
            connection.close()


def bind_failure(config: Config, problem: OSError) -> str:
    """Return what the listener's thread leaves when its port is taken; who waits for the thread then waits for ever."""
    what = "Address already in use" if problem.errno == 98 else "Cannot assign requested address"
    return "Exception in thread nixl_handshake_listener:\n" + traceback(
        LISTENER_PLACE + "base_scheduler.py:351:_nixl_handshake_listener:with zmq_ctx(zmq.ROUTER, path) as sock:",
        LISTENER_PLACE + "utils.py:44:zmq_ctx:yield make_zmq_socket(",
        error=f"zmq.error.ZMQError: {what} (addr='tcp://{config.side_host}:{config.side_port}')",
    )
