"""Launchers: what today's `launch_online_dp.py` and the one of v0.9.1 pass to a template, rank by rank."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pdtui.topology.findings import Severity
from pdtui.topology.importing.observed import Origin, Said
from pdtui.topology.importing.report import Kind, Note, note

MOST_RANKS = 1024
"""Ranks of one launch line; more are refused."""

_OPTIONS = (
    *("dp-size", "tp-size", "dp-size-local", "dp-rank-start", "dp-address", "dp-rpc-port", "vllm-start-port"),
    *("template", "pp-size"),
)


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a launcher on one host."""

    host: str
    """Where; empty when nothing says it."""
    template: str
    """Name of the template's file."""
    calls: tuple[tuple[Said, ...], ...]
    """The template's words, rank by rank."""
    origin: Origin
    old: bool = False
    """The launcher of v0.9.1, with its own order of words."""
    address: str = ""
    """Where its group meets."""
    first_rank: int = 0
    env: Mapping[str, Said] = field(default_factory=dict)
    by_launcher: bool = False
    """Started by launch_online_dp.py, which gives out NPUs from 0 up."""


def launch(words: Sequence[Said], *, host: str, origin: Origin) -> tuple[Launch | None, list[Note]]:
    """Return what a line of today's launcher starts; its rules: launch_online_dp.py of vllm-ascend."""
    options: dict[str, Said] = {}
    at = 0
    while at < len(words):
        name, equals, text = words[at].text.removeprefix("--").partition("=")
        fits = [known for known in _OPTIONS if known.startswith(name)]
        full = name if name in _OPTIONS or len(fits) != 1 else fits[0]
        if words[at].text.startswith("--"):
            if equals:
                options[full] = Said(text, words[at].origin, words[at].unknown)
            elif at + 1 < len(words):
                options[full] = words[at + 1]
                at += 1
        at += 1
    notes: list[Note] = []
    if "dp-rpc-port" not in options:
        message = "--dp-rpc-port is missing: the launcher's own default is a number and ends it with a TypeError"
        notes.append(note(Kind.FINDING, message, origin, rule="R09", severity=Severity.ERROR))
        options["dp-rpc-port"] = Said("12345", origin)
    numbers: dict[str, int] = {}
    defaults = {"dp-rank-start": 0, "dp-size-local": -1, "vllm-start-port": 9000, "tp-size": 1, "dp-size": 0}
    for name, default in defaults.items():
        said = options.get(name)
        number = default if said is None else said.number
        if number is None or (name == "dp-size" and not 0 < number <= MOST_RANKS):
            shown = said.text if said is not None else "nothing"
            message = f"--{name} is {shown}, so it is not known which ranks this starts"
            return None, [*notes, note(Kind.UNREAD, message, said.origin if said is not None else origin)]
        numbers[name] = number
    local = numbers["dp-size-local"] if numbers["dp-size-local"] != -1 else numbers["dp-size"]
    address = options.get("dp-address", Said("", origin))
    calls = []
    for index in range(min(local, MOST_RANKS)):
        tp = numbers["tp-size"]
        devices = ",".join(str(number) for number in range(index * tp, (index + 1) * tp))
        texts = {
            "devices": devices,
            "port": str(numbers["vllm-start-port"] + index),
            "rank": str(numbers["dp-rank-start"] + index),
        }
        place = options.get("vllm-start-port", Said("", origin)).origin
        calls.append(
            (
                Said(texts["devices"], origin),
                Said(texts["port"], place),
                options.get("dp-size", Said("", origin)),
                Said(texts["rank"], options.get("dp-rank-start", Said("", origin)).origin),
                address,
                options["dp-rpc-port"],
                options.get("tp-size", Said("1", origin)),
            )
        )
    template = options["template"].text if "template" in options else "./run_dp_template.sh"
    first = numbers["dp-rank-start"]
    return Launch(
        host, template.rsplit("/", 1)[-1], tuple(calls), origin, False, address.text, first, {}, True
    ), notes


_CALL = re.compile(r"(?:^|[\s'\"])(?:bash|sh)\s+(\S+\.sh)\s+(.*)", re.DOTALL)


def python_launch(text: str, source: str, first_line: int, *, host: str) -> tuple[Launch | None, list[Note]]:
    """Return what a launcher of v0.9.1 starts: a Python file with constants, read and never executed."""
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        origin = Origin(source, line + first_line - 1)
        return None, [note(Kind.UNREAD, f"no Python that can be read: {getattr(error, 'msg', error)}", origin)]
    reader = _Launcher(module, source, first_line)
    return reader.launch(host)


class _Launcher:
    def __init__(self, module: ast.Module, source: str, first_line: int) -> None:
        self.module = module
        self.source = source
        self.shift = first_line - 1
        self.constants: dict[str, Said] = {}
        for statement in module.body:
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target, value = statement.targets[0], statement.value
                if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
                    self.constants[target.id] = Said(str(value.value), self.origin(statement))

    def origin(self, node: ast.stmt | ast.expr) -> Origin:
        return Origin(self.source, node.lineno + self.shift)

    def launch(self, host: str) -> tuple[Launch | None, list[Note]]:
        here = Origin(self.source, self.shift + 1)
        call = self._template_call()
        if call is None:
            if "argparse" in {name for node in ast.walk(self.module) for name in _imported(node)}:
                return None, []
            return None, [note(Kind.UNREAD, "no launcher that is known here: it calls no template", here)]
        template, words, at = call
        local = self.constants.get("dp_size_local") or self.constants.get("dp_size")
        count = local.number if local is not None else None
        if count is None or not 0 < count <= MOST_RANKS:
            return None, [
                note(Kind.UNREAD, "dp_size_local is no number from 1 up", local.origin if local else here)
            ]
        calls, notes = [], []
        for index in range(count):
            names = self._names(index)
            values = [self._value(word, names, at) for word in words]
            bad = next((value for value in values if value.unknown), None)
            if bad is not None:
                message = f"what the launcher passes is only known where it runs: {bad.unknown}"
                notes.append(note(Kind.UNREAD, message, at))
                return None, notes
            calls.append(tuple(values))
        address = self.constants.get("dp_ip") or self.constants.get("dp_address")
        start = self.constants.get("dp_rank_start")
        first = (start.number if start is not None else 0) or 0
        return Launch(host, template, tuple(calls), here, True, address.text if address else "", first), notes

    def _template_call(self) -> tuple[str, list[str], Origin] | None:
        """Return the template, the words that are passed to it as {NAME} or text, and where."""
        for node in ast.walk(self.module):
            text = None
            if isinstance(node, ast.JoinedStr):
                text = _template_text(node)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            elif isinstance(node, ast.List):
                parts = [_template_text(item) for item in node.elts]
                text = " ".join(part for part in parts if part is not None)
            match = _CALL.search(text) if text else None
            if match is not None and isinstance(node, ast.expr):
                return match[1].rsplit("/", 1)[-1], match[2].split(), self.origin(node)
        return None

    def _names(self, index: int) -> dict[str, Said]:
        """Return all names as the launcher's loop has them for its rank `index`."""
        names = dict(self.constants)
        for statement in self.module.body:
            if not isinstance(statement, ast.For) or not isinstance(statement.target, ast.Name):
                continue
            names[statement.target.id] = Said(str(index), self.origin(statement))
            for inner in statement.body:
                if isinstance(inner, ast.Assign) and isinstance(inner.targets[0], ast.Name):
                    number = _sum(inner.value, names)
                    if number is not None:
                        names[inner.targets[0].id] = Said(str(number), self._literal(inner.value, names))
            break
        return names

    def _literal(self, value: ast.expr, names: Mapping[str, Said]) -> Origin:
        """Return where the constant stands that a sum begins with."""
        for node in ast.walk(value):
            if isinstance(node, ast.Name) and node.id in self.constants and node.id in names:
                return names[node.id].origin
        return self.origin(value)

    def _value(self, word: str, names: Mapping[str, Said], at: Origin) -> Said:
        match = re.fullmatch(r"\{(\w+)\}", word)
        if match is None:
            return Said(word, at, word if "{" in word else "")
        return names.get(match[1], Said(word, at, word))


def _imported(node: ast.AST) -> list[str]:
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def _template_text(node: ast.expr) -> str | None:
    """Return a string or f-string with its names in braces; other expressions as what cannot be read."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Name):
        return f"{{{node.id}}}"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "str" and node.args:
        return _template_text(node.args[0])
    if isinstance(node, ast.JoinedStr):
        parts = [
            _template_text(item.value if isinstance(item, ast.FormattedValue) else item) for item in node.values
        ]
        return "".join(part if part is not None else "{?}" for part in parts)
    return "{?}"


def _sum(node: ast.expr, names: Mapping[str, Said]) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        said = names.get(node.id)
        return said.number if said is not None else None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult | ast.Sub):
        left, right = _sum(node.left, names), _sum(node.right, names)
        if left is None or right is None:
            return None
        return (
            left + right
            if isinstance(node.op, ast.Add)
            else left * right
            if isinstance(node.op, ast.Mult)
            else left - right
        )
    return None
