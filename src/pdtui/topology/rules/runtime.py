"""The container in which ranks run: its image, its network, what it gets of the host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from pdtui.text import spans
from pdtui.topology.findings import Path, Problem
from pdtui.topology.memory_size import bytes_of
from pdtui.topology.model import Platform
from pdtui.topology.rules.registry import Context, error, npu_rule, rule, warning
from pdtui.topology.versions import Release, cann_of, dotted, release_of

SUFFIXES: Mapping[str, Platform | None] = {"a3": "a3", "950dt": "a5", "310p": None}
"""Part of an image's tag -> the platform that it is for; None: one that is none of ours."""

_TAG_SUFFIX: Mapping[Platform, str] = {"a2": "", "a3": "-a3", "a5": "-950dt", "cpu": ""}

_PLAIN_TAG = re.compile(r"(?:main|latest|v?\d+\.\d+\.\d+(?:rc\d+)?)(?:-openeuler)?")
"""A tag of vLLM-Ascend's own images that names no platform: for A2."""

_TAG_VERSION = re.compile(r"v?(\d+\.\d+\.\d+(?:rc\d+)?)(?:-|\Z)")

A5_CANN: Release = (9, 1, 0)
"""The first CANN that A5 servers run with (vLLM-Ascend's installation page)."""

GIB = 1 << 30

_DAVINCI = re.compile(r"/dev/davinci(\d{1,4})")


@npu_rule("V11")
def image(context: Context) -> Iterator[Problem]:
    """The image has the kernels of the platform and is of the file's version (V11)."""
    topology = context.topology
    name, platform = topology.runtime.image or "", topology.platform
    path = ("runtime", "image")
    repository, _, tag = name.rpartition("/")[2].partition("@")[0].partition(":")
    marks = [part for part in tag.lower().split("-")[1:] if part in SUFFIXES]
    wanted = f"platform {platform} needs the tag {'with' if _TAG_SUFFIX[platform] else 'without'}"
    suffix = _TAG_SUFFIX[platform] or f"-{(marks or ['a3'])[0]}"
    if any(SUFFIXES[mark] != platform for mark in marks):
        yield error("V11", f"{name} is built for other NPUs; {wanted} {suffix}", path)
    elif _TAG_SUFFIX[platform] and repository == "vllm-ascend" and _PLAIN_TAG.fullmatch(tag):
        yield warning("V11", f"{name} has the name of an image for A2; {wanted} {suffix}", path)
    version = _TAG_VERSION.match(tag) if repository == "vllm-ascend" else None
    said = release_of(topology.vllm_ascend)
    if version is not None and said is not None and release_of(version[1]) != said:
        message = (
            f"the image is of version {version[1]}, `vllm_ascend` says {topology.vllm_ascend}: ports and rules "
            "would be those of another version; change one of them"
        )
        # Images that somebody builds have numbers of their own.
        is_original = name.split("/")[-2:-1] == ["ascend"]
        yield (error if is_original else warning)("V11", message, path)
    cann = cann_of(context.release)
    if platform == "a5" and cann is not None and cann < A5_CANN:
        message = (
            f"A5 servers need CANN {dotted(A5_CANN)}, vllm-ascend {topology.vllm_ascend} comes with "
            f"{dotted(cann)}; take 0.23.0 or newer"
        )
        yield error("V11", message, ("vllm_ascend",))


@rule("R66")
def network_and_memory(context: Context) -> Iterator[Problem]:
    """The container uses the host's network and has at least 1 GiB of shared memory (R66)."""
    runtime = context.topology.runtime
    if runtime.container is None:
        return
    path = ("runtime", "options")
    for index, network in _values(runtime.options, "--network", "--net"):
        if network != "host":
            message = (
                f"network `{network}` of the container: other servers cannot reach the ranks in it; delete it, "
                "and it is the host's"
            )
            yield error("R66", message, (*path, index))
    if any(value == "host" for _, value in _values(runtime.options, "--ipc")):
        return
    sizes: list[tuple[Path, str]] = [
        ((*path, index), value) for index, value in _values(runtime.options, "--shm-size")
    ]
    if runtime.shm_size is not None:
        sizes.append((("runtime", "shm_size"), runtime.shm_size))
    for where, text in sizes:
        size = bytes_of(text)
        if size is None:
            yield error("R66", f"`{text}` is no size of /dev/shm; write 1g or more", where)
        elif size < GIB:
            message = f"{text} of /dev/shm is too small for vLLM's message queues; write 1g or more"
            yield error("R66", message, where)


def _values(words: Sequence[str], *names: str) -> Iterator[tuple[int, str]]:
    """Yield (index, value) of an option, written as `--name=value` or as two words."""
    for index, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name not in names:
            continue
        if equals:
            yield index, value
        elif index + 1 < len(words):
            yield index, words[index + 1]


@rule("V10")
def container(context: Context) -> Iterator[Problem]:
    """The container can be made, and gets of the host what its ranks need (V10)."""
    if context.topology.runtime.container is None:
        return
    yield from _options(context)
    yield from _mounts(context)
    yield from _npus(context)


def _options(context: Context) -> Iterator[Problem]:
    runtime = context.topology.runtime
    for index, word in enumerate(runtime.options):
        option, blank, value = word.partition(" ")
        if option.startswith("-") and blank and "=" not in option:
            message = f"`{word}` would be one word to the container engine; write it as two, [{option}, {value}]"
            yield error("V10", message, ("runtime", "options", index))
    for index, name in _values(runtime.options, "--name"):
        if name != runtime.container:
            message = f"--name {name} contradicts `container`, {runtime.container}; delete it here"
            yield error("V10", message, ("runtime", "options", index))


def _mounts(context: Context) -> Iterator[Problem]:
    runtime = context.topology.runtime
    seen: dict[PurePosixPath, str] = {}
    folders: list[tuple[PurePosixPath, int]] = []
    for index, mount in enumerate(runtime.mounts):
        where = ("runtime", "mounts", index)
        inside = PurePosixPath(mount.split(":")[1] if ":" in mount else mount)
        if not inside.is_absolute():
            yield error("V10", f"`{mount}`: the place in the container must begin with /", where)
        elif inside in seen:
            yield error("V10", f"`{mount}` and `{seen[inside]}` are at the same place in the container", where)
        seen.setdefault(inside, mount)
        folders.append((inside, index))
    state_dir = runtime.state_dir
    if state_dir is not None and state_dir.startswith("/"):
        at = _deepest(folders, state_dir)
        if at is not None and "ro" in runtime.mounts[at].split(":")[2:3]:
            message = f"`{runtime.mounts[at]}` is read-only, but records and logs of ranks go to {state_dir} on it"
            yield error("V10", message, ("runtime", "mounts", at))


def _deepest(folders: Sequence[tuple[PurePosixPath, int]], path: str) -> int | None:
    """Return the index of the mount on which a path of the container lies."""
    found = [(len(inside.parts), index) for inside, index in folders if PurePosixPath(path).is_relative_to(inside)]
    return max(found)[1] if found else None


def _npus(context: Context) -> Iterator[Problem]:
    """NPUs that the file lists stand in place of all: a rank on another one sees no device."""
    listed = {
        int(match[1])
        for device in context.topology.runtime.devices
        if (match := _DAVINCI.fullmatch(device.partition(":")[0]))
    }
    if not listed:
        return
    for node in context.topology.nodes:
        used = {npu for rank in context.plan.on_node(node) for npu in rank.devices}
        if missing := used - listed:
            message = (
                f"ranks on {node} use NPU {spans(missing)}, but the container gets only NPU {spans(listed)} "
                "from `devices`; add /dev/davinci of the others, or leave all of them out"
            )
            yield error("V10", message, ("runtime", "devices"))
            return
