"""What a container engine says of one container: `docker inspect` and its like, or containerd's `ctr`.

docker, podman and nerdctl print a list with one object (docker's Engine API, «Inspect a container»; the other two
name what they know alike and leave out the rest); `ctr containers info` prints the OCI runtime's specification.
What an engine does not say is None, never a guess. podman names capabilities `CAP_...` and limits `RLIMIT_...` and
has no `sha256:` before ids (its «podman inspect» page and libpod's define.InspectContainerData); nerdctl's form
for docker leaves out most of `HostConfig` (its pkg/inspecttypes/dockercompat).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pdtui.readings.answer import RAW_LIMIT, Answer, Failure, Reading, reading
from pdtui.text import clean_line


@dataclass(frozen=True, slots=True)
class Container:
    """One container as its engine knows it; None: the engine does not say."""

    state: str | None
    """`running`, `paused`, `exited`, `created`, `restarting`, `dead`..."""
    network: str | None
    """`host`, `bridge`, `none`, a network's name."""
    mounts: Mapping[str, str]
    """Path in the container -> path on the host."""
    image: str
    image_id: str = ""
    """Of the image it was made from, without `sha256:`; empty: not said."""
    volumes: frozenset[str] = frozenset()
    """Of the mounts, those that are not the host's: the engine's own volumes."""
    read_only: frozenset[str] = frozenset()
    """Of the mounts, those that cannot be written."""
    devices: Mapping[str, str] | None = None
    """Device file in the container -> on the host."""
    shm: int | None = None
    """Bytes of /dev/shm."""
    privileged: bool | None = None
    pid: str | None = None
    """`host`, or empty: its own."""
    ipc: str | None = None
    """`host`, `private`, `shareable`, or empty."""
    restart: str | None = None
    """`no`, `always`, `unless-stopped`, `on-failure`."""
    capabilities: frozenset[str] | None = None
    """Added ones, without `CAP_`."""
    limits: Mapping[str, tuple[int, int]] | None = None
    """Name in small letters, without `rlimit_` -> soft and hard."""
    env: Mapping[str, str] | None = field(default=None, repr=False)
    """May hold secrets: compared, never shown."""

    def mount_of(self, path: str) -> str | None:
        """Return the mount point in the container that a path lies on, if it is one of the mounts."""
        inside = [point for point in self.mounts if f"{path.rstrip('/')}/".startswith(f"{point.rstrip('/')}/")]
        return max(inside, key=len, default=None)


def read_container(answer: Answer) -> Reading[Container]:
    """Read the answer of `inspect` or `containers info`.

    Its text is not kept: it holds the container's environment, and with that secrets.
    """
    found = reading(answer, _parse(answer))
    if found.value is not None:
        return replace(found, raw=_shown(found.value)[:RAW_LIMIT])
    if found.failure is Failure.UNREADABLE:
        return replace(found, raw=f"{len(answer.stdout)} bytes that are no description of a container")
    return replace(found, raw=replace(answer, stdout=b"").text[:RAW_LIMIT])


def _shown(value: Container) -> str:
    """Return what was read as lines for people."""
    lines = [
        f"state {value.state or 'not said'}",
        f"network {value.network or 'not said'}",
        f"image {value.image}",
    ]
    return "\n".join([*lines, *(f"mount {source} on {point}" for point, source in value.mounts.items())])


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
    listed = found.get("Mounts")
    mounts = {
        clean_line(str(one["Destination"])): one
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, dict) and "Destination" in one
    }
    config = found.get("Config")
    config = config if isinstance(config, dict) else {}
    return Container(
        state=_state(state),
        network=_text(host.get("NetworkMode")),
        mounts={point: clean_line(str(one.get("Source", ""))) for point, one in mounts.items()},
        image=_text(config.get("Image")) or _text(found.get("ImageName")) or "",
        image_id=_image_id(found.get("Image")),
        volumes=frozenset(point for point, one in mounts.items() if one.get("Type", "bind") != "bind"),
        read_only=frozenset(point for point, one in mounts.items() if one.get("RW") is False),
        devices=_devices(host.get("Devices")) if "Devices" in host else None,
        shm=_whole(host.get("ShmSize")),
        privileged=host["Privileged"] if isinstance(host.get("Privileged"), bool) else None,
        pid=_word(host, "PidMode"),
        ipc=_word(host, "IpcMode"),
        restart=_text((host.get("RestartPolicy") or {}).get("Name")),
        capabilities=frozenset(clean_line(str(one)).upper().removeprefix("CAP_") for one in host["CapAdd"] or ())
        if "CapAdd" in host
        else None,
        limits=_limits(host["Ulimits"] or ()) if "Ulimits" in host else None,
        env=_assignments(config["Env"] or ()) if "Env" in config else None,
    )


def read_image(answer: Answer) -> Reading[str]:
    """Read the answer of `image inspect`: the image's id, without `sha256:`."""
    return reading(answer, _parse_image(answer))


def _parse_image(answer: Answer) -> str | None:
    try:
        found = json.loads(answer.stdout.decode("utf-8", "replace"))
        if isinstance(found, list):
            found = found[0]
        return _image_id(found["Id"]) or None
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        return None


def _image_id(value: Any) -> str:
    """Return an id without the name of its digest; nerdctl says the image's name in its place, which is none."""
    text = value.removeprefix("sha256:") if isinstance(value, str) else ""
    return text if len(text) == 64 and all(letter in "0123456789abcdef" for letter in text) else ""


def _devices(value: Any) -> Mapping[str, str]:
    return {
        clean_line(str(one["PathInContainer"])): clean_line(str(one.get("PathOnHost", "")))
        for one in value or ()
        if isinstance(one, dict) and "PathInContainer" in one
    }


def _limits(value: Any) -> Mapping[str, tuple[int, int]]:
    return {
        clean_line(str(one["Name"])).lower().removeprefix("rlimit_"): (int(one["Soft"]), int(one["Hard"]))
        for one in value
    }


def _assignments(value: Any) -> Mapping[str, str]:
    return dict(str(one).partition("=")[::2] for one in value)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _word(host: Mapping[str, Any], name: str) -> str | None:
    return clean_line(host[name]) if isinstance(host.get(name), str) else None


def _state(state: dict[str, Any]) -> str | None:
    """Return the state; engines that have no word for it have flags."""
    if (word := _text(state.get("Status"))) is not None:
        return word.lower()
    for name in ("Paused", "Restarting", "Running"):
        if state.get(name) is True:
            return name.lower()
    return "exited" if state.get("Running") is False else None


def _of_spec(found: dict[str, Any]) -> Container:
    spec = found["Spec"]
    linux = spec.get("linux") or {}
    mounts = [one for one in spec.get("mounts") or () if isinstance(one, dict)]
    spaces = {str(one["type"]): str(one.get("path") or "") for one in linux.get("namespaces") or ()}
    own = "network" in spaces and not spaces["network"]
    return Container(
        state=None,
        network="host" if "network" not in spaces else "own" if own else clean_line(spaces["network"]),
        mounts={
            clean_line(str(one["destination"])): clean_line(str(one.get("source", "")))
            for one in mounts
            if one.get("type") == "bind"
        },
        image=_text(found.get("Image")) or "",
    )
