"""Rules of the container: what breaks each of them, and what does not."""

from __future__ import annotations

from pdtui.topology.findings import Severity
from tests.topology.examples import Case, Edits

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

IMAGE = "quay.io/ascend/vllm-ascend:v0.22.1rc1"


def runtime(text: str) -> Edits:
    return (("name: small", f"name: small\nruntime: {{container: c, {text}}}"),)


A2: Edits = (
    ("platform: a3", "platform: a2"),
    ("tp_size: 8", "tp_size: 4"),
    ("dp_size: 8", "dp_size: 4"),
)

CASES: tuple[Case, ...] = (
    Case(
        "R66",
        ERROR,
        runtime("options: [--network, bridge]"),
        "runtime.options.0",
        "`bridge`",
        runtime("options: [--network, host]"),
    ),
    Case("R66", ERROR, runtime("options: [--net=bridge]"), "runtime.options.0", "cannot reach"),
    Case("R66", ERROR, runtime("shm_size: 512m"), "runtime.shm_size", "too small", runtime("shm_size: 2gb")),
    Case(
        "R66",
        ERROR,
        runtime("options: [--shm-size=64m]"),
        "runtime.options.0",
        "too small",
        runtime("options: [--shm-size=64m, --ipc=host]"),
    ),
    Case("R66", ERROR, runtime("shm_size: 0.5g"), "runtime.shm_size", "too small", runtime("shm_size: 1.5GiB")),
    Case("R66", ERROR, runtime("shm_size: big"), "runtime.shm_size", "no size", runtime("shm_size: 1073741824")),
    Case(
        "V10",
        ERROR,
        runtime("options: [--cpus 4]"),
        "runtime.options.0",
        "write it as two, [--cpus, 4]",
        runtime("options: [--cpus, 4, --label=a b]"),
    ),
    Case("V10", ERROR, runtime("options: [--name, x]"), "runtime.options.0", "contradicts `container`"),
    Case(
        "V10", ERROR, runtime("mounts: [/a:b]"), "runtime.mounts.0", "must begin with /", runtime("mounts: [a:/b]")
    ),
    Case(
        "V10",
        ERROR,
        runtime("mounts: [/a:/x, /b:/x:ro]"),
        "runtime.mounts.1",
        "at the same place",
        runtime("mounts: [/a:/x, /b:/y]"),
    ),
    Case(
        "V10",
        ERROR,
        runtime("state_dir: /var/lib/pdtui, mounts: [/var/lib:/var/lib:ro]"),
        "runtime.mounts.0",
        "read-only",
        runtime("state_dir: /var/lib/pdtui, mounts: [/var/lib:/var/lib:ro, /s:/var/lib/pdtui]"),
    ),
    Case(
        "V10",
        ERROR,
        runtime("devices: [/dev/davinci0, /dev/davinci1]"),
        "runtime.devices",
        "ranks on n1 use NPU 2-15, but the container gets only NPU 0-1",
        runtime("devices: [/dev/other]"),
    ),
    Case(
        "V11",
        WARNING,
        runtime(f"image: {IMAGE}"),
        "runtime.image",
        "needs the tag with -a3",
        runtime(f"image: {IMAGE}-a3"),
    ),
    Case(
        "V11",
        ERROR,
        (*A2, *runtime(f"image: {IMAGE}-a3-openeuler")),
        "runtime.image",
        "needs the tag without -a3",
        (*A2, *runtime(f"image: {IMAGE}-openeuler")),
    ),
    Case(
        "V11",
        ERROR,
        runtime("image: ascend/vllm-ascend:v0.18.0-a3"),
        "runtime.image",
        "of version 0.18.0",
        runtime("image: registry.example:5000/mine:2026-08"),
    ),
    Case(
        "V11",
        WARNING,
        runtime("image: registry.example:5000/llm/vllm-ascend:1.4.2-a3"),
        "runtime.image",
        "of version 1.4.2",
        runtime("image: registry.example:5000/llm/vllm-ascend:mine-a3"),
    ),
    Case(
        "V11",
        ERROR,
        (("platform: a3", "platform: a5"), *A2[1:]),
        "vllm_ascend",
        "need CANN 9.1.0, vllm-ascend 0.22.1rc1",
        (("platform: a3", "platform: a5"), *A2[1:], ('"0.22.1rc1"', '"0.23.0"')),
    ),
)
