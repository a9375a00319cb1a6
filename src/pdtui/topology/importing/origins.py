"""Where each value of a draft comes from: the file and line, or the process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pdtui.topology.importing.draft import flow
from pdtui.topology.importing.levels import Level, Levels
from pdtui.topology.importing.observed import Origin
from pdtui.topology.importing.ranks import NIC_VARIABLES
from pdtui.topology.importing.report import Kind, Note, note
from pdtui.topology.importing.work import Work
from pdtui.topology.redact import HIDDEN, is_secret, redacted_text
from pdtui.topology.reference import is_reference

_NUMBERS = {
    "dp_size": "data-parallel-size",
    "tp_size": "tensor-parallel-size",
    "pp_size": "pipeline-parallel-size",
    "api_port": "port",
    "rpc_port": "data-parallel-rpc-port",
    "kv_port": "kv-transfer-config",
}
"""Key of a group -> the flag that says it."""

_LONGEST = 60


def origins(work: Work, levels: Levels, groups: dict[str, dict[str, Any]]) -> Iterator[Note]:
    """Yield one note for each value that a script or a process says."""
    model = next((rank.model for rank in work.ranks if rank.model is not None), None)
    served = next((rank.served for rank in work.ranks if rank.served is not None), None)
    for path, said in (("model.path", model), ("model.served_name", served)):
        if said is not None:
            yield _of(path, said.text, said.origin)
    for place in work.places.values():
        ranks = [rank for rank in work.ranks if work.places[rank.host] is place]
        said = next((env for rank in ranks for name in NIC_VARIABLES if (env := rank.command.env.get(name))), None)
        if said is not None and place.nic:
            yield _of(f"nodes.{place.name}.nic", place.nic, said.origin)
    yield from _level("", levels.defaults)
    for role, level in levels.roles.items():
        yield from _level(f"roles.{role.value}.", level)
    for group in work.groups:
        for key, flag in _NUMBERS.items():
            if flag in group.first.command.flags and key in groups[group.name]:
                yield _of(f"groups.{group.name}.{key}", groups[group.name][key], group.first.place(flag))
        yield from _level(f"groups.{group.name}.", levels.groups[group.name])


def _level(prefix: str, level: Level) -> Iterator[Note]:
    for kind in ("env", "args"):
        for name, said in getattr(level, kind).items():
            yield _of(f"{prefix or 'defaults.'}{kind}.{name}", said.value, said.origin)
    for kind in ("config", "extra"):
        for name, said in getattr(level, kind).items():
            yield _of(f"{prefix}kv.{kind}.{name}", said.value, said.origin)


def _of(path: str, value: Any, origin: Origin) -> Note:
    hidden = is_secret(path.rpartition(".")[2]) and not is_reference(value)
    text = HIDDEN if hidden else redacted_text(flow(value))
    shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return note(Kind.ORIGIN, f"{path}: {shown}", origin, path=path)
