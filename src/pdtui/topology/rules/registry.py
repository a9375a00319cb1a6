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
from pdtui.topology.rules.explained import EXPLANATIONS
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


@dataclass(frozen=True, slots=True)
class Registered:
    """A function of the registry."""

    function: Rule
    ids: tuple[str, ...]
    """The rules whose findings it yields; each of them has an `Explanation`."""
    on: Literal["any", "npus", "cpu"]
    """The platforms on which it is asked."""

    def applies(self, topology: Topology) -> bool:
        """Whether it is asked of a topology."""
        return self.on == "any" or topology.has_npus is (self.on == "npus")


RULES: list[Registered] = []


def _register(ids: tuple[str, ...], on: Literal["any", "npus", "cpu"]) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        RULES.append(Registered(function, ids, on))
        return function

    return add


def rule(*ids: str) -> Callable[[Rule], Rule]:
    """Add a function to the registry; it yields findings of the rules with these ids."""
    return _register(ids, "any")


def npu_rule(*ids: str) -> Callable[[Rule], Rule]:
    """Add a rule about NPUs, vLLM-Ascend, HCCL or Mooncake: it is not asked on a platform without NPUs."""
    return _register(ids, "npus")


def cpu_rule(*ids: str) -> Callable[[Rule], Rule]:
    """Add a rule about vLLM on a platform without NPUs: it is asked there only."""
    return _register(ids, "cpu")


def by_version(context: Context, rule_id: str, message: str, path: Path, *, on_key: bool = False) -> Problem:
    """Return a problem as severe as its rule is in the file's version of vllm-ascend."""
    return Problem(rule_id, EXPLANATIONS[rule_id].severity(context.release), message, path, on_key)


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
    return [problem for one in RULES if one.applies(topology) for problem in one.function(context)]
