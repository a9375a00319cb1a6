"""Read a topology file: the one way from bytes to a `Topology` and its findings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from pdtui.errors import FileError
from pdtui.text import clean_line, did_you_mean
from pdtui.topology.build import build
from pdtui.topology.findings import Finding, Problem, Severity
from pdtui.topology.model import Topology
from pdtui.topology.validate import validate
from pdtui.topology.yaml_tree import MAX_BYTES, Document, parse


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a file says, and everything that is wrong with it."""

    topology: Topology | None
    """None when the file's shape leaves no model; findings of the rules do not keep it back."""
    findings: tuple[Finding, ...]
    """In the order of the file."""

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings because of which the cluster will not work."""
        return tuple(finding for finding in self.findings if finding.severity is Severity.ERROR)


def load(path: Path | str) -> Loaded:
    """Read and check a file. Raises `FileError` only when the file cannot be read at all."""
    path = Path(path)
    try:
        with path.open("rb") as source:
            data = source.read(
                MAX_BYTES + 1
            )  # A device has no end, and weights given by mistake have none either.
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise FileError(f"cannot read {path!s:.200}: {error}") from error
    return load_bytes(data, path)


def load_bytes(data: bytes, path: Path) -> Loaded:
    """Check what would be read from `path`. Never raises, whatever the bytes are."""
    # Here, so that a program that only reads files never loads planner and port formulas.
    from pdtui.topology.rules import check

    document, problems = parse(data, str(path))
    file, more = validate(document)
    problems += more
    topology = None
    if file is not None:
        topology, more = build(file, path, data)
        problems += more
    if file is not None and topology is not None:
        problems += check(topology, file, document)
    if topology is not None:
        problems = _accepted(problems, topology)
    return Loaded(topology, _findings(problems, document))


def first_error(data: bytes, path: Path) -> str:
    """Return the first error of what would be read from `path`, `line 12: message`; empty when it would load."""
    errors = load_bytes(data, path).errors
    return f"line {errors[0].line}: {errors[0].message}" if errors else ""


def load_checked(path: Path | str) -> Topology:
    """Return the topology of a file without errors. Raises `FileError` that lists them."""
    loaded = load(path)
    if loaded.topology is None or loaded.errors:
        count = len(loaded.errors)
        raise FileError(
            f"{path}: {count} error{'s' if count != 1 else ''}\n" + "\n".join(map(one_line, loaded.errors)),
            remedy=f"`pdtui check {path}` shows all findings",
        )
    return loaded.topology


def one_line(finding: Finding) -> str:
    """Return a finding as `file:line:column  rule  message`, and why it is accepted if it is."""
    return f"{finding.file}:{finding.line}:{finding.column}  {finding.rule}  {said(finding)}"


def said(finding: Finding) -> str:
    """Return the message of a finding, and why it is accepted if it is."""
    return f"{finding.message} (accepted: {finding.accepted})" if finding.accepted else finding.message


def _accepted(problems: Iterable[Problem], topology: Topology) -> list[Problem]:
    """Turn accepted warnings into informations that know why; errors cannot be accepted."""
    from pdtui.topology.rules.explained import EXPLANATIONS, rule_id

    result, used = [], set()
    for problem in problems:
        reason = topology.accept.get(problem.rule)
        if reason is None:
            result.append(problem)
            continue
        used.add(problem.rule)
        if problem.severity is Severity.ERROR:
            result.append(problem)
            message = f"{problem.rule} is an error here and cannot be accepted; it stays"
            result.append(Problem("F12", Severity.WARNING, message, ("accept", problem.rule), on_key=True))
        else:
            result.append(replace(problem, severity=Severity.INFO, accepted=reason))
    for rule in topology.accept:
        if rule not in used:
            message = f"nothing here is found by {rule}; delete the line, or it may hide a later finding"
            if rule not in EXPLANATIONS:
                known = rule_id(rule)
                guess = f"; did you mean {known}?" if known in EXPLANATIONS else did_you_mean(known, EXPLANATIONS)
                message = f"there is no rule {rule}{guess}"
            result.append(Problem("F12", Severity.WARNING, message, ("accept", rule), on_key=True))
    return result


def _findings(problems: Iterable[Problem], document: Document) -> tuple[Finding, ...]:
    findings = []
    for problem in problems:
        line, column = problem.mark or document.mark(problem.path, on_key=problem.on_key)
        path = clean_line(".".join(str(part) for part in problem.path))
        message = clean_line(problem.message)
        reason = clean_line(problem.accepted)
        findings.append(
            Finding(problem.rule, problem.severity, message, document.file, line, column, path, reason)
        )
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: (finding.line, finding.column)))
