"""One command seen -> one rank: what a topology derives is told apart from what a topology must say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pdtui.topology.findings import Severity
from pdtui.topology.importing import stores, tolerant
from pdtui.topology.importing.observed import Origin, Said, ServeCommand
from pdtui.topology.importing.report import Kind, Note, note
from pdtui.topology.model import Role
from pdtui.topology.ports import NIXL_SIDE_CHANNEL
from pdtui.topology.redact import is_secret, redacted_text
from pdtui.topology.reference import API_KEY_FLAG, API_KEY_VARIABLE

PLACEHOLDER = "xxxx"
"""What stands in a draft where the user must write something: `check` finds it (V2)."""

NIC_VARIABLES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
ADDRESS_VARIABLES = ("HCCL_IF_IP", "VLLM_HOST_IP", "VLLM_NIXL_SIDE_CHANNEL_HOST")
NIXL = "NixlConnector"
"""The connector of vLLM on servers without NPUs; its port is a variable."""
DEVICES = "ASCEND_RT_VISIBLE_DEVICES"

_DERIVED_FLAGS = frozenset(
    {
        *("port", "data-parallel-size", "data-parallel-rank", "data-parallel-address", "data-parallel-rpc-port"),
        *("tensor-parallel-size", "pipeline-parallel-size", "served-model-name", "kv-transfer-config"),
        *("data-parallel-size-local", "data-parallel-start-rank", "data-parallel-external-lb"),
    }
)
_OLD_VARIABLES = {
    "VLLM_DP_SIZE": "data-parallel-size",
    "VLLM_DP_RANK": "data-parallel-rank",
    "VLLM_DP_MASTER_IP": "data-parallel-address",
    "VLLM_DP_MASTER_PORT": "data-parallel-rpc-port",
}
"""Variables of v0.9.1's external data parallelism -> today's flags."""

_NIC_NAMES = frozenset({"nic_name", "nic", "ifname", "net_if", "network_interface"})

_JSON_FLAGS = ("-config", "-overrides", "-kwargs", "-per-prompt")
"""How flags end whose values are JSON."""

_REFERENCE = re.compile(r"\$(?:[A-Za-z_]|\{[A-Za-z_])")

_OLD_REST = ("VLLM_DP_RANK_LOCAL", "VLLM_DP_SIZE_LOCAL", "VLLM_ASCEND_EXTERNAL_DP_LB_ENABLED")
_SCRIPT_PLACEHOLDER = re.compile(r"x{3,}|your[_-].*|<.*>|nic_name|.*_here|\.\.\.", re.IGNORECASE)
_KV_ROLES = {"kv_producer": Role.PREFILL, "kv_consumer": Role.DECODE}

DENSE = re.compile(
    r"(?:qwen[\d.]*|llama|mistral|gemma|internlm|baichuan|yi)[\w.-]*?-\d+(?:\.\d+)?b(?![\w.-]*-a\d+(?:\.\d+)?b)|dense",
    re.IGNORECASE,
)
"""Names of models that have no experts."""


@dataclass(frozen=True, slots=True)
class Sourced:
    """A value as a topology writes it, and where it was seen."""

    value: Any
    origin: Origin


@dataclass(eq=False)
class Rank:
    """One command, sorted."""

    command: ServeCommand
    host: str
    role: Role | None = None
    connector: Sourced | None = None
    dp_size: int = 1
    dp_rank: int = 0
    dp_address: str = ""
    rpc_port: int | None = None
    external: bool = False
    """Whether it meets others: it has data parallel flags with a size above 1."""
    tp_size: int = 1
    pp_size: int = 1
    api_port: int = 8000
    kv_port: int | None = None
    devices: tuple[int, ...] | None = None
    nic: str = ""
    sizes: dict[str, Any] = field(default_factory=dict)
    """`prefill` and `decode` of its connector's extra configuration."""
    args: dict[str, Sourced] = field(default_factory=dict)
    env: dict[str, Sourced] = field(default_factory=dict)
    config: dict[str, Sourced] = field(default_factory=dict)
    extra: dict[str, Sourced] = field(default_factory=dict)
    stores: dict[str, Sourced] = field(default_factory=dict)
    """Connectors beside its own, with what a topology says of each."""
    layers: str = ""
    """Layers of each of its pipeline's stages."""
    model: Said | None = None
    served: Said | None = None

    @property
    def origin(self) -> Origin:
        """Where its command is."""
        return self.command.origin

    def place(self, flag: str) -> Origin:
        """Return where a flag of its command is written."""
        said = self.command.flags.get(flag)
        return said.origin if said is not None else self.origin

    @property
    def is_for_anyone(self) -> bool:
        """Whether its script names no machine: it may run on others too."""
        said = self.command.env.get("HCCL_IF_IP")
        return not self.origin.pid and (said is None or bool(said.unknown) or is_placeholder(said.text))

    def moved(self, host: str, *, dp_rank: int, dp_address: str) -> Rank:
        """Return it as it would run on another host."""
        return replace(self, host=host, dp_rank=dp_rank, dp_address=dp_address)


def is_placeholder(text: str) -> bool:
    """Whether a text stands for something that was never filled in."""
    return _SCRIPT_PLACEHOLDER.fullmatch(text.strip()) is not None


def sort(command: ServeCommand) -> tuple[Rank, list[Note]]:
    """Return a command as a rank, and what is to be said about it."""
    strange = {name: said for name, said in command.flags.items() if name.startswith("-")}
    flags = {name: said for name, said in command.flags.items() if name not in strange}
    sorter = _Sorter(replace(command, flags=flags))
    for name, said in strange.items():
        sorter.add(
            Kind.UNREAD,
            f"{name} was left out: write optimization-level, or compilation-config.level before vLLM 0.12",
            said.origin,
        )
    sorter.old_variables()
    sorter.parallel()
    sorter.transfer()
    sorter.variables()
    sorter.flags()
    return sorter.rank, sorter.notes


class _Sorter:
    def __init__(self, command: ServeCommand) -> None:
        self.command = command
        self.said = dict(command.flags)
        self.env = dict(command.env)
        self.notes: list[Note] = []
        self.rank = Rank(command, command.host, model=command.model, served=command.flags.get("served-model-name"))

    def add(
        self, kind: Kind, message: str, *origins: Origin, rule: str = "", severity: Severity = Severity.INFO
    ) -> None:
        self.notes.append(note(kind, message, *origins, rule=rule, severity=severity))

    def old_variables(self) -> None:
        """Take the variables of v0.9.1 for the flags that do the same today."""
        if "VLLM_DP_SIZE" not in self.env or "data-parallel-size" in self.said:
            return
        first = self.env["VLLM_DP_SIZE"].origin
        self.add(
            Kind.FINDING,
            "VLLM_DP_* with VLLM_ASCEND_EXTERNAL_DP_LB_ENABLED is the external data parallelism of v0.9.1, which "
            "has no Mooncake connector; later releases take flags: together this runs on no release",
            first,
            rule="R10",
            severity=Severity.ERROR,
        )
        for name, flag in _OLD_VARIABLES.items():
            if name in self.env:
                said = self.env.pop(name)
                self.said[flag] = said
                self.add(Kind.TRANSLATION, f"{name} -> --{flag}", self.command.origin)
        for name in _OLD_REST:
            if name in self.env:
                self.env.pop(name)
                self.add(
                    Kind.TRANSLATION,
                    f"{name} is left out: nothing of it is needed today",
                    self.command.origin,
                )

    def parallel(self) -> None:
        rank = self.rank
        rank.tp_size = self._number("tensor-parallel-size", 1)
        rank.pp_size = self._number("pipeline-parallel-size", 1)
        rank.api_port = self._number("port", 8000)
        rank.dp_size = max(1, min(self._number("data-parallel-size", 1), 4096))
        start = self._number("data-parallel-start-rank", 0)
        rank.dp_rank = self._number("data-parallel-rank", start)
        address = self.said.get("data-parallel-address")
        rank.dp_address = address.text if address is not None and not address.unknown else ""
        rank.rpc_port = self._number("data-parallel-rpc-port", 0) or None
        rank.external = rank.dp_size > 1
        names = ("size", "rank", "address", "rpc-port")
        given = [name for name in names if f"data-parallel-{name}" in self.said]
        local = self.said.get("data-parallel-size-local")
        if rank.external and local is not None and "rank" not in given:
            message = (
                "vLLM's own load balancing, one API server for several ranks: a topology has one a rank, behind a "
                "proxy"
            )
            self.add(Kind.TRANSLATION, message, local.origin)
        elif rank.external and len(given) != len(names) and "data-parallel-size" in self.said:
            missing = ", ".join(f"--data-parallel-{name}" for name in names if name not in given)
            message = f"{missing} is missing: with a part of these flags vLLM takes another mode or fails"
            origin = self.said["data-parallel-size"].origin
            self.add(Kind.FINDING, message, origin, rule="R10", severity=Severity.ERROR)

    def _number(self, flag: str, default: int) -> int:
        said = self.said.get(flag)
        if said is None:
            return default
        number = said.number
        if number is None or number < 0:
            what = (
                f"`{said.unknown}` is only known where it runs" if said.unknown else f"`{said.text}` is no number"
            )
            self.add(Kind.UNREAD, f"--{flag}: {what}; {default} was taken", said.origin)
            return default
        return number

    def transfer(self) -> None:
        """Take apart --kv-transfer-config."""
        said = self.said.get("kv-transfer-config")
        if said is None:
            return
        found = self._json("kv-transfer-config", said)
        if not isinstance(found, dict):
            return
        rank, origin = self.rank, said.origin
        apart = stores.take_apart(found)
        for odd in apart.odd:
            self.add(Kind.UNREAD, f"a topology cannot say this of MultiConnector: {odd}", origin)
        found = apart.config
        rank.stores = {name: Sourced(value, origin) for name, value in apart.stores.items()}
        connector = found.pop("kv_connector", None)
        if isinstance(connector, str) and connector:
            rank.connector = Sourced(connector, origin)
        else:
            self._broken("R23", "kv_connector is missing in --kv-transfer-config", origin)
        role = found.pop("kv_role", None)
        rank.role = _KV_ROLES.get(role) if isinstance(role, str) else None
        if role is None:
            self._broken("R23", "kv_role is missing in --kv-transfer-config", origin)
            for key in ("kv_producer", "kv_consumer"):
                if key in found:
                    rank.role = _KV_ROLES[key]
                    self._broken("R24", f"`{key}` is no key; kv_role says what it is", origin)
        elif rank.role is None:
            self._broken("R24", f"kv_role is {role}; kv_producer or kv_consumer routes requests", origin)
        port = found.pop("kv_port", None)
        text = str(port)
        if port is not None and text.isascii() and text.isdecimal() and 0 < int(text) <= 65535:
            rank.kv_port = int(text)
        elif port is not None:
            self._broken("R23", f"kv_port is {port}, which is no port", origin)
        extra = found.pop("kv_connector_extra_config", None)
        if isinstance(extra, dict):
            rank.sizes = {name: extra.pop(name) for name in ("prefill", "decode") if name in extra}
            if self.command.is_fragment:
                self._own_sizes()
            extra = stores.without_derived(extra, str(connector))
            rank.extra = {str(key): Sourced(value, origin) for key, value in extra.items()}
        mooncake = rank.connector is not None and str(rank.connector.value).startswith("Mooncake")
        if mooncake and (missing := [name for name in ("prefill", "decode") if name not in rank.sizes]):
            message = f"kv_connector_extra_config has no {' and no '.join(missing)}: it ends in a bare assertion"
            self._broken("R25", f"{message}; the topology derives both", origin)
        if self._is_nixl and found.get("kv_buffer_device") == "cpu":
            del found["kv_buffer_device"]
        rank.config = {str(key): Sourced(value, origin) for key, value in found.items()}

    @property
    def _is_nixl(self) -> bool:
        return self.rank.connector is not None and self.rank.connector.value == NIXL

    def _own_sizes(self) -> None:
        """Take the sizes of a configuration without a command from itself."""
        own = self.rank.sizes.get((self.rank.role or Role.PREFILL).value)
        if isinstance(own, dict):
            sizes = {key: value for key, value in own.items() if type(value) is int and 0 < value <= 4096}
            self.rank.dp_size = sizes.get("dp_size", 1)
            self.rank.tp_size = sizes.get("tp_size", 1)
            self.rank.external = self.rank.dp_size > 1

    def _broken(self, rule: str, message: str, origin: Origin) -> None:
        self.add(Kind.FINDING, message, origin, rule=rule, severity=Severity.ERROR)

    def _json(self, flag: str, said: Said) -> Any:
        found = tolerant.read(said.text)
        if found is None:
            if said.unknown:
                self.add(Kind.UNREAD, f"--{flag}: `{said.unknown}` is only known where it runs", said.origin)
            else:
                self._broken("R22", f"--{flag} is no JSON and could not be read", said.origin)
                self.add(Kind.UNREAD, f"--{flag} was left out", said.origin)
            return None
        for line, fault in found.faults:
            at = said.origin if said.origin.pid else replace(said.origin, line=said.origin.line + line)
            self._broken("R22", f"--{flag} is no JSON: {fault}", at)
        return found.value

    def variables(self) -> None:
        rank = self.rank
        visible = self.env.pop(DEVICES, None)
        if visible is not None and not visible.unknown:
            words = [word.strip() for word in visible.text.split(",")]
            if all(word.isascii() and word.isdecimal() and len(word) < 5 for word in words):
                rank.devices = tuple(map(int, words))
            else:
                self.env[DEVICES] = visible
        if rank.stores and (seed := self.env.get("PYTHONHASHSEED")) is not None and seed.text == "0":
            del self.env["PYTHONHASHSEED"]
        if rank.pp_size > 1 and (layers := self.env.get("VLLM_PP_LAYER_PARTITION")) is not None:
            rank.layers = layers.text
            del self.env["VLLM_PP_LAYER_PARTITION"]
        port = self.env.get(NIXL_SIDE_CHANNEL)
        if self._is_nixl and port is not None and port.number is not None and 0 < port.number <= 65535:
            rank.kv_port = port.number
            del self.env[NIXL_SIDE_CHANNEL]
        nics = [self.env[name] for name in NIC_VARIABLES if name in self.env and not self.env[name].unknown]
        rank.nic = nics[0].text if nics else self._nic_variable()
        for name in NIC_VARIABLES:
            said = self.env.get(name)
            if said is not None and (said.unknown or said.text == rank.nic):
                self.env.pop(name)
        for name in ADDRESS_VARIABLES:
            said = self.env.get(name)
            if said is not None and (said.unknown or is_placeholder(said.text) or said.text == rank.host):
                self.env.pop(name)
        own = self.env.get("HCCL_IF_IP") or self.command.env.get("HCCL_IF_IP")
        if own is not None and own.text.startswith("127."):
            message = f"HCCL_IF_IP is {own.text}: nothing on another host reaches that"
            self.add(Kind.FINDING, message, own.origin, rule="R79", severity=Severity.WARNING)
        for name, said in self.env.items():
            rank.env[name] = Sourced(self._variable(name, said), said.origin)

    def _nic_variable(self) -> str:
        """Return the interface that a script's own variable names, such as NIC_NAME."""
        found = [said for name, said in self.env.items() if name.lower() in _NIC_NAMES and not said.unknown]
        return found[0].text if found else ""

    def _variable(self, name: str, said: Said) -> Any:
        named = f"{name}={said.text}"  # What a proxy's password looks like depends on the name.
        if (is_secret(name) and said.text) or redacted_text(named) != named:
            if not said.text.startswith("$"):
                message = (
                    f"the value of {name} holds a secret and was not copied: it comes from the node's environment"
                )
                self.add(Kind.TRANSLATION, message, said.origin)
            return {"from_env": name}
        if not said.unknown and _REFERENCE.search(said.text) and not self.command.origin.pid:
            message = (
                f"{name} has a dollar that is literal in the script; a topology takes it for the node's variable"
            )
            self.add(Kind.CONTRADICTION, message, said.origin)
        if said.prepended:
            return {"prepend": said.text}
        if said.unknown and ("$(" in said.unknown or "`" in said.unknown or not said.unknown.startswith("$")):
            self.add(Kind.UNREAD, f"{name}: `{said.unknown}` is only known where it runs", said.origin)
        return said.text

    def flags(self) -> None:
        rank = self.rank
        for name, said in self.said.items():
            if name in _DERIVED_FLAGS or (name == "host" and said.text == self._listening()):
                continue
            if is_secret(name):
                self._secret_flag(name, said)
                continue
            if said.unknown:
                self.add(Kind.UNREAD, f"--{name}: `{said.unknown}` is only known where it runs", said.origin)
            key, value = self._flag(name, said)
            rank.args[key] = Sourced(value, said.origin)

    def _secret_flag(self, name: str, said: Said) -> None:
        if name == API_KEY_FLAG:
            message = f"--{name} is a secret and was not copied; the node's {API_KEY_VARIABLE} is used"
            self.add(Kind.TRANSLATION, message, said.origin)
            self.rank.env[API_KEY_VARIABLE] = Sourced({"from_env": API_KEY_VARIABLE}, said.origin)
        else:
            message = f"--{name} is a secret and was left out; let `env` refer to the variable that does the same"
            self.add(Kind.ASKED, message, said.origin)

    def _listening(self) -> str:
        """Return what a topology derives for --host."""
        alone = self._is_nixl and self.rank.host.startswith("127.")
        return self.rank.host if alone else "0.0.0.0"  # noqa: S104 - as derived

    def _value(self, name: str, said: Said) -> Any:
        """Return the JSON value of a flag; of one that takes any text, such as a template, only if it is one."""
        if name.endswith(_JSON_FLAGS):
            return self._json(name, said)
        found = tolerant.read(said.text)
        return found.value if found is not None and not found.faults and not said.unknown else None

    def _flag(self, name: str, said: Said) -> tuple[str, Any]:
        if said.value is True:
            return (name[3:], False) if name.startswith("no-") else (name, True)
        if isinstance(said.value, tuple):
            return name, [_plain(word) for word in said.value]
        text = said.value
        if name.endswith("-config") or text.lstrip().startswith("{") or text.lstrip().startswith("["):
            value = self._value(name, said) if text.lstrip().startswith(("{", "[")) else None
            if isinstance(value, dict) and set(value) != {"json"}:
                return name, value
            if isinstance(value, list):
                return name, {"json": value}
        return name, _plain(text)


def _plain(text: str) -> Any:
    """Return a word as a number when it is written back the same, else as text."""
    if re.fullmatch(r"-?(0|[1-9]\d{0,17})", text):
        return int(text)
    if re.fullmatch(r"-?\d{1,9}\.\d{1,9}", text) and str(float(text)) == text:
        return float(text)
    return text


def sourced(values: Mapping[str, Sourced]) -> dict[str, Any]:
    """Return values without their places."""
    return {name: found.value for name, found in values.items()}
