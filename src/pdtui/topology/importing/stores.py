"""MultiConnector taken apart: the connector that carries KV across the roles, and the stores beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pdtui.topology.build import ASCEND_STORE, FLOWS, GONE_CONNECTORS, MULTI, SFA_REMOTE, STORES

_EXTRA = "kv_connector_extra_config"
_NAMES = {"MooncakeConnectorStoreV1": ASCEND_STORE}
"""Names of stores that have another one today."""


@dataclass(frozen=True, slots=True)
class Apart:
    """A `--kv-transfer-config` as that of one connector, and its stores by name."""

    config: dict[str, Any]
    stores: Mapping[str, dict[str, Any]]
    """What a topology says of each: `config` and `extra`, where there is any."""
    odd: Sequence[str]
    """What of it no topology can say."""


def take_apart(found: Mapping[str, Any]) -> Apart:
    """Return a configuration without MultiConnector; one that is none, or carries nothing, as it is."""
    children = _children(found)
    carriers = [child for child in children if str(child.get("kv_connector")) in FLOWS]
    if not carriers:
        return Apart(dict(found), {}, ())
    carrier = carriers[0]
    top = {key: value for key, value in found.items() if key not in ("kv_connector", _EXTRA, "kv_port")}
    config = {**top, "kv_connector": carrier["kv_connector"]}
    config |= {key: carrier[key] for key in ("kv_port", _EXTRA) if key in carrier}
    role = config.setdefault("kv_role", carrier.get("kv_role"))
    odd = [f"`{key}` of {carrier['kv_connector']}" for key in _further(carrier)]
    odd += [str(child["kv_connector"]) for child in carriers[1:]]
    stores: dict[str, dict[str, Any]] = {}
    for child in children:
        name = str(child.get("kv_connector"))
        name = _NAMES.get(name, name)
        if name in STORES:
            stores[name] = _store(child, role, carrier.get("kv_port"))
        elif name not in FLOWS:
            odd.append(f"{name}{f': {GONE_CONNECTORS[name]}' if name in GONE_CONNECTORS else ''}")
    if children[0] is not carrier:
        odd.append(f"the order: {carrier['kv_connector']} comes first")
    return Apart(config, stores, odd)


def connector_of(found: Any) -> str:
    """Return the connector that carries KV across the roles; empty where nothing does."""
    return str(take_apart(found).config.get("kv_connector") or "") if isinstance(found, dict) else ""


def without_derived(extra: Mapping[str, Any], connector: str) -> dict[str, Any]:
    """Return a connector's extra keys without the one that a topology derives."""
    own = {"transfer_backend": "memfabric"} if connector == SFA_REMOTE else {}
    return {key: value for key, value in extra.items() if own.get(key) != value or key not in own}


def without_pipeline(stores: Mapping[str, Any], pp_size: int, layers: str) -> dict[str, Any]:
    """Return what is said of stores without the stages of prefill, which follow from its group."""
    derived = {"prefill_pp_size": str(pp_size), "prefill_pp_layer_partition": layers.replace(" ", "")}
    result = {}
    for name, said in stores.items():
        extra = {
            key: value
            for key, value in said.get("extra", {}).items()
            if key not in derived or str(value).replace(" ", "") != derived[key]
        }
        rest = {key: value for key, value in said.items() if key != "extra"}
        result[name] = rest | ({"extra": extra} if extra else {})
    return result


def _children(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    extra = found.get(_EXTRA)
    if found.get("kv_connector") != MULTI or not isinstance(extra, Mapping):
        return []
    children = extra.get("connectors")
    return [child for child in children if isinstance(child, dict)] if isinstance(children, list) else []


def _further(carrier: Mapping[str, Any]) -> list[str]:
    return [key for key in carrier if key not in ("kv_connector", "kv_role", "kv_port", _EXTRA)]


def _store(child: Mapping[str, Any], role: Any, kv_port: Any) -> dict[str, Any]:
    config = {key: value for key, value in child.items() if key not in ("kv_connector", _EXTRA)}
    if config.get("kv_role") == role:
        del config["kv_role"]
    found = child.get(_EXTRA)
    extra = dict(found) if isinstance(found, dict) else {}
    if str(extra.get("lookup_rpc_port", "")) == str(kv_port):
        del extra["lookup_rpc_port"]
    return {key: value for key, value in (("config", config), ("extra", extra)) if value}
