"""How a container that is there differs from what the file says; what its engine does not tell is not guessed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pdtui.fleet.containers.wanted import Wanted, path_of
from pdtui.readings.container import Container
from pdtui.topology.memory_size import size_text

_NUMBERED = re.compile(r"(?P<name>.*?)(?P<number>\d+)")
_PREFIXES = ("docker.io/library/", "docker.io/")
_SHORT = 12


def differences(wanted: Wanted, found: Container, image_id: str = "") -> tuple[str, ...]:
    """Return what a container has otherwise than wanted, each in words: what it has, then what the file says.

    `image_id`: of the image that the file's name means on the node now; empty: not known.
    """
    return (
        *_image(wanted, found, image_id),
        *_modes(wanted, found),
        *_mounts(wanted, found),
        *_devices(wanted, found),
        *_options(wanted, found),
    )


def _image(wanted: Wanted, found: Container, image_id: str) -> Iterator[str]:
    if found.image and _plain(found.image) != _plain(wanted.image) and not _same_id(found, image_id):
        yield f"its image is {found.image}, the file says {wanted.image}"
    elif found.image_id and image_id and found.image_id != image_id:
        old, new = found.image_id[:_SHORT], image_id[:_SHORT]
        yield f"it was made from another build of {wanted.image} ({old}) than that name means now ({new})"


def _same_id(found: Container, image_id: str) -> bool:
    return bool(image_id) and found.image_id == image_id


def _plain(image: str) -> str:
    """Return an image's name as people write it: docker's own registry and its newest are not said."""
    for prefix in _PREFIXES:
        image = image.removeprefix(prefix)
    return image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest"


def _modes(wanted: Wanted, found: Container) -> Iterator[str]:
    if wanted.network is not None and found.network is not None and found.network != wanted.network:
        yield f"its network is {found.network}, the file says {wanted.network}"
    for what, want, has in (("pid", wanted.pid, found.pid), ("ipc", wanted.ipc, found.ipc)):
        if has is not None and (want == "host") != (has == "host"):
            shared, own = f"shares the host's {what} namespace", f"has a {what} namespace of its own"
            yield (
                f"it {shared}, the file gives it its own"
                if has == "host"
                else f"it {own}, the file shares the host's"
            )
    if wanted.shm and found.shm and wanted.shm != found.shm and "host" not in (wanted.ipc, found.ipc):
        yield f"its shared memory is {size_text(found.shm)}, the file says {size_text(wanted.shm)}"


def _mounts(wanted: Wanted, found: Container) -> Iterator[str]:
    has = {path_of(point): path_of(source) for point, source in found.mounts.items()}
    read_only = {path_of(point) for point in found.read_only}
    if lacking := [point for point in wanted.mounts if point not in has]:
        yield f"not mounted: {', '.join(lacking)}"
    for point, mount in wanted.mounts.items():
        if point in has and has[point] != mount.source:
            yield f"{point} is the host's {has[point]}, the file says {mount.source}"
        elif point in has and (point in read_only) != mount.read_only:
            yield f"{point} is {'read-only' if point in read_only else 'writable'}, the file says otherwise"
    own = {path_of(point) for point in found.volumes}
    if more := [point for point in has if point not in wanted.mounts and point not in own]:
        yield f"mounted besides: {', '.join(more)}"


def _devices(wanted: Wanted, found: Container) -> Iterator[str]:
    if found.devices is None or (found.privileged and wanted.privileged):
        return
    has = {path_of(inside): path_of(host) for inside, host in found.devices.items()}
    if not found.privileged and (lacking := [inside for inside in wanted.devices if inside not in has]):
        yield f"devices missing: {spanned(lacking)}"
    for inside, host in wanted.devices.items():
        if has.get(inside, host) != host:
            yield f"{inside} is the host's {has[inside]}, the file says {host}"
    if more := [inside for inside in has if inside not in wanted.devices]:
        yield f"devices besides: {spanned(more)}"


def _options(wanted: Wanted, found: Container) -> Iterator[str]:
    if found.privileged is not None and found.privileged != wanted.privileged:
        yield f"it is {'' if found.privileged else 'not '}privileged, the file says otherwise"
    if found.restart is not None and (found.restart or "no") != (wanted.restart or "no"):
        yield f"its restart policy is {found.restart or 'no'}, the file says {wanted.restart or 'no'}"
    given = None if found.privileged or "ALL" in (found.capabilities or ()) else found.capabilities
    if given is not None and (lacking := sorted(wanted.capabilities - given)):
        yield f"capabilities missing: {', '.join(lacking)}"
    for name, limit in wanted.limits.items():
        if found.limits is not None and (has := found.limits.get(name)) != limit:
            yield f"its limit {name} is {_limit_words(has)}, the file says {_limit_words(limit)}"
    if found.env is not None:
        other = [name for name, value in wanted.env.items() if found.env.get(name) != value]
        if other:  # Values may be secrets.
            yield f"variables that differ: {', '.join(other)}"


def _limit_words(limit: tuple[int, int] | None) -> str:
    if limit is None:
        return "not set"
    soft, hard = ("unlimited" if number < 0 else str(number) for number in limit)
    return soft if soft == hard else f"{soft}:{hard}"


def spanned(paths: Iterable[str]) -> str:
    """Return paths, those that differ in a number at their end in one word: `/dev/davinci0-7`."""
    spans: list[tuple[str, int, int]] = []
    for path in paths:
        match = _NUMBERED.fullmatch(path)
        name, number = (match["name"], int(match["number"])) if match else (path, -1)
        if match and spans and spans[-1][0] == name and spans[-1][2] == number - 1:
            spans[-1] = (name, spans[-1][1], number)
        else:
            spans.append((name, number, number))
    return ", ".join(
        name if first < 0 else f"{name}{first}" if first == last else f"{name}{first}-{last}"
        for name, first, last in spans
    )
