"""`pdtui check --explain`: a rule in words, or the list of all rules."""

from __future__ import annotations

import shutil
import textwrap

import click

from pdtui.cli.output import columns, print_json
from pdtui.errors import UsageError
from pdtui.text import clean_line, did_you_mean
from pdtui.topology.findings import Severity
from pdtui.topology.rules.explained import EXPLANATIONS, Explanation, imported, rule_id
from pdtui.topology.versions import dotted

FAMILIES = {
    "F": "the file itself",
    "R": "from what went wrong in the field",
    "T": "groups and ranks",
    "P": "ports",
    "K": "KV transfer",
    "S": "flags of vllm serve",
    "V": "variables and containers",
    "X": "the proxy",
    "W": "the workload",
    "C": "platform cpu",
}
"""First letter of a rule's id -> what such rules are about, in the order in which they are listed."""

_LABEL = 10
_WIDEST = 100


def show(word: str, *, as_json: bool) -> None:
    """Print what is known of a rule, or all ids for `all`. Raises `UsageError` for a rule that there is not."""
    if word.lower() == "all":
        rules = sorted(EXPLANATIONS.values(), key=_order)
        if as_json:
            print_json({"schema_version": 1, "rules": [as_dict(rule) for rule in rules]})
        else:
            click.echo("\n".join(listed(rules)))
        return
    rule = EXPLANATIONS.get(rule_id(word))
    if rule is None:
        near = did_you_mean(rule_id(word), EXPLANATIONS)
        raise UsageError(
            f"there is no rule {clean_line(word)}{near}", remedy="`pdtui check --explain all` lists them"
        )
    if as_json:
        print_json({"schema_version": 1, **as_dict(rule)})
    else:
        click.echo("\n".join(text(rule, min(shutil.get_terminal_size().columns, _WIDEST))))


def as_dict(rule: Explanation) -> dict[str, object]:
    """Return a rule as what `--json` prints: an interface."""
    return {
        "rule": rule.id,
        "title": rule.title,
        "severities": [severity.value for severity in rule.severities],
        "since": [{"vllm_ascend": dotted(start), "severity": severity.value} for start, severity in rule.since],
        "why": rule.why,
        "remedy": rule.remedy,
        "source": rule.source,
        "found_by": "import" if rule.id in imported.RULES else "check",
        "can_be_accepted": _acceptable(rule),
    }


def text(rule: Explanation, width: int) -> list[str]:
    """Return a rule as lines of at most `width` columns."""
    parts = {rule.id: f"{rule.title}.", "severity": _severities(rule), "why": rule.why}
    parts |= {"remedy": rule.remedy, "source": rule.source}
    if rule.id in imported.RULES:
        parts["found by"] = "pdtui import, in scripts: a topology file cannot have it"
    lines: list[str] = []
    for label, said in parts.items():
        lines += textwrap.wrap(
            said,
            max(width, 4 * _LABEL),
            initial_indent=f"{label:<{_LABEL}}",
            subsequent_indent=" " * _LABEL,
            break_long_words=False,
            break_on_hyphens=False,
        )
    if _acceptable(rule):
        errors = ", where it is no error" if Severity.ERROR in rule.severities else ""
        lines.append(f'{"accept":<{_LABEL}}accept: {{{rule.id}: "why it is all right here"}}{errors}')
    return lines


def listed(rules: list[Explanation]) -> list[str]:
    """Return the rules by family: id, worst severity, title."""
    rows = [(rule.id, rule.severities[0].value, rule.title) for rule in rules]
    table = columns(("RULE", "WORST", "WHAT MUST HOLD"), rows)[1:]
    lines: list[str] = []
    for letter, about in FAMILIES.items():
        found = [line for rule, line in zip(rules, table, strict=True) if rule.id[0] == letter]
        if found:
            lines += [*([""] if lines else []), about, *(f"  {line}" for line in found)]
    return lines


def _severities(rule: Explanation) -> str:
    if rule.since:
        later = "; ".join(f"{severity} from vllm-ascend {dotted(start)} on" for start, severity in rule.since)
        return f"{rule.severities[0]}; {later}"
    return " or ".join(rule.severities)


def _acceptable(rule: Explanation) -> bool:
    return rule.severities != (Severity.ERROR,) and rule.id not in imported.RULES


def _order(rule: Explanation) -> tuple[int, int]:
    return list(FAMILIES).index(rule.id[0]), int(rule.id[1:])
