"""Secrets: by reference, never in the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pdtui.topology.findings import Path, Problem
from pdtui.topology.redact import is_secret, redacted_text
from pdtui.topology.reference import API_KEY_FLAG, API_KEY_VARIABLE, is_reference, refers
from pdtui.topology.rules.registry import Context, error, rule, warning
from pdtui.topology.schema import KvPart

_UNREAD = (
    "a secret that is referred to here would not be looked up, and flags are shown by `ps`; only variables and "
    "api-key, with one value, can refer to one"
)

_REMEDY = "write {file: PATH} or {from_env: NAME}"


@rule("V13")
def written(context: Context) -> Iterator[Problem]:
    """No secret stands in the file for all to read (V13)."""
    for path, env in context.levels("env"):
        for key, value in env.items():
            text = value.get("prepend", "") if isinstance(value, dict) else value
            if not isinstance(text, str) or not text:
                continue
            if is_secret(key) and not refers(text):
                message = f"the value of {key} stands in the file for all to read; {_REMEDY}"
                yield warning("V13", message, (*path, key), on_key=True)
            elif redacted_text(text) != text:
                message = f"{key} holds what looks like a password or token for all to read; {_REMEDY}"
                yield warning("V13", message, (*path, key), on_key=True)
    for path, args in context.levels("args"):
        for key, value in args.items():
            if any(_is_in(value, key.replace("-", "_"))):
                yield warning(
                    "V13", f"`{key}` holds a secret for all to read; {_remedy(key)}", (*path, key), on_key=True
                )
    yield from _elsewhere(context)


def _remedy(flag: str) -> str:
    if flag.replace("_", "-") == API_KEY_FLAG:
        return f"{_REMEDY}, and ranks get it as {API_KEY_VARIABLE}"
    return "flags are shown by `ps`, too: take a variable, with {file: PATH} or {from_env: NAME}"


def _elsewhere(context: Context) -> Iterator[Problem]:
    for path, table in _kv_tables(context):
        for key, value in table.items():
            if any(_is_in(value, key)):
                message = f"`{key}` holds a secret for all to read, and so would the command line of each rank"
                yield warning("V13", message, (*path, key), on_key=True)
    for index, option in enumerate(context.file.runtime.options):
        name, equals, value = option.removeprefix("--env=").removeprefix("-e").strip().partition("=")
        if (equals and value and is_secret(name)) or redacted_text(option) != option:
            message = f"a secret for all to read, here and in `docker inspect`; {_REMEDY} under `env`"
            yield warning("V13", message, ("runtime", "options", index))


def _kv_tables(context: Context) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield (path, entries) of every `config` and `extra` of a `kv` and of its stores."""
    file = context.file
    parts: list[tuple[Path, KvPart | None]] = [(("kv",), file.kv)]
    parts += [(("roles", role, "kv"), getattr(file.roles, role).kv) for role in ("prefill", "decode")]
    parts += [(("groups", name, "kv"), group.kv) for name, group in file.groups.items()]
    for path, kv in parts:
        if kv is not None:
            yield (*path, "config"), kv.config
            yield (*path, "extra"), kv.extra
            for name, store in kv.stores.items():
                if store is not None:
                    yield (*path, "stores", name, "config"), store.config
                    yield (*path, "stores", name, "extra"), store.extra


def _is_in(value: Any, key: str) -> Iterator[bool]:
    """Yield True for each secret in a value, however deep."""
    if isinstance(value, dict):
        if not is_reference(value):
            for name, inner in value.items():
                yield from _is_in(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _is_in(inner, key)
    elif isinstance(value, str) and value and (is_secret(key) or redacted_text(value) != value):
        yield True


def _is_unread(value: Any, key: str) -> Iterator[bool]:
    """Yield True for each reference to a secret that nothing would look up."""
    if isinstance(value, dict):
        if is_reference(value) and is_secret(key):
            yield True
        for name, inner in value.items():
            yield from _is_unread(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _is_unread(inner, key)


@rule("F03", "F09")
def references(context: Context) -> Iterator[Problem]:
    """References stand where they can be looked up (F09), and the key for clients is said once (F03)."""
    for path, args in context.levels("args"):
        for key, value in args.items():
            is_whole = is_reference(value)
            if (is_whole and key.replace("_", "-") != API_KEY_FLAG) or (
                not is_whole and any(_is_unread(value, key.replace("-", "_")))
            ):
                yield error("F09", f"`{key}`: {_UNREAD}", (*path, key))
    for path, table in _kv_tables(context):
        for key, value in table.items():
            if any(_is_unread(value, key)):
                yield error("F09", f"`{key}`: {_UNREAD}", (*path, key))
    for group in context.topology.groups.values():
        flag = context.where(group, "args", API_KEY_FLAG)
        variable = context.where(group, "env", API_KEY_VARIABLE)
        if flag[-1] != group.name and variable[-1] != group.name:
            message = (
                f"`{API_KEY_FLAG}` and {API_KEY_VARIABLE} of {group.name} are the same thing; keep one of them"
            )
            yield error("F03", message, variable, on_key=True)
