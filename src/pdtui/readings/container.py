"""What a container engine says of one container: `docker inspect` and its like, or containerd's `ctr`.

docker, podman and nerdctl print a list with one object (docker's Engine API, «Inspect a container»; the other two
name what they know alike and leave out the rest); `ctr containers info` prints the OCI runtime's specification.
What an engine does not say is None, never a guess.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    mounts = found.get("Mounts")
    return Container(
        state=_state(state),
        network=_text(host.get("NetworkMode")),
        mounts={
            clean_line(str(one["Destination"])): clean_line(str(one.get("Source", "")))
            for one in (mounts if isinstance(mounts, list) else ())
            if isinstance(one, dict) and "Destination" in one
        },
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
