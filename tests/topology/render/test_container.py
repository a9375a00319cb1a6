"""The command that starts a node's container, against the guides' docker block and for other platforms."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from pdtui.errors import FileError
from pdtui.topology.model import Topology
from pdtui.topology.render.container import KEEP, container_argv, engine_argv, foreground_argv
from tests.topology.examples import BASE, CPU, changed, loaded

GUIDE = Path(__file__).parents[1] / "data" / "guide_2p1d_services.txt"
RUNTIME = "runtime: {container: vllm-ascend, image: an/image:1%s}\nnodes:\n"


def contained(more: str = "", base: str = BASE, *edits: tuple[str, str]) -> Topology:
    """Return the base with a container and an image."""
    topology = loaded(changed(("nodes:\n", RUNTIME % more), *edits, base=base)).topology
    assert topology is not None
    return topology


def values(argv: tuple[str, ...], flag: str) -> list[str]:
    return [value for name, value in pairwise(argv) if name == flag]


def test_the_guides_form_has_the_guides_words_in_the_guides_order() -> None:
    text = GUIDE.read_text()
    match = re.search(r"^docker run .*?bash$", text, re.MULTILINE | re.DOTALL)
    assert match is not None
    block = match[0].replace("\\\n", " ").replace("$NAME", "vllm-ascend").replace("$IMAGE", "an/image:1")
    cache = ", mounts: ['/mnt/sfs_turbo/.cache:/root/.cache', '/var/lib:/var/lib']"
    ours = [word for word in foreground_argv(contained(cache), "n1") if word != "/var/lib:/var/lib"]
    ours.remove("-v")  # One too many: the mount that holds the ranks' records, which the guide does not have.
    guide = shlex.split(block)
    assert sorted(ours) == sorted(guide)
    without_v = [word for word in guide if word != "-v"]
    assert [word for word in ours if word != "-v"] == without_v


def test_the_detached_form_stays_until_it_is_stopped() -> None:
    argv = container_argv(contained(), "n1")
    assert argv[:5] == ("docker", "run", "-d", "--name", "vllm-ascend")
    assert argv[-5:] == ("--entrypoint", "bash", "an/image:1", *KEEP)
    assert "--rm" not in argv
    assert "-it" not in argv
    assert values(argv, "--device")[:16] == [f"/dev/davinci{npu}" for npu in range(16)]


@pytest.mark.parametrize(("platform", "npus"), [("a2", 8), ("a3", 16), ("a5", 8)])
def test_each_platform_has_its_devices(platform: str, npus: int) -> None:
    edits = (("platform: a3", f"platform: {platform}"), ("dp_size: 2, tp_size: 8", "dp_size: 1, tp_size: 8"))
    argv = container_argv(contained("", BASE, *edits), "n1")
    devices = values(argv, "--device")
    assert devices[:npus] == [f"/dev/davinci{npu}" for npu in range(npus)]
    manager = {"/dev/davinci_manager", "/dev/hisi_hdc"}
    others = {"/dev/ummu", "/dev/uburma"} if platform == "a5" else {"/dev/devmm_svm"}
    assert set(devices[npus:]) == manager | others
    assert ("--pid=host" in argv) == (platform == "a5")
    mounts = values(argv, "-v")
    assert ("/etc/hccn.conf:/etc/hccn.conf" in mounts) == (platform != "a5")
    assert ("/etc/hixlep:/etc/hixlep" in mounts) == (platform == "a5")


def test_without_npus_there_are_no_devices_and_no_drivers() -> None:
    topology = loaded(CPU.replace("runtime: {", "runtime: {container: c, image: i, ")).topology
    assert topology is not None
    argv = container_argv(topology, "n1")
    assert "--device" not in argv
    assert values(argv, "-v") == ["/var/lib/pdtui:/var/lib/pdtui"]


def test_a_node_that_only_has_the_proxy_gets_no_npus() -> None:
    topology = contained("", BASE, ("groups:\n", "  n4: {host: 192.0.2.4, nic: eth0}\ngroups:\n"))
    assert "--device" in container_argv(topology, "n3")
    assert "--device" not in container_argv(topology, "n4")


def test_what_the_file_says_stands_in_place_of_the_defaults() -> None:
    more = (
        ", shm_size: 64g, devices: [/dev/davinci4, /dev/davinci5, '/dev/hisi_hdc:/dev/hisi_hdc:rwm']"
        ", mounts: ['/drivers/dcmi:/usr/local/dcmi:ro', '/models:/models'], options: [--privileged, -e, A=b c]"
        ", state_dir: /models/state"
    )
    argv = container_argv(contained(more), "n1")
    assert "--shm-size=64g" in argv
    assert values(argv, "--device") == [
        "/dev/davinci4",
        "/dev/davinci5",
        "/dev/hisi_hdc:/dev/hisi_hdc:rwm",
        "/dev/davinci_manager",
        "/dev/devmm_svm",
    ]
    mounts = values(argv, "-v")
    assert "/drivers/dcmi:/usr/local/dcmi:ro" in mounts
    assert "/usr/local/dcmi:/usr/local/dcmi" not in mounts
    assert not any("/models/state" in mount for mount in mounts), "it lies on /models already"
    at = argv.index("--privileged")
    assert argv[at : at + 4] == ("--privileged", "-e", "A=b c", "--entrypoint")


@pytest.mark.parametrize(
    ("words", "engine"),
    [
        ("[podman, exec, -i]", ("podman",)),
        ("[sudo, -n, /usr/bin/docker, exec, -i]", ("sudo", "-n", "/usr/bin/docker")),
        ("[nerdctl, -n, k8s.io, exec, -i]", ("nerdctl", "-n", "k8s.io")),
    ],
)
def test_the_engine_is_that_of_exec(words: str, engine: tuple[str, ...]) -> None:
    topology = contained(f", exec: {words}")
    assert engine_argv(topology) == engine
    assert container_argv(topology, "n1")[: len(engine) + 1] == (*engine, "run")


def test_what_cannot_be_started_is_said_with_the_remedy() -> None:
    base = loaded(BASE).topology
    assert base is not None
    with pytest.raises(FileError, match=r"runtime\.container.*\n.*container: NAME"):
        container_argv(base, "n1")
    no_image = loaded(changed(("nodes:\n", "runtime: {container: c}\nnodes:\n"))).topology
    assert no_image is not None
    with pytest.raises(FileError, match=r"runtime\.image.*c cannot be started\n.*v0\.22\.1rc1-a3"):
        foreground_argv(no_image, "n1")
    ctr = contained(", exec: [ctr, -n, k8s.io, tasks, exec, --exec-id, '{id}']")
    with pytest.raises(FileError, match=r"docker, podman or nerdctl"):
        container_argv(ctr, "n1")
