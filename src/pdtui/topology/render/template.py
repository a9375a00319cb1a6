"""`run_dp_template.sh` of one group on one node: what its ranks have in common, with arguments for the rest.

What a rank runs with is `RankPlan.argv` and `env`; this only finds the places where the ranks of a node differ.
The first seven arguments are those of vLLM-Ascend's launcher, in its order; more follow where a rank has something
else of its own, such as the KV port of an independent instance.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pdtui.topology.model import Group, Topology
from pdtui.topology.plan import RankPlan
from pdtui.topology.redact import HIDDEN, redacted
from pdtui.topology.reference import Reference
from pdtui.topology.render.shell import SEVEN, TEMPLATE, flag_lines, head, is_plain, script
from pdtui.topology.script import QUOTE, command_words, double_quoted, export_lines, setup_lines

NOTHING = "-"
"""Argument that the template does not use, because these ranks do not meet."""

_FLAGS = {
    "--port": 1,
    "--data-parallel-size": 2,
    "--data-parallel-rank": 3,
    "--data-parallel-address": 4,
    "--data-parallel-rpc-port": 5,
    "--tensor-parallel-size": 6,
}
"""Flag -> index of the argument that is its value."""

_DEVICES = "ASCEND_RT_VISIBLE_DEVICES"
_TOKEN = re.compile(rf"{re.escape(HIDDEN)}|\w+|\W")
_KEY = re.compile(r'"(\w+)":\s*"?$')


@dataclass(frozen=True, slots=True)
class Template:
    """The script, and what it is called with."""

    text: str
    runs: tuple[tuple[str, ...], ...]
    """Arguments of each rank, in the order of the ranks."""
    more: tuple[str, ...]
    """What the arguments after the seventh are."""
    secrets: tuple[str, ...]
    """Variables that have to be set where the script runs, because their values are not written down."""


@dataclass(slots=True)
class _Arguments:
    """The arguments as they are found: for each one its value for every rank, and what it is."""

    values: list[tuple[str, ...]]
    names: list[str] = field(default_factory=lambda: list(SEVEN))

    def of(self, values: tuple[str, ...], name: str) -> int:
        """Return the index of the argument that has these values, a new one if there is none yet."""
        if values not in self.values:
            self.values.append(values)
            self.names.append(name)
        return self.values.index(values)


def template(topology: Topology, group: Group, node: str, ranks: Sequence[RankPlan]) -> Template:
    """Return the template of a group's ranks on one node; `ranks` are these, one at least, by their number."""
    arguments = _Arguments(list(zip(*(_seven(group, rank) for rank in ranks), strict=True)))
    secrets: dict[str, None] = {}
    body = [*_exports(ranks, arguments, secrets), _command(ranks, arguments, secrets)]
    if topology.runtime.setup:
        # Set-up files look at the arguments of the script that sources them.
        around = ('pdtui_arguments=("$@")', "set --"), ('set -- "${pdtui_arguments[@]}"',)
        body = [*around[0], *setup_lines(topology.runtime), *around[1], *body]
    if any("${pdtui_quote}" in line for line in body):
        body.insert(0, QUOTE)
    comments = [
        f"One rank of {group.name} on {node}, as launch.sh starts it. Its arguments:",
        *(f"  ${index + 1}  {name}" for index, name in enumerate(arguments.names)),
    ]
    if topology.is_apart(group):
        comments.append("Each rank is an instance of its own, without data parallel flags: $3 to $6 are not used.")
    text = script([*head(topology, *comments), *(_required(name) for name in secrets), *body])
    return Template(text, tuple(zip(*arguments.values, strict=True)), tuple(arguments.names[7:]), tuple(secrets))


def _required(name: str) -> str:
    return f': "${{{name}:?set it before {TEMPLATE}, which holds no secrets}}"'


def _seven(group: Group, rank: RankPlan) -> tuple[str, ...]:
    """Return what launch_online_dp.py would have to pass for a rank to be what it is."""
    values = [
        ",".join(map(str, rank.devices)) or NOTHING,
        str(rank.api_port),
        str(group.dp_size),
        str(rank.dp_rank),
        group.dp_address or NOTHING,
        str(group.rpc_port or NOTHING),
        str(group.tp_size),
    ]
    for flag, index in _FLAGS.items():
        at = _value_of(rank.argv, flag)
        if at is not None:
            values[index] = rank.argv[at]
    return tuple(values)


def _value_of(argv: Sequence[str], flag: str) -> int | None:
    """Return where the value of a flag stands in a rank's command."""
    at = argv.index(flag) + 1 if flag in argv else len(argv)
    return at if at < len(argv) else None


def _exports(ranks: Sequence[RankPlan], arguments: _Arguments, secrets: dict[str, None]) -> Iterator[str]:
    _, safe = redacted((), ranks[0].env)
    for name, value in ranks[0].env.items():
        values = tuple(rank.env[name] for rank in ranks)
        if isinstance(value, Reference):
            yield from export_lines(name, value)
        elif safe[name] != value:
            secrets[name] = None
            yield f"export {name}"
        elif name == _DEVICES and values == arguments.values[0]:
            yield f"export {name}=$1"
        elif len(set(values)) > 1:
            yield f"export {name}={_argument(arguments.of(values, name))}"
        else:
            yield f"export {name}={value if is_plain(value) else double_quoted(value)}"


def _command(ranks: Sequence[RankPlan], arguments: _Arguments, secrets: dict[str, None]) -> str:
    first = ranks[0].argv
    places = {_value_of(first, flag): index for flag, index in _FLAGS.items()}
    safe = [redacted(rank.argv, {})[0] for rank in ranks]
    words, flag = ["exec"], ""
    for at, word in enumerate(command_words(first)):
        if first[at].startswith("--"):
            flag = first[at].partition("=")[0].strip("-")
        values = tuple(argv[at] for argv in safe)
        if at in places:
            words.append(_argument(places[at]))
        elif safe[0][at] != first[at] or len(set(values)) > 1:
            words.append(_mixed(values, flag, arguments, None if safe[0][at] == first[at] else secrets))
        else:
            words.append(word)
    return flag_lines(words, ["exec", *first])


def _mixed(values: tuple[str, ...], flag: str, arguments: _Arguments, secrets: dict[str, None] | None) -> str:
    """Return a word that differs between the ranks, or holds secrets: text, arguments and variables in turn."""
    pieces = [_TOKEN.findall(value) for value in values]
    if len({len(tokens) for tokens in pieces}) > 1:
        return _argument(arguments.of(values, flag))
    result, text = "", ""
    for tokens in zip(*pieces, strict=True):
        same = len(set(tokens)) == 1
        if same and (secrets is None or tokens[0] != HIDDEN):
            text += tokens[0]
            continue
        key = _KEY.search(text)
        name = key[1] if key else flag
        result += shlex.quote(text) if text else ""
        if same and secrets is not None:
            variable = re.sub(r"\W", "_", name).upper()
            secrets[variable] = None
            result += f'"${{{variable}}}"'
        else:
            result += _argument(arguments.of(tokens, name))
        text = ""
    return result + (shlex.quote(text) if text else "")


def _argument(index: int) -> str:
    return f'"${index + 1}"' if index < 9 else f'"${{{index + 1}}}"'
