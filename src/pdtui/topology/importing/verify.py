"""The draft's own plan against what was seen: whatever differs is told, so that nothing changes in silence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pdtui.topology.importing import tolerant
from pdtui.topology.importing.groups import Formed
from pdtui.topology.importing.observed import Origin, Said, serve_command
from pdtui.topology.importing.places import HELPERS
from pdtui.topology.importing.ranks import Rank, is_placeholder
from pdtui.topology.importing.report import Kind, Note, note
from pdtui.topology.model import Topology
from pdtui.topology.plan import RankPlan
from pdtui.topology.planner import make_plan
from pdtui.topology.redact import is_secret, redacted_text

_TRANSFER = "kv-transfer-config"
_SAID_ELSEWHERE = frozenset(
    {
        *("VLLM_DP_SIZE", "VLLM_DP_RANK", "VLLM_DP_MASTER_IP", "VLLM_DP_MASTER_PORT", "VLLM_DP_RANK_LOCAL"),
        *("VLLM_DP_SIZE_LOCAL", "VLLM_ASCEND_EXTERNAL_DP_LB_ENABLED", "data-parallel-size-local"),
        *("data-parallel-start-rank", "data-parallel-external-lb", "api-key"),
    }
)
"""What a translation of its own tells."""


def differences(topology: Topology, groups: Sequence[Formed], known: Sequence[Note]) -> Iterator[Note]:
    """Yield what the plan of a draft makes run otherwise, once for each name and group."""
    plan = make_plan(topology).by_id
    told = " ".join(found.message for found in known if found.kind is Kind.CONTRADICTION)
    for group in groups:
        added: dict[str, str] = {}
        seen: set[str] = set()
        for rank in group.ranks:
            planned = plan.get(f"{group.name}/{rank.dp_rank}")
            if planned is None or rank.command.is_fragment:
                continue
            script, draft = _script(rank), _plan(planned)
            for name, (value, shown) in draft.items():
                if name not in script:
                    added.setdefault(name, shown)
                elif script[name][0] != value and name not in seen and f"{name} " not in told:
                    seen.add(name)
                    message = (
                        f"{name} of {planned.id} is {_short(script[name][1])} there, {_short(shown)} in the draft"
                    )
                    yield note(Kind.CONTRADICTION, message, _place(rank, name), path=f"groups.{group.name}")
            gone = [name for name in script if name not in draft and not _is_told(name)]
            for name in gone:
                if name not in seen:
                    seen.add(name)
                    message = f"{name} of {planned.id} is not in the draft"
                    yield note(Kind.TRANSLATION, message, _place(rank, name), path=f"groups.{group.name}")
        if added:
            names = ", ".join(added)
            message = f"the draft adds what the scripts do not set: {names}"
            yield note(Kind.TRANSLATION, message)


def _is_told(name: str) -> bool:
    return name.lstrip("-") in _SAID_ELSEWHERE or name.lower() in HELPERS


def _short(text: str) -> str:
    shown = redacted_text(text)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _place(rank: Rank, name: str) -> Origin:
    said = rank.command.flags.get(name.removeprefix("--")) or rank.command.env.get(name)
    return said.origin if said is not None else rank.origin


def _script(rank: Rank) -> dict[str, tuple[Any, str]]:
    """Return what a command sets: flag or variable -> (its meaning, its text)."""
    found = _flags(rank.command.flags)
    for name, said in rank.command.env.items():
        if not (said.unknown or said.prepended or is_placeholder(said.text) or is_secret(name)):
            found[name] = (said.text, said.text)
    return found


def _plan(rank: RankPlan) -> dict[str, tuple[Any, str]]:
    here = Origin("")
    command = serve_command([Said(word, here) for word in rank.argv[2:]], {}, host="", origin=here)
    found = _flags(command.flags)
    found |= {name: (value, value) for name, value in rank.env.items() if "$" not in value}
    return found


def _flags(flags: Mapping[str, Said]) -> dict[str, tuple[Any, str]]:
    found: dict[str, tuple[Any, str]] = {}
    for name, said in flags.items():
        if said.unknown:
            continue
        if said.value is True and name.startswith("no-"):
            found[f"--{name[3:]}"] = (False, "off")
        elif name == _TRANSFER:
            found |= _transfer(said)
        else:
            found[f"--{name}"] = (_meaning(said), said.text or "on")
    return found


def _meaning(said: Said) -> Any:
    if isinstance(said.value, str) and said.value.lstrip().startswith(("{", "[")):
        read = tolerant.read(said.value)
        return read.value if read is not None else said.value
    return said.value


def _transfer(said: Said) -> dict[str, tuple[Any, str]]:
    """Return the keys of --kv-transfer-config, each by itself."""
    read = tolerant.read(said.text)
    value = read.value if read is not None else None
    if not isinstance(value, dict):
        return {}
    extra = value.get("kv_connector_extra_config")
    keys = {key: item for key, item in value.items() if key != "kv_connector_extra_config"}
    found = {key: (str(item) if key == "kv_port" else item, str(item)) for key, item in keys.items()}
    if isinstance(extra, dict):
        found |= {f"kv_connector_extra_config.{key}": (item, str(item)) for key, item in extra.items()}
    return found
