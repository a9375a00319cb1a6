"""What a container's start command asks for, read from its words, to be held against what its engine says.

Flags are those of docker's «docker container run» page; podman and nerdctl take the same. What is read here is
what an engine tells of a container afterwards; other flags go to the engine and are not compared.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pdtui.topology.memory_size import bytes_of

_SWITCHES = frozenset(
    {"-d", "--detach", "--rm", "--init", "-i", "--interactive", "-t", "--tty", "--privileged", "--read-only"}
    | {"--oom-kill-disable", "--no-healthcheck", "-P", "--publish-all", "-q", "--quiet", "--sig-proxy", "--help"}
)
"""Flags of `run` that take no word after them."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder or file of the host in the container."""

    source: str
    read_only: bool = False


@dataclass(slots=True)
class Wanted:
    """What a container is to be made with; None: the words do not say."""

    image: str = ""
    network: str | None = None
    pid: str | None = None
    ipc: str | None = None
    shm: int | None = None
    privileged: bool = False
    restart: str | None = None
    mounts: dict[str, Mount] = field(default_factory=dict)
    """Path in the container -> what is there."""
    devices: dict[str, str] = field(default_factory=dict)
    """Device file in the container -> on the host."""
    capabilities: set[str] = field(default_factory=set)
    limits: dict[str, tuple[int, int]] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict, repr=False)


def read_run(argv: Sequence[str]) -> Wanted:
    """Read the words of `ENGINE run ...`; those after the image are the container's own."""
    words = iter(argv[argv.index("run") + 1 :])
    wanted = Wanted()
    for word in words:
        if not word.startswith("-"):
            wanted.image = word
            break
        flag, value = _split(word, words)
        if (put := _FLAGS.get(flag)) is not None:
            put(wanted, value)
    return wanted


def _split(word: str, words: Iterator[str]) -> tuple[str, str]:
    """Return a flag and its value, which is in the same word, after it, or nowhere."""
    flag, equals, value = word.partition("=")
    if equals and word.startswith("--"):
        return flag, value
    if word in _SWITCHES or _is_cluster(word):
        return word, "true"
    if not word.startswith("--") and len(word) > 2:
        return word[:2], word[2:].removeprefix("=")
    return word, next(words, "")


def _is_cluster(word: str) -> bool:
    """Return whether it is several switches in one word: `-itd`."""
    return not word.startswith("--") and all(f"-{letter}" in _SWITCHES for letter in word[1:])


def path_of(path: str) -> str:
    """Return a path as engines tell it: without a slash at its end, dots and doubled slashes."""
    return posixpath.normpath(path) if path else path


def _volume(wanted: Wanted, value: str) -> None:
    parts = value.split(":")
    if len(parts) < 2 or not parts[0].startswith("/"):  # A volume of the engine's own.
        return
    options = parts[2].split(",") if len(parts) > 2 else []
    wanted.mounts[path_of(parts[1])] = Mount(path_of(parts[0]), "ro" in options)


def _mount(wanted: Wanted, value: str) -> None:
    words = dict(part.partition("=")[::2] for part in value.split(","))
    target = next((words[name] for name in ("target", "dst", "destination") if name in words), "")
    source = words.get("source", words.get("src", ""))
    if words.get("type") == "bind" and source and target:
        switch = next((words[name] for name in ("readonly", "ro") if name in words), "false")
        wanted.mounts[path_of(target)] = Mount(path_of(source), switch in ("", "true", "1"))


def _device(wanted: Wanted, value: str) -> None:
    host, _, rest = value.partition(":")
    inside = rest.partition(":")[0]
    wanted.devices[path_of(inside if inside.startswith("/") else host)] = path_of(host)


def _limit(wanted: Wanted, value: str) -> None:
    name, _, numbers = value.partition("=")
    soft, _, hard = numbers.partition(":")
    if soft.lstrip("-").isdigit() and (hard or soft).lstrip("-").isdigit():
        wanted.limits[name.lower()] = (int(soft), int(hard or soft))


def _env(wanted: Wanted, value: str) -> None:
    name, equals, text = value.partition("=")
    if equals:  # Without, it is what the engine's client has.
        wanted.env[name] = text


def _capability(wanted: Wanted, value: str) -> None:
    wanted.capabilities.add(value.upper().removeprefix("CAP_"))


def _set(name: str, read: Callable[[str], object]) -> Callable[[Wanted, str], None]:
    def put(wanted: Wanted, value: str) -> None:
        setattr(wanted, name, read(value))

    return put


_FLAGS: Mapping[str, Callable[[Wanted, str], None]] = {
    "--net": _set("network", str),
    "--network": _set("network", str),
    "--pid": _set("pid", str),
    "--ipc": _set("ipc", str),
    "--shm-size": _set("shm", bytes_of),
    "--privileged": _set("privileged", lambda value: value.lower() in ("true", "1", "t")),
    "--restart": _set("restart", lambda value: value.partition(":")[0]),
    "-v": _volume,
    "--volume": _volume,
    "--mount": _mount,
    "--device": _device,
    "--ulimit": _limit,
    "-e": _env,
    "--env": _env,
    "--cap-add": _capability,
}
