"""The registry of static rules and what each of them gets to see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pdtui.topology.findings import Path, Problem, Severity
from pdtui.topology.model import Group, Role, Topology
from pdtui.topology.plan import Plan
from pdtui.topology.planner import make_plan
from pdtui.topology.schema import RankPart, TopologyFile
from pdtui.topology.versions import Release, known_release
from pdtui.topology.yaml_tree import Document


@dataclass(frozen=True)
class Context:
    """A topology with where it came from and what follows from it."""

    topology: Topology
    file: TopologyFile
    document: Document

    @cached_property
    def plan(self) -> Plan:
        """The plan, made when the first rule asks for it."""
        return make_plan(self.topology)

    @cached_property
    def release(self) -> Release:
        """The release whose tables apply."""
        return known_release(self.topology.vllm_ascend)

    def groups(self, role: Role) -> tuple[Group, ...]:
        """Return the groups of a role."""
        return tuple(group for group in self.topology.groups.values() if group.role is role)

    def levels(self, kind: Literal["args", "env"]) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Yield (path, entries as written) of every level of the file, the general ones first."""
        roles, groups = self.file.roles, self.file.groups
        parts: dict[Path, RankPart] = {
            ("defaults",): self.file.defaults,
            ("roles", "prefill"): roles.prefill,
            ("roles", "decode"): roles.decode,
            **{("groups", name): group for name, group in groups.items()},
        }
        for path, part in parts.items():
            yield (*path, kind), part.args if kind == "args" else part.env

    def where(self, group: Group, kind: str, key: str) -> Path:
        """Return where the value that a group ends up with was written: group, role or defaults.

        `kind` is `args`, `env`, `kv.config` or `kv.extra`; arguments are found in any of their spellings.
        """
        steps = tuple(kind.split("."))
        levels: tuple[Path, ...] = (("groups", group.name), ("roles", group.role.value), ("defaults",), ())
        spellings = (key, key.replace("-", "_"), f"no-{key}") if kind == "args" else (key,)
        for level in levels:
            for spelling in spellings:
                path = (*level, *steps, spelling)
                if self.document.has(path):
                    return path
        return ("groups", group.name)


Rule = Callable[[Context], Iterator[Problem]]

_RULES: list[Rule] = []


def rule(function: Rule) -> Rule:
    """Add a function to the registry; it yields what it finds."""
    _RULES.append(function)
    return function


def npu_rule(function: Rule) -> Rule:
    """Add a rule about NPUs, vLLM-Ascend, HCCL or Mooncake: it is not asked on a platform without NPUs."""
    _RULES.append(lambda context: function(context) if context.topology.has_npus else iter(()))
    return function


def cpu_rule(function: Rule) -> Rule:
    """Add a rule about vLLM on a platform without NPUs: it is asked there only."""
    _RULES.append(lambda context: iter(()) if context.topology.has_npus else function(context))
    return function


def error(rule_id: str, message: str, path: Path, *, on_key: bool = False) -> Problem:
    """Return a problem that keeps the cluster from working."""
    return Problem(rule_id, Severity.ERROR, message, path, on_key)


def warning(rule_id: str, message: str, path: Path, *, on_key: bool = False) -> Problem:
    """Return a problem that makes trouble likely."""
    return Problem(rule_id, Severity.WARNING, message, path, on_key)


def info(rule_id: str, message: str, path: Path, *, on_key: bool = False) -> Problem:
    """Return something worth knowing."""
    return Problem(rule_id, Severity.INFO, message, path, on_key)


def check(topology: Topology, file: TopologyFile, document: Document) -> list[Problem]:
    """Return what all rules find."""
    context = Context(topology, file, document)
    return [problem for function in _RULES for problem in function(context)]


def ranges(ports: Any) -> str:
    """Return ports as text: `36000-36015, 36100`."""
    spans: list[list[int]] = []
    for port in sorted(set(ports)):
        if spans and port == spans[-1][1] + 1:
            spans[-1][1] = port
        else:
            spans.append([port, port])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
