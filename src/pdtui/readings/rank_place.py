"""What the script in the place where ranks run has found there (`fleet/preflight/place_script.py`).

One line of JSON behind a mark: for each key what one part said, `{"ok": VALUE}`, `{"hangs": SECONDS}` or
`{"error": TEXT, "kind": missing|permission|unreadable|error|failed}`.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pdtui.readings.answer import RAW_LIMIT, Answer, Failure, Reading, failure_of
from pdtui.text import clean, clean_line, decode

MARK = "PDTUI-PLACE "

Address = ipaddress.IPv4Interface | ipaddress.IPv6Interface


@dataclass(frozen=True, slots=True)
class Shm:
    """Shared memory; sizes in bytes."""

    total: int
    free: int
    kind: str
    """Type of the file system, `tmpfs`."""


@dataclass(frozen=True, slots=True)
class DeviceFiles:
    """What the driver's files in /dev are."""

    npus: tuple[int, ...]
    closed: tuple[int, ...]
    """NPUs whose file this user may not read and write."""
    management: tuple[str, ...]
    """Of `davinci_manager`, `devmm_svm`, `hisi_hdc` those that are there."""
    driver: str
    """The driver's library `libascend_hal.so`; empty: it is nowhere."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Resource limits, soft and hard; None: none."""

    nofile: tuple[int | None, int | None]
    memlock: tuple[int | None, int | None]
    """Bytes."""
    nproc: tuple[int | None, int | None]
    core: tuple[int | None, int | None]
    """Bytes."""
    uid: int
    pids: int | None
    """Most processes and threads of the control group."""


@dataclass(frozen=True, slots=True)
class LocalPorts:
    """From where the kernel takes ports for outgoing connections."""

    first: int
    last: int
    reserved: tuple[tuple[int, int], ...]
    """Ranges that it leaves alone."""
    taken: tuple[int, ...] = ()
    """Of the ports that were asked about those that connections from there hold now."""


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface."""

    name: str
    up: bool
    """Up, with a carrier."""
    addresses: tuple[Address, ...]

    def owns(self, address: str) -> bool:
        """Return whether it has an address; a loopback interface has the whole network."""
        try:
            wanted = ipaddress.ip_address(address)
        except ValueError:
            return False
        if any(one.ip == wanted for one in self.addresses):
            return True
        return wanted.is_loopback and any(one.ip.is_loopback and wanted in one.network for one in self.addresses)


@dataclass(frozen=True, slots=True)
class Environment:
    """The variables that checks look at, and what follows from the environment."""

    variables: Mapping[str, str]
    proxies: Mapping[str, str]
    """`http_proxy` and the like as they are spelt there, without passwords."""
    default_ip: str
    """The address that vLLM takes where VLLM_HOST_IP is not set; empty: it finds none."""
    vllm: str
    """Path of `vllm`; empty: it is not on PATH."""
    path: str


@dataclass(frozen=True, slots=True)
class Cann:
    """The CANN toolkit."""

    version: str
    file: str
    home: str
    is_set: bool
    """The environment names its folder."""


@dataclass(frozen=True, slots=True)
class Module:
    """A Python package as a folder."""

    where: str
    version: str = ""
    """Of its own file, where it has one."""
    engine: str = ""
    """Mooncake's built module."""
    size: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Packages:
    """What the Python that `vllm` runs under has."""

    python: str
    executable: str
    versions: Mapping[str, str]
    """By normalised name; empty where its metadata say none."""
    where: Mapping[str, str]
    modules: Mapping[str, Module]


@dataclass(frozen=True, slots=True)
class Imported:
    """A statement that has succeeded."""

    statement: str
    seconds: float


@dataclass(frozen=True, slots=True)
class WeightIndex:
    """An index of weight files."""

    name: str
    shards: int
    missing: tuple[str, ...]
    absent: int
    error: str


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model's folder that vLLM could read; hidden ones and subfolders are left out."""

    path: str
    files: Mapping[str, tuple[int, str]]
    """Name -> (size, hash of a small text file)."""
    broken: tuple[str, ...]
    """Links that lead nowhere."""
    unreadable: tuple[str, ...]
    pointers: tuple[str, ...]
    """Git LFS pointers in the place of files."""
    config: str
    """Hash of config.json; empty: there is none."""
    config_error: str
    indexes: tuple[WeightIndex, ...]

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the weight files."""
        return tuple(name for name in self.files if name.endswith((".safetensors", ".bin", ".pt", ".gguf")))

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(size for size, _ in self.files.values())


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system that a path is on; sizes in bytes."""

    path: str
    device: int
    """The same number for paths on one file system."""
    mount: str
    kind: str
    total: int
    free: int
    files: int
    """0 where the file system does not count them."""
    files_free: int
    writable: bool


# ---------------------------------------------------------------------------------------------------- parsing


def _words(value: Any) -> tuple[str, ...]:
    return tuple(clean_line(str(word)) for word in value)


def _pair(value: Any) -> tuple[int | None, int | None]:
    soft, hard = (None if int(word) < 0 else int(word) for word in value)
    return soft, hard


def _texts(value: Any) -> dict[str, str]:
    return {clean_line(str(name)): clean_line(str(text)) for name, text in value.items()}


def _shm(raw: Any) -> Shm:
    return Shm(int(raw["total"]), int(raw["free"]), clean_line(str(raw["type"])))


def _devices(raw: Any) -> DeviceFiles:
    npus, closed = (tuple(int(number) for number in raw[name]) for name in ("npus", "closed"))
    return DeviceFiles(npus, closed, _words(raw["management"]), clean_line(str(raw["driver"])))


def _limits(raw: Any) -> Limits:
    nofile, memlock, nproc, core = (_pair(raw[name]) for name in ("nofile", "memlock", "nproc", "core"))
    pids = int(raw["pids"])
    return Limits(nofile, memlock, nproc, core, int(raw["uid"]), pids if pids >= 0 else None)


def _ports(raw: Any) -> LocalPorts:
    first, last = (int(port) for port in raw["range"])
    taken = tuple(int(port) for port in raw.get("taken", ()))
    return LocalPorts(first, last, tuple(_ranges(str(raw["reserved"]))), taken)


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    for word in filter(None, text.strip().split(",")):
        first, _, last = word.partition("-")
        yield int(first), int(last or first)


def _interfaces(raw: Any) -> tuple[Interface, ...]:
    return tuple(
        Interface(clean_line(str(name)), bool(up), tuple(ipaddress.ip_interface(str(one)) for one in addresses))
        for name, up, addresses in raw
    )


def _environment(raw: Any) -> Environment:
    rest = (clean_line(str(raw[name])) for name in ("default_ip", "vllm", "path"))
    return Environment(_texts(raw["variables"]), _texts(raw["proxies"]), *rest)


def _cann(raw: Any) -> Cann:
    version, file, home = (clean_line(str(raw[name])) for name in ("version", "file", "home"))
    return Cann(version, file, home, bool(raw["set"]))


def _module(raw: Any) -> Module:
    where, version, engine, digest = (
        clean_line(str(raw.get(name, ""))) for name in ("where", "version", "engine", "digest")
    )
    return Module(where, version, engine, int(raw.get("size", 0)), digest)


def _packages(raw: Any) -> Packages:
    found = raw["packages"]
    return Packages(
        clean_line(str(raw["python"])),
        clean_line(str(raw["executable"])),
        _texts({name: one["version"] for name, one in found.items()}),
        _texts({name: one["where"] for name, one in found.items()}),
        {clean_line(str(name)): _module(one) for name, one in raw["modules"].items()},
    )


def _imported(raw: Any) -> Imported:
    return Imported(clean_line(str(raw["statement"])), float(raw["seconds"]))


def _index(raw: Any) -> WeightIndex:
    missing = _words(raw.get("missing", ()))
    texts = clean_line(str(raw["name"])), clean_line(str(raw.get("error", "")))
    return WeightIndex(texts[0], int(raw.get("shards", 0)), missing, int(raw.get("absent", 0)), texts[1])


def _model(raw: Any) -> ModelFiles:
    return ModelFiles(
        clean_line(str(raw["path"])),
        {clean_line(str(name)): (int(size), clean_line(str(digest))) for name, size, digest in raw["files"]},
        _words(raw["broken"]),
        _words(raw["unreadable"]),
        _words(raw["pointers"]),
        clean_line(str(raw["config"])),
        clean_line(str(raw.get("config_error", ""))),
        tuple(_index(one) for one in raw["indexes"]),
    )


def _disk(raw: Any) -> Disk:
    path, mount, kind = (clean_line(str(raw[name])) for name in ("path", "mount", "type"))
    total, free, files, left = (int(raw[name]) for name in ("total", "free", "files", "files_free"))
    return Disk(path, int(raw["device"]), mount, kind, total, free, files, left, bool(raw["writable"]))


PARTS: Mapping[str, Callable[[Any], Any]] = {
    "shm": _shm,
    "devices": _devices,
    "limits": _limits,
    "ports": _ports,
    "addresses": _interfaces,
    "variables": _environment,
    "cann": _cann,
    "packages": _packages,
    "import": _imported,
    "model": _model,
    "disk": _disk,
}
"""By the script's names of its parts."""

_KINDS: Mapping[str, Failure] = {
    "missing": Failure.NOT_CONFIGURED,
    "permission": Failure.PERMISSION,
    "unreadable": Failure.UNREADABLE,
}


def read_place(answer: Answer, asked: Mapping[str, tuple[str, str]]) -> Mapping[str, Reading[Any]]:
    """Return a reading for each key that was asked: key -> (part, how a person would ask the same).

    A part that is not there (a file, a folder, a variable) reads as not configured, an import that failed and a
    part that ended by itself as an error, both with their words as raw text.
    """
    said = _document(answer)
    if said is None:
        failure = failure_of(answer) or Failure.UNREADABLE
        return {
            key: Reading(command, answer.at, answer.text[-RAW_LIMIT:], failure=failure)
            for key, (_, command) in asked.items()
        }
    return {key: _read_part(part, command, said.get(key), answer.at) for key, (part, command) in asked.items()}


def has_answered(answer: Answer) -> bool:
    """Return whether the script has said anything that can be read."""
    return _document(answer) is not None


def _document(answer: Answer) -> dict[str, Any] | None:
    for line in reversed(answer.stdout.split(b"\n")):
        if line.startswith(MARK.encode()):
            try:
                found = json.loads(line[len(MARK) :].decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                return None
            return found if isinstance(found, dict) else None
    return None


def _read_part(part: str, command: str, said: Any, at: float) -> Reading[Any]:
    if not isinstance(said, dict):
        return Reading(command, at, "nothing was said of it", failure=Failure.EMPTY)
    if "hangs" in said:
        return Reading(command, at, f"no answer within {_seconds(said['hangs'])} s", failure=Failure.TIMEOUT)
    if "ok" not in said:
        failure = _KINDS.get(str(said.get("kind")), Failure.ERROR)
        return Reading(command, at, clean(str(said.get("error", "")))[-RAW_LIMIT:].strip(), failure=failure)
    try:
        value = PARTS[part](said["ok"])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
        return Reading(
            command, at, decode(json.dumps(said["ok"]).encode())[:RAW_LIMIT], failure=Failure.UNREADABLE
        )
    return Reading(command, at, _shown(said["ok"])[:RAW_LIMIT], value=value)


def _seconds(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) else "?"


def _shown(value: Any) -> str:
    """Return a value as lines for people."""
    if isinstance(value, dict):
        return "\n".join(
            f"{clean_line(str(name))}:{_nested(one)}" for name, one in value.items() if one not in ("", [], {})
        )
    if isinstance(value, list):
        return "\n".join(_flat(one) for one in value)
    return clean_line(str(value))


def _nested(value: Any) -> str:
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(one, list | dict) for one in value)):
        return "".join(f"\n  {line}" for line in _shown(value).split("\n"))
    return f" {_flat(value)}"


def _flat(value: Any) -> str:
    if isinstance(value, list):
        return "  ".join(_flat(one) for one in value)
    if isinstance(value, dict):
        return "  ".join(f"{name} {_flat(one)}" for name, one in value.items())
    return clean_line(str(value))
