"""What container engines say of a container: docker, podman, nerdctl, ctr, and what nobody can read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtui.readings.answer import Answer, Failure
from pdtui.readings.container import Container, read_container

DOCKER = [
    {
        "Id": "ab12",
        "State": {"Status": "running", "Running": True, "Paused": False, "Pid": 4711},
        "Config": {"Image": "quay.io/ascend/vllm-ascend:v0.22.1rc1-a3", "Env": ["HF_TOKEN=very-secret"]},
        "HostConfig": {"NetworkMode": "host", "ShmSize": 67108864, "Privileged": False, "Devices": []},
        "Mounts": [
            {"Type": "bind", "Source": "/data/models", "Destination": "/models", "RW": True},
            {
                "Type": "volume",
                "Name": "x",
                "Source": "/var/lib/docker/volumes/x/_data",
                "Destination": "/root/.cache",
            },
        ],
    }
]
PODMAN = [
    {
        "State": {"OciVersion": "1.1.0", "Status": "exited", "Running": False},
        "ImageName": "quay.io/ascend/vllm-ascend:main",
        "HostConfig": {"NetworkMode": "bridge", "ShmSize": 65536000},
        "Mounts": [],
    }
]
NERDCTL = [{"State": {"Status": "paused", "Paused": True}, "Image": "img", "Mounts": None}]
CTR = {
    "ID": "vllm",
    "Image": "docker.io/library/vllm:1",
    "Spec": {
        "process": {"env": ["HF_TOKEN=very-secret"]},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/models", "type": "bind", "source": "/data/models", "options": ["rbind"]},
        ],
        "linux": {"namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "mount"}]},
    },
}


def inspected(value: Any, **words: Any) -> Answer:
    return Answer("docker inspect vllm", json.dumps(value).encode(), **words)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (
            DOCKER,
            Container(
                "running",
                "host",
                {"/models": "/data/models", "/root/.cache": "/var/lib/docker/volumes/x/_data"},
                "quay.io/ascend/vllm-ascend:v0.22.1rc1-a3",
                volumes=frozenset({"/root/.cache"}),
                devices={},
                shm=64 << 20,
                privileged=False,
                env={"HF_TOKEN": "very-secret"},
            ),
        ),
        (PODMAN, Container("exited", "bridge", {}, "quay.io/ascend/vllm-ascend:main", shm=65536000)),
        (NERDCTL, Container("paused", None, {}, "")),
        (CTR, Container(None, "host", {"/models": "/data/models"}, "docker.io/library/vllm:1")),
    ],
    ids=["docker", "podman", "nerdctl", "ctr"],
)
def test_each_engine_is_understood_and_its_environment_is_not_kept(said: Any, wanted: Container) -> None:
    found = read_container(inspected(said))
    assert found.value == wanted
    assert "very-secret" not in str(found)
    assert found.raw.startswith("state ")


def test_a_container_with_a_network_of_its_own_is_known_by_its_namespaces() -> None:
    linux = {"namespaces": [{"type": "network"}, {"type": "ipc"}]}
    found = read_container(inspected({**CTR, "Spec": {**CTR["Spec"], "linux": linux}}))  # type: ignore[dict-item]
    assert found.value is not None
    assert found.value.network == "own"
    linux = {"namespaces": [{"type": "network", "path": "/var/run/netns/cni-1"}]}
    found = read_container(inspected({**CTR, "Spec": {**CTR["Spec"], "linux": linux}}))  # type: ignore[dict-item]
    assert found.value is not None
    assert found.value.network == "/var/run/netns/cni-1"


def test_a_path_lies_on_the_deepest_mount() -> None:
    found = Container("running", "host", {"/": "/x", "/var/lib": "/y", "/var/lib/pdtui2": "/z"}, "")
    assert found.mount_of("/var/lib/pdtui") == "/var/lib"
    assert found.mount_of("/opt") == "/"
    assert Container("running", "host", {"/models": "/m"}, "").mount_of("/var/lib/pdtui") is None


@pytest.mark.parametrize(
    ("answer", "failure", "words"),
    [
        (
            Answer("docker", b"[]", b"Error response from daemon: No such container: vllm", 1),
            Failure.ENVIRONMENT,
            "No such container: vllm",
        ),
        (
            Answer("docker", stderr=b"permission denied while trying to connect", status=1),
            Failure.PERMISSION,
            "denied",
        ),
        (Answer("docker", status=None, error="docker: No such file or directory"), Failure.ENVIRONMENT, "docker"),
        (
            Answer("docker", timed_out=True, error="no answer from docker within 10 s"),
            Failure.TIMEOUT,
            "no answer",
        ),
        (Answer("docker", b"[{]"), Failure.UNREADABLE, "3 bytes that are no description"),
        (Answer("docker", b'[{"Config": {"Env": ["K=very-secret"]}}]'), Failure.UNREADABLE, "no description"),
    ],
)
def test_no_answer_is_a_failure_with_its_words(answer: Answer, failure: Failure, words: str) -> None:
    found = read_container(answer)
    assert (found.value, found.failure) == (None, failure)
    assert words in found.raw
    assert "very-secret" not in found.raw


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["State", "Status", "HostConfig", "NetworkMode", "Mounts", "Destination", "Spec", "linux"]
            )
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(JSON.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=60))
def test_nothing_raises(data: bytes) -> None:
    found = read_container(Answer("docker", data))
    assert (found.value is None) != (found.failure is None)
