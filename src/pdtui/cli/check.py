"""`pdtui check`: the static findings of a topology file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from pdtui.cli.output import print_json
from pdtui.topology.findings import Finding, Severity
from pdtui.topology.load import load

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


@click.command("check")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print findings as JSON.")
def command(file: Path, as_json: bool) -> int:
    """Print everything that is wrong with FILE, with line, rule and remedy.

    Exit status: 1 with an error-level finding, 2 when the file cannot be read.
    """
    loaded = load(file)
    if as_json:
        print_json(as_dict(loaded.findings))
    else:
        for line in table(loaded.findings):
            click.echo(line)
        click.echo(summary(loaded.findings, str(file)), err=True)
    return 1 if loaded.errors else 0


def as_dict(findings: Sequence[Finding]) -> dict[str, object]:
    """Return findings as what `--json` prints: an interface."""
    return {
        "schema_version": 1,
        "findings": [
            {
                "rule": finding.rule,
                "severity": finding.severity.value,
                "message": finding.message,
                "file": finding.file,
                "line": finding.line,
                "column": finding.column,
                "path": finding.path,
            }
            for finding in findings
        ],
    }


def table(findings: Sequence[Finding]) -> list[str]:
    """Return one aligned line a finding: place, severity, rule, message."""
    places = [f"{finding.file}:{finding.line}:{finding.column}" for finding in findings]
    width = max(map(len, places), default=0)
    rules = max((len(finding.rule) for finding in findings), default=0)
    return [
        f"{place:<{width}}  {click.style(f'{finding.severity.value:<7}', fg=_COLOURS[finding.severity])}  "
        f"{finding.rule:<{rules}}  {finding.message}"
        for place, finding in zip(places, findings, strict=True)
    ]


def summary(findings: Sequence[Finding], file: str) -> str:
    """Return how many of what there are: `cluster.yaml: 2 errors, 1 warning`."""
    counts = [(severity, sum(finding.severity is severity for finding in findings)) for severity in Severity]
    words = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}
    parts = [f"{count} {words[severity]}{'s' if count != 1 else ''}" for severity, count in counts if count]
    return f"{file}: {', '.join(parts) or 'no findings'}"
