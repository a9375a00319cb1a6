"""A fleet in memory: a handle for console tests, and builders of clusters that are well or not."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pdtui.errors import ActionRefused, ProxyError
from pdtui.fleet.handle import LogLine, LogView
from pdtui.fleet.intents import (
    Acknowledge,
    Blocker,
    ChangeContainers,
    Intent,
    Preview,
    RestartRanks,
    StartRanks,
    StopRanks,
    Unacknowledge,
)
from pdtui.fleet.preflight.events import Ended, PreflightEvent
from pdtui.fleet.preflight.report import PreflightReport
from pdtui.fleet.preflight.request import PreflightRequest
from pdtui.fleet.snapshot import (
    Acknowledgement,
    Diagnosis,
    Event,
    Headline,
    LeaseStatus,
    NodeState,
    NodeStatus,
    NpuStatus,
    OperationStatus,
    OperationStep,
    RankMetrics,
    RankState,
    RankStatus,
    ServingStatus,
    Snapshot,
)
from pdtui.proxy.interface import Ask, AskProgress
from pdtui.readings.verdict import Reason, Verdict
from pdtui.topology.model import (
    Flow,
    Group,
    Model,
    Node,
    ProxySettings,
    Role,
    Runtime,
    Safety,
    SshOptions,
    Topology,
)
from pdtui.topology.plan import Plan, RankPlan
from pdtui.topology.ports import port_map

NOW = 1_800_000_000.0
"""The wall-clock time of a `ManualClock`."""
UP_SINCE = NOW - 11_520.0


def make_topology(
    *,
    name: str = "deepseek-r1-2p1d",
    prefill_nodes: int = 2,
    decode_nodes: int = 2,
    protected: bool = False,
    path: Path = Path("cluster.yaml"),
) -> Topology:
    """Return an A3 topology: a prefill group of two ranks on each prefill node, one decode group over the rest."""
    total = prefill_nodes + decode_nodes
    nodes = {
        f"node{n}": Node(f"node{n}", f"192.0.0.{n}", f"192.0.0.{n}", "eth0", SshOptions(user="root"))
        for n in range(1, total + 1)
    }
    groups: dict[str, Group] = {}
    for n in range(1, prefill_nodes + 1):
        groups[f"p{n}"] = _group(f"p{n}", Role.PREFILL, (f"node{n}",), 2, 8)
    last = tuple(f"node{n}" for n in range(prefill_nodes + 1, total + 1))
    groups["decode"] = _group("decode", Role.DECODE, last, 16 * decode_nodes, 1)
    return Topology(
        path=path,
        digest=hashlib.sha256(name.encode()).hexdigest(),
        name=name,
        platform="a3",
        vllm_ascend="0.22.1rc1",
        flow=Flow.PULL,
        connector="MooncakeConnectorV1",
        model=Model("/models/ds", "ds_r1"),
        runtime=Runtime(),
        safety=Safety(protected=protected),
        nodes=nodes,
        groups=groups,
        proxy=ProxySettings("node1"),
    )


def make_cpu_topology(*, nodes: int = 1, prefill: int = 1, decode: int = 1) -> Topology:
    """Return a topology without NPUs: two groups over all nodes, so many ranks of each on every node."""
    topology = make_topology(name="cpu-1p1d", prefill_nodes=0, decode_nodes=nodes)
    names = tuple(topology.nodes)
    groups = {
        name: replace(_group(name, role, names, each * nodes, 1), devices={}, api_port=port)
        for name, role, each, port in (("p", Role.PREFILL, prefill, 18101), ("d", Role.DECODE, decode, 18201))
        if each
    }
    return replace(
        topology,
        platform="cpu",
        vllm_ascend="",
        vllm="0.32.0",
        connector="NixlConnector",
        model=Model("/models/tiny", "tiny", kind="moe"),
        groups=groups,
    )


def _group(name: str, role: Role, nodes: tuple[str, ...], dp: int, tp: int) -> Group:
    each = dp // len(nodes)
    return Group(
        name=name,
        role=role,
        nodes=nodes,
        dp_size=dp,
        tp_size=tp,
        pp_size=1,
        api_port=7100,
        rpc_port=12321,
        kv_port=36000,
        ranks_per_node=dict.fromkeys(nodes, each),
        devices={node: tuple(range(16)) for node in nodes},
        args={},
        env={},
        kv_config={},
        kv_extra={},
    )


def make_plan(topology: Topology) -> Plan:
    """Return the ranks of a topology of `make_topology`."""
    ranks = []
    for group in topology.groups.values():
        each = group.dp_size // len(group.nodes)
        for dp in range(group.dp_size):
            node, local = group.nodes[dp // each], dp % each
            npus = range(local * group.tp_size, (local + 1) * group.tp_size)
            devices = tuple(npus) if topology.has_npus else ()
            argv: tuple[str, ...] = ("vllm", "serve", topology.model.path, "--host", topology.nodes[node].address)
            argv += ("--port", str(7100 + local), "--data-parallel-rank", str(dp), "--api-key", "sk-very-secret")
            argv += ("--kv-transfer-config", '{"kv_connector": "MooncakeConnectorV1"}')
            env = {
                "HCCL_IF_IP": topology.nodes[node].address,
                "HF_TOKEN": "hf-very-secret",
                "OMP_NUM_THREADS": "10",
            }
            ranks.append(
                RankPlan(
                    id=f"{group.name}/{dp}",
                    group=group.name,
                    role=group.role,
                    node=node,
                    host=topology.nodes[node].address,
                    dp_rank=dp,
                    local_rank=local,
                    devices=devices,
                    api_port=7100 + local,
                    kv_ports=tuple(36000 + device for device in devices),
                    argv=argv,
                    env=env,
                    digest=f"{group.name}{dp}",
                )
            )
    return Plan(tuple(ranks), port_map(topology, tuple(ranks)))


def healthy(topology: Topology, plan: Plan, *, now: float = NOW) -> Snapshot:
    """Return a snapshot in which everything serves."""
    ranks = tuple(_ready(rank, now) for rank in plan.ranks)
    by_npu = {(rank.node, device): rank.id for rank in plan.ranks for device in rank.devices}
    nodes = tuple(
        NodeStatus(
            name=node.name,
            host=node.host,
            roles=topology.roles_of(node.name),
            state=NodeState.CONNECTED,
            since=UP_SINCE,
            npus=tuple(
                _npu(node.name, npu, by_npu.get((node.name, npu), ""), now)
                for npu in range(topology.npus_per_node)
            ),
            observed_at=now - 2,
            facts="root, Python 3.9.9, state in /var/lib/pdtui",
        )
        for node in topology.nodes.values()
    )
    return Snapshot(
        revision=1,
        made_at=now,
        cluster=topology.name,
        nodes=nodes,
        ranks=ranks,
        serving=_serving("SERVING", ranks),
    )


def _serving(word: str, ranks: Sequence[RankStatus]) -> ServingStatus:
    def ready(role: Role) -> int:
        return sum(rank.role is role and rank.state is RankState.READY for rank in ranks)

    def total(role: Role) -> int:
        return sum(rank.role is role for rank in ranks)

    return ServingStatus(
        word=word,  # type: ignore[arg-type]
        since=UP_SINCE,
        prefill_ready=ready(Role.PREFILL),
        prefill_total=total(Role.PREFILL),
        decode_ready=ready(Role.DECODE),
        decode_total=total(Role.DECODE),
        running=212,
        tokens_per_s=14_900.0,
        ttft_s=0.41,
    )


def _npu(node: str, npu: int, rank: str, now: float) -> NpuStatus:
    return NpuStatus(
        id=npu,
        verdict=Verdict.HEALTHY,
        link="UP",
        net_health="Success",
        vnic="UP",
        health="OK",
        hbm_used_mb=59_000 + 37 * npu,
        hbm_total_mb=65_536,
        temperature_c=46.0 + npu % 7,
        utilization=35 + npu,
        power_w=180.0,
        observed_at=now - 2,
        rank=rank,
        processes=((4000 + npu, "VLLMWorker_DP", 57_000),),
    )


def _ready(rank: RankPlan, now: float) -> RankStatus:
    decode = rank.role is Role.DECODE
    return RankStatus(
        id=rank.id,
        group=rank.group,
        role=rank.role,
        node=rank.node,
        devices=rank.devices,
        api_port=rank.api_port,
        state=RankState.READY,
        since=UP_SINCE,
        pid=3000 + rank.dp_rank,
        health="200",
        started=UP_SINCE - 840,
        run=3,
        by="ops@jump",
        metrics=RankMetrics(
            running=6 if decode else 2,
            waiting=0,
            kv_usage=0.41 if decode else 0.12,
            generation_tokens_per_s=470.0 - rank.dp_rank if decode else None,
            prompt_tokens_per_s=None if decode else 8_100.0,
            ttft_s=0.4,
            tpot_s=0.021,
            local_prefill_tokens=0 if decode else None,
            observed_at=now - 1,
        ),
        observed_at=now - 1,
        last_start_s=840.0,
        log=f"/var/lib/pdtui/m/c/{rank.id.replace('/', '.')}/runs/3/log",
    )


def stopped(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with no rank running."""
    ranks = tuple(
        replace(rank, state=RankState.STOPPED, metrics=None, pid=None, health="", since=NOW - 60)
        for rank in snapshot.ranks
    )
    serving = replace(_serving("STOPPED", ranks), running=None, tokens_per_s=None, ttft_s=None)
    return replace(snapshot, revision=snapshot.revision + 1, ranks=ranks, serving=serving)


def with_rank(snapshot: Snapshot, rank_id: str, **changes: object) -> Snapshot:
    """Return the snapshot with one rank changed."""
    ranks = tuple(
        replace(rank, **changes) if rank.id == rank_id else rank  # type: ignore[arg-type]
        for rank in snapshot.ranks
    )
    return replace(snapshot, revision=snapshot.revision + 1, ranks=ranks)


def with_node(snapshot: Snapshot, name: str, **changes: object) -> Snapshot:
    """Return the snapshot with one node changed."""
    nodes = tuple(
        replace(node, **changes) if node.name == name else node  # type: ignore[arg-type]
        for node in snapshot.nodes
    )
    return replace(snapshot, revision=snapshot.revision + 1, nodes=nodes)


def with_npu(snapshot: Snapshot, name: str, npu: int, **changes: object) -> Snapshot:
    """Return the snapshot with one NPU changed."""
    node = snapshot.node(name)
    assert node is not None
    npus = tuple(
        replace(one, **changes) if one.id == npu else one  # type: ignore[arg-type]
        for one in node.npus
    )
    return with_node(snapshot, name, npus=npus)


def faulty(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with the troubles of a bad night, all at once."""
    reason = Reason(
        Verdict.FAILED,
        "vnic link DOWN since 12:03:47 (flapped 3x in 10 min)",
        command="hccn_tool -i 9 -vnic -g",
        raw="vnic link status: DOWN\nvnic ip: 10.0.3.23",
        observed_at=NOW - 40,
        remedy="Check the optical module of NPU 9 on node3.",
    )
    made = with_npu(
        snapshot, "node3", 9, verdict=Verdict.FAILED, reasons=(reason,), vnic="DOWN", temperature_c=58.0
    )
    warm = Reason(Verdict.DEGRADED, "temperature 84 °C", observed_at=NOW - 2)
    made = with_npu(made, "node3", 12, verdict=Verdict.DEGRADED, reasons=(warm,), temperature_c=84.0)
    node4 = made.node("node4")
    assert node4 is not None
    made = with_node(
        made,
        "node4",
        state=NodeState.RECONNECTING,
        attempt=2,
        next_try=NOW + 4,
        error="connection lost: no answer for 15 s",
        observed_at=NOW - 41,
        npus=tuple(replace(npu, verdict=Verdict.UNKNOWN) for npu in node4.npus),
    )
    cause = Diagnosis(
        "HCCL cannot reach its peer: link down on node3 NPU 9",
        first_cause="decode/9",
        line="HCCL_EI0006 connect timeout, peer 10.0.3.23",
        signature="hccl-timeout",
        remedy="Repair the link, then R restarts the group.",
    )
    dead = {"state": RankState.FAILED, "exit_status": 1, "since": NOW - 42, "ended": NOW - 42, "metrics": None}
    made = with_rank(made, "decode/9", diagnosis=cause, **dead)
    lost_group = Diagnosis("lost its group", first_cause="decode/9")
    made = with_rank(made, "decode/10", diagnosis=lost_group, **{**dead, "exit_status": -9})
    made = with_rank(made, "p2/1", state=RankState.STARTING, stage="weights 63 %", since=NOW - 70, metrics=None)
    made = with_rank(made, "decode/20", state=RankState.LOST, last_state=RankState.READY, since=NOW - 41)
    made = with_rank(made, "decode/3", flags=("outdated",), difference=("--max-num-seqs 40, file: 48",))
    events = (
        Event(NOW - 55, "warning", "node3/9", "vnic link DOWN"),
        Event(NOW - 42, "error", "decode/9", "failed: exit 1"),
        Event(NOW - 41, "error", "node4", "connection lost"),
    )
    return replace(
        made,
        serving=_serving("DEGRADED", made.ranks),
        headline=Headline(
            "decode/10 failed 42 s ago: lost its group. First cause: decode/9, node3 NPU 9, link down",
            "decode/9",
            "error",
        ),
        events=events,
    )


def with_operation(snapshot: Snapshot, *, state: str = "running") -> Snapshot:
    """Return the snapshot with a restart of four ranks under way."""
    steps = (
        OperationStep("stop", "done", "TERM to 30, KILL after 30 s"),
        OperationStep("start", "running", "1 of 4 ready"),
        OperationStep("decode/0", "done", "ready after 61 s"),
        OperationStep("decode/1", "running", "weights 31 %"),
        OperationStep("decode/2", "running", "weights 63 %"),
        OperationStep("decode/3", "running", "KV cache"),
    )
    operation = OperationStatus(
        id="op-1",
        verb="restart",
        targets=("decode/0", "decode/1", "decode/2", "decode/3"),
        by="ops@jump",
        since=NOW - 75,
        state=state,  # type: ignore[arg-type]
        steps=steps,
        ended=None if state == "running" else NOW - 1,
    )
    return replace(snapshot, revision=snapshot.revision + 1, operations=(operation,))


class FakeFleet:
    """Implements `FleetHandle` in memory; tests publish snapshots and look at what was asked."""

    def __init__(self, topology: Topology, plan: Plan, snapshot: Snapshot, *, read_only: bool = False) -> None:
        self._topology, self._plan, self._snapshot, self._read_only = topology, plan, snapshot, read_only
        self._wake: Callable[[], None] | None = None
        self._pending = False
        self.submitted: list[Intent] = []
        self.cancelled: list[str] = []
        self.acknowledged: list[Acknowledge | Unacknowledge] = []
        self.unspread: Mapping[str, str] = {}
        """Nodes that do not have an acknowledgement yet."""
        self.polled: list[tuple[str, ...]] = []
        self.asked: list[Ask] = []
        self.followed: list[str] = []
        self.unfollowed: list[str] = []
        self.logs: dict[str, list[LogLine]] = {}
        self.dropped: dict[str, int] = {}
        self.first_seq: dict[str, int] = {}
        self.log_error = ""
        self.partial: dict[str, str] = {}
        self.blockers: tuple[Blocker, ...] = ()
        self.leases: tuple[LeaseStatus, ...] = ()
        """Of other consoles, on whatever is previewed."""
        self.refusal: ActionRefused | None = None
        self.answer: list[AskProgress] = []
        self.ask_error: ProxyError | None = None
        self.ask_gate: asyncio.Event | None = None
        """When set: the answer waits for it before its last part."""
        self.container_blockers: tuple[Blocker, ...] = ()
        self.preview_gate: asyncio.Event | None = None
        """When set: a preview waits for it."""
        self.poll_gate: asyncio.Event | None = None
        """When set: reading the health waits for it."""
        self.preflights: list[PreflightRequest] = []
        self.preflight_events: list[PreflightEvent] = []
        """What a preflight says."""
        self.last_preflight: PreflightReport | None = None

    @classmethod
    def healthy(cls, *, protected: bool = False, read_only: bool = False, nodes: int = 4) -> FakeFleet:
        """Return a fleet in which everything serves, with half of the nodes for each role."""
        topology = make_topology(prefill_nodes=nodes // 2, decode_nodes=nodes - nodes // 2, protected=protected)
        plan = make_plan(topology)
        return cls(topology, plan, healthy(topology, plan), read_only=read_only)

    @classmethod
    def cpu(cls, *, nodes: int = 1, prefill: int = 1, decode: int = 1, read_only: bool = False) -> FakeFleet:
        """Return a fleet without NPUs in which everything serves; so many ranks of a role on every node."""
        topology = make_cpu_topology(nodes=nodes, prefill=prefill, decode=decode)
        plan = make_plan(topology)
        return cls(topology, plan, healthy(topology, plan), read_only=read_only)

    @classmethod
    def faulty(cls, *, protected: bool = False, read_only: bool = False) -> FakeFleet:
        """Return a four-node fleet with a bad night."""
        fleet = cls.healthy(protected=protected, read_only=read_only)
        fleet._snapshot = faulty(fleet._snapshot)
        return fleet

    @property
    def topology(self) -> Topology:
        return self._topology

    @property
    def plan(self) -> Plan:
        return self._plan

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def snapshot(self) -> Snapshot:
        self._pending = False
        return self._snapshot

    def subscribe(self, wake: Callable[[], None]) -> Callable[[], None]:
        self._wake = wake

        def end() -> None:
            self._wake = None

        return end

    def publish(self, snapshot: Snapshot) -> None:
        """Put a new snapshot out, as the engine would."""
        self._snapshot = snapshot
        if self._wake is not None and not self._pending:
            self._pending = True
            self._wake()

    def write_log(self, rank: str, *texts: str, severity: str = "") -> None:
        """Append lines to a rank's log."""
        lines = self.logs.setdefault(rank, [])
        for text in texts:
            seq = self.first_seq.get(rank, 0) + len(lines)
            lines.append(LogLine(seq, NOW - 10 + seq * 0.001, text, severity))

    def prune_log(self, rank: str, count: int) -> None:
        """Forget the oldest lines, as the ring does."""
        del self.logs[rank][:count]
        self.first_seq[rank] = self.first_seq.get(rank, 0) + count

    def _container_preview(self, intent: ChangeContainers) -> Preview:
        blocked = intent.verb != "container up" and self.container_blockers
        return Preview(
            verb=intent.verb,
            title=f"{intent.verb} on {', '.join(intent.nodes)}",
            ids=intent.nodes,
            consequence="Container vllm-ascend is changed.",
            steps=tuple(f"{node}: make and start it from vllm-ascend" for node in intent.nodes),
            blockers=self.container_blockers if blocked else (),
            commands=tuple(f"docker run -d --name vllm-ascend # {node}" for node in intent.nodes),
        )

    async def preview(self, intent: Intent) -> Preview:
        if self.preview_gate is not None:
            await self.preview_gate.wait()
        if self.refusal is not None:
            raise self.refusal
        if isinstance(intent, ChangeContainers):
            return self._container_preview(intent)
        ids = intent.ids
        note = ""
        if isinstance(intent, RestartRanks) and intent.whole_group:
            groups = {rank.rpartition("/")[0] for rank in ids}
            ids = tuple(rank.id for rank in self._plan.ranks if rank.group in groups)
            if ids != intent.ids:
                note = "In a MoE group one dead rank means the group."
        verb = {StartRanks: "start", StopRanks: "stop", RestartRanks: "restart"}[type(intent)]
        nodes = sorted({self._plan.by_id[rank].node for rank in ids})
        return Preview(
            verb=verb,  # type: ignore[arg-type]
            title=f"{verb} {ids[0].rpartition('/')[0] if len(ids) > 1 else ids[0]}",
            ids=ids,
            consequence=(
                f"{len(ids)} ranks on {', '.join(nodes)} {verb}. decode is the only decode group: "
                "no requests are served meanwhile. Last start took 14 min."
            ),
            steps=(
                "drain the proxy (212 requests in flight, up to 60 s)",
                f"TERM to {len(ids)} running ranks, KILL after 30 s",
                "check that processes, ports 7100-7115, 36200-36231 and HBM are free",
                f"start {len(ids)} ranks, rank 0 first",
            ),
            blockers=self.blockers,
            leases=self.leases,
            needs_name=self._topology.safety.protected and len(ids) > 1,
            dangerous=verb != "start",
            commands=tuple(f"kill -TERM {4000 + n}  # {rank}" for n, rank in enumerate(ids)),
            note=note,
        )

    async def submit(self, intent: Intent) -> str:
        if self.refusal is not None:
            raise self.refusal
        self.submitted.append(intent)
        return f"op-{len(self.submitted)}"

    async def acknowledge(self, intent: Acknowledge | Unacknowledge) -> Mapping[str, str]:
        if self.refusal is not None:
            raise self.refusal
        left = tuple(one for one in self._snapshot.acknowledgements if one.key != intent.key)
        if isinstance(intent, Acknowledge):
            left = (*left, Acknowledgement(intent.key, intent.reason, "ops@jump", NOW, NOW + intent.seconds))
        self.acknowledged.append(intent)
        self.publish(replace(self._snapshot, revision=self._snapshot.revision + 1, acknowledgements=left))
        return self.unspread

    async def cancel(self, operation: str) -> None:
        self.cancelled.append(operation)

    def log(self, rank: str) -> LogView:
        if rank not in self.followed:
            self.followed.append(rank)
        lines = self.logs.get(rank, [])
        first = self.first_seq.get(rank, 0)
        dropped, partial = self.dropped.get(rank, 0), self.partial.get(rank, "")
        return LogView(rank, first, first + len(lines), dropped, self.log_error, partial)

    def log_lines(self, rank: str, first: int, count: int) -> Sequence[LogLine]:
        start = max(0, first - self.first_seq.get(rank, 0))
        return self.logs.get(rank, [])[start : start + count]

    def unfollow(self, rank: str) -> None:
        self.unfollowed.append(rank)

    async def ask(self, request: Ask, progress: Callable[[AskProgress], None]) -> AskProgress:
        self.asked.append(request)
        for part in self.answer[:-1]:
            progress(part)
            await asyncio.sleep(0)
        if self.ask_gate is not None:
            await self.ask_gate.wait()
        if self.ask_error is not None:
            raise self.ask_error
        return self.answer[-1]

    async def preflight(self, request: PreflightRequest) -> AsyncIterator[PreflightEvent]:
        self.preflights.append(request)
        for event in self.preflight_events:
            await asyncio.sleep(0)
            if isinstance(event, Ended):
                self.last_preflight = event.report
            yield event

    async def poll_now(self, nodes: Sequence[str] = ()) -> None:
        self.polled.append(tuple(nodes))
        if self.poll_gate is not None:
            await self.poll_gate.wait()
