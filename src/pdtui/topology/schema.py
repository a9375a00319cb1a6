"""The shape of a topology file: what may be written where, with the help that editors show.

Only shape. What the values mean together is checked in `rules`; the resolved model is in `model`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

NAME_PATTERN = r"^[a-z0-9][a-z0-9-]*$"


def _as_written(value: Any) -> Any:
    """Take an unquoted number for the text that it was written as: `0.10` stays `0.10`."""
    return getattr(value, "text", value)


def _env_value(value: Any) -> str | dict[str, str] | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict) and len(value) == 1:
        (key, text), *_ = value.items()
        if key in {"prepend", "from_env", "file"} and isinstance(text, str) and text:
            return {key: text}
    if isinstance(value, (int, float)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    raise PydanticCustomError("env_value", "must be text, null, {prepend: TEXT}, {from_env: NAME} or {file: PATH}")


def _secret(value: Any) -> dict[str, str]:
    if isinstance(value, dict) and len(value) == 1:
        (key, text), *_ = value.items()
        if key in {"file", "from_env"} and isinstance(text, str) and text:
            return {key: text}
    raise PydanticCustomError(
        "secret", "must be a reference, {file: PATH} or {from_env: NAME}: secrets never stand in this file"
    )


def _devices(value: Any) -> tuple[int, ...]:
    """Read NPU ids: `[0, 1, 2]`, `0-7`, `0-3,8-11` or a list of both."""
    ids: list[int] = []
    for part in value if isinstance(value, list) else str(value).split(","):
        first, dash, last = str(part).strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or len(first) > 4 or len(last) > 4:
            raise PydanticCustomError("devices", "must be NPU ids, such as [0, 1, 2, 3] or 0-7")
        ids.extend(range(int(first), int(last or first) + 1))
    return tuple(ids)


def _group_devices(value: Any) -> tuple[int, ...] | dict[str, tuple[int, ...]]:
    if isinstance(value, dict):
        return {node: _devices(ids) for node, ids in value.items()}
    return _devices(value)


def _layers(value: Any) -> str:
    """Read the layers of each stage: `31,30` or `[31, 30]`."""
    parts = value if isinstance(value, list) else str(_as_written(value)).split(",")
    texts = [str(part).strip() for part in parts]
    if not texts or not all(text.isdecimal() and len(text) < 5 and int(text) for text in texts):
        raise PydanticCustomError("layers", "must be the number of layers of each stage, such as 31,30")
    return ",".join(texts)


_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}


def _seconds(value: Any) -> Any:
    """Read a duration: a number of seconds, or text such as `500ms`, `2s`, `40min`, `1h`."""
    number = getattr(value, "text", value)
    if isinstance(number, str):
        match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?) ?(ms|s|min|h)?", number)
        if match is not None:
            return float(match[1]) * _UNITS[match[2] or "s"]
    elif isinstance(number, int | float) and not isinstance(number, bool):
        return float(number)
    raise PydanticCustomError("duration", "must be seconds or a duration, such as 2s or 40min")


_SECONDS_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^[0-9]{1,6}(\.[0-9]{1,3})? ?(ms|s|min|h)?$"},
    ]
}
_SECRET_SCHEMA: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "additionalProperties": False,
    "properties": {"file": {"type": "string"}, "from_env": {"type": "string"}},
}
_ENV_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": ["string", "number", "boolean", "null"]},
        {
            "type": "object",
            "minProperties": 1,
            "maxProperties": 1,
            "additionalProperties": False,
            "properties": {name: {"type": "string"} for name in ("prepend", "from_env", "file")},
        },
    ]
}
_DEVICES_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "pattern": "^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$"},
        {"type": "array", "items": {"type": ["integer", "string"]}},
    ]
}
_LAYERS_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"type": "string", "pattern": "^ *[0-9]{1,4} *(, *[0-9]{1,4} *)*$"},
        {"type": "integer", "minimum": 1},
        {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1},
    ]
}
_GROUP_DEVICES_SCHEMA: dict[str, Any] = {
    "anyOf": [*_DEVICES_SCHEMA["anyOf"], {"type": "object", "additionalProperties": _DEVICES_SCHEMA}]
}

Text = Annotated[str, BeforeValidator(_as_written), Field(min_length=1)]
Name = Annotated[str, BeforeValidator(_as_written), Field(pattern=NAME_PATTERN, max_length=63)]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, BeforeValidator(_seconds), WithJsonSchema(_SECONDS_SCHEMA)]
Size = Annotated[int, Field(ge=1, le=4096)]
EnvValue = Annotated[Any, PlainValidator(_env_value), WithJsonSchema(_ENV_SCHEMA)]
Secret = Annotated[dict[str, str], PlainValidator(_secret), WithJsonSchema(_SECRET_SCHEMA)]
GroupDevices = Annotated[Any, PlainValidator(_group_devices), WithJsonSchema(_GROUP_DEVICES_SCHEMA)]
Layers = Annotated[Any, PlainValidator(_layers), WithJsonSchema(_LAYERS_SCHEMA)]


class Part(BaseModel):
    """Base of all parts of the file: unknown keys are errors, nothing is converted in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SshPart(Part):
    """How SSH reaches nodes; what is left out comes from ~/.ssh/config."""

    user: Text | None = Field(default=None, description="Login name.")
    port: Port | None = Field(default=None, description="TCP port of the SSH server.")
    key: Text | None = Field(default=None, description="Private key file; ~ is your home, relative to this file.")
    jump: Text | None = Field(default=None, description="Jump host, [user@]host[:port].")
    known_hosts: Text | None = Field(
        default=None, description="File of known host keys instead of ~/.ssh/known_hosts."
    )
    config: Text | None = Field(default=None, description="SSH client configuration instead of ~/.ssh/config.")
    sudo: bool | None = Field(default=None, description="Run the agent through `sudo -n`.")
    connect_timeout: float | None = Field(
        default=None, gt=0, le=600, strict=False, description="Seconds, default 10."
    )


class SafetyPart(Part):
    """What needs a second thought."""

    protected: bool = Field(default=False, description="Group-wide actions ask for the cluster's name.")
    read_only: bool = Field(default=False, description="Nothing on the cluster can be changed.")


class StartPart(Part):
    """How ranks are started."""

    stagger: Seconds = Field(
        default=0.5,
        ge=0,
        le=60,
        description="Time between starts of two ranks of a node: ranks that probe for ports at once collide.",
    )
    deadline: Seconds = Field(
        default=3600.0, gt=0, le=86400, description="How long a rank may take until it is ready."
    )
    warm_up: bool = Field(
        default=True, description="Send each rank a short completion before it takes requests from the proxy."
    )


class RuntimePart(Part):
    """Where ranks run on a node; leave it out to run on the hosts themselves."""

    container: Text | None = Field(default=None, description="Name of the container in which ranks run.")
    exec: list[Text] = Field(
        default_factory=lambda: ["docker", "exec", "-i"],
        min_length=1,
        description="Words before the container's name that run a command in it; {id}: a word used once.",
    )
    setup: list[Text] = Field(
        default_factory=list, description="Scripts sourced before a rank starts; ~/ is the home where ranks run."
    )
    state_dir: Text | None = Field(
        default=None,
        description="Folder of ranks' records and logs; in a container it must be a mount of the host.",
    )
    image: Text | None = Field(default=None, description="Image of the container.")
    shm_size: Text | None = Field(default=None, description="Size of the container's /dev/shm, such as 1g.")
    devices: list[Text] = Field(default_factory=list, description="Device files besides the NPUs' own.")
    mounts: list[Text] = Field(default_factory=list, description="host-path:container-path[:options]")
    options: list[Text] = Field(default_factory=list, description="Further words for `docker run`.")


class ModelPart(Part):
    """The model that is served."""

    path: Text = Field(description="Path of the weights where ranks run (~/: the home there), or a model id.")
    served_name: Text = Field(description="The name that clients use (--served-model-name).")
    kind: Literal["moe", "dense"] = Field(
        default="moe", description="moe: the ranks of a group live and die together; dense: independent instances."
    )


class StorePart(Part):
    """A connector beside the one that carries KV: a KV pool, or memory of the host."""

    extra: dict[str, Any] = Field(
        default_factory=dict,
        description="Keys of its kv_connector_extra_config, such as backend; lookup_rpc_port is derived.",
    )
    config: dict[str, Any] = Field(
        default_factory=dict, description="Keys of its entry in MultiConnector's list; kv_role is derived."
    )


class KvPart(Part):
    """The KV transfer between prefill and decode."""

    connector: Text | None = Field(
        default=None,
        description="The connector that carries KV from prefill to decode: MooncakeConnectorV1 or "
        "MooncakeHybridConnector (pull), MooncakeLayerwiseConnector or SfaRemoteD2HConnector (layerwise); "
        "NixlConnector on cpu.",
    )
    stores: dict[str, StorePart | None] = Field(
        default_factory=dict,
        description="KV pools and other connectors beside it, by name, such as {AscendStoreConnector: {extra: "
        "{backend: memcache}}}: ranks then run MultiConnector with all of them; null leaves an inherited one out.",
    )
    config: dict[str, Any] = Field(
        default_factory=dict, description="Keys to add to --kv-transfer-config, at its top level."
    )
    extra: dict[str, Any] = Field(
        default_factory=dict,
        description="Keys to add to kv_connector_extra_config of the connector that carries KV.",
    )


class NodePart(Part):
    """One server."""

    host: Text = Field(description="What SSH connects to; `local` is this machine, without SSH.")
    address: Text | None = Field(
        default=None, description="IP address that the cluster uses; default: host, if an IP."
    )
    nic: Text | None = Field(default=None, description="Network interface that owns the address.")
    ssh: SshPart | None = Field(default=None, description="What differs from the file's `ssh` for this node.")


class RankPart(Part):
    """What ranks are started with; levels override key by key."""

    env: dict[str, EnvValue] = Field(
        default_factory=dict,
        description="Environment, as text; {prepend: X} puts X before the node's value, {file: PATH} and "
        "{from_env: NAME} are read where the rank starts; null removes a variable.",
    )
    args: dict[str, Any] = Field(
        default_factory=dict, description="`vllm serve` flags without the dashes; null removes an inherited one."
    )


class RolePart(RankPart):
    """What all groups of a role share."""

    kv: KvPart | None = Field(default=None, description="KV transfer settings of this role.")


class RolesPart(Part):
    """Settings by role."""

    prefill: RolePart = Field(default_factory=RolePart, description="All prefill groups.")
    decode: RolePart = Field(default_factory=RolePart, description="All decode groups.")


class GroupPart(RankPart):
    """One DP group: the ranks that share --data-parallel-size, address and RPC port."""

    role: Literal["prefill", "decode"] = Field(description="What the group does with a request.")
    nodes: list[Text] = Field(min_length=1, description="Where its ranks run, in the order of their numbers.")
    dp_size: Size = Field(description="Ranks of the group.")
    tp_size: Size = Field(default=1, description="Tensor parallel size.")
    pp_size: Size = Field(default=1, description="Pipeline parallel size; prefill only.")
    pp_layer_partition: Layers | None = Field(
        default=None, description="Layers of each pipeline stage, such as 31,30; without it vLLM spreads them."
    )
    api_port: Port = Field(description="HTTP port of the first rank on each node; the others count up.")
    rpc_port: Port | None = Field(
        default=None, description="Where the group meets, on the node of rank 0. MoE of several ranks only."
    )
    kv_port: Port = Field(description="First port of the KV handshake; the ranks' ports follow from it.")
    ranks: dict[str, Size] | None = Field(default=None, description="Ranks on each node, when they are not equal.")
    devices: GroupDevices = Field(
        default=None, description="NPU ids the group may use, as a list or 0-7, for all nodes or by node."
    )
    dp_address: Text | None = Field(default=None, description="Overrides the derived address of rank 0's node.")
    kv: KvPart | None = Field(default=None, description="KV transfer settings of this group.")


class ProxyPart(Part):
    """The HTTP server that clients talk to."""

    node: Text = Field(description="The node on which it runs.")
    listen: Text = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0 for all.")
    advertise: Text | None = Field(
        default=None, description="Address under which clients and decode nodes reach it; default: the node's."
    )
    port: Port = Field(default=1999, description="TCP port.")
    kind: Literal["pdtui", "reference", "external"] = Field(
        default="pdtui", description="pdtui: ours; reference: vllm-ascend's script; external: only watched."
    )
    api_key: Secret | None = Field(default=None, description="Key that clients must send; by reference only.")


class WorkloadPart(Part):
    """What the cluster is for; used for advice only."""

    input_tokens: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Mean prompt length.")
    output_tokens: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Mean answer length.")
    context_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Longest prompt and answer."
    )
    concurrency: Annotated[int, Field(ge=1)] | None = Field(default=None, description="Requests at once.")


class TopologyFile(Part):
    """A prefill/decode cluster of vLLM-Ascend, for pdtui."""

    pdtui: Literal[1] = Field(description="Format of this file.")
    name: Name = Field(description="Name of the cluster.")
    platform: Literal["a2", "a3", "a5", "cpu"] = Field(description="Generation of the servers; cpu: no NPUs.")
    vllm_ascend: Text | None = Field(
        default=None, description="Version of vllm-ascend; rules and port formulas depend on it. Not on cpu."
    )
    vllm: Text | None = Field(default=None, description="Version of vLLM, on platform cpu instead of vllm_ascend.")
    ssh: SshPart = Field(default_factory=SshPart, description="How SSH reaches the nodes.")
    safety: SafetyPart = Field(default_factory=SafetyPart, description="What needs a second thought.")
    start: StartPart = Field(default_factory=StartPart, description="How ranks are started.")
    runtime: RuntimePart = Field(default_factory=RuntimePart, description="Where ranks run on a node.")
    model: ModelPart = Field(description="The model that is served.")
    kv: KvPart = Field(description="The KV transfer; the flow follows from the connector.")
    nodes: dict[Name, NodePart] = Field(min_length=1, description="The servers.")
    defaults: RankPart = Field(default_factory=RankPart, description="What every rank gets.")
    roles: RolesPart = Field(default_factory=RolesPart, description="What the ranks of a role get.")
    groups: dict[Name, GroupPart] = Field(min_length=1, description="The DP groups.")
    proxy: ProxyPart | None = Field(default=None, description="The HTTP server that clients talk to.")
    workload: WorkloadPart | None = Field(default=None, description="What the cluster is for.")
    accept: dict[str, Text] = Field(default_factory=dict, description="Accepted warnings: rule id and reason.")


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a topology file."""
    schema = TopologyFile.model_json_schema(mode="validation")
    engine = {
        "if": {"required": ["platform"], "properties": {"platform": {"const": "cpu"}}},
        "then": {"required": ["vllm"], "properties": {"vllm_ascend": False}},
        "else": {"required": ["vllm_ascend"], "properties": {"vllm": False}},
    }
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {**head, **schema, **engine, "title": "pdtui topology"}
