"""The known lines, as data. What they are and how they are matched: `signatures`.

Gathered from the servers' sources, captured logs and reports. Summaries
may name groups of their pattern; `[ ... {group} ... ]` is left out when the group is not there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


class Weight(IntEnum):
    """What a line says about its own rank; a smaller one explains more."""

    CAUSE = 0
    """Something is wrong here, and it is known what."""
    BROKEN = 1
    """Something broke here, and it is not known why."""
    PEER = 2
    """A peer did not answer: look there, unless nothing is wrong there."""
    CONSEQUENCE = 3
    """Follows from something else, here or on a peer."""
    HOLLOW = 4
    """Says that something failed, and nothing of what."""
    NOTE = 5
    """True, and no reason for an end: told when there is nothing else."""


@dataclass(frozen=True, slots=True)
class Signature:
    """One known line."""

    id: str
    pattern: re.Pattern[str]
    summary: str
    remedy: str
    weight: Weight = Weight.CAUSE
    quiet: bool = False
    """Also counts on lines of level INFO and WARNING."""

    def values(self, match: re.Match[str]) -> dict[str, str]:
        """Return what the pattern found by name; `port2` is another place for `port`."""
        return {name.rstrip("23"): value for name, value in match.groupdict().items() if value}

    def words(self, values: Mapping[str, str]) -> str:
        """Return the summary with these values in it."""

        def optional(part: re.Match[str]) -> str:
            names = re.findall(r"\{(\w+)\}", part[1])
            return part[1] if all(name in values for name in names) else ""

        text = re.sub(r"\[([^\[\]]*)\]", optional, self.summary)
        return re.sub(r"\{(\w+)\}", lambda name: values.get(name[1], "?"), text)


def _make(weight: Weight, *rows: tuple[str, str, str, str], quiet: bool = False) -> tuple[Signature, ...]:
    return tuple(
        Signature(name, re.compile(pattern), summary, remedy, weight, quiet)
        for name, pattern, summary, remedy in rows
    )


_PORTS = _make(
    Weight.CAUSE,
    (
        "api-port-in-use",
        r"attempting to bind on address \('(?P<host>[^']*)', (?P<port>\d+)\).{0,20}address already in use"
        r"|\[Errno 98\] [Aa]ddress already in use",
        "its API port[ {port}] is taken",
        "an earlier server may still run: see the node's listeners, stop the owner, then start again",
    ),
    (
        "zmq-port-in-use",
        r"zmq\.error\.ZMQError: Address already in use(?: \(addr='tcp://(?P<host>[^']*?):(?P<port>\d+)'\))?"
        r"|failed to listen on any local network address\. port: (?P<port2>\d+).{0,80}EADDRINUSE",
        "a port of its group or of the KV link[ ({port})] is taken",
        "look the port up in the port map; a kv_port inside the transfer engine's range has to move, "
        "else find who holds it",
    ),
    (
        "hccl-port-in-use",
        r"Communication_Error_Bind_IP_Port|Failed to bind the IP port|\bEJ0003\b|\bEI0019\b|\bEI0020\b"
        r"|host nic listen start failed, port\[(?P<port>\d+)\]"
        r"|listen on ip\[[^\]]+\] and specific port\[(?P<port2>\d+)\] fail",
        "HCCL cannot listen on its port[ {port}]",
        "another process uses these NPUs or this port: check for leftovers, else give the group its own "
        "HCCL_IF_BASE_PORT or HCCL_NPU_SOCKET_PORT_RANGE",
    ),
    (
        "port-above-65535",
        r"\bport\W{0,3}(?P<port>6553[6-9]|655[4-9]\d|65[6-9]\d{2}|6[6-9]\d{3})\b.{0,40}bound",
        "a computed port ({port}) is above 65535",
        "lower HCCL_IF_BASE_PORT",
    ),
)

_ARGUMENTS = _make(
    Weight.CAUSE,
    (
        "json-argument",
        r"error: argument --(?P<arg>[\w-]+): (?:\d+ validation error|Value|invalid)",
        "vLLM refuses the value of --{arg}[: {detail}]",
        "the lines below name the key; check the JSON in the file's args or kv section",
    ),
    (
        "unknown-flag",
        r"error: unrecognized arguments: (?P<arg>.{1,80})",
        "this vLLM does not know {arg}",
        "a typing mistake in args, or a flag of another version",
    ),
    (
        "unsupported-connector",
        r"Unsupported connector type: (?P<name>\w+)",
        "this image has no connector {name}",
        "vllm-ascend's plugin is not loaded, or kv.connector belongs to another version",
    ),
    (
        "kv-sizes-conflict",
        r"KV transfer '(?P<role>prefill|decode)' config has a conflicting (?P<what>tensor|data) parallel size\. "
        r"Expected (?P<want>\d+), but got (?P<got>\d+)",
        "the KV config says {what} parallel size {got} for {role}, its flags say {want}",
        "correct kv_connector_extra_config or the sizes; ranks of a dense model each count as dp_size 1",
    ),
    (
        "kv-sizes-missing",
        r"assert [\"']?(?:tp|dp)_size[\"']? in (?:prefill|decode)_parallel_config",
        "kv_connector_extra_config lacks the sizes of prefill or decode",
        "add prefill and decode with dp_size and tp_size",
    ),
    (
        "tp-sizes-unsupported",
        r"prefill_tp_size: (?P<p>\d+) must be greater than|Prefill TP size must be divisible by Decode TP size"
        r"|Only support P node tp size",
        "prefill's and decode's tensor parallel sizes do not go together",
        "prefill's has to be a multiple of decode's",
    ),
    (
        "dense-with-dp",
        r"Non-MoE models do not support external data parallel mode",
        "a dense model takes no --data-parallel-rank in this version",
        "set model.kind: dense, so that its ranks run as independent servers",
    ),
    (
        "dp-rank-range",
        r"data_parallel_rank \((?P<rank>\d+)\) must be in the range \[0, (?P<size>\d+)\)"
        r"|DP adjusted local rank .{0,40} out of bounds",
        "its DP rank[ {rank}] does not fit its group[ of {size}]",
        "compare dp_size with the ranks that the nodes start",
    ),
    (
        "max-model-len",
        r"max_model_len \((?P<len>\d+)\) is greater than the derived max_model_len"
        r"(?: \(max_position_embeddings=(?P<limit>\d+))?",
        "max-model-len {len} is more than the model can take[: {limit}]",
        "lower max-model-len",
    ),
    (
        "unknown-quantization",
        r"Unknown quantization method: (?P<name>\w+)",
        "this vLLM does not know quantization {name}",
        "the Ascend plugin is not loaded: check the image and runtime.setup; without NPUs leave quantization out",
    ),
    (
        "model-path",
        r"HFValidationError: Repo id must be .*?: '(?P<path>[^']{1,120})'"
        r"|(?:OSError: |^)(?P<path2>\S{1,120}) does not appear to have a file named config\.json"
        r"|(?:Incorrect path_or_model_id|No such model|Invalid repository ID or local directory specified): "
        r"?'?(?P<path3>[^'\s]{0,120})",
        "there is no model at[ {path}] on this node",
        "check model.path, and that the disk with the weights is mounted here",
    ),
    (
        "obsolete-kv-key",
        r"ValidationError.{0,200}Unexpected keyword argument",
        "a key of the KV config is unknown to this version",
        "remove it from the kv section; newer versions forbid unknown keys",
    ),
    (
        "balance-scheduling",
        r"enable_balance_scheduling only supports PD-mixed mode",
        "balance scheduling does not work with split roles",
        "remove VLLM_ASCEND_BALANCE_SCHEDULING",
    ),
    (
        "finegrained-tp",
        r"(?:finegrained tp sizes|o(?:proj|lora)_tensor_parallel_size).*(?:must divide|only (?:be )?"
        r"(?:supported|enabled)|requires)",
        "finegrained_tp_config does not fit here",
        "its sizes must divide dp_size, and it needs a MoE decode group in graph mode",
    ),
    (
        "engine-id-conflict",
        r"Conflict engine id (?P<id>\S+) with local engine id",
        "prefill and decode use the same engine_id",
        "leave engine_id out of the kv section, or make it differ by group",
    ),
    (
        "group-arguments-differ",
        r"Configuration mismatch detected for engine",
        "its arguments differ from those of rank 0",
        "restart the whole group, so that all ranks run what the file says",
    ),
    (
        "mla-heads",
        r"MLA only support",
        "the number of heads of a rank is not supported",
        "choose another tp_size",
    ),
    (
        "config-value",
        r"^\s*Value error, (?P<why>[^\[]{1,160}?)(?: \[type=|\. |$)",
        "vLLM refuses its configuration: {why}",
        "correct the args of this group in the file",
    ),
    (
        "version-text",
        r"InvalidVersion",
        "the version of this build cannot be read",
        "set VLLM_VERSION in env",
    ),
)

_MEMORY = _make(
    Weight.CAUSE,
    (
        "npu-out-of-memory",
        r"NPU out of memory\. Tried to allocate (?P<size>[\d.]+ [KMG]iB) \(NPU (?P<npu>\d+);",
        "NPU {npu} is out of memory ({size} wanted)",
        "while loading: look for a leftover process on the NPU; else lower gpu-memory-utilization, "
        "max-num-seqs or max-model-len",
    ),
    (
        "npu-memory-taken",
        r"Free memory on device.{0,40}\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\).{0,60}less than desired",
        "only {free} of {total} GiB of NPU memory are free",
        "a leftover process holds memory: the NPU's details list it; else lower gpu-memory-utilization",
    ),
    (
        "kv-cache-too-small",
        r"No available memory for the cache blocks"
        r"|max seq len \((?P<len>\d+)\), \([\d.]+ GiB KV cache is needed, which is larger than .{1,60} GiB\)"
        r"(?:.{1,40}the estimated maximum model length is (?P<fits>\d+))?"
        r"|max seq len \((?P<len2>\d+)\) is larger than the maximum number of tokens that can be stored in KV"
        r" cache \((?P<fits2>\d+)\)"
        r"|KV cache is needed, which is larger"
        r"|larger than the (?:maximum number of tokens that can be stored in KV cache|available KV cache memory)",
        "there is too little memory for the KV cache[: {fits} tokens fit, max-model-len is {len}]",
        "lower max-model-len to what fits, raise gpu-memory-utilization (without NPUs kv-cache-memory-bytes), "
        "or use more NPUs a rank",
    ),
    (
        "host-memory-taken",
        r"Available memory on node .{0,12}\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\).{0,60} is less than",
        "only {free} of {total} GiB of the host's memory are free",
        "a leftover process holds memory; else lower kv-cache-memory-bytes or gpu-memory-utilization, which "
        "counts the host's memory where there are no NPUs",
    ),
    (
        "hccl-buffer",
        r"HCCL[ _]BUFFSIZE is too small|hccl buffer is too small",
        "HCCL_BUFFSIZE is too small",
        "raise it to the value that the line names",
    ),
    (
        "mte-range",
        r"DDR address of the MTE instruction is out of range|MTE out of range",
        "an operator read outside of its memory",
        "with MoE decode most often HCCL_BUFFSIZE is too small; the earliest rank is the origin",
    ),
    (
        "device-memory",
        r"\bEL0004\b|Memory_Allocation_Failure",
        "memory could not be had from the device",
        "check for leftovers; with a KV pool lower its segment sizes",
    ),
    (
        "streams",
        r"\bEL0009\b|\b207008\b|Stream resources are insufficient|Alloc sq cq fail",
        "the NPU has no streams left",
        "use fewer graph capture sizes",
    ),
    (
        "shared-memory",
        r"SIGBUS|^Fatal Python error: Bus error|^Bus error",
        "shared memory vanished under it",
        "check the size of /dev/shm (shm_size of the container), and for a worker that died before",
    ),
    (
        "host-out-of-memory",
        r"\bMemoryError\b|Out of memory: Killed process|DefaultCPUAllocator: can't allocate memory",
        "the host is out of memory",
        "see dmesg; fewer ranks at once while loading, or more memory",
    ),
    (
        "open-files",
        r"Too many open files",
        "it ran out of open files",
        "raise ulimit -n where ranks start",
    ),
)

_ENVIRONMENT = _make(
    Weight.CAUSE,
    (
        "cann-missing",
        r"lib(?:atb|ascend_hal|ascendcl|hccl)\.so\S*: cannot open shared object|Failed to infer device type",
        "CANN's environment is not set up where it started",
        "name set_env.sh of the toolkit and of nnal in runtime.setup; check that the devices are mounted",
    ),
    (
        "mooncake-missing",
        r"Please install mooncake by following|No module named 'mooncake",
        "this image has no mooncake",
        "use another image, or prepend mooncake's folder to LD_LIBRARY_PATH",
    ),
    (
        "setup-missing",
        r"^pdtui: cannot read (?P<file>.+) \(runtime\.setup of the topology file\)",
        "the set-up file {file} is not there, or cannot be read",
        "install what it belongs to where the ranks run, or correct runtime.setup",
    ),
    (
        "secret-missing",
        r"^pdtui: (?:cannot read (?P<file>.+)|(?P<name>\w+) is not set where the rank runs)"
        r" \((?P<variable>\w+) of the topology file\)",
        "what {variable} refers to is not there[: no file {file} that can be read][: {name} is not set]",
        "put the secret where the rank runs, readable for its user, or correct the reference in the file",
    ),
    (
        "vllm-missing",
        r"(?:vllm|python3?): (?:command )?not found|No module named 'vllm",
        "there is no vllm where it started",
        "check runtime.container and runtime.setup",
    ),
    (
        "device-invalid",
        r"open device (?P<device>\d+) failed, runtime result = 107001|Set visible device failed, invalid device="
        r"(?P<device2>\d+)|aclrtSetDevice.{0,40}107001|Invalid [Dd]evice ID"
        r"|local_world_size .{0,40}visible devices",
        "one of its NPUs[ ({device})] is not there",
        "compare the rank's devices with npu-smi info -m and with what is mounted",
    ),
    (
        "npu-card-health",
        r"NPU card health status is not OK",
        "vllm-ascend finds an NPU that is not healthy",
        "see the NPU's health; do not start here before it is OK",
    ),
    (
        "device-ip",
        r"'?device[ _]ip'? is not set correctly",
        "HCCL finds no address of its NPU",
        "mount /etc/hccn.conf and hccn_tool; without a RoCE plane unset HCCL_INTRA_ROCE_ENABLE",
    ),
    (
        "loopback-name",
        r"Unable to resolve hostname to a \(local\) address\. Using the loopback",
        "the node's name leads to the loopback, so its group will not meet",
        "set nic of this node in the file, or correct /etc/hosts",
    ),
    (
        "transfer-engine",
        r"TransferEngine initialization failed with ret_value|Mooncake memory registration failed",
        "the transfer engine did not start",
        "check hccn.conf, the driver against CANN, and VLLM_HOST_IP",
    ),
    (
        "pool-master",
        r"async_resolve failed|Failed to create client (?:on port|after)|mount_segment_to_master_failed"
        r"|Failed to mount segment",
        "the KV pool's master cannot be reached or refuses it",
        "start the master first; use a literal address; after an unclean end restart master and ranks",
    ),
    (
        "pool-duplicate",
        r"Duplicate rpc_meta key not allowed",
        "another client of the KV pool has its name",
        "one local_hostname a client; clean the metadata after an unclean end",
    ),
    (
        "graph-capture",
        r"current capture mode does not support this operation|\b107030\b",
        "something copied in the middle of a graph capture",
        "try enforce-eager or another cudagraph_mode to be sure",
    ),
    (
        "operator-failed",
        r"(?:error code is|runtime result =|failed:?|ERROR)\s*(?P<code>507014|507034|507035|507046)\b",
        "an operator failed on the NPU ({code})",
        "look for MTE or HCCL lines before it; keep plog",
    ),
    (
        "bad-kv-parameters",
        r"assert num_external_tokens == 0|num_external_tokens == 0, |KeyError: '(?:do_)?remote_\w+'",
        "a request with unusable KV parameters killed the engine",
        "clients must not reach decode ranks directly, nor send kv_transfer_params of their own",
    ),
)

_LIMITS = _make(
    Weight.CAUSE,
    (
        "engine-timeout",
        r"Timed out waiting for engines? (?:core|to send initial message)|VLLM_ENGINE_READY_TIMEOUT_S",
        "its engine was not ready in time",
        "raise VLLM_ENGINE_READY_TIMEOUT_S, or find out why loading is slow; check that no engine is left over",
    ),
    (
        "kv-thread-slow",
        r"Timeout waiting for KV Cache thread to be ready",
        "the KV link was not ready in time",
        "look for the transfer engine's lines before it, and at plog",
    ),
)

_BROKEN = _make(
    Weight.BROKEN,
    (
        "process-died",
        r"(?:Worker|Engine core) proc (?P<name>\S+) died unexpectedly(?! \(exit code: 0\))"
        r"(?: \(exit code: (?P<code>-?\d+)\))?",
        "one of its processes died: {name}[, {code}]",
        "killed from outside, by the kernel for want of memory, or by the driver: see dmesg and plog",
    ),
)

_PEERS = _make(
    Weight.PEER,
    (
        "hccl-connect",
        r"\bEI0006\b|Get_Socket_Timeout|Communication_Error_Get_Socket|Getting socket times out"
        r"|wait socket establish timeout, role\[\d+\] rank\[(?P<rank>\d+)\]",
        "a peer did not answer HCCL in time",
        "find the rank that failed or never started; else check link, TLS switch and addresses of the pair",
    ),
    (
        "hccl-wait",
        r"\bEI0002\b|Notify register has not received|timeout occurs when the Notify register",
        "it waited too long for a peer in a collective",
        "find the rank that failed earlier; only then raise HCCL_EXEC_TIMEOUT",
    ),
    (
        "roce-retries",
        r"error cqe status:\s*(?P<status>0x[0-9a-fA-F]+)|Execution_Error_ROCE_CQE|\bEI0013\b",
        "RoCE gave up on a peer",
        "check -link_stat of both NPUs, and whether the peer ended first",
    ),
    (
        "hccl-transport",
        r"\bEI0009\b|Transport init error.*Create\]\[DestLink\]",
        "HCCL could not set up a link to a peer",
        "the peer usually has an earlier error",
    ),
    (
        "hccl-group",
        r"hcclCommInitRootInfoConfig.*error code is|Ranktable_Detect|\bEI0015\b|error code is \[?\d+.*hccl"
        r"|HCCL function error",
        "its ranks could not form an HCCL group",
        "check that all ranks run, the NIC variables, the base port and the firewall",
    ),
    (
        "stream-wait",
        r"\b507011\b|stream sync(?:hronize)? timeout",
        "an NPU waited too long, most often for a dead peer",
        "find the dead rank; restart the group",
    ),
    (
        "kv-peer-connect",
        r"Failed to connect to (?:target|segment): (?P<peer>[^,\s]+)|Connect timeout to: (?P<peer2>[^,\s]+)",
        "the transfer engine cannot reach[ {peer}]",
        "check that rank, then link, TLS and addresses of the two NPUs; ASCEND_CONNECT_TIMEOUT may be short",
    ),
    (
        "kv-transfer-failed",
        r"Mooncake transfer failed|Transfer slice failed with status|Sync batch data transfer timeout"
        r"|LLM_LINK_FAILED|\[link\] failed, error code is",
        "KV could not be moved to or from a peer",
        "one pair: its link; all pairs: addresses, TLS or versions",
    ),
    (
        "kv-channel",
        r"(?:Send|Receive) failed after all retries|Failed to receive (?:ACK|data after \d+ retries)",
        "the KV channel of a peer does not answer",
        "check that the peer runs and that its KV port can be reached from here",
    ),
    (
        "front-end-silent",
        r"Did not receive response from front-end process within",
        "rank 0 of its group did not answer",
        "start rank 0, and check dp_address and rpc_port from this node",
    ),
    (
        "metaserver",
        r"Access metaserver fail|Failed to connect to metaserver",
        "it cannot reach the proxy's metaserver",
        "check proxy.advertise and port, and http_proxy in the environment",
    ),
)

_CONSEQUENCES = _make(
    Weight.CONSEQUENCE,
    (
        "gloo-peer",
        r"Gloo connectFullMesh failed|[Gg]loo.{0,160}[Cc]onnection (?:reset|closed|refused)"
        r"|Connection (?:reset|closed) by peer.{0,80}gloo",
        "it lost its group",
        "",
    ),
    (
        "store-gone",
        r"TCPStore.*(?:recvValue failed|Failed to recv)|DistNetworkError|DistStoreError",
        "it lost rank 0 of its group",
        "",
    ),
    ("remote-error", r"SUSPECT REMOTE ERROR|\b507057\b", "the NPU reports a fault of a peer", ""),
    ("kv-thread-failed", r"KV Cache sending/receiving thread failed to start", "its KV link did not start", ""),
    ("mooncake-failed", r"Initialize mooncake failed", "its KV pool client did not start", ""),
    ("thread-died", r"Exception in thread (?P<thread>\S+)", "one of its threads died", ""),
)

_HOLLOW = _make(
    Weight.HOLLOW,
    (
        "told-to-end",
        r"\[shutdown\] (?:API server: shutdown triggered|EngineCore: trigger received signal=(?P<signal>SIG\w+))",
        "somebody else told it to end[ ({signal})]",
        "the journal of another console, a script, or the end of a login may say who",
    ),
    ("engine-dead", r"EngineDeadError|EngineCore encountered an (?:issue|fatal error)", "its engine died", ""),
    (
        "engine-failed",
        r"Engine core initialization failed|EngineCore failed to start|Engine process .{0,40}died",
        "its engine did not start",
        "",
    ),
    (
        "worker-failed",
        r"WorkerProc (?:hit an exception|failed to start|initialization failed)",
        "a worker failed",
        "",
    ),
    quiet=True,
)

_NOTES = _make(
    Weight.NOTE,
    (
        "kv-late",
        r"Potentially invalid KV blocks for unrecognized request (?P<request>[^\s.]+)",
        "a decode rank fetched KV that had been given up: its answer may be wrong text",
        "see why decode ranks are late: their queue, the KV link; kv_lease_duration in kv.extra is the lease",
    ),
    (
        "kv-expired",
        r"Force freed (?:expired )?request: (?P<request>[^\s.]+)"
        r"|Releasing expired KV blocks for request (?P<request2>[^\s.]+)",
        "a decode rank never fetched its KV",
        "check the decode rank and its queue",
    ),
    (
        "kv-fetch-failed",
        r"NIXL transfer failure: (?P<why>\w+)",
        "KV could not be fetched from a peer ({why})",
        "the request fails and the rank goes on; see that the peer runs and that its KV port can be reached",
    ),
    quiet=True,
)

_QUIET = _make(
    Weight.CAUSE,
    (
        "kv-cache-negative",
        r"Available KV cache memory: -(?P<n>[\d.]+) GiB",
        "the weights leave no room for the KV cache ({n} GiB too little)",
        "lower max-model-len, raise gpu-memory-utilization, or use more NPUs a rank",
    ),
    quiet=True,
)

_QUIET_ENDS = _make(
    Weight.BROKEN,
    (
        "engine-vanished",
        r"engine core exited unexpectedly",
        "its engine ended without a word",
        "killed from outside, by the kernel for want of memory, or by the driver: see dmesg and plog",
    ),
    quiet=True,
)

SIGNATURES: tuple[Signature, ...] = (
    *_ARGUMENTS,
    *_PORTS,
    *_MEMORY,
    *_ENVIRONMENT,
    *_LIMITS,
    *_QUIET,
    *_QUIET_ENDS,
    *_BROKEN,
    *_PEERS,
    *_CONSEQUENCES,
    *_HOLLOW,
    *_NOTES,
)
"""All of them, in the order in which they are tried."""
