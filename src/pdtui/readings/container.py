"""What a container engine says of one container: `docker inspect` and its like, or containerd's `ctr`.

docker, podman and nerdctl print a list with one object (docker's Engine API, «Inspect a container»; the other two
name what they know alike and leave out the rest); `ctr containers info` prints the OCI runtime's specification.
What an engine does not say is None, never a guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pdtui.readings.answer import Answer, Reading, reading
from pdtui.text import clean_line

_DAVINCI = re.compile(r"/dev/davinci(\d{1,4})\Z")
_SIZES = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


@dataclass(frozen=True, slots=True)
class Container:
    """One container as its engine knows it; None: the engine does not say."""

    state: str | None
    """`running`, `paused`, `exited`, `created`, `restarting`, `dead`..."""
    network: str | None
    """`host`, `bridge`, `none`, a network's name."""
    shm_size: int | None
    """Bytes of its own /dev/shm."""
    ipc: str | None
    """`host`: /dev/shm is the host's."""
    mounts: Mapping[str, str]
    """Path in the container -> path on the host."""
    devices: tuple[int, ...] | None
    """NPUs that were handed in one by one."""
    privileged: bool | None
    image: str

    def mount_of(self, path: str) -> str | None:
        """Return the mount point in the container that a path lies on, if it is one of the mounts."""
        inside = [point for point in self.mounts if f"{path.rstrip('/')}/".startswith(f"{point.rstrip('/')}/")]
        return max(inside, key=len, default=None)


def read_container(answer: Answer) -> Reading[Container]:
    """Read the answer of `inspect` or `containers info`."""
    return reading(answer, _parse(answer))


def _parse(answer: Answer) -> Container | None:
    try:
        found = json.loads(answer.stdout.decode("utf-8", "replace"))
        if isinstance(found, list):
            found = found[0]
        return _of_spec(found) if isinstance(found.get("Spec"), dict) else _of_inspect(found)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, OverflowError):
        return None


def _text(value: Any) -> str | None:
    return clean_line(value) if isinstance(value, str) and value else None


def _of_inspect(found: dict[str, Any]) -> Container | None:
    state = found.get("State")
    host = found.get("HostConfig")
    host = host if isinstance(host, dict) else {}
    if not isinstance(state, dict):
        return None
    size, devices, privileged = host.get("ShmSize"), host.get("Devices"), host.get("Privileged")
    mounts = found.get("Mounts")
    return Container(
        state=_state(state),
        network=_text(host.get("NetworkMode")),
        shm_size=size if isinstance(size, int) and size > 0 else None,
        ipc=_text(host.get("IpcMode")),
        mounts={
            clean_line(str(one["Destination"])): clean_line(str(one.get("Source", "")))
            for one in (mounts if isinstance(mounts, list) else ())
            if isinstance(one, dict) and "Destination" in one
        },
        devices=_davinci(str(one.get("PathInContainer", "")) for one in devices if isinstance(one, dict))
        if isinstance(devices, list)
        else None,
        privileged=privileged if isinstance(privileged, bool) else None,
        image=_text((found.get("Config") or {}).get("Image")) or _text(found.get("ImageName")) or "",
    )


def _state(state: dict[str, Any]) -> str | None:
    """Return the state; engines that have no word for it have flags."""
    if (word := _text(state.get("Status"))) is not None:
        return word.lower()
    for name in ("Paused", "Restarting", "Running"):
        if state.get(name) is True:
            return name.lower()
    return "exited" if state.get("Running") is False else None


def _davinci(paths: Iterable[str]) -> tuple[int, ...]:
    return tuple(sorted({int(match[1]) for path in paths if (match := _DAVINCI.search(path))}))


def _of_spec(found: dict[str, Any]) -> Container:
    spec = found["Spec"]
    linux = spec.get("linux") or {}
    mounts = [one for one in spec.get("mounts") or () if isinstance(one, dict)]
    spaces = {str(one["type"]): str(one.get("path") or "") for one in linux.get("namespaces") or ()}
    own = "network" in spaces and not spaces["network"]
    devices = linux.get("devices")
    caps = ((spec.get("process") or {}).get("capabilities") or {}).get("bounding")
    return Container(
        state=None,
        network="host" if "network" not in spaces else "own" if own else clean_line(spaces["network"]),
        shm_size=_shm_of(mounts),
        ipc="host" if "ipc" not in spaces else "private",
        mounts={
            clean_line(str(one["destination"])): clean_line(str(one.get("source", "")))
            for one in mounts
            if one.get("type") == "bind"
        },
        devices=_davinci(str(one.get("path", "")) for one in devices if isinstance(one, dict))
        if isinstance(devices, list)
        else None,
        privileged="CAP_SYS_ADMIN" in caps and not linux.get("maskedPaths") if isinstance(caps, list) else None,
        image=_text(found.get("Image")) or "",
    )


def _shm_of(mounts: Iterable[dict[str, Any]]) -> int | None:
    for one in mounts:
        if one.get("destination") == "/dev/shm" and one.get("type") == "tmpfs":  # noqa: S108 - as it is told
            for option in one.get("options") or ():
                match = re.fullmatch(r"size=(\d{1,15})([bkmg]?)", str(option), re.IGNORECASE)
                if match:
                    return int(match[1]) * _SIZES[match[2].lower()]
    return None
