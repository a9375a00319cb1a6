"""How the container of a node is started: the `docker run` of vLLM-Ascend's guides, filled in from `runtime`.

The one place that knows its words: `pdtui render` writes them down, `pdtui container` runs them.
Sources: the guides' docker blocks for A2 and A3; for A5 vLLM-Ascend's tutorials for the 950 series.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from pdtui.errors import FileError
from pdtui.topology.model import Platform, Runtime, Topology

ENGINES = ("docker", "podman", "nerdctl")
"""Engines whose command line is docker's."""

STATE_DIR = "/var/lib/pdtui"
"""Where records and logs of ranks lie in a container when the file does not say."""

KEEP = ("-c", "trap exit TERM; sleep infinity & wait")
"""What bash does in a container of ranks: it reaps what is left to it, and ends at once when it is stopped."""

_DAVINCI = re.compile(r"/dev/davinci[0-9]+")

_DEVICES: dict[Platform, tuple[str, ...]] = {
    "a2": ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
    "a3": ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
    "a5": ("/dev/davinci_manager", "/dev/hisi_hdc", "/dev/ummu", "/dev/uburma"),
    "cpu": (),
}

_DRIVER = (
    "/usr/local/dcmi",
    "/usr/local/Ascend/driver/tools/hccn_tool",
    "/usr/local/bin/npu-smi",
    "/usr/local/Ascend/driver/lib64/",
    "/usr/local/Ascend/driver/version.info",
    "/etc/ascend_install.info",
    "/etc/hccn.conf",
)

_MOUNTS: dict[Platform, tuple[str, ...]] = {
    "a2": _DRIVER,
    "a3": _DRIVER,
    "a5": (
        "/usr/local/dcmi",
        "/usr/local/sbin",
        "/usr/local/bin/npu-smi",
        "/usr/local/Ascend/driver",
        "/etc/ascend_install.info",
        "/lib/route.conf",
        "/etc/hccl_rootinfo.json",
        "/etc/hixlep",
        "/usr/bin/urma_admin",
    ),
    "cpu": (),
}
"""Folders and files of the host that are at the same place in the container."""


def usual(platform: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return device files and mounts that a container of a platform gets without the file's saying so."""
    devices_ = {name: found for name, found in _DEVICES.items() if name == platform}
    mounts_ = {name: found for name, found in _MOUNTS.items() if name == platform}
    return (
        frozenset(device for found in devices_.values() for device in found),
        frozenset(f"{path}:{path}" for found in mounts_.values() for path in found),
    )


def container_argv(topology: Topology, node: str) -> tuple[str, ...]:
    """Return the command that starts a node's container in the background; it runs until it is stopped.

    Raises `FileError` where the file cannot say it: no container, no image, an engine with other words.
    """
    name, image = _named(topology)
    return (
        *engine_argv(topology),
        *("run", "-d", "--name", name),
        *_flags(topology, node),
        *("--entrypoint", "bash", image, *KEEP),
    )


def foreground_argv(topology: Topology, node: str) -> tuple[str, ...]:
    """Return the guides' form: a shell in a terminal, and the container goes when the shell ends.

    Raises `FileError` as `container_argv` does.
    """
    name, image = _named(topology)
    return (
        *engine_argv(topology),
        *("run", "--rm", "--name", name),
        *_flags(topology, node),
        *("-it", image, "bash"),
    )


def engine_argv(topology: Topology) -> tuple[str, ...]:
    """Return the words before `run`, `stop` or `inspect`: what stands before `exec` in `runtime.exec`.

    Raises `FileError` for an engine that docker's words do not fit.
    """
    words = topology.runtime.exec
    before = words[: words.index("exec")] if "exec" in words else ()
    if not any(PurePosixPath(word).name in ENGINES for word in before):
        raise FileError(
            f"{topology.path}: runtime.exec is `{' '.join(words)}`: "
            "pdtui can start a container with docker, podman or nerdctl only",
            remedy="start it by hand, or write runtime.exec as [nerdctl, -n, k8s.io, exec, -i]",
        )
    return before


def mounts(topology: Topology, node: str) -> tuple[str, ...]:
    """Return `host-path:container-path[:options]` of a node's container.

    The driver's where it has NPUs, the file's, and the folder of ranks' records; the file's stand in place of the
    driver's.
    """
    runtime = topology.runtime
    own = {_inside(mount) for mount in runtime.mounts}
    driver = _MOUNTS[topology.platform] if _has_npus(topology, node) else ()
    state_dir = runtime.state_dir or STATE_DIR
    every = (*(f"{path}:{path}" for path in driver if PurePosixPath(path) not in own), *runtime.mounts)
    return every if is_mounted(state_dir, every) else (*every, f"{state_dir}:{state_dir}")


def is_mounted(path: str, mounts: Iterable[str]) -> bool:
    """Whether a path in the container lies on one of the mounts."""
    return any(PurePosixPath(path).is_relative_to(_inside(mount)) for mount in mounts)


def devices(topology: Topology, node: str) -> tuple[str, ...]:
    """Return the device files of a node's container: its NPUs and their drivers', then the file's own.

    NPUs that the file lists (`/dev/davinci4`) stand in place of all; a node without ranks has none.
    """
    own = topology.runtime.devices
    if not _has_npus(topology, node):
        return own
    chosen = any(_DAVINCI.fullmatch(device.partition(":")[0]) for device in own)
    npus = () if chosen else tuple(f"/dev/davinci{npu}" for npu in range(topology.npus_per_node))
    named = {device.partition(":")[0] for device in own}
    others = tuple(device for device in _DEVICES[topology.platform] if device not in named)
    return (*npus, *own, *others)


def _flags(topology: Topology, node: str) -> tuple[str, ...]:
    runtime = topology.runtime
    return (
        "--net=host",
        *(("--pid=host",) if topology.platform == "a5" else ()),
        f"--shm-size={runtime.shm_size or '1g'}",
        *(word for device in devices(topology, node) for word in ("--device", device)),
        *(word for mount in mounts(topology, node) for word in ("-v", mount)),
        *runtime.options,
    )


def _has_npus(topology: Topology, node: str) -> bool:
    return topology.has_npus and any(node in group.nodes for group in topology.groups.values())


def _inside(mount: str) -> PurePosixPath:
    """Return where a mount is in the container."""
    parts = mount.split(":")
    return PurePosixPath(parts[1] if len(parts) > 1 else parts[0])


def _named(topology: Topology) -> tuple[str, str]:
    runtime: Runtime = topology.runtime
    if not runtime.container:
        raise FileError(
            f"{topology.path}: `runtime.container` is missing: the ranks run on the hosts themselves",
            remedy="write runtime: {container: NAME, image: IMAGE} for ranks in a container",
        )
    if not runtime.image:
        raise FileError(
            f"{topology.path}: `runtime.image` is missing: the container {runtime.container} cannot be started",
            remedy=f"write the image beside `container`, such as image: {_example(topology)}",
        )
    return runtime.container, runtime.image


def _example(topology: Topology) -> str:
    if not topology.has_npus:
        return "vllm/vllm-openai:latest"
    suffix = {"a3": "-a3", "a5": "-950dt"}.get(topology.platform, "")
    return f"quay.io/ascend/vllm-ascend:v{topology.vllm_ascend}{suffix}"
