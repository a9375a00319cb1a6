"""A parsed file against its schema: every difference becomes a problem in the operator's words."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from pdtui.text import clean_line, did_you_mean
from pdtui.topology.findings import Path, Problem, Severity
from pdtui.topology.model import Platform
from pdtui.topology.schema import TopologyFile
from pdtui.topology.yaml_tree import Document, Mapping, Node, Scalar

SYNONYMS = {
    "ip": "address",
    "addr": "address",
    "interface": "nic",
    "nic_name": "nic",
    "ifname": "nic",
    "hostname": "host",
    "tp": "tp_size",
    "tensor_parallel_size": "tp_size",
    "dp": "dp_size",
    "data_parallel_size": "dp_size",
    "pp": "pp_size",
    "pipeline_parallel_size": "pp_size",
    "data_parallel_address": "dp_address",
    "dp_rpc_port": "rpc_port",
    "data_parallel_rpc_port": "rpc_port",
    "vllm_start_port": "api_port",
    "engine_port": "api_port",
    "environment": "env",
    "arguments": "args",
    "flags": "args",
    "served_model_name": "served_name",
    "kv_connector": "connector",
    "kv_connector_extra_config": "extra",
    "store": "stores",
    "connectors": "stores",
    "children": "stores",
    "layer_partition": "pp_layer_partition",
    "identity": "key",
    "identity_file": "key",
    "username": "user",
    "proxy_jump": "jump",
    "version": "vllm_ascend",
}
"""What people write -> what the key is called here."""


def to_data(node: Node | None, *, text: bool = False, path: Path = ()) -> Any:
    """Return the tree as plain values; `text` keeps scalars as written, as everything under an `env` is."""
    if node is None:
        return None
    if isinstance(node, Scalar):
        if not text:
            return node.value()
        return None if node.is_null else node.text
    if isinstance(node, Mapping):
        return {
            key: to_data(value, text=text or _is_env((*path, key)), path=(*path, key))
            for key, value in node.items.items()
        }
    return [to_data(item, text=text, path=(*path, index)) for index, item in enumerate(node.items)]


def _is_env(path: Path) -> bool:
    return path[-1] == "env" and (
        (len(path) == 2 and path[0] == "defaults") or (len(path) == 3 and path[0] in {"roles", "groups"})
    )


def validate(document: Document) -> tuple[TopologyFile | None, list[Problem]]:
    """Return the file's contents and every way in which they miss the schema.

    Unknown keys are reported, and read as what they were probably meant to be or left out, so that they do not
    hide what else is wrong.
    """
    if document.root is None:
        return None, []
    data = to_data(document.root)
    if not isinstance(data, dict):
        message = "the file must be a mapping that begins with `pdtui: 1`"
        return None, [Problem("F06", Severity.ERROR, message, ())]
    problems: list[Problem] = []
    file, details = _validated(data)
    # A part whose key was repaired is looked into for the first time, so this ends with the depth of the schema.
    while unknown := [detail["loc"] for detail in details if detail["type"] == "extra_forbidden"]:
        for path in unknown:
            problems.append(_unknown_key(document, path))
            _repair(document, data, path)
        file, details = _validated(data)
    problems += [_problem(detail) for detail in details]
    wrong, is_missing = _version(data)
    return (None if is_missing else file), problems + wrong


def _version(data: dict[str, Any]) -> tuple[list[Problem], bool]:
    """Return what is wrong about the version, and whether there is none.

    A platform without NPUs says `vllm`, the others say `vllm_ascend`.
    """
    platform = data.get("platform")
    if platform not in get_args(Platform):
        return [], False
    pair = ("vllm_ascend", "vllm-ascend", "0.22.1rc1"), ("vllm", "vllm itself", "0.32.0")
    (other, _, _), (key, who, example) = pair if platform == "cpu" else pair[::-1]
    is_missing = data.get(key) is None
    if other in data:
        remedy = f'did you mean `{key}: "{example}"`?' if is_missing else "delete it"
        message = f"`{other}` has no place on platform {platform}, which runs {who}; {remedy}"
        return [Problem("F04", Severity.ERROR, message, (other,), on_key=True)], is_missing
    if is_missing:
        message = f'`{key}` is missing: platform {platform} runs {who}, of some version such as "{example}"'
        return [Problem("F05", Severity.ERROR, message, ("platform",), on_key=True)], True
    return [], False


def _validated(data: dict[str, Any]) -> tuple[TopologyFile | None, list[ErrorDetails]]:
    try:
        return TopologyFile.model_validate(data), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def _repair(document: Document, data: Any, path: Path) -> None:
    """Give the value of an unknown key to the key that was meant, unless that has one; else leave it out."""
    for part in path[:-1]:
        data = data[part]
    value, guess = data.pop(path[-1]), _guess(path)
    if guess is not None and guess not in data:
        data[guess] = value
        document.rename(path, guess)


def _unknown_key(document: Document, path: Path) -> Problem:
    message = _unknown(path, clean_line(str(path[-1])))
    return Problem("F04", Severity.ERROR, message, path, on_key=True, mark=document.mark(path, on_key=True))


def _problem(detail: ErrorDetails) -> Problem:
    path = detail["loc"]
    if path and path[-1] == "[key]":
        name = clean_line(str(path[-2]))
        message = f"`{name}` is no usable name: use a-z, 0-9 and `-`, beginning with a letter or digit"
        return Problem("F07", Severity.ERROR, message, path[:-1], on_key=True)
    key = clean_line(".".join(map(str, path[_named(path) :])))
    if detail["type"] == "missing":
        return Problem("F05", Severity.ERROR, _missing(path, key), path, on_key=True)
    rule = "F07" if detail["type"] == "string_pattern_mismatch" else "F06"
    return Problem(rule, Severity.ERROR, f"`{key}` {_wrong(detail)}", path)


def _named(path: Path) -> int:
    """Return where in a path its last name stands: an item of a list has none of its own."""
    return max((at for at, part in enumerate(path) if isinstance(part, str)), default=0)


def _guess(path: Path) -> str | None:
    """Return the key that an unknown one was probably meant to be."""
    known = list(_fields(path[:-1]))
    plain = _plain(path)
    guess = plain if plain in known else SYNONYMS.get(plain)
    if guess in known:
        return guess
    return next(iter(difflib.get_close_matches(plain, known, n=1, cutoff=0.6)), None)


def _plain(path: Path) -> str:
    return str(path[-1]).lstrip("-").replace("-", "_").lower()


def _unknown(path: Path, key: str) -> str:
    known, plain = _fields(path[:-1]), _plain(path)
    if guess := _guess(path):
        return f"unknown key `{key}`; did you mean `{guess}`?"
    if elsewhere := [place for place, fields in _places(TopologyFile, "") if plain in fields]:
        return f"unknown key `{key}`; it belongs under {' or '.join(f'`{place}`' for place in elsewhere[:3])}"
    hint = "; if it is a flag of `vllm serve`, write it under `args`" if "args" in known else ""
    return f"unknown key `{key}`{hint}; known here: {', '.join(sorted(known))}"


def _missing(path: Path, key: str) -> str:
    field = _fields(path[:-1]).get(key)
    help_text = f": {field.description}" if field is not None and field.description else ""
    example = {"pdtui": "; write `pdtui: 1` on the first line"}.get(key, "")
    where = clean_line(".".join(str(part) for part in path[:-1]))
    return f"`{key}` is missing{f' in `{where}`' if where else ''}{example or help_text}"


def _wrong(detail: ErrorDetails) -> str:
    kind, given, context = detail["type"], detail["input"], detail.get("ctx", {})
    shown = _shown(given)
    if kind in {"int_type", "int_from_float"}:
        if isinstance(given, str) and given.isdecimal():
            number = given.lstrip("0") or "0"
            return f"must be a whole number; write {number}, without quotes and leading zeros"
        return f"must be a whole number, not {shown}"
    if kind == "bool_type":
        return f"must be true or false, not {shown}"
    if kind == "string_type":
        return f"must be text, not {shown}" + ("; put it in quotes" if isinstance(given, bool) else "")
    if kind in {"list_type", "dict_type", "model_type"}:
        what = "a list, such as [a, b]" if kind == "list_type" else "a mapping, such as {key: value}"
        return f"must be {what}, not {shown}"
    if kind == "literal_error":
        allowed = str(context.get("expected", ""))
        words = [word.strip("'") for word in allowed.replace(" or ", ", ").split(", ")]
        return f"must be {allowed.replace(chr(39), '')}, not {shown}{did_you_mean(str(given).lower(), words)}"
    if kind in {"greater_than_equal", "greater_than", "less_than_equal", "less_than"}:
        bound = context.get("ge", context.get("gt", context.get("le", context.get("lt"))))
        word = "at least" if kind == "greater_than_equal" else "at most" if kind == "less_than_equal" else None
        return f"must be {word or kind.replace('_', ' ')} {bound}, not {shown}"
    if kind in {"too_short", "string_too_short"}:
        return "must not be empty"
    if kind == "string_too_long":
        return f"is too long; at most {context.get('max_length')} characters"
    if kind == "string_pattern_mismatch":
        return f"is no usable name: {shown}; use a-z, 0-9 and `-`, beginning with a letter or digit"
    if kind in {"env_value", "secret", "devices"}:
        return f"{detail['msg']}; not {shown}" if kind != "secret" else detail["msg"]
    return f"is not usable: {clean_line(detail['msg'])}"


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    text = clean_line(str(value))
    text = text if len(text) <= 40 else f"{text[:37]}..."
    return f'"{text}"' if isinstance(value, str) else text


def _fields(path: Path) -> dict[str, Any]:
    """Return the fields that the schema knows at a path."""
    shape: Any = TopologyFile
    for part in path:
        if get_origin(shape) is dict:
            shape = get_args(shape)[1]
        else:
            field = _model(shape).get(str(part))
            shape = field.annotation if field is not None else None
    return {} if get_origin(shape) is dict else _model(shape)


def _model(shape: Any) -> dict[str, Any]:
    """Return the fields of a part, also of one that may be left out."""
    for candidate in (shape, *get_args(shape)):
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            return dict(candidate.model_fields)
    return {}


def _places(shape: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every part of the schema with its path, `groups.<name>` for one of many."""
    if get_origin(shape) is dict:
        yield from _places(get_args(shape)[1], f"{path}.<name>")
        return
    fields = _model(shape)
    if fields:
        yield path or "the top level", fields
    for name, field in fields.items():
        yield from _places(field.annotation, f"{path}.{name}" if path else name)
