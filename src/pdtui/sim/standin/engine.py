"""The EngineCore process of a rank: meets its DP group, has workers, and takes the rank down when one of them goes."""

import socket
from collections.abc import Callable
from typing import Any

from .config import Config
from .group import Group, Mismatch, PeerLost
from .log import Log, traceback
from .process import Pipe, Signals, Stopped, end, fork, reap
from .worker import Worker, title

NOTICE_SECONDS = 1.0
"""From a peer's end until the collectives of this engine fail."""


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

    def run(self) -> int:
        """Start, serve, end. Returns the exit status."""
        try:
            self.group.meet()
            self._start()
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
            self._fail("EngineCore encountered a fatal error.", str(error))
        finally:
            self._end_workers(0.2)
        return 1

    def _fail(self, head: str, text: str) -> None:
        self.log.error("core.py:866", f"{head}\n{text}")
        self.api.send({"dead": text.rpartition("\n")[2]})

    def _start(self) -> None:
        config, log = self.config, self.log
        log.info(
            "core.py:93",
            f"Initializing a V1 LLM engine (v{config.version}) with config: model='{config.model}', "
            f"speculative_config={'SpeculativeConfig(method=mtp)' if config.mtp else None}, tokenizer='{config.model}', "
            f"skip_tokenizer_init=False, dtype=torch.bfloat16, max_seq_len={config.max_model_len}, "
            f"tensor_parallel_size={config.tp}, pipeline_parallel_size={config.pp}, data_parallel_size={config.dp}, "
            f"quantization={config.flags.get('quantization')}, enforce_eager={config.eager}, "
            f"device_config=npu, seed={config.flags.get('seed', 0)}, served_model_name={config.served[0]}",
        )
        for index in range(config.world):
            kept: list[Any] = [self.api, *self.group.sockets, *(pipe for _, pipe in self.workers.values())]
            if self.listener is not None:
                kept.append(self.listener)
            pid, pipe = fork(title(config, index), _worker_body(config, index), kept)
            self.workers[index] = (pid, pipe)
        self.api.send({"workers": [pid for pid, _ in self.workers.values()]})
        if config.connector:
            log.info("mooncake_connector.py:1002", f"Initializing Mooncake Scheduler {config.kv.get('engine_id')}")
        self._await_workers()
        tokens = 1170 * config.block_size
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

    def _await_workers(self) -> None:
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
                    if "ready" in message:
                        missing.discard(index)
                    elif "failed" in message:
                        frame = "vllm/vllm/v1/executor/multiproc_executor.py:143:_init_executor:WorkerProc.wait_for_ready(...)"
                        text = "Exception: WorkerProc initialization failed due to an exception in a background process. "
                        raise Died(traceback(frame, error=text + "See stack trace for root cause."))
                if not pipe.open:
                    self._worker_gone(index)

    def _watched(self) -> list[Any]:
        pipes: list[Any] = [pipe for _, pipe in self.workers.values()]
        return [*pipes, *self.group.sockets, *([self.api] if self.api.open else [])]

    def _serve(self) -> None:
        while True:
            ready = self.signals.wait(self._watched())
            self._check_group(ready)
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
        if "pulled" in message:
            self.workers[message["worker"]][1].send(message)
        elif "assert" in message:
            frame = "vllm/vllm/v1/core/sched/scheduler.py:1187:_update_waiting_for_remote_kv:assert num_external_tokens == 0"
            raise Died(traceback(frame, error="AssertionError"))

    def _from_worker(self, index: int, message: dict[str, Any]) -> None:
        if "pull" in message:
            if self.api.open:
                self.api.send(message)
            else:
                self.workers[index][1].send({"pulled": message["pull"], "answer": "unknown"})

    def _worker_gone(self, index: int) -> None:
        pid, _ = self.workers.pop(index)
        # TERM to every process of the rank reaches the workers first.
        self.signals.pause(0.3)
        status = reap(pid)
        name = f"VllmWorker-{index}"
        self.log.error(
            "multiproc_executor.py:226",
            f"Worker proc {name} died unexpectedly (exit code: {status}), shutting down executor.",
        )
        frame = "vllm/vllm/v1/engine/core.py:1101:_process_engine_step:outputs, model_executed = self.step_fn()"
        raise Died(traceback(frame, error="RuntimeError: Executor failed."))

    def _check_group(self, ready: list[Any]) -> None:
        lost = self.group.lost(ready)
        if not lost:
            return
        self.signals.pause(NOTICE_SECONDS)
        frame = "vllm/vllm/v1/engine/core.py:1402:_has_global_unfinished_reqs:torch.distributed.all_reduce(tensor)"
        raise Died(
            traceback(
                frame,
                error=f"RuntimeError: Connection closed by peer {lost}. This is typically caused by a remote worker "
                "crashing.",
            )
        )

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
        for _, pipe in self.workers.values():
            pipe.close()
        for pid, _ in self.workers.values():
            end(pid, seconds)
        self.workers.clear()


def _worker_body(config: Config, index: int) -> Callable[[Pipe], int]:
    return lambda engine: Worker(config, index, engine).run()
