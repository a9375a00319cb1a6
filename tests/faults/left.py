"""What is left of a cluster after `pdtui stop FILE all`: nothing may be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pdtui.fleet.snapshot import RankState
from tests.faults.bench import Bench
from tests.support.processes import carrying

IDLE_MB = 4096
"""An idle NPU of the simulation holds less."""

LISTENERS = """
import socket, struct
for line in open("/proc/net/tcp").read().splitlines()[1:]:
    fields = line.split()
    if fields[3] == "0A":
        address, port = fields[1].split(":")
        print(socket.inet_ntoa(struct.pack("=I", int(address, 16))), int(port, 16))
"""
"""Prints address and port of each listener (proc(5), /proc/net/tcp; state 0A)."""

LOCKS = """
import fcntl, os, sys
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        if name.endswith("lock"):
            with open(os.path.join(folder, name), "r+") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    print(file.name)
"""
"""Prints the lock files below a folder that somebody holds."""


def left_over(bench: Bench) -> list[str]:
    """Stop everything and return what is left: processes, ports, locks, HBM, states."""
    bench.mend()
    ports = [(rank.host, port) for rank in bench.engine.plan.ranks for port in (rank.api_port, *rank.kv_ports)]
    done = bench.process("stop", "FILE", "all")
    if done.returncode != 0:
        return [f"stop all: {done.stdout}{done.stderr}"]
    bench.until(
        lambda: {rank.state for rank in bench.snapshot.ranks} == {RankState.STOPPED},
        "all ranks shown as stopped",
    )
    bench.poll()
    return [*_processes(bench), *_listening(bench, ports), *_locked(bench), *_memory(bench)]


def _processes(bench: Bench) -> Iterator[str]:
    """Yield what runs of ranks and keepers, found in /proc of this machine, whatever namespace they are in."""
    marker = f"PDTUI_RANK={bench.engine.topology.name}:"
    for process in carrying(str(bench.served.root)):
        if marker in process.environment or "keeper" in process.command or "vllm" in process.command.lower():
            yield f"process {process.pid}: {process.command}"


def _listening(bench: Bench, ports: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Yield the planned ports on which somebody listens, as each node itself sees it."""
    for node in bench.engine.topology.nodes.values():
        wanted = {port for host, port in ports if host == node.address}
        for line in bench.inside(node.name, LISTENERS).splitlines():
            address, port = line.split()
            if int(port) in wanted and address in (node.address, "0.0.0.0"):
                yield f"{node.name}: {address}:{port} is open"


def _locked(bench: Bench) -> Iterator[str]:
    """Yield the locks of ranks, devices and leases that somebody holds."""
    for name in bench.engine.topology.nodes:
        for path in bench.inside(name, LOCKS, str(bench.engine.topology.runtime.state_dir)).splitlines():
            yield f"{name}: {path} is locked"


def _memory(bench: Bench) -> Iterator[str]:
    """Yield the NPUs whose memory is held, from a reading after the stop."""
    for node in bench.snapshot.nodes:
        for npu in node.npus:
            if npu.hbm_used_mb is None or npu.hbm_used_mb > IDLE_MB:
                yield f"{node.name} NPU {npu.id}: {npu.hbm_used_mb} MB"
