"""Flags of `vllm serve`: how they are written, and what contradicts the derived ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pdtui.topology.build import is_ip
from pdtui.topology.findings import Path, Problem
from pdtui.topology.model import Group, Role
from pdtui.topology.planner import listening_address, placement
from pdtui.topology.rules.proxy import WILDCARDS
from pdtui.topology.rules.registry import Context, error, info, rule, warning
from pdtui.topology.script import HOME

SOURCES = {
    "port": "api_port",
    "data-parallel-size": "dp_size",
    "data-parallel-rank": "the order of `nodes`",
    "data-parallel-address": "the node of rank 0",
    "data-parallel-rpc-port": "rpc_port",
    "tensor-parallel-size": "tp_size",
    "pipeline-parallel-size": "pp_size",
    "served-model-name": "model.served_name",
}
"""Derived flag -> what it is derived from."""


EQUAL = (
    *("quantization", "dtype", "kv-cache-dtype", "tokenizer", "tokenizer-mode", "chat-template"),
    *("hf-overrides", "revision"),
)
"""Flags that both sides need alike: one computes what the other goes on with."""


@rule("F03", "F06", "R22")
def spelling(context: Context) -> Iterator[Problem]:
    """Flags are written without dashes, once, and with values that mean what they say (F03, F06, R22)."""
    for path, args in context.levels("args"):
        seen: dict[str, str] = {}
        for key, value in args.items():
            if key.startswith("-") or not key.strip():
                message = f"write the flag without the dashes: `{key.lstrip('-')}`"
                yield error("F06", message, (*path, key), on_key=True)
            plain = key.replace("_", "-").removeprefix("no-" if isinstance(value, bool) else "")
            if plain in seen:
                message = f"`{key}` and `{seen[plain]}` are the same flag; keep one of them"
                yield error("F03", message, (*path, key), on_key=True)
            seen[plain] = key
            yield from _value((*path, key), key, value)


def _value(path: Path, key: str, value: Any) -> Iterator[Problem]:
    if isinstance(value, str) and value.lower() in {"yes", "no", "on", "off"}:
        word = "true" if value.lower() in {"yes", "on"} else "false"
        yield warning("F06", f"`{value}` is passed on as text; for a switch write {word}", path)
    if isinstance(value, str) and value.startswith(HOME):
        message = f"`{value}` is passed on as written: ~/ is the home in model.path only; write the whole path"
        yield warning("F06", message, path)
    if isinstance(value, str) and key.endswith("-config") and value.lstrip().startswith(("{", "[")):
        try:
            json.loads(value)
        except json.JSONDecodeError as problem:
            message = f"no valid JSON at character {problem.pos + 1}: {problem.msg}; write a YAML mapping instead"
            yield error("R22", message, path)
        except RecursionError:
            yield error("R22", "no usable JSON: nested too deeply", path)


@rule("F11", "R44", "T10")
def overrides(context: Context) -> Iterator[Problem]:
    """A flag that pdtui derives is not contradicted (F11, R44)."""
    for group in context.topology.groups.values():
        for key, source in SOURCES.items():
            if key not in group.args:
                continue
            if context.topology.is_apart(group) and key.startswith("data-parallel"):
                continue
            yield from _override(context, group, key, source)
        for key in group.args:
            if key.partition(".")[0] == "kv-transfer-config":  # vLLM takes `--kv-transfer-config.KEY`, too.
                where = context.where(group, "args", key)
                message = "write KV transfer settings under `kv:`, the rest of it is derived"
                yield error("F11", message, where, on_key=True)
        if "data-parallel-size-local" in group.args and group.args["data-parallel-size-local"] != 1:
            where = context.where(group, "args", "data-parallel-size-local")
            yield error("T10", "with one server a rank this must be 1 or absent; delete it", where)


def _override(context: Context, group: Group, key: str, source: str) -> Iterator[Problem]:
    said, where = group.args[key], context.where(group, "args", key)
    derived = _derived(context, group, key)
    if said is not None and {str(value) for value in derived} == {str(said)}:
        yield info("F11", f"`{key}` follows from {source} anyway; delete it", where, on_key=True)
        return
    rule_id = "R44" if key == "served-model-name" else "F11"
    values = " / ".join(dict.fromkeys(str(value) for value in derived[:3]))
    shown = "removed" if said is None else str(said)
    message = f"`{key}` {shown} contradicts {source} of {group.name}, from which {values} follows; delete it here"
    yield error(rule_id, message, where)


def _derived(context: Context, group: Group, key: str) -> list[Any]:
    if key == "port":
        return [group.api_port + local_rank for _, _, local_rank in placement(group)]
    if key == "data-parallel-rank":
        return [dp_rank for _, dp_rank, _ in placement(group)]
    values: dict[str, Any] = {
        "data-parallel-size": group.dp_size,
        "data-parallel-address": group.dp_address,
        "data-parallel-rpc-port": group.rpc_port,
        "tensor-parallel-size": group.tp_size,
        "pipeline-parallel-size": group.pp_size,
        "served-model-name": context.topology.model.served_name,
    }
    return [values[key]]


@rule("X5")
def listening(context: Context) -> Iterator[Problem]:
    """Ranks listen where the proxy can reach them (X5)."""
    for group in context.topology.groups.values():
        host = group.args.get("host")
        nodes = [context.topology.nodes[node] for node in group.nodes]
        if all(listening_address(context.topology, node) == host for node in nodes):
            continue
        elsewhere = [node for node in nodes if is_ip(str(host)) and host not in {*WILDCARDS, node.address}]
        if host in {"localhost", "127.0.0.1", "::1"}:
            message = f"ranks of {group.name} would listen on {host} only, where the proxy cannot reach them"
            yield error("X5", message, context.where(group, "args", "host"))
        elif elsewhere:
            message = f"{host} is no address of {elsewhere[0].name}, {elsewhere[0].address}: ranks of {group.name}"
            yield error("X5", f"{message} could not listen there; delete it", context.where(group, "args", "host"))


@rule("R45", "R46")
def same_on_both_sides(context: Context) -> Iterator[Problem]:
    """What must be equal on prefill and decode is (R45, R46)."""
    groups = [group for role in Role for group in context.groups(role)]
    for key in EQUAL if context.topology.has_npus else (*EQUAL, "block-size"):  # There K22 looks at blocks.
        values = {str(group.args.get(key, "not set")): group for group in groups}
        if len(values) > 1:
            (one, first), (other, second), *_ = values.items()
            message = f"`{key}` is {one} in {first.name} and {other} in {second.name}; it must be equal everywhere"
            yield warning("R45", message, context.where(second, "args", key))
    for prefill in context.groups(Role.PREFILL):
        for decode in context.groups(Role.DECODE):
            long, short = prefill.args.get("max-model-len"), decode.args.get("max-model-len")
            if isinstance(long, int) and isinstance(short, int) and short < long:
                message = (
                    f"max-model-len of {decode.name} is {short}, of {prefill.name} {long}: decode would refuse "
                    "what prefill has already computed"
                )
                yield warning("R46", message, context.where(decode, "args", "max-model-len"))
                return
