"""What was seen of a cluster, whatever the source: scripts, a guide's text, or running processes.

Readers of scripts and of processes make these records; `assemble` makes a topology file of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pdtui.topology.vllm_flags import long_name


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """Where something was seen: a line of a file, or a process on a host."""

    source: str
    """The file as it was named, or the host of a process."""
    line: int = 0
    """From 1; 0 for the file as a whole."""
    pid: int = 0
    """Process id; 0 for a file."""

    def __str__(self) -> str:
        """Return it as an operator would write it: `run.sh:12`, `192.0.0.3 pid 4711`."""
        if self.pid:
            return f"{self.source} pid {self.pid}"
        return f"{self.source}:{self.line}" if self.line else self.source


@dataclass(frozen=True, slots=True)
class Said:
    """One value and who says it."""

    value: str | tuple[str, ...] | Literal[True]
    """Text, several words after one flag, or True for a flag without a value."""
    origin: Origin
    unknown: str = ""
    """The expression that could not be evaluated, such as `$(hostname -I)`; `value` then holds it unevaluated."""
    prepended: bool = False
    """A variable to which this text was put in front of what the node has: `X:$LD_LIBRARY_PATH`."""

    @property
    def text(self) -> str:
        """The value as one text; empty for a flag without a value."""
        if self.value is True:
            return ""
        return self.value if isinstance(self.value, str) else " ".join(self.value)

    @property
    def number(self) -> int | None:
        """The value as a whole number, None if it is none."""
        text = self.text.strip()
        digits = text.removeprefix("-")
        return int(text) if digits.isascii() and digits.isdecimal() and len(digits) < 10 else None


@dataclass(frozen=True, slots=True)
class ServeCommand:
    """One `vllm serve` process as it would run, or runs."""

    host: str
    """Address or name of its host; empty when nothing says it."""
    model: Said | None
    """Path or id of the model; None when the command names none."""
    flags: Mapping[str, Said]
    """Long name without dashes, in the order of the command: `tensor-parallel-size`, `no-enable-prefix-caching`.

    Underscores are dashes, as vLLM reads them; of a flag that is given twice the last counts, as in vLLM. `-O3`,
    which is another flag in older releases, stands as it is written.
    """
    env: Mapping[str, Said]
    """Variables that were set for it; of a running process, those that a topology says anything about."""
    origin: Origin
    """Where the command itself is; a value's own origin can be another."""
    container: str = ""
    """Name of the container in which it runs, if that is known."""
    rank: str = ""
    """`group/dp_rank` where pdtui started it, so that its group keeps the name."""

    @property
    def is_fragment(self) -> bool:
        """Whether this is a piece of a configuration, which starts nothing by itself."""
        return self.model is None and "port" not in self.flags and "tensor-parallel-size" not in self.flags


@dataclass(frozen=True, slots=True)
class Backend:
    """One entry of a proxy's list."""

    host: str
    port: int
    origin: Origin


@dataclass(frozen=True, slots=True)
class ProxyCommand:
    """One proxy as it would run, or runs, its lists expanded."""

    host: str
    """Where it runs; empty when nothing says it."""
    script: str
    """Name of the script's file."""
    listen: Said | None
    port: Said | None
    prefill: tuple[Backend, ...]
    decode: tuple[Backend, ...]
    flags: Mapping[str, Said]
    origin: Origin

    @property
    def layerwise(self) -> bool:
        """Whether it is the reference script that asks decode first."""
        return "layerwise" in self.script


@dataclass(frozen=True, slots=True)
class ContainerCommand:
    """A container as it would be started, or runs."""

    host: str
    """Where; empty for all hosts."""
    name: str
    image: str
    shm_size: str
    devices: tuple[str, ...]
    """Device files, the NPUs' own among them."""
    mounts: tuple[str, ...]
    options: tuple[str, ...]
    """Further words of the command, those that every container of pdtui gets left out."""
    origin: Origin


@dataclass(frozen=True, slots=True)
class Host:
    """What is known of a host besides its commands; a reader of scripts knows little of it."""

    name: str
    """How SSH reaches it."""
    address: str = ""
    """IP address in the cluster; empty: `name`, if that is one."""
    nic: str = ""
    npus: int | None = None
    """How many NPUs it has, None when that is not known."""
    ssh_user: str = ""
    ssh_port: int | None = None
    """What reached it besides; where it is as ~/.ssh/config has it, None, empty or False."""
    ssh_jump: str = ""
    ssh_sudo: bool = False
    ssh_config: str = ""
    """SSH client configuration that was used in place of ~/.ssh/config."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user said on the command line."""

    name: str = ""
    platform: str = ""
    vllm_ascend: str = ""
    flow: Literal["", "pull", "layerwise"] = ""


@dataclass(frozen=True, slots=True)
class Target:
    """What a test request or a benchmark is aimed at."""

    kind: Literal["port", "model"]
    said: Said


@dataclass(frozen=True, slots=True)
class Observed:
    """Everything that was seen, in the order in which it was seen."""

    commands: Sequence[ServeCommand] = ()
    proxies: Sequence[ProxyCommand] = ()
    containers: Sequence[ContainerCommand] = ()
    hosts: Sequence[Host] = ()
    version: Said | None = None
    """Version of vllm-ascend, where it was read from what runs."""
    setup: Sequence[Said] = ()
    """Scripts that are sourced before the servers start, in order: `runtime.setup`."""
    state_dir: Said | None = None
    """Folder of the records of ranks that pdtui started; None where it is the usual one, or nobody's."""
    exec: Sequence[str] = ()
    """Words before the container's name that run a command in it; empty: docker's."""
    targets: Sequence[Target] = ()
    """Test requests and benchmarks beside the scripts."""


BOOLEAN_FLAGS = frozenset(
    {
        *("enable-expert-parallel", "enforce-eager", "trust-remote-code", "enable-prefix-caching", "headless"),
        *("enable-chunked-prefill", "async-scheduling", "enable-auto-tool-choice", "enable-eplb"),
        *("enable-server-load-tracking", "disable-log-requests", "disable-log-stats", "enable-lora"),
        *("disable-hybrid-kv-cache-manager", "enable-sleep-mode", "data-parallel-hybrid-lb"),
        *("data-parallel-external-lb", "disable-custom-all-reduce", "skip-tokenizer-init", "language-model-only"),
    }
)
"""Flags of vLLM that take no value, so that a model's path may follow one."""


def serve_command(
    words: Sequence[Said], env: Mapping[str, Said], *, host: str, origin: Origin, container: str = ""
) -> ServeCommand:
    """Return what a command says; `words` come after `vllm serve` (or the server's module).

    The model is the first word that no flag takes, else `--model`.
    """
    flags: dict[str, Said] = {}
    model: Said | None = None
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not _is_flag(word):
            model = word if model is None and word.text.strip() else model
            continue
        name, equals, text = word.text.partition("=")
        name = long_name(word.text) or name
        values: list[Said] = [Said(text, word.origin, word.unknown)] if equals else []
        plain = name.removeprefix("no-") in BOOLEAN_FLAGS
        while not equals and not plain and at < len(words) and not _is_flag(words[at]):
            values.append(words[at])
            at += 1
        flags.pop(name, None)
        flags[name] = _joined(values, word.origin)
    given = flags.pop("model", None)
    return ServeCommand(host, model or given, flags, dict(env), origin, container)


def _is_flag(word: Said) -> bool:
    """Whether a word is a flag, and no value: of those, too, some begin with a dash."""
    text = word.text
    return long_name(text) != "" or (text.startswith("--") and text != "--") or text.startswith("-O")


def _joined(values: Sequence[Said], origin: Origin) -> Said:
    if not values:
        return Said(True, origin)
    if len(values) == 1:
        return values[0]
    unknown = next((value.unknown for value in values if value.unknown), "")
    return Said(tuple(value.text for value in values), origin, unknown)
