"""Which ports a rank binds, and from which ranges others pick (vllm-ascend connectors, Mooncake, HCCL).

KV handshake: vllm_ascend/distributed/kv_transfer/kv_p2p; transfer engine: Mooncake's AscendDirectTransport.
"""

from __future__ import annotations

from collections.abc import Iterator

from pdtui.topology.model import Group, Topology
from pdtui.topology.plan import PortUse, RankPlan
from pdtui.topology.versions import Release, known_release, mooncake_of

TRANSFER_ENGINE_BASE = 20000
"""Mooncake's ASCEND_BASE_PORT where it is not set."""

TRANSFER_ENGINE_RPC = (15000, 17000)
"""MC_MIN_RPC_PORT and MC_MAX_RPC_PORT where they are not set."""

NIXL_SIDE_CHANNEL = "VLLM_NIXL_SIDE_CHANNEL_PORT"
"""Variable from which NixlConnector counts its ranks' ports."""

HCCL_BASE = 60000
"""HCCL_IF_BASE_PORT where it is not set."""

EPHEMERAL = (32768, 60999)
"""Linux's default net.ipv4.ip_local_port_range."""


def kv_ports(
    connector: str, release: Release, kv_port: int, *, dp_rank: int, local_rank: int, tp: int, pp: int, pcp: int
) -> tuple[int, ...]:
    """Return the ports of the KV handshake of one rank, ascending.

    Pull connectors bind them on the producer, layerwise ones on the consumer; both sides are reserved. The data
    parallel rank is the global one from 0.11 on; pipeline and context parallel sizes count from 0.13 on.
    """
    if connector == "MooncakeLayerwiseConnector":
        return _block(kv_port + dp_rank * pcp * tp, pcp * tp)
    if connector == "SfaRemoteD2HConnector":
        return _block(kv_port + dp_rank * tp, tp)
    if release < (0, 11, 0):
        return _block(kv_port + local_rank * tp, tp)
    if release < (0, 13, 0):
        return _block(kv_port + dp_rank * tp, tp)
    base = kv_port + dp_rank * tp * pp * pcp
    if release < (0, 23, 0):
        return _block(base, (pp + pcp - 1) * tp)
    return _block(base, tp * pp * pcp)


def side_channel_base(kv_port: int, dp_rank: int, *, independent: bool) -> int:
    """Return the value of VLLM_NIXL_SIDE_CHANNEL_PORT for a rank.

    vLLM adds the rank's data parallel index and nothing else: one listener an engine, on prefill and on decode,
    whatever the tensor parallel size (vLLM 0.32, kv_connector/v1/nixl/base_scheduler.py). An independent instance
    has index 0, so it is given a port of its own. Either way a rank binds `kv_port + dp_rank`.
    """
    return kv_port + dp_rank if independent else kv_port


def _block(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, first + count))


def ports_per_npu(release: Release) -> int:
    """Return how many ports the transfer engine's range has for each NPU: 1000 up to Mooncake 0.3.7, 100 later."""
    return 1000 if mooncake_of(release) <= (0, 3, 7) else 100


def transfer_engine_range(topology: Topology, group: Group) -> tuple[int, int]:
    """Return the first and last port from which the transfer engine of a group's ranks picks on a node."""
    base = env_int(group, "ASCEND_BASE_PORT", TRANSFER_ENGINE_BASE)
    width = ports_per_npu(known_release(topology.vllm_ascend)) * topology.npus_per_node
    return base, base + width - 1


def transfer_engine_rpc_range(group: Group) -> tuple[int, int]:
    """Return the first and last port from which the transfer engine picks its handshake port."""
    first, last = TRANSFER_ENGINE_RPC
    return env_int(group, "MC_MIN_RPC_PORT", first), env_int(group, "MC_MAX_RPC_PORT", last)


def hccl_range(topology: Topology, group: Group) -> tuple[int, int]:
    """Return the first and last port that HCCL takes on a node, one for each NPU and one more."""
    base = env_int(group, "HCCL_IF_BASE_PORT", HCCL_BASE)
    return base, base + topology.npus_per_node


def env_int(group: Group, name: str, default: int) -> int:
    """Return a number from a group's environment; the default if it is not set or no number."""
    value = group.env.get(name)
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else default


def port_map(topology: Topology, ranks: tuple[RankPlan, ...]) -> tuple[PortUse, ...]:
    """Return who takes which port on every host: exact ports first, then the ranges from which others pick."""
    uses = [*_exact(topology, ranks), *_reserved(topology, ranks)]
    order = {node.address: index for index, node in reversed(list(enumerate(topology.nodes.values())))}
    return tuple(sorted(uses, key=lambda use: (order[use.host], use.first)))


def _exact(topology: Topology, ranks: tuple[RankPlan, ...]) -> Iterator[PortUse]:
    for rank in ranks:
        yield PortUse(rank.host, rank.api_port, rank.api_port, "api", rank.id)
        if rank.kv_ports:
            yield PortUse(rank.host, rank.kv_ports[0], rank.kv_ports[-1], "kv", rank.id)
        if rank.dp_rank == 0 and topology.groups[rank.group].rpc_port:
            port = topology.groups[rank.group].rpc_port
            yield PortUse(rank.host, port, port, "rpc", rank.group)
    if topology.proxy is not None:
        proxy = topology.proxy
        yield PortUse(topology.nodes[proxy.node].address, proxy.port, proxy.port, "proxy", "proxy")


def _reserved(topology: Topology, ranks: tuple[RankPlan, ...]) -> Iterator[PortUse]:
    seen = set()
    if not topology.has_npus:
        return
    for node, group in dict.fromkeys((rank.node, rank.group) for rank in ranks):
        host, settings = topology.nodes[node].address, topology.groups[group]
        uses = (
            PortUse(host, *transfer_engine_range(topology, settings), "transfer-engine", node),
            PortUse(host, *transfer_engine_rpc_range(settings), "transfer-engine-rpc", node),
            PortUse(host, *hccl_range(topology, settings), "hccl", node),
        )
        for use in uses:
            if use not in seen:
                seen.add(use)
                yield use
