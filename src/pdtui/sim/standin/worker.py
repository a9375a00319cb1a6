"""A worker process: one NPU of a rank. It loads the weights, holds the HBM and answers KV handshakes."""

import contextlib
import fcntl
import os
import socket
from typing import Any, TextIO

from . import cpu as said
from .config import Config
from .log import Log, put, traceback
from .process import Pipe, Signals, Stopped, fault, node_pids, question_on

HBM_MB = 65536
IDLE_MB = 3100
MODEL_MB = 38000
"""Weights on one NPU, whatever the model."""


class Failed(Exception):
    """The worker cannot start; the text is its traceback."""


def title(config: Config, index: int) -> str:
    """Return a worker's process title: only the sizes above one are named."""
    tp, pp = index % config.tp, index // config.tp
    parts = [f"_DP{config.dp_rank}"] if config.dp > 1 else []
    parts += [f"_PP{pp}"] if config.pp > 1 else []
    parts += [f"_TP{tp}"] if config.tp > 1 else []
    parts += [f"_EP{config.dp_rank * config.tp + tp}"] if config.expert_parallel and config.dp > 1 else []
    return f"VLLM::Worker{''.join(parts)}"


class Worker:
    """Worker `index` of a rank."""

    def __init__(self, config: Config, index: int, engine: Pipe) -> None:
        self.config = config
        self.index = index
        self.engine = engine
        self.signals = Signals()
        self.title = title(config, index)
        self.log = Log(self.title.removeprefix("VLLM::"))
        self.device = config.devices[index] if index < len(config.devices) else -1
        self.listener: socket.socket | None = None
        self._waiting: dict[int, socket.socket] = {}
        self._asked = 0
        self.pid = os.getpid()
        self._hbm: TextIO | None = None

    def run(self) -> int:
        """Load, serve handshakes, end with the engine."""
        try:
            self._load()
            self.engine.send({"ready": self.index, "pid": os.getpid()})
            self._serve()
        except Stopped:
            self.engine.send({"bye": self.index})
        except Failed as error:
            place = "multiproc_executor.py:1010" if self.config.cpu else "multiproc_executor.py:597"
            self.log.error(place, f"WorkerProc failed to start.\n{error}")
            self.engine.send({"failed": str(error)})
            return 1
        finally:
            self._use(0)
        return 0

    def _pause(self, seconds: float) -> None:
        if self.signals.pause(seconds / self.config.speed, [self.engine]):
            raise Stopped("engine gone")

    def _use(self, megabytes: int) -> None:
        """Show HBM in use, in the file that the node's npu-smi reads."""
        if self.device < 0:
            return
        if self._hbm is None:
            self.pid = node_pids(self.config.node, [os.getpid()])[0]
        path = f"{self.config.node}/npu/{self.device}/hbm/{self.pid}"
        with contextlib.suppress(OSError):
            if not megabytes:
                os.unlink(path)
                return
            if self._hbm is None:
                self._hbm = open(path, "w", encoding="utf-8")  # noqa: SIM115 - its lock says that we live
                fcntl.flock(self._hbm, fcntl.LOCK_EX)
            self._hbm.seek(0)
            self._hbm.write(f"{megabytes:<8} {self.title[:15]}\n")
            self._hbm.flush()

    def _check_device(self) -> None:
        config = self.config
        place = "vllm-ascend/vllm_ascend/worker/worker.py:231:_init_device:"
        if len(config.devices) < config.world:
            raise Failed(
                traceback(
                    place + "assert visible_device_count >= self.parallel_config.local_world_size",
                    error=f"AssertionError: local_world_size ({config.world}) must be less than or equal to the number "
                    f"of visible devices ({len(config.devices)}).",
                )
            )
        folder = f"{config.node}/npu/{self.device}"
        if not os.path.isdir(folder) or os.path.exists(f"{folder}/gone"):
            raise Failed(
                traceback(
                    place + "NPUPlatform.set_device(device)",
                    error="RuntimeError: SetPrecisionMode:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:156 NPU "
                    f"function error: aclrtSetDevice, error code is 107001\n[ERROR] [Error]: Invalid device ID. "
                    f"Check whether device {self.device} exists on this server.",
                )
            )
        free = HBM_MB - IDLE_MB - self._used_by_others()
        wanted = config.utilization * HBM_MB
        if free < wanted - IDLE_MB:
            raise Failed(
                traceback(
                    place + "raise ValueError(",
                    error=f"ValueError: Free memory on device ({free / 1024:.2f}/{HBM_MB / 1024:.2f} GiB) on startup is "
                    f"less than desired GPU memory utilization ({config.utilization}, {wanted / 1024:.2f} GiB). "
                    "Decrease GPU memory utilization or reduce GPU memory used by other processes.",
                )
            )

    def _used_by_others(self) -> int:
        total = 0
        folder = f"{self.config.node}/npu/{self.device}"
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"{folder}/smi", encoding="utf-8") as file:
                total += max(0, int(file.read().split()[4]) - IDLE_MB - 100)
            for name in os.listdir(f"{folder}/hbm"):
                with open(f"{folder}/hbm/{name}", encoding="utf-8") as file:
                    try:
                        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    except BlockingIOError:  # its process lives, in whichever container
                        total += int(file.read().split()[0])
        return total

    def _load(self) -> None:
        config, log = self.config, self.log
        if config.cpu:
            self._load_on_cpu()
            return
        self._check_device()
        self._use(600)
        rank = config.dp_rank * config.world + self.index
        log.info(
            "parallel_state.py:1203",
            f"rank {rank} in world size {config.dp * config.world} is assigned as DP rank {config.dp_rank}, "
            f"PP rank {self.index // config.tp}, TP rank {self.index % config.tp}, "
            f"EP rank {rank if config.expert_parallel else self.index}",
        )
        self._pause(0.3)
        log.info("model_runner_v1.py:3497", f"Starting to load model {config.model}...")
        self._load_shards()
        if fault(config.node, "die-at-start", config.rank, config.port):
            raise Failed(
                traceback(
                    "vllm-ascend/vllm_ascend/worker/model_runner_v1.py:3511:load_model:self.model = get_model(...)",
                    "vllm/vllm/model_executor/layers/fused_moe/layer.py:377:create_weights:w13_weight = torch.empty(",
                    error=f"RuntimeError: NPU out of memory. Tried to allocate 1.75 GiB (NPU {self.device}; 61.27 GiB "
                    "total capacity; 58.92 GiB already allocated; 58.92 GiB current active; 812.40 MiB free; 59.50 GiB "
                    "reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
                    "max_split_size_mb to avoid fragmentation.",
                )
            )
        self._use(MODEL_MB)
        log.info("default_loader.py:314", f"Loading weights took {config.shards * 0.12:.2f} seconds")
        if config.mtp:
            log.info("model_runner_v1.py:3540", "Loading drafter model...")
            self._pause(0.15)
        log.info("model_runner_v1.py:3571", f"Loading model weights took {MODEL_MB / 1024:.4f} GB")
        self._pause(0.3)
        available = config.utilization * HBM_MB / 1024 - MODEL_MB / 1024 - 3.1
        log.info("worker.py:301", f"Available KV cache memory: {available:.2f} GiB")
        self._use(int(config.utilization * HBM_MB) - IDLE_MB)
        if config.connector:
            self._open_handshake()
        self._warm_up()

    def _load_on_cpu(self) -> None:
        config, log = self.config, self.log
        self._pause(0.8)
        said.worker_begins(config, self.index, log, self.title.removeprefix("VLLM::"))
        said.load_weights(config, self.index, log, self._pause)
        if fault(config.node, "die-at-start", config.rank, config.port):
            raise Failed(
                traceback(
                    "vllm/vllm/v1/worker/cpu_model_runner.py:75:load_model:self.model = get_model(...)",
                    error="RuntimeError: [enforce fail at alloc_cpu.cpp:126] err == 0. DefaultCPUAllocator: can't allocate "
                    "memory: you tried to allocate 1879048192 bytes. Error code 12 (Cannot allocate memory)",
                )
            )
        self.engine.send({"loaded": self.index})
        told = False
        while not told:
            self.signals.wait([self.engine])
            told = any("go" in message for message in self.engine.receive())
            if not self.engine.open:
                raise Stopped("engine gone")
        said.worker_caches(config, log)
        self._pause(0.2)

    def _load_shards(self) -> None:
        shards = self.config.shards
        for done in range(shards + 1):
            if self.index == 0:
                seconds = done * 0.12
                left = (shards - done) * 0.12
                rate = "?it/s]" if not done else f"{1 / 0.12:5.2f}it/s]"
                left_text = "?" if not done else f"00:{left:02.0f}"
                put(
                    f"\rLoading safetensors checkpoint shards: {done * 100 // shards:3d}% Completed | "
                    f"{done}/{shards} [00:{seconds:02.0f}<{left_text}, {rate}",
                    2,
                )
            if done < shards:
                self._pause(0.08)
        if self.index == 0:
            put("\n", 2)

    def _warm_up(self) -> None:
        config, log = self.config, self.log
        if config.eager or config.is_producer:
            return
        sizes = [size for size in (1, 2, 4, 8, 16, 24, 32, 40) if size <= config.max_num_seqs] or [1]
        for done, size in enumerate(sizes, 1):
            log.info("model_runner_v1.py:3702", f"Compile and warming up model for size {size}")
            if self.index == 0:
                put(
                    f"\rCapturing CUDA graphs (decode, FULL): {done * 100 // len(sizes):3d}% {done}/{len(sizes)}",
                    2,
                )
            self._pause(0.08)
        if self.index == 0:
            put("\n", 2)
        log.info("model_runner_v1.py:3733", f"Graph capturing finished in {len(sizes)} secs, took 0.38 GiB")

    def _open_handshake(self) -> None:
        config, log = self.config, self.log
        log.info(
            "mooncake_connector.py:1290", f"Initializing Mooncake work {config.kv.get('engine_id', 'engine')}"
        )
        log.info("mooncake_connector.py:1377", "num_blocks: 1170, block_shape: torch.Size([128, 1, 512])")
        port = config.kv_handshake_port(self.index)
        if port is None:
            return
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((config.host_ip, port))
            listener.listen(64)
        except OSError as error:
            listener.close()
            self._handshake_failed(port, error)
        self.listener = listener
        log.info(
            "mooncake_connector.py:214",
            f"KVCacheSendingThread started listening on path: tcp://{config.host_ip}:{port}",
        )

    def _handshake_failed(self, port: int, error: OSError) -> None:
        """The thread dies, the worker waits for it five minutes long: never healthy, and no exit for that time."""
        what = "Address already in use" if error.errno == 98 else "Cannot assign requested address"
        self.log.error(
            "mooncake_connector.py:207",
            "Exception in thread KVCacheSendingThread:\n"
            + traceback(
                "vllm-ascend/vllm_ascend/distributed/kv_transfer/kv_p2p/mooncake_connector.py:219:run:"
                "sock.bind(path)",
                error=f"zmq.error.ZMQError: {what} (addr='tcp://{self.config.host_ip}:{port}')",
            ),
        )
        self._pause(300)
        raise Failed(
            traceback(
                "vllm-ascend/vllm_ascend/distributed/kv_transfer/kv_p2p/mooncake_connector.py:1402:"
                "register_kv_caches:raise RuntimeError(",
                error="RuntimeError: Timeout waiting for KV Cache thread to be ready.\n"
                "KV Cache sending/receiving thread failed to start.",
            )
        )

    def _serve(self) -> None:
        """Answer handshakes; the scheduler, which knows the blocks, is asked through the engine."""
        while True:
            listening = [self.listener] if self.listener else []
            for ready in self.signals.wait([self.engine, *listening]):
                if ready is self.engine:
                    for message in self.engine.receive():
                        self._answer(message)
                    if not self.engine.open:
                        self.log.info(
                            "multiproc_executor.py:843" if self.config.cpu else "multiproc_executor.py:702",
                            "Parent process exited, terminating worker queues",
                        )
                        return
                elif self.listener is not None:
                    connection, _ = self.listener.accept()
                    self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        request = question_on(connection)
        if request:
            self._asked += 1
            self._waiting[self._asked] = connection
            self.engine.send({"pull": self._asked, "worker": self.index, "request": request})

    def _answer(self, message: dict[str, Any]) -> None:
        connection = self._waiting.pop(message.get("pulled", 0), None)
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.sendall(str(message["answer"]).encode() + b"\n")
            connection.close()
