"""The small clusters on which operations are mixed, each in two states of its file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pdtui.topology.load import load_checked
from pdtui.topology.model import Topology
from pdtui.topology.plan import Plan
from pdtui.topology.planner import make_plan

CLUSTER = "mix"
NODES = ("node1", "node2")

_FILE = """
pdtui: 1
name: mix
platform: a3
vllm_ascend: "0.22.1rc1"
model: {{path: /models/m, served_name: m, kind: {kind}}}
kv: {{connector: MooncakeConnectorV1}}
nodes:
  node1: {{host: 192.0.0.1, nic: eth0}}
  node2: {{host: 192.0.0.2, nic: eth0}}
defaults: {{args: {{max-model-len: {length}}}}}
groups:
  p: {{role: prefill, nodes: [node1], devices: {{node1: [0]}}, dp_size: 1, tp_size: 1,
      api_port: 7100, rpc_port: 12321, kv_port: 14000}}
  d: {{role: decode, nodes: [{nodes}], devices: {{{devices}}}, dp_size: {ranks}, tp_size: 1,
      api_port: 7200, rpc_port: 12421, kv_port: 14200}}
proxy: {{node: node1, port: 1999}}
"""

_BOTH = {"devices": "node1: [1], node2: [1]", "ranks": 2}

VARIANTS = {
    "moe": {"kind": "moe", "length": 4000, "nodes": "node1, node2", **_BOTH},
    "moe moved": {"kind": "moe", "length": 4000, "nodes": "node2, node1", **_BOTH},
    "moe smaller": {"kind": "moe", "length": 2000, "nodes": "node2", "devices": "node2: [1]", "ranks": 1},
    "dense": {"kind": "dense", "length": 4000, "nodes": "node2", "devices": "node2: [1, 2]", "ranks": 2},
    "dense other": {"kind": "dense", "length": 2000, "nodes": "node1, node2", **_BOTH},
}
"""`moved` has each rank of `d` on the other's node, `smaller` has not all of them."""


def variants_of(kind: str) -> list[str]:
    """Return the states of the file of a kind of cluster, the usual one first."""
    return [name for name in VARIANTS if name.startswith(kind)]


@dataclass(frozen=True)
class Loaded:
    """A file as a console has it."""

    topology: Topology
    plan: Plan


@cache
def load(variant: str, folder: Path) -> Loaded:
    """Load a variant; its file stays in `folder`."""
    path = folder / f"{variant.replace(' ', '-')}.yaml"
    path.write_text(_FILE.format(**VARIANTS[variant]))
    topology = load_checked(path)
    return Loaded(topology, make_plan(topology))
