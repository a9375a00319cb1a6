"""What a start command asks for, and how a container that is there differs from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pdtui.fleet.containers.difference import differences, spanned
from pdtui.fleet.containers.wanted import Mount, Wanted, read_run
from pdtui.fleet.containers.words import Place, is_being_removed, is_missing, trouble_of
from pdtui.readings.answer import Answer
from pdtui.readings.container import Container, read_container, read_image
from pdtui.topology.load import load_checked
from pdtui.topology.memory_size import bytes_of, size_text
from pdtui.topology.render.container import container_argv

IMAGE = "quay.io/ascend/vllm-ascend:v0.22.1rc1-a3"
RUN = (
    *("docker", "run", "-d", "--name", "vllm-ascend", "--net=host", "--shm-size=1g"),
    *("--device", "/dev/davinci0", "--device", "/dev/davinci1", "--device", "/dev/hisi_hdc"),
    *("-v", "/usr/local/Ascend/driver/lib64/:/usr/local/Ascend/driver/lib64/", "-v", "/models:/data/models:ro"),
    *("--entrypoint", "bash", IMAGE, "-c", "trap exit TERM; sleep infinity & wait"),
)

DOCKER: dict[str, Any] = {
    "Id": "5d1b2b7a1c6f",
    "Name": "/vllm-ascend",
    "State": {"Status": "running", "Running": True},
    "Image": "sha256:" + "a" * 64,
    "HostConfig": {
        "NetworkMode": "host",
        "IpcMode": "private",
        "PidMode": "",
        "Privileged": False,
        "ShmSize": 1 << 30,
        "CapAdd": None,
        "Ulimits": [],
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "Devices": [
            {"PathOnHost": f"/dev/{name}", "PathInContainer": f"/dev/{name}", "CgroupPermissions": "rwm"}
            for name in ("davinci0", "davinci1", "hisi_hdc")
        ],
    },
    "Mounts": [
        {
            "Type": "bind",
            "Source": "/usr/local/Ascend/driver/lib64",
            "Destination": "/usr/local/Ascend/driver/lib64",
            "RW": True,
        },
        {"Type": "bind", "Source": "/models", "Destination": "/data/models", "RW": False},
        {"Type": "volume", "Source": "/var/lib/docker/volumes/x/_data", "Destination": "/cache", "RW": True},
    ],
    "Config": {"Image": IMAGE, "Env": ["PATH=/usr/bin", "HF_TOKEN=hf_secret"]},
}


def found(**changes: Any) -> Container:
    """Return what docker says of a container as it should be, but for some of it."""
    host = {**DOCKER["HostConfig"], **changes.pop("HostConfig", {})}
    config = {**DOCKER["Config"], **changes.pop("Config", {})}
    document = {**DOCKER, **changes, "HostConfig": host, "Config": config}
    reading = read_container(Answer("docker inspect", json.dumps([document]).encode()))
    assert reading.value is not None, reading
    assert "hf_secret" not in repr(reading)
    return reading.value


def test_a_container_as_wanted_differs_in_nothing() -> None:
    assert differences(read_run(RUN), found(), "a" * 64) == ()
    assert differences(read_run(RUN), found()) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"Config": {"Image": "other:1"}, "Image": ""}, f"its image is other:1, the file says {IMAGE}"),
        ({"Image": "sha256:" + "b" * 64}, "another build"),
        ({"HostConfig": {"NetworkMode": "bridge"}}, "its network is bridge, the file says host"),
        ({"HostConfig": {"ShmSize": 64 << 20}}, "its shared memory is 64m, the file says 1g"),
        ({"HostConfig": {"Devices": DOCKER["HostConfig"]["Devices"][2:]}}, "devices missing: /dev/davinci0-1"),
        ({"HostConfig": {"PidMode": "host"}}, "it shares the host's pid namespace, the file"),
        ({"HostConfig": {"Privileged": True}}, "it is privileged, the file says otherwise"),
        ({"HostConfig": {"RestartPolicy": {"Name": "always"}}}, "its restart policy is always, the file says no"),
        ({"Mounts": DOCKER["Mounts"][:1]}, "not mounted: /data/models"),
        (
            {"Mounts": [*DOCKER["Mounts"], {"Type": "bind", "Source": "/x", "Destination": "/y", "RW": True}]},
            "mounted besides: /y",
        ),
        (
            {"Mounts": [DOCKER["Mounts"][0], {**DOCKER["Mounts"][1], "Source": "/old"}]},
            "/data/models is the host's /old, the file says /models",
        ),
        (
            {"Mounts": [DOCKER["Mounts"][0], {**DOCKER["Mounts"][1], "RW": True}]},
            "/data/models is writable, the file says otherwise",
        ),
    ],
)
def test_each_difference_is_said(changes: dict[str, Any], words: str) -> None:
    (difference,) = differences(read_run(RUN), found(**changes), "a" * 64)
    assert words in difference


def test_options_are_compared_and_values_of_variables_never_shown() -> None:
    words = ("--ulimit", "memlock=-1", "--cap-add=SYS_PTRACE", "-e", "HF_TOKEN=hf_other", "--privileged=false")
    wanted = read_run((*RUN[:3], *words, *RUN[3:]))
    said = differences(wanted, found())
    assert said == (
        "capabilities missing: SYS_PTRACE",
        "its limit memlock is not set, the file says unlimited",
        "variables that differ: HF_TOKEN",
    )
    right = found(
        HostConfig={"CapAdd": ["CAP_SYS_PTRACE"], "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}]},
        Config={"Env": ["HF_TOKEN=hf_other"]},
    )
    assert differences(wanted, right) == ()


def test_what_an_engine_does_not_say_is_no_difference() -> None:
    # podman's names of capabilities and limits; nerdctl says the image's name for its id, and little else.
    podman = found(
        Image="a" * 64,
        Config={"Image": "quay.io/ascend/vllm-ascend:v0.22.1rc1-a3"},
        HostConfig={"Ulimits": [{"Name": "RLIMIT_NOFILE", "Soft": 1, "Hard": 1}], "RestartPolicy": {"Name": ""}},
    )
    assert differences(read_run(RUN), podman, "a" * 64) == ()
    bare = {"State": {"Status": "running"}, "Image": IMAGE, "Config": {"Image": IMAGE}, "Mounts": DOCKER["Mounts"]}
    nerdctl = read_container(Answer("nerdctl inspect", json.dumps([bare]).encode())).value
    assert nerdctl is not None
    assert differences(read_run(RUN), nerdctl, "a" * 64) == ()


def test_images_by_their_short_names() -> None:
    wanted = Wanted(image="vllm")
    for name in ("docker.io/library/vllm:latest", "vllm:latest", "vllm"):
        assert differences(wanted, Container("running", None, {}, name)) == ()
    assert differences(wanted, Container("running", None, {}, "vllm:2")) != ()


def test_flags_in_every_form() -> None:
    wanted = read_run(
        (
            *("nerdctl", "-n", "k8s.io", "run", "-itd", "--net", "host", "--shm-size", "512m", "-v/a:/b", "--rm"),
            *("--mount", "type=bind,source=/c,target=/d,readonly", "--device=/dev/x:/dev/y:rw", "--unknown", "z"),
            *("--ulimit=nofile=10:20", "-v", "cache:/cache", "--pid=host", "image", "-v", "/no:/no"),
        )
    )
    assert wanted.image == "image"
    assert wanted.mounts == {"/b": Mount("/a"), "/d": Mount("/c", read_only=True)}
    assert wanted.devices == {"/dev/y": "/dev/x"}
    assert wanted.limits == {"nofile": (10, 20)}
    assert (wanted.network, wanted.pid, wanted.shm) == ("host", "host", 512 << 20)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1g", 1 << 30),
        ("64M", 64 << 20),
        ("2gb", 2 << 30),
        ("1GiB", 1 << 30),
        ("512", 512),
        ("x", None),
        ("", None),
    ],
)
def test_sizes(text: str, size: int | None) -> None:
    assert bytes_of(text) == size
    assert size is None or bytes_of(size_text(size)) == size


def test_paths_in_spans() -> None:
    assert spanned(["/dev/davinci0", "/dev/davinci1", "/dev/davinci3", "/dev/x"]) == (
        "/dev/davinci0-1, /dev/davinci3, /dev/x"
    )


def test_every_sample_with_a_container_can_be_held_against_its_own_command() -> None:
    samples = Path(__file__).parents[3] / "sample_configs"
    seen = 0
    for path in sorted(samples.glob("*.yaml")):
        topology = load_checked(path)
        if topology.runtime.container is None or topology.runtime.image is None:
            continue
        for node in topology.nodes:
            wanted = read_run(container_argv(topology, node))
            assert wanted.image == topology.runtime.image
            assert wanted.network == "host"
            seen += 1
    assert seen


PLACE = Place("docker", "vllm-ascend", IMAGE, "ops")


@pytest.mark.parametrize(
    ("said", "words", "remedy"),
    [
        (f"Unable to find image '{IMAGE}' locally\ndocker: Error response from daemon: Get ...", "image", "pull"),
        (f"Error: {IMAGE}: image not known", f"the image {IMAGE} is not on the node", f"docker pull {IMAGE}"),
        (
            'docker: Error response from daemon: Conflict. The container name "/vllm-ascend" is already in use by'
            ' container "5d1". You have to remove (or rename) that container to be able to reuse that name.',
            "the name vllm-ascend is taken",
            "docker ps -a",
        ),
        ('FATA[0000] name "vllm-ascend" is already used by ID "a1e0"', "the name vllm-ascend is taken", "ps -a"),
        (
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            "does not answer",
            "systemctl start docker",
        ),
        (
            "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
            "ops may not use docker",
            "usermod -aG docker ops",
        ),
        ("mkdir /var/lib/docker/overlay2/2f: no space left on device", "disk of the engine is full", "df -h"),
        (
            "docker: Error response from daemon: error gathering device information while adding custom device"
            ' "/dev/davinci9": no such file or directory',
            "the node has no device file /dev/davinci9",
            "npu-smi",
        ),
        ("Error: statfs /models/r1: no such file or directory", "no /models/r1 to mount", "runtime.mounts"),
        (
            "docker: unknown or invalid runtime name: ascend.",
            "the engine has no runtime ascend",
            "runtime.options",
        ),
        (
            "unknown flag: --shmsize\nSee 'docker run --help'.",
            "does not know the flag --shmsize",
            "runtime.options",
        ),
        ("something else went wrong", "docker: something else went wrong", ""),
        ("no use for HF_TOKEN=hunter2 here", "docker: no use for HF_TOKEN=*** here", ""),
        ("", "docker ended with status 3", ""),
    ],
)
def test_what_engines_say_is_said_with_a_remedy(said: str, words: str, remedy: str) -> None:
    trouble = trouble_of(said, PLACE, 3)
    assert words in trouble.message
    assert remedy in trouble.remedy
    assert bool(trouble.remedy) == bool(remedy)


def test_a_container_that_is_gone() -> None:
    assert is_missing("Error response from daemon: No such container: x")
    assert is_missing('Error: no container with name or ID "x" found: no such container')
    assert not is_missing("Error response from daemon: No such image: x")
    assert is_being_removed("Error response from daemon: removal of container x is already in progress")


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'[{"Id": 3}]', b"\xff\x00", b'[{"Id": "sha256:short"}]'])
def test_no_image_is_read_from_rubbish(text: bytes) -> None:
    assert read_image(Answer("docker image inspect", text)).value is None
