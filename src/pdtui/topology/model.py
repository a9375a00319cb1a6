"""The checked model of a topology file: what everything above `topology` reads.

Frozen; made only by `pdtui.topology.load`. Defaults are filled in and names resolved, so no reader has to
know how the file was written. The file's own shape is in `schema`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal


class Role(StrEnum):
    """What a group does with a request."""

    PREFILL = "prefill"
    DECODE = "decode"


class Flow(StrEnum):
    """How a request crosses the roles."""

    PULL = "pull"
    LAYERWISE = "layerwise"


Platform = Literal["a2", "a3", "a5", "cpu"]

NPUS_PER_NODE: Mapping[str, int] = {"a2": 8, "a3": 16, "a5": 8, "cpu": 0}
"""Device ids of one server, by platform (A3: 8 cards of two chips)."""


@dataclass(frozen=True, slots=True)
class SshOptions:
    """How SSH reaches a node; None leaves it to ~/.ssh/config and asyncssh's defaults."""

    user: str | None = None
    port: int | None = None
    key: Path | None = None
    jump: str | None = None
    """[user@]host[:port] of the jump host."""
    known_hosts: Path | None = None
    config: Path | None = None
    sudo: bool = False
    connect_timeout: float = 10.0
    """Seconds."""


@dataclass(frozen=True, slots=True)
class Node:
    """One server."""

    name: str
    host: str
    """What SSH connects to; `local` means this machine, without SSH."""
    address: str
    """What the cluster uses: API servers, HCCL, KV transfer."""
    nic: str
    ssh: SshOptions = field(default_factory=SshOptions)


@dataclass(frozen=True, slots=True)
class Runtime:
    """Where ranks run on a node."""

    container: str | None = None
    exec: tuple[str, ...] = ("docker", "exec", "-i")
    """The prefix before the container's name; unused without a container."""
    setup: tuple[str, ...] = ()
    """Scripts that are sourced before a rank starts; `~/` is the home where it runs."""
    state_dir: str | None = None
    """Folder of ranks' records and logs; None: /var/lib/pdtui, else ~/.local/state/pdtui."""
    image: str | None = None
    shm_size: str | None = None
    devices: tuple[str, ...] = ()
    """Device files of the container besides the NPUs'."""
    mounts: tuple[str, ...] = ()
    """`host-path:container-path[:options]`."""
    options: tuple[str, ...] = ()
    """Further words for the container's start command."""

    @property
    def exec_prefix(self) -> tuple[str, ...]:
        """Words to put before an argv so that it runs where ranks run; empty on the host itself."""
        return (*self.exec, self.container) if self.container else ()


@dataclass(frozen=True, slots=True)
class Model:
    """The model that is served."""

    path: str
    """As the file says it: `~/` is the home where ranks run."""
    served_name: str
    kind: Literal["moe", "dense"] = "moe"


@dataclass(frozen=True, slots=True)
class Safety:
    """What needs a second thought."""

    protected: bool = False
    """Group-wide actions ask for the cluster's name."""
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """How ranks are started; times in seconds."""

    stagger: float = 0.5
    """Between the starts of two ranks of one node."""
    deadline: float = 3600.0
    """Until a rank is ready: big models load for a quarter of an hour, some set-ups longer."""
    warm_up: bool = True
    """A short completion before a rank takes requests."""


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """The HTTP server that clients talk to."""

    node: str
    listen: str = "127.0.0.1"
    advertise: str = ""
    port: int = 1999
    kind: Literal["pdtui", "reference", "external"] = "pdtui"


@dataclass(frozen=True, slots=True)
class Workload:
    """What the cluster is for; None where the file does not say it."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    context_tokens: int | None = None
    concurrency: int | None = None
    """Requests at once."""


@dataclass(frozen=True, slots=True)
class Store:
    """A connector beside the one that carries KV across the roles: a KV pool, or memory of the host."""

    connector: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Keys that the file adds to its `kv_connector_extra_config`."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Keys that the file adds to its entry in MultiConnector's list."""


@dataclass(frozen=True, slots=True)
class Group:
    """One DP group: the ranks that share `--data-parallel-size`, address and RPC port."""

    name: str
    role: Role
    nodes: tuple[str, ...]
    dp_size: int
    tp_size: int
    pp_size: int
    api_port: int
    rpc_port: int
    """0 where nobody meets: for a dense model, whose ranks are independent instances, and for a single rank."""
    kv_port: int
    ranks_per_node: Mapping[str, int]
    """Ranks on each node, in the order of `nodes`: contiguous blocks of DP ranks."""
    devices: Mapping[str, tuple[int, ...]]
    """NPU ids that the group may use on each node, in order."""
    args: Mapping[str, Any]
    """Merged `vllm serve` flags (defaults, role, group), without the derived ones."""
    env: Mapping[str, Any]
    """Merged environment: text, {prepend: text}, {file: path}, {from_env: name}; None removes a derived one."""
    kv_config: Mapping[str, Any]
    """Keys that the file adds to `--kv-transfer-config`."""
    kv_extra: Mapping[str, Any]
    """Keys that the file adds to `kv_connector_extra_config`."""
    connector: str = ""
    """The connector that carries the group's KV across the roles; with stores MultiConnector's first child."""
    stores: tuple[Store, ...] = ()
    """Further connectors, in order; with any, the ranks run MultiConnector."""
    pp_layer_partition: str = ""
    """Layers of each pipeline stage, such as `31,30`; empty: vLLM spreads them itself."""
    dp_address: str = ""
    """Address of the node of rank 0, unless the file overrides it; empty where nobody meets."""

    @property
    def transfer(self) -> str:
        """All its connectors as text: `MooncakeConnectorV1 + AscendStoreConnector`."""
        return " + ".join((self.connector, *(store.connector for store in self.stores)))

    @property
    def pcp_size(self) -> int:
        """Prefill context parallel size, 1 unless the arguments say otherwise."""
        size = self.args.get("prefill-context-parallel-size", 1)
        return int(size) if isinstance(size, int) and not isinstance(size, bool) and size > 0 else 1

    @property
    def npus_per_rank(self) -> int:
        """NPUs that one rank takes."""
        return self.tp_size * self.pp_size * self.pcp_size


@dataclass(frozen=True, slots=True)
class Topology:
    """Everything in one topology file."""

    path: Path
    digest: str
    """SHA-256 of the file's bytes, hexadecimal."""
    name: str
    platform: Platform
    vllm_ascend: str
    """Version of vllm-ascend; empty on a platform without NPUs, where `vllm` says which vLLM runs."""
    flow: Flow
    connector: str
    model: Model
    runtime: Runtime
    safety: Safety
    nodes: Mapping[str, Node]
    groups: Mapping[str, Group]
    proxy: ProxySettings | None
    accept: Mapping[str, str] = field(default_factory=dict)
    """Rule id -> why its findings are accepted."""
    start: Start = field(default_factory=Start)
    workload: Workload = field(default_factory=Workload)
    vllm: str = ""
    """Version of vLLM itself on a platform without NPUs, else empty."""

    @property
    def has_npus(self) -> bool:
        """Whether the servers have NPUs, and with them vLLM-Ascend, HCCL and Mooncake's transfer engine."""
        return self.npus_per_node > 0

    @property
    def transfer(self) -> str:
        """The connectors that its groups use, as text."""
        return ", ".join(dict.fromkeys(group.transfer for group in self.groups.values()))

    @property
    def engine(self) -> str:
        """What serves, with its version: `vllm-ascend 0.22.1rc1` or `vllm 0.32.0`."""
        return f"vllm-ascend {self.vllm_ascend}" if self.has_npus else f"vllm {self.vllm}"

    @property
    def npus_per_node(self) -> int:
        """Device ids of one server."""
        return NPUS_PER_NODE[self.platform]

    def is_apart(self, group: Group) -> bool:
        """Whether the ranks of a group run without data parallel flags.

        vLLM refuses `--data-parallel-rank` for a dense model, and with a `--data-parallel-size` of 1.
        """
        return self.model.kind == "dense" or group.dp_size == 1

    def pipeline(self) -> Group | None:
        """Return the first prefill group that has a pipeline; decode has none."""
        groups = self.groups.values()
        return next((group for group in groups if group.role is Role.PREFILL and group.pp_size > 1), None)

    def roles_of(self, node: str) -> tuple[Role, ...]:
        """Return the roles that a node serves, each once, in the order of the groups."""
        return tuple(dict.fromkeys(group.role for group in self.groups.values() if node in group.nodes))
