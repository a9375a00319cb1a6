"""A small cluster without findings, and ways to change its text."""

from __future__ import annotations

from pathlib import Path

from pdtui.topology.findings import Finding
from pdtui.topology.load import Loaded, load_bytes
from pdtui.topology.model import Topology

BASE = """\
pdtui: 1
name: small
platform: a3
vllm_ascend: "0.22.1rc1"
model: {path: /models/m, served_name: m}
kv: {connector: MooncakeConnectorV1}
nodes:
  n1: {host: 192.0.2.1, nic: eth0}
  n2: {host: 192.0.2.2, nic: eth0}
  n3: {host: 192.0.2.3, nic: eth0}
defaults: {env: {OMP_NUM_THREADS: 10}, args: {seed: 1024, max-model-len: 4000}}
roles:
  prefill: {args: {enforce-eager: true}}
  decode: {args: {max-num-seqs: 40}}
groups:
  p: {role: prefill, nodes: [n1], dp_size: 2, tp_size: 8, api_port: 7100, rpc_port: 12321, kv_port: 14000}
  d: {role: decode, nodes: [n2, n3], dp_size: 8, tp_size: 2, api_port: 7100, rpc_port: 12321, kv_port: 14200}
proxy: {node: n1, listen: 0.0.0.0, port: 1999}
"""

FILE = Path("cluster.yaml")


def changed(*edits: tuple[str, str], base: str = BASE) -> str:
    """Return the base text with pieces replaced; each piece must be there exactly once."""
    for old, new in edits:
        assert base.count(old) == 1, f"{old!r} stands {base.count(old)} times in the text"
        base = base.replace(old, new)
    return base


def loaded(text: str | bytes) -> Loaded:
    return load_bytes(text if isinstance(text, bytes) else text.encode(), FILE)


def topology(*edits: tuple[str, str]) -> Topology:
    result = loaded(changed(*edits))
    assert result.topology is not None, result.findings
    return result.topology


def of_rule(findings: tuple[Finding, ...], rule: str) -> list[Finding]:
    return [finding for finding in findings if finding.rule == rule]
