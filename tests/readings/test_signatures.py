from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtui.readings.signature_table import SIGNATURES
from pdtui.readings.signatures import match_line
from tests.readings.samples import log

EXAMPLES: dict[str, tuple[str, str]] = {
    "json-argument": (
        "vllm serve: error: argument --kv-transfer-config: 1 validation error for KVTransferConfig",
        "--kv-transfer-config",
    ),
    "unknown-flag": ("vllm: error: unrecognized arguments: --enable-expert-paralel", "--enable-expert-paralel"),
    "unsupported-connector": (
        "  Value error, Unsupported connector type: MooncakeX [type=x]",
        "MooncakeX",
    ),
    "kv-sizes-conflict": (
        "ValueError: KV transfer 'prefill' config has a conflicting tensor parallel size. Expected 8, but got 16.",
        "size 16 for prefill, its flags say 8",
    ),
    "kv-sizes-missing": ('    assert "tp_size" in prefill_parallel_config', "lacks the sizes"),
    "tp-sizes-unsupported": (
        "ValueError: prefill_tp_size: 4 must be greater than 8",
        "tensor parallel",
    ),
    "dense-with-dp": ("ValueError: Non-MoE models do not support external data parallel mode.", "dense model"),
    "dp-rank-range": ("  Value error, data_parallel_rank (2) must be in the range [0, 2) [type=x]", "rank 2"),
    "max-model-len": (
        "  Value error, User max_model_len (40000) is greater than the derived max_model_len",
        "40000",
    ),
    "unknown-quantization": ("  Value error, Unknown quantization method: ascend. Must be one of", "ascend"),
    "model-path": ("x.HFValidationError: Repo id must be in the form 'a' or 'b': '/models/r1'. Use", "/models/r1"),
    "obsolete-kv-key": ("ValidationError: 1 error: Unexpected keyword argument", "unknown to this version"),
    "balance-scheduling": ("ValueError: enable_balance_scheduling only supports PD-mixed mode", "split roles"),
    "finegrained-tp": ("ValueError: oproj_tensor_parallel_size is only supported in graph mode", "finegrained"),
    "engine-id-conflict": ("ValueError: Conflict engine id 0 with local engine id 0.", "same engine_id"),
    "group-arguments-differ": ("RuntimeError: Configuration mismatch detected for engine 3.", "rank 0"),
    "mla-heads": ("RuntimeError: EZ9999 MLA only support {32, 64, 128}", "heads"),
    "config-value": ("  Value error, block_size must be 128 [type=value_error]", "block_size must be 128"),
    "version-text": ("packaging.version.InvalidVersion: Invalid version: 'dev'", "version"),
    "api-port-in-use": (
        "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 7100): address already in use",
        "7100",
    ),
    "zmq-port-in-use": (
        "zmq.error.ZMQError: Address already in use (addr='tcp://10.0.0.1:36003')",
        "(36003)",
    ),
    "hccl-port-in-use": ("[HcclSocket][Listen] listen on ip[10.0.0.1] and specific port[60000] fail", "60000"),
    "port-above-65535": ("RuntimeError: port 65540 cannot be bound, failed", "65540"),
    "npu-out-of-memory": (
        "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.96 GiB total capacity)",
        "NPU 0 is out of memory (2.00 GiB wanted)",
    ),
    "npu-memory-taken": (
        "ValueError: Free memory on device npu:0 (12.1/60.9 GiB) on startup is less than desired GPU memory",
        "12.1 of 60.9",
    ),
    "host-memory-taken": (
        "ValueError: Available memory on node 0 (1.02/23.4 GiB) on startup is less than desired CPU memory",
        "1.02 of 23.4",
    ),
    "kv-late": (
        "(W pid=1) ERROR 11-30 12:00:00 [p.py:1] Potentially invalid KV blocks for unrecognized request cmpl-1 "
        "were retrieved by a decode worker. They may have expired.",
        "wrong text",
    ),
    "kv-fetch-failed": (
        "(W pid=1) ERROR 11-30 12:00:00 [b.py:1] NIXL transfer failure: handshake_failed | Context: {'x': 1}",
        "(handshake_failed)",
    ),
    "told-to-end": (
        "(EngineCore pid=1) INFO 11-30 12:00:00 [c.py:1] [shutdown] EngineCore: trigger received signal=SIGTERM",
        "SIGTERM",
    ),
    "kv-cache-too-small": ("ValueError: No available memory for the cache blocks. Try", "KV cache"),
    "hccl-buffer": ("RuntimeError: HCCL_BUFFSIZE is too small, at least 512 is required", "HCCL_BUFFSIZE"),
    "mte-range": ("RuntimeError: The DDR address of the MTE instruction is out of range", "memory"),
    "device-memory": ("RuntimeError: EL0004: Memory_Allocation_Failure", "memory"),
    "streams": ("RuntimeError: EL0009 Stream resources are insufficient", "streams"),
    "shared-memory": ("Fatal Python error: Bus error", "shared memory"),
    "host-out-of-memory": ("MemoryError: cannot allocate", "host"),
    "open-files": ("OSError: [Errno 24] Too many open files: '/x'", "open files"),
    "cann-missing": ("ImportError: libatb.so: cannot open shared object file: No such file or directory", "CANN"),
    "mooncake-missing": ("ModuleNotFoundError: No module named 'mooncake'", "mooncake"),
    "setup-missing": (
        "pdtui: cannot read /home/u/my venv's/activate (runtime.setup of the topology file)",
        "the set-up file /home/u/my venv's/activate is not there",
    ),
    "secret-missing": (
        "pdtui: cannot read /run/my key (VLLM_API_KEY of the topology file)",
        "what VLLM_API_KEY refers to is not there: no file /run/my key that can be read",
    ),
    "vllm-missing": ("bash: line 12: vllm: command not found", "no vllm"),
    "device-invalid": ("RuntimeError: open device 3 failed, runtime result = 107001", "(3)"),
    "npu-card-health": ("RuntimeError: NPU card health status is not OK", "healthy"),
    "device-ip": ("[ERROR] the 'device_ip' is not set correctly", "address of its NPU"),
    "loopback-name": (
        "[W1130 13:00:00 gloo.cpp:1] Warning: Unable to resolve hostname to a (local) address. Using the loopback",
        "loopback",
    ),
    "transfer-engine": (
        "RuntimeError: TransferEngine initialization failed with ret_value 1",
        "transfer engine",
    ),
    "pool-master": ("E1130 failed: async_resolve failed", "master"),
    "pool-duplicate": ("ERROR Duplicate rpc_meta key not allowed", "KV pool"),
    "graph-capture": ("RuntimeError: the current capture mode does not support this operation", "capture"),
    "operator-failed": ("RuntimeError: aclrtSynchronize failed, error code is 507035", "507035"),
    "bad-kv-parameters": (
        "(E pid=1) ERROR 11-30 12:00:00 [c]     assert num_external_tokens == 0",
        "KV parameters",
    ),
    "engine-timeout": ("TimeoutError: Timed out waiting for engine core processes to start.", "in time"),
    "kv-thread-slow": ("RuntimeError: Timeout waiting for KV Cache thread to be ready.", "in time"),
    "kv-cache-negative": ("(W pid=1) INFO 11-30 12:00:00 [w.py:1] Available KV cache memory: -1.25 GiB", "1.25"),
    "process-died": (
        "(E pid=1) ERROR 11-30 12:00:00 [c.py:1] Worker proc VllmWorker-0 died unexpectedly (exit code: -9)",
        "died",
    ),
    "engine-vanished": (
        "(APIServer pid=1) WARNING 11-30 12:00:00 [core_client.py:817] [shutdown] MPClient: engine core exited "
        "unexpectedly; starting cleanup",
        "without a word",
    ),
    "hccl-connect": ("EI0006: Getting socket times out. Reason: the remote does not initiate", "peer"),
    "hccl-wait": ("RuntimeError: EI0002: The wait execution of the Notify register times out", "collective"),
    "roce-retries": ("[ERROR] error cqe status: 0xc", "RoCE"),
    "hccl-transport": ("[ERROR] Transport init error [Create][DestLink]", "link to a peer"),
    "hccl-group": ("[ERROR] hcclCommInitRootInfoConfig failed, error code is 4", "HCCL group"),
    "stream-wait": ("RuntimeError: stream sync timeout", "dead peer"),
    "kv-peer-connect": ("ERROR Failed to connect to segment: 10.0.0.3:20031, status: 103900", "10.0.0.3:20031"),
    "kv-transfer-failed": ("RuntimeError: Mooncake transfer failed, ret: -1", "KV could not be moved"),
    "kv-channel": ("RuntimeError: Failed to receive data after 3 retries", "channel"),
    "front-end-silent": (
        "RuntimeError: Did not receive response from front-end process within 5 min",
        "rank 0",
    ),
    "metaserver": ("ERROR Access metaserver fail: connection refused", "metaserver"),
    "kv-expired": ("(W pid=1) ERROR 11-30 12:00:00 [m.py:1] Force freed expired request: abc", "never fetched"),
    "engine-dead": ("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", "died"),
    "engine-failed": ("RuntimeError: Engine core initialization failed. See root cause above.", "did not start"),
    "worker-failed": ("(W pid=1) ERROR 11-30 12:00:00 [m.py:1] WorkerProc hit an exception.", "worker failed"),
    "gloo-peer": (
        "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:43001",
        "lost its group",
    ),
    "store-gone": ("torch.distributed.DistNetworkError: TCPStore: Failed to recv", "rank 0"),
    "remote-error": ("RuntimeError: SUSPECT REMOTE ERROR 507057", "peer"),
    "kv-thread-failed": ("RuntimeError: KV Cache sending/receiving thread failed to start.", "KV link"),
    "mooncake-failed": ("ERROR Initialize mooncake failed", "KV pool"),
    "thread-died": ("Exception in thread KVCacheSendingThread:", "threads"),
}


def test_every_signature_has_an_example_and_ids_are_unique() -> None:
    ids = [signature.id for signature in SIGNATURES]
    assert len(ids) == len(set(ids))
    assert set(ids) == set(EXAMPLES)


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_is_recognised_and_put_in_words(name: str) -> None:
    line, words = EXAMPLES[name]
    found = match_line(line)
    assert found is not None
    signature, values = found
    assert signature.id == name
    summary = signature.words(values)
    assert words in summary
    assert "{" not in summary
    assert "[" not in summary


@pytest.mark.parametrize(
    "name",
    [
        "plain_startup.log",
        "pd_decode_startup.log",
        "pd_prefill_startup.log",
        "dp-moe-rank0.log",
        "dp-moe-rank1.log",
    ],
)
def test_a_server_that_starts_well_has_no_known_trouble(name: str) -> None:
    found = [known for line in log(name).split("\n") if (known := match_line(line))]
    assert {signature.id for signature, _ in found} <= {"told-to-end"}


MORE: list[tuple[str, str, str]] = [
    (
        "zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:18601')",
        "zmq-port-in-use",
        "a port of its group or of the KV link (18601) is taken",
    ),
    (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 12321, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "zmq-port-in-use",
        "a port of its group or of the KV link (12321) is taken",
    ),
    (
        "ValueError: The model's max seq len (40000) is larger than the maximum number of tokens that can be "
        "stored in KV cache (12288). Try increasing `gpu_memory_utilization`",
        "kv-cache-too-small",
        "there is too little memory for the KV cache: 12288 tokens fit, max-model-len is 40000",
    ),
    (
        "ValueError: No available memory for the cache blocks. Try",
        "kv-cache-too-small",
        "there is too little memory for the KV cache",
    ),
    (
        "OSError: /models/tiny does not appear to have a file named config.json. Checkout 'https://x' for files.",
        "model-path",
        "there is no model at /models/tiny on this node",
    ),
    (
        "ValueError: Invalid repository ID or local directory specified: '/models/tiny'.",
        "model-path",
        "there is no model at /models/tiny on this node",
    ),
    (
        "(Worker pid=1) WARNING 11-30 12:00:00 [b.py:1] Releasing expired KV blocks for request cmpl-1 which were "
        "retrieved by 0 remote worker(s) before lease expired.",
        "kv-expired",
        "a decode rank never fetched its KV",
    ),
    (
        "(E pid=1) ERROR 11-30 20:47:55 [m.py:1] Worker proc W-0 died unexpectedly (exit code: -9), shutting",
        "process-died",
        "one of its processes died: W-0, -9",
    ),
    (
        "(E pid=1) ERROR 11-30 20:47:55 [m.py:1] Worker proc W-0 died unexpectedly (exit code: None), so",
        "process-died",
        "one of its processes died: W-0",
    ),
    (
        "(EngineCore pid=1) ERROR 11-30 20:49:34 [core.py:1512] KeyError: 'remote_host'",
        "bad-kv-parameters",
        "a request with unusable KV parameters killed the engine",
    ),
    (
        "(APIServer pid=1) INFO 11-30 12:00:00 [l.py:1] [shutdown] API server: shutdown triggered",
        "told-to-end",
        "somebody else told it to end",
    ),
]


@pytest.mark.parametrize(("line", "name", "words"), MORE)
def test_the_same_trouble_in_other_words(line: str, name: str, words: str) -> None:
    found = match_line(line)
    assert found is not None
    assert (found[0].id, found[0].words(found[1])) == (name, words)


@pytest.mark.parametrize(
    "line",
    [
        "nanobind: leaked 4 instances!",
        ' - leaked type "triton._C.libtriton.ir.attribute"',
        "nanobind: this is likely caused by a reference counting issue in the binding code.",
        "/usr/lib/python3.11/multiprocessing/resource_tracker.py:254: UserWarning: resource_tracker: There appear "
        "to be 1 leaked shared_memory objects to clean up at shutdown",
        "  warnings.warn('resource_tracker: There appear to be %d '",
        "Triton is installed, but doesn't include CPU backend. Disabling Triton.",
        "(APIServer pid=1) WARNING 11-30 13:19:20 [system_utils.py:255] Found ulimit of 20000 and failed to "
        "automatically increase with error current limit exceeds maximum limit. This can cause fd limit errors "
        "like `OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n",
        "(E pid=1) ERROR 11-30 13:21:11 [m.py:315] Worker proc VllmWorker-0 died unexpectedly (exit code: 0), "
        "shutting down executor.",
        "(APIServer pid=1) WARNING 11-30 13:30:01 [system_utils.py:225] [shutdown] force killing sub process "
        "VLLM::Worker_DP0_EP0 pid 25805",
    ],
)
def test_noise_of_real_servers_says_nothing(line: str) -> None:
    assert match_line(line) is None


def test_wrapper_lines_say_nothing() -> None:
    assert match_line("ERR99999 UNKNOWN applicaiton exception, error") is None
    assert match_line("Driver Version: 25.0 is invalid or not supported yet.") is None


@given(st.text(max_size=300))
def test_no_line_raises(line: str) -> None:
    found = match_line(line)
    if found is not None:
        found[0].words(found[1])
