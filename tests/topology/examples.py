"""A small cluster without findings, and ways to change its text."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pdtui.topology.findings import Finding, Severity
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

CPU = """\
pdtui: 1
name: laptop
platform: cpu
vllm: "0.32.0"
runtime: {setup: [~/venv/bin/activate]}
model: {path: ~/m, served_name: m}
kv: {connector: NixlConnector}
nodes:
  n1: {host: 192.0.2.1, nic: eth0}
  n2: {host: 192.0.2.2, nic: eth0}
defaults: {env: {OMP_NUM_THREADS: 1}, args: {seed: 1024}}
groups:
  p: {role: prefill, nodes: [n1], dp_size: 2, tp_size: 2, api_port: 7100, rpc_port: 12321, kv_port: 14000}
  d: {role: decode, nodes: [n1, n2], dp_size: 4, tp_size: 1, api_port: 7200, rpc_port: 12322, kv_port: 14200}
proxy: {node: n1, listen: 0.0.0.0, port: 1999}
"""
"""The same without NPUs."""

FILE = Path("cluster.yaml")


Edits = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Case:
    """Edits that break the base, and other edits of the same things that do not."""

    rule: str
    severity: Severity
    broken: Edits
    path: str
    says: str
    """A piece of the message: both sides or the remedy."""
    right: Edits = ()

    def check(self, base: str) -> None:
        text = changed(*self.broken, base=base)
        found = [finding for finding in of_rule(loaded(text).findings, self.rule) if finding.path == self.path]
        assert [finding.severity for finding in found[:1]] == [self.severity], loaded(text).findings
        assert any(self.says in finding.message for finding in found), found[0].message
        assert found[0].line > 0
        assert found[0].column > 0
        assert found[0].line <= text.count("\n")
        assert not of_rule(loaded(changed(*self.right, base=base)).findings, self.rule)


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


def cpu_topology(*edits: tuple[str, str]) -> Topology:
    result = loaded(changed(*edits, base=CPU))
    assert result.topology is not None, result.findings
    return result.topology


def of_rule(findings: tuple[Finding, ...], rule: str) -> list[Finding]:
    return [finding for finding in findings if finding.rule == rule]
