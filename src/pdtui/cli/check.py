"""`pdtui check`: the static findings of a topology file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from pdtui.cli import explain
from pdtui.cli.output import print_json
from pdtui.errors import UsageError
from pdtui.topology.findings import Finding, Severity
from pdtui.topology.load import load, said

_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan", "accepted": "green"}
_ORDER = tuple(_COLOURS)


@click.command("check")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print findings, or explanations, as JSON.")
@click.option("--explain", "rule", metavar="RULE", help="Say what a rule is about instead; `all` lists them.")
def command(file: Path | None, as_json: bool, rule: str | None) -> int:
    """Print everything that is wrong with FILE, with line, rule and remedy.

    A finding that is known and all right is accepted in the file, `accept: {R16: "reserved by sysctl"}`; errors
    are not. Exit status: 1 with an error-level finding, 2 when the file cannot be read.
    """
    if rule is not None:
        if file is not None:
            raise UsageError("--explain RULE takes no FILE")
        explain.show(rule, as_json=as_json)
        return 0
    if file is None:
        raise click.MissingParameter(param_hint="'FILE'", param_type="argument")
    loaded = load(file)
    if as_json:
        print_json(as_dict(loaded.findings))
    else:
        for line in table(loaded.findings):
            click.echo(line)
        click.echo(summary(loaded.findings, str(file)), err=True)
        if loaded.findings:
            worst = min(loaded.findings, key=lambda finding: _ORDER.index(marker(finding)))
            click.echo(f"why, and what to do: pdtui check --explain {worst.rule}", err=True)
    return 1 if loaded.errors else 0


def as_dict(findings: Sequence[Finding]) -> dict[str, object]:
    """Return findings as what `--json` prints: an interface."""
    return {
        "schema_version": 1,
        "findings": findings_as_dicts(findings),
    }


def findings_as_dicts(findings: Sequence[Finding]) -> list[dict[str, object]]:
    """Return findings as every `--json` has them: an interface."""
    return [
        {
            "rule": finding.rule,
            "severity": finding.severity.value,
            "message": finding.message,
            "file": finding.file,
            "line": finding.line,
            "column": finding.column,
            "path": finding.path,
            "accepted": bool(finding.accepted),
            "reason": finding.accepted or None,
        }
        for finding in findings
    ]


def marker(finding: Finding) -> str:
    """Return the word that a finding is marked with: its severity, or that it is accepted."""
    return "accepted" if finding.accepted else finding.severity.value


def table(findings: Sequence[Finding]) -> list[str]:
    """Return one aligned line a finding: place, severity, rule, message."""
    places = [f"{finding.file}:{finding.line}:{finding.column}" for finding in findings]
    width = max(map(len, places), default=0)
    rules = max((len(finding.rule) for finding in findings), default=0)
    marks = [marker(finding) for finding in findings]
    wide = max([len(Severity.WARNING), *map(len, marks)])
    return [
        f"{place:<{width}}  {click.style(f'{mark:<{wide}}', fg=_COLOURS[mark])}  "
        f"{finding.rule:<{rules}}  {said(finding)}"
        for place, mark, finding in zip(places, marks, findings, strict=True)
    ]


def summary(findings: Sequence[Finding], file: str) -> str:
    """Return how many of what there are: `cluster.yaml: 2 errors, 1 warning`."""
    counts = Counter(map(marker, findings))
    words = {"error": "error", "warning": "warning", "info": "note"}
    parts = [
        f"{counts[mark]} {word}{'s' if counts[mark] != 1 else ''}" for mark, word in words.items() if counts[mark]
    ]
    if counts["accepted"]:
        parts.append(f"{counts['accepted']} accepted")
    return f"{file}: {', '.join(parts) or 'no findings'}"
