"""The user's topology file as the simulator reads it, and the file that it writes in its place.

The YAML tree is changed and written back, never loaded into values, so that text such as `false` or `010` in
an environment stays as it was written. Comments go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from pdtui.errors import FileError, SimulationError
from pdtui.sim.npus import HARDWARE, SimPlatform

LOCAL = "local"
"""A node's host in the file when it is the machine of whoever reads it."""
_OWN_NETWORK = "198.19"
"""Where nodes live whose own address is none among machines: the other half of the range for tests (RFC 2544)."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the file says that a node is."""

    host: str
    """How SSH reaches it."""
    address: str
    nic: str


@dataclass(frozen=True, slots=True)
class SimulatedNode:
    """What replaces one node of the file."""

    host: str
    address: str
    port: int
    """Of its SSH server."""
    nic: str = ""
    """In place of the file's; empty: that one stays."""


@dataclass(frozen=True, slots=True)
class Replacements:
    """What replaces the places of the file that name real machines."""

    nodes: Mapping[str, SimulatedNode]
    user: str
    key: Path
    known_hosts: Path
    config: Path
    state_dir: str
    model_path: str
    setup: Sequence[str]


class TopologyFile:
    """One topology file. Raises `FileError` when it is no YAML mapping with nodes and groups."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            tree = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        except OSError as error:
            raise FileError(f"{path}: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise FileError(f"{path}: no YAML: {error}") from error
        if not isinstance(tree, yaml.MappingNode):
            raise FileError(f"{path}: a topology file is a mapping")
        self._tree = tree
        nodes = self._part("nodes")
        if nodes is None or not nodes.value:
            raise FileError(f"{path}: no nodes in this file")
        self._nodes = nodes
        self.nodes: tuple[str, ...] = tuple(key.value for key, _ in nodes.value)

    def _part(self, name: str) -> yaml.MappingNode | None:
        value = _get(self._tree, name)
        return value if isinstance(value, yaml.MappingNode) else None

    def _text(self, part: str, key: str, default: str = "") -> str:
        holder = self._part(part)
        value = _get(holder, key) if holder is not None else None
        return value.value if isinstance(value, yaml.ScalarNode) else default

    def _texts(self, part: str, key: str) -> tuple[str, ...]:
        holder = self._part(part)
        value = _get(holder, key) if holder is not None else None
        return tuple(item.value for item in value.value) if isinstance(value, yaml.SequenceNode) else ()

    @property
    def name(self) -> str:
        """The cluster's name."""
        value = _get(self._tree, "name")
        return value.value if isinstance(value, yaml.ScalarNode) else "cluster"

    @property
    def container(self) -> str:
        """Name of the container in which ranks run; empty: on the hosts."""
        return self._text("runtime", "container")

    @property
    def mounts(self) -> tuple[str, ...]:
        """Mounts of the container, `host-path:container-path[:options]`."""
        return self._texts("runtime", "mounts")

    @property
    def options(self) -> tuple[str, ...]:
        """Words for the `run` of the container's engine."""
        return self._texts("runtime", "options")

    @property
    def model_path(self) -> str:
        """Path of the weights."""
        return self._text("model", "path", "/models/model")

    @property
    def is_moe(self) -> bool:
        """Whether the model is a mixture of experts."""
        return self._text("model", "kind", "moe") != "dense"

    @property
    def vllm_version(self) -> str:
        """Version of vLLM: the file's, or the one of its vllm-ascend: the same number (its versioning policy)."""
        value = _get(self._tree, "vllm") or _get(self._tree, "vllm_ascend")
        text = value.value if isinstance(value, yaml.ScalarNode) else ""
        found = re.match(r"\d+(\.\d+)*", text.lstrip("v"))
        return found[0] if found else "0.23.0"

    @property
    def vllm_ascend_version(self) -> str:
        """Version of vllm-ascend."""
        value = _get(self._tree, "vllm_ascend")
        return value.value.lstrip("v") if isinstance(value, yaml.ScalarNode) else self.vllm_version

    @property
    def toolkits(self) -> tuple[str, ...]:
        """Folders of CANN, by the scripts that set it up and where images have it."""
        roots = [str(Path(script).parent) for script in self.setup if script.startswith("/")]
        found = [root for root in roots if "nnal" not in root and "atb" not in root]
        return tuple(dict.fromkeys([*found, "/usr/local/Ascend/ascend-toolkit"]))

    @property
    def image(self) -> str:
        """Image of the container."""
        return self._text("runtime", "image", "vllm-ascend")

    @property
    def shm_size(self) -> str:
        """Size of the container's /dev/shm; empty: the file does not say."""
        return self._text("runtime", "shm_size")

    @property
    def setup(self) -> tuple[str, ...]:
        """Scripts that are sourced before a rank starts."""
        return self._texts("runtime", "setup")

    def platform(self) -> SimPlatform:
        """Return the platform. Raises `SimulationError` for what cannot be simulated."""
        value = _get(self._tree, "platform")
        platform = value.value if isinstance(value, yaml.ScalarNode) else ""
        for known in HARDWARE:
            if platform == known:
                return known
        raise SimulationError(
            f"{self.path}: platform {platform or '(none)'} cannot be simulated yet; it comes later",
            remedy=f"{', '.join(HARDWARE)} can be simulated",
        )

    def places(self) -> dict[str, Place]:
        """Return where the nodes are; one without an address has its host's."""
        found: dict[str, Place] = {}
        for key, value in self._nodes.value:
            texts = {
                name: scalar.value
                for name in ("host", "address", "nic")
                if isinstance(scalar := _get(value, name), yaml.ScalarNode)
            }
            host = texts.get("host", key.value)
            found[key.value] = Place(host, texts.get("address", host), texts.get("nic", "eth0"))
        return found

    def places_apart(self) -> dict[str, Place]:
        """Return where the nodes are as machines of their own: none on a loopback, no two at one address."""
        found: dict[str, Place] = {}
        taken: set[str] = set()
        for number, (name, place) in enumerate(self.places().items(), 1):
            shared = place.address in taken or place.address.startswith("127.") or place.host == LOCAL
            if shared or place.nic == "lo":
                address = f"{_OWN_NETWORK}.{number // 250}.{number % 250 + 1}" if shared else place.address
                found[name] = Place(address if shared else place.host, address, "eth0")
            else:
                found[name] = place
            taken.add(found[name].address)
        return found

    def check_flow(self) -> None:
        """Refuse what the simulator does not know. Raises `SimulationError`."""
        connector = self._text("kv", "connector")
        if "layerwise" in connector.lower() or connector == "SfaRemoteD2HConnector":
            raise SimulationError(
                f"{self.path}: the layerwise flow ({connector}) cannot be simulated yet; it comes later",
                remedy="the pull flow (MooncakeConnectorV1) can be simulated",
            )

    def rewrite(self, new: Replacements) -> str:
        """Return the text of the file for the simulated cluster."""
        nodes = self._nodes
        # Nodes of a file can share an address: what the proxy calls by one is its own node first.
        old_addresses: dict[str, str] = {}
        own = self._text("proxy", "node")
        for index, (key, value) in enumerate(nodes.value):
            simulated = new.nodes[key.value]
            for name in ("host", "address"):
                scalar = _get(value, name)
                if isinstance(scalar, yaml.ScalarNode) and (key.value == own or scalar.value not in old_addresses):
                    old_addresses[scalar.value] = simulated.address
            kept = [
                (k, v)
                for k, v in (value.value if isinstance(value, yaml.MappingNode) else [])
                if k.value not in {"host", "address", "ssh", *(["nic"] if simulated.nic else [])}
            ]
            ssh = _with_sudo(_mapping({"port": str(simulated.port)}), _get(value, "ssh"))
            pairs = [
                (_scalar("host"), _scalar(simulated.host)),
                (_scalar("address"), _scalar(simulated.address)),
            ]
            pairs += [(_scalar("nic"), _scalar(simulated.nic))] if simulated.nic else []
            nodes.value[index] = (key, _node([*pairs, *kept, (_scalar("ssh"), ssh)]))
        ssh_part = _mapping(
            {"user": new.user, "key": new.key, "known_hosts": new.known_hosts, "config": new.config}
        )
        _set(self._tree, "ssh", _with_sudo(ssh_part, _get(self._tree, "ssh")), before="nodes")
        runtime = self._part("runtime")
        if runtime is None:
            runtime = _node([])
            _set(self._tree, "runtime", runtime, before="model")
        _set(runtime, "state_dir", _scalar(new.state_dir))
        if new.setup:
            _set(runtime, "setup", _sequence(new.setup))
        model = self._part("model")
        if model is not None:
            _set(model, "path", _scalar(new.model_path))
        proxy = self._part("proxy")
        if proxy is not None:
            for name in ("advertise", "listen"):
                scalar = _get(proxy, name)
                if isinstance(scalar, yaml.ScalarNode) and scalar.value in old_addresses:
                    _set(proxy, name, _scalar(old_addresses[scalar.value]))
        header = (
            f"# Written by the simulator from {self.path.name}: nodes, ssh, state_dir and paths are simulated.\n"
        )
        return header + yaml.serialize(self._tree, Dumper=yaml.SafeDumper, allow_unicode=True, width=110)


def _get(mapping: yaml.Node | None, name: str) -> yaml.Node | None:
    """Return a key's value; merge keys are no part of the format."""
    if not isinstance(mapping, yaml.MappingNode):
        return None
    return next((value for key, value in mapping.value if key.value == name), None)


def _set(mapping: yaml.MappingNode, name: str, value: yaml.Node, *, before: str = "") -> None:
    """Replace or add a key."""
    for index, (key, _) in enumerate(mapping.value):
        if key.value == name:
            mapping.value[index] = (key, value)
            return
    place = next((i for i, (key, _) in enumerate(mapping.value) if key.value == before), len(mapping.value))
    mapping.value.insert(place, (_scalar(name), value))


def _with_sudo(ssh: yaml.MappingNode, old: yaml.Node | None) -> yaml.MappingNode:
    """Keep the one word about SSH that holds for a simulated node too."""
    sudo = _get(old, "sudo")
    if sudo is not None:
        _set(ssh, "sudo", sudo)
    return ssh


def _scalar(value: object) -> yaml.ScalarNode:
    """Return a scalar that reads back as the same text, or as a number where it is one."""
    text = str(value)
    tag = "tag:yaml.org,2002:int" if text.isdecimal() else "tag:yaml.org,2002:str"
    return yaml.ScalarNode(tag, text)


def _sequence(values: Sequence[str]) -> yaml.SequenceNode:
    return yaml.SequenceNode("tag:yaml.org,2002:seq", [_scalar(value) for value in values], flow_style=True)


def _node(pairs: list[tuple[yaml.Node, yaml.Node]]) -> yaml.MappingNode:
    return yaml.MappingNode("tag:yaml.org,2002:map", pairs, flow_style=False)


def _mapping(values: Mapping[str, object]) -> yaml.MappingNode:
    pairs: list[tuple[yaml.Node, yaml.Node]] = [(_scalar(k), _scalar(v)) for k, v in values.items()]
    return yaml.MappingNode("tag:yaml.org,2002:map", pairs, flow_style=True)
