"""The EngineCore process of a rank: meets its DP group, has workers, and takes the rank down when one of them goes."""

import json
import socket
import time
from collections.abc import Callable
from typing import Any

from . import cpu as said
from .config import BLOCKS, Config
from .group import Group, Mismatch, PeerLost
from .log import Log, put, traceback
from .nixl import SideChannel, bind_failure
from .process import Pipe, Signals, Stopped, end, fork, reap
from .worker import Worker, title

NOTICE_SECONDS = 1.0
"""From a peer's end until the collectives of this engine fail."""


WAVE_SECONDS = 1.0
"""From the last request until the ranks of a group run no collectives any more."""
GLOO = "vllm/vllm/v1/worker/dp_utils.py:75:_run_ar:dist.all_reduce(tensor, group=group)"


class Died(Exception):
    """The engine meets a fatal error; the text is its traceback."""


class Engine:
    """One rank's engine."""

    def __init__(self, config: Config, api: Pipe, listener: socket.socket | None) -> None:
        self.config = config
        self.api = api
        self.listener = listener
        self.signals = Signals()
        self.log = Log(f"EngineCore{config.name}")
        self.group = Group(config, listener, self.signals)
        self.workers: dict[int, tuple[int, Pipe]] = {}
        self.side: SideChannel | None = None
        self.has_started = False
        self.rests_at = 0.0
        self.busy = not config.cpu
        self.worker_log = Log(title(config, 0).removeprefix("VLLM::"))

    def run(self) -> int:
        """Start, serve, end. Returns the exit status."""
        if self.config.cpu:
            put(said.TRITON, 2)
        try:
            self.signals.deaf = self.config.cpu
            self.group.meet()
            self.signals.deaf = False
            self._start()
            self.has_started = True
            self._serve()
        except Stopped as stopped:
            self._shut_down(str(stopped))
            return 0
        except Mismatch as error:
            frame = "vllm/vllm/v1/engine/utils.py:1047:wait_for_engine_startup:raise RuntimeError("
            self._fail("EngineCore failed to start.", traceback(frame, error=f"RuntimeError: {error}"))
        except PeerLost as error:
            frame = "vllm/vllm/v1/engine/core.py:1101:_init_data_parallel:self.dp_group = init_dp_group()"
            text = f"RuntimeError: Connection closed by peer, {error}. This is typically caused by a remote worker crashing."
            self._fail("EngineCore failed to start.", traceback(frame, error=text))
        except Died as error:
            started = self.has_started or not self.config.cpu
            self._fail(f"EngineCore {'encountered a fatal error' if started else 'failed to start'}.", str(error))
            if not started:
                put(f"Process EngineCore{self.config.name}:\n{error}\n", 2)
        finally:
            self._end_workers(0.2)
        return 1

    def _fail(self, head: str, text: str) -> None:
        place = "core.py:866"
        if self.config.cpu:
            place = "core.py:1512" if "fatal" in head else "core.py:1510"
        self.log.error(place, f"{head}\n{text}")
        self.api.send({"dead": text.rpartition("\n")[2]})

    def _start(self) -> None:
        config, log = self.config, self.log
        if config.cpu:
            said.engine_begins(config, log)
            self._start_workers()
            self._await_workers("loaded")
            self._check_room()
            said.engine_caches(config, log)
            for _, pipe in self.workers.values():
                pipe.send({"go": True})
            self._await_workers("ready")
            said.engine_ready(config, log)
            self._open_side_channel()
            said.engine_goes_on(config, log)
            self.api.send({"ready": True})
            return
        log.info(
            "core.py:93",
            f"Initializing a V1 LLM engine (v{config.version}) with config: model='{config.model}', "
            f"speculative_config={'SpeculativeConfig(method=mtp)' if config.mtp else None}, tokenizer='{config.model}', "
            f"skip_tokenizer_init=False, dtype=torch.bfloat16, max_seq_len={config.max_model_len}, "
            f"tensor_parallel_size={config.tp}, pipeline_parallel_size={config.pp}, data_parallel_size={config.dp}, "
            f"quantization={config.flags.get('quantization')}, enforce_eager={config.eager}, "
            f"device_config=npu, seed={config.flags.get('seed', 0)}, served_model_name={config.served[0]}",
        )
        self._start_workers()
        if config.connector:
            log.info("mooncake_connector.py:1002", f"Initializing Mooncake Scheduler {config.kv.get('engine_id')}")
        self._await_workers("ready")
        tokens = BLOCKS * config.block_size
        log.info("kv_cache_utils.py:1087", f"GPU KV cache size: {tokens:,} tokens")
        log.info(
            "kv_cache_utils.py:1091",
            f"Maximum concurrency for {config.max_model_len:,} tokens per request: {tokens / config.max_model_len:.2f}x",
        )
        if problem := config.connector_problem():
            raise Died(problem)
        log.info("cpu_binding.py:298", "The CPU allocation plan is as follows:")
        log.info("core.py:214", "init engine (profile, create kv cache, warmup model) took 1.42 seconds")
        self.api.send({"ready": True})

    def _start_workers(self) -> None:
        config = self.config
        for index in range(config.world):
            kept: list[Any] = [self.api, *self.group.sockets, *(pipe for _, pipe in self.workers.values())]
            if self.listener is not None:
                kept.append(self.listener)
            pid, pipe = fork(title(config, index), _worker_body(config, index), kept)
            self.workers[index] = (pid, pipe)
        self.api.send({"workers": [pid for pid, _ in self.workers.values()]})

    def _await_workers(self, word: str) -> None:
        """Wait until every worker has said a word. Raises `Died`."""
        missing = set(self.workers)
        while missing:
            ready = self.signals.wait(self._watched())
            self._check_group(ready)
            if self.api in ready:
                self.api.receive()
            for index, (_, pipe) in list(self.workers.items()):
                if pipe not in ready:
                    continue
                for message in pipe.receive():
                    if word in message:
                        missing.discard(index)
                    elif "failed" in message:
                        frame = "vllm/vllm/v1/executor/multiproc_executor.py:143:_init_executor:WorkerProc.wait_for_ready(...)"
                        text = "Exception: WorkerProc initialization failed due to an exception in a background process. "
                        raise Died(traceback(frame, error=text + "See stack trace for root cause."))
                if not pipe.open:
                    self._worker_gone(index)

    def _watched(self) -> list[Any]:
        watched: list[Any] = [pipe for _, pipe in self.workers.values()]
        # Without a request no collective runs that could fail: an idle rank does not learn of its peer's end.
        watched += self.group.sockets if self.busy or time.monotonic() < self.rests_at else []
        watched += [self.api] if self.api.open else []
        return [*watched, self.side.listener] if self.side is not None else watched

    def _serve(self) -> None:
        while True:
            left = self.rests_at - time.monotonic()
            ready = self.signals.wait(self._watched(), left if left > 0 else None)
            self._check_group(ready)
            if self.side is not None and self.side.listener in ready:
                self._from_side(self.side)
            if self.api in ready:
                # A server that was killed leaves its engine running.
                for message in self.api.receive():
                    self._from_api(message)
            for index, (_, pipe) in list(self.workers.items()):
                if pipe in ready:
                    for message in pipe.receive():
                        self._from_worker(index, message)
                    if not pipe.open:
                        self._worker_gone(index)

    def _from_api(self, message: dict[str, Any]) -> None:
        if "pulled" in message and message["worker"] < 0:
            if self.side is not None:
                self.side.answer(message["pulled"], message["answer"])
        elif "pulled" in message:
            self.workers[message["worker"]][1].send(message)
        elif "dies" in message:
            frame = "vllm/vllm/v1/core/sched/scheduler.py:1187:_update_waiting_for_remote_kv:assert num_external_tokens == 0"
            raise Died(traceback(frame, error=message["dies"]))
        elif "busy" in message:
            self.busy = bool(message["busy"])
            self.rests_at = time.monotonic() + WAVE_SECONDS
            if self.busy:
                self._check_group(self.signals.wait(self.group.sockets, 0))
                self.api.send({"stepped": True})

    def _from_worker(self, index: int, message: dict[str, Any]) -> None:
        if "pull" in message:
            if self.api.open:
                self.api.send(message)
            else:
                self.workers[index][1].send({"pulled": message["pull"], "answer": "unknown"})

    def _from_side(self, side: SideChannel) -> None:
        message = side.take()
        if message is None:
            return
        if self.api.open:
            self.api.send(message)
        else:
            # Nobody begins a request any more: what the blocks held, they hold.
            side.answer(message["pull"], json.dumps({"engine_id": self.config.engine_id, "right": True}))

    def _open_side_channel(self) -> None:
        """Bind the side channel; where that fails the start goes on waiting, and no TERM ends it."""
        if not self.config.is_nixl:
            return
        try:
            self.side = SideChannel(self.config)
        except OSError as problem:
            put(bind_failure(self.config, problem) + "\n", 2)
            self.signals.deaf = True
            while True:
                self.signals.wait([])

    def _check_room(self) -> None:
        """Refuse a KV cache that holds no request of the longest length. Raises `Died`."""
        config = self.config
        if config.blocks * config.block_size >= config.max_model_len:
            return
        frame = "vllm/vllm/v1/core/kv_cache_utils.py:1030:_check_enough_kv_cache_memory:raise ValueError("
        if config.blocks < 1:
            words = (
                "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
                "initializing the engine (this flag also controls CPU memory reservation on the CPU backend, despite its "
                "name). See https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
            )
            raise Died(traceback(frame, error=words))
        words = (
            f"ValueError: To serve at least one request with the model's max seq len ({config.max_model_len}), more KV cache "
            f"is needed than the available KV cache memory ({config.kv_bytes / (1 << 30):.1f} GiB). Try increasing "
            "`kv_cache_memory_bytes` or decreasing `max_model_len` when initializing the engine."
        )
        raise Died(traceback(frame, error=words))

    def _worker_gone(self, index: int) -> None:
        pid, _ = self.workers.pop(index)
        # TERM to every process of the rank reaches the workers first.
        self.signals.pause(0.3)
        status = reap(pid)
        name = f"VllmWorker-{index}"
        self.log.error(
            "multiproc_executor.py:315" if self.config.cpu else "multiproc_executor.py:226",
            f"Worker proc {name} died unexpectedly (exit code: {status}), shutting down executor.",
        )
        frame = "vllm/vllm/v1/engine/core.py:1101:_process_engine_step:outputs, model_executed = self.step_fn()"
        raise Died(traceback(frame, error="RuntimeError: Executor failed."))

    def _check_group(self, ready: list[Any]) -> None:
        lost = self.group.lost(ready)
        if not lost:
            return
        self.signals.pause(0 if self.config.cpu else NOTICE_SECONDS)
        frame = "vllm/vllm/v1/engine/core.py:1402:_has_global_unfinished_reqs:torch.distributed.all_reduce(tensor)"
        error = f"RuntimeError: Connection closed by peer {lost}. This is typically caused by a remote worker crashing."
        if self.config.cpu:
            self.worker_log.pid = self.workers[0][0]
            self.worker_log.error(
                "multiproc_executor.py:1063", "WorkerProc hit an exception.\n" + traceback(GLOO, error=error)
            )
        raise Died(traceback(frame, error=error))

    def _shut_down(self, name: str) -> None:
        log = self.log
        log.info("core.py:1454", f"[shutdown] EngineCore: trigger received signal={name}")
        self.api.send({"bye": name})
        log.info("core.py:1635", "[shutdown] EngineCore: start mode=abort timeout=0s")
        log.info("core.py:1666", "[shutdown] EngineCore: request processing complete; starting resource teardown")
        log.info("core.py:1499", "[shutdown] EngineCore: exiting busy loop")
        log.info(
            "multiproc_executor.py:479", f"[shutdown] Executor: waiting for worker exit count={len(self.workers)}"
        )
        self._end_workers(3.0)

    def _end_workers(self, seconds: float) -> None:
        self.group.close()
        if self.side is not None:
            self.side.listener.close()
        for _, pipe in self.workers.values():
            pipe.close()
        for pid, _ in self.workers.values():
            end(pid, seconds)
        self.workers.clear()


def _worker_body(config: Config, index: int) -> Callable[[Pipe], int]:
    return lambda engine: Worker(config, index, engine).run()
