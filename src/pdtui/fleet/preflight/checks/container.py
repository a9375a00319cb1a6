"""The container that ranks run in: does it run, and was it made as vLLM-Ascend's guides make it?"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable

from pdtui.fleet.preflight.check import NodeView, check
from pdtui.fleet.preflight.outcome import Evidence, Outcome, Result
from pdtui.fleet.preflight.place import missing, size_words
from pdtui.fleet.preflight.probes import Asking, Gathered, probe
from pdtui.readings.answer import Failure, Reading
from pdtui.readings.container import Container, read_container
from pdtui.readings.rank_place import DeviceFiles, Shm
from pdtui.readings.words import failure_words
from pdtui.text import spans
from pdtui.topology.model import Runtime

SHM = 1_000_000_000
"""Bytes of /dev/shm below which vLLM's message queues die with SIGBUS under load: docker's 64 MB do (vllm-ascend
pull request 3519), the guides' `--shm-size=1g` does not."""

SHM_FREE = 256 << 20
"""Bytes that must be free of it: what is full at the start is full of what others left."""

MANAGEMENT = ("davinci_manager", "devmm_svm", "hisi_hdc")
"""Device files that the driver's libraries open beside the NPUs' (the guides' `--device` options)."""

_ON_HOST = "ranks run on the host"


def inspect_argv(runtime: Runtime) -> tuple[str, ...]:
    """Return the question to the engine that `runtime.exec` names: its words before the one that executes."""
    if runtime.container is None:
        return ()
    words = tuple(itertools.takewhile(lambda word: word not in ("exec", "t", "task", "tasks"), runtime.exec))
    if words and words[-1] == "container":  # docker container exec
        words = words[:-1]
    engine = words or runtime.exec[:1]
    if any(word.rpartition("/")[2] == "ctr" for word in engine):
        return (*engine, "containers", "info", runtime.container)
    return (*engine, "inspect", "--type", "container", runtime.container)


@probe("container")
async def inspect(asking: Asking) -> AsyncIterator[Gathered]:
    """What the engine says of the container; nothing without one."""
    argv = inspect_argv(asking.topology.runtime)
    if argv:
        yield None, read_container(await asking.run(argv))


@check("container", "The container runs", needs=("container",))
def container(view: NodeView) -> Iterable[Result]:
    """It runs, commands can be started in it, and records are written to a mount of the host."""
    name, connection = view.topology.runtime.container, view.facts.connection
    if name is None:
        yield view.not_applicable(_ON_HOST)
        return
    reading: Reading[Container] = view.read("container")
    said = reading.value
    if not connection.ranks:
        words = connection.error or f"container {name} is not reached"
        if said is not None and said.state not in (None, "running") and said.state not in words:
            words = f"{words} (its state: {said.state})"
        # The engine's own answer, or why there is none.
        shown = (Evidence(reading.command, reading.raw, reading.at),)
        yield Result("container", view.name, Outcome.FAIL, words, connection.remedy, shown)
        return
    if said is None and view.facts.lost:
        yield view.unknown(view.read("container"), what=f"{name} was reached; then")
        return
    if said is not None and said.state not in (None, "running"):
        stands = said.state == "paused"
        yield view.failed(
            f"{name} is {said.state}{': everything in it stands still' if stands else ''}",
            reading,
            remedy=f"{inspect_argv(view.topology.runtime)[0]} {'unpause' if stands else 'restart'} {name}",
        )
        return
    if said is None:
        yield view.passed(f"{name} runs (its engine does not tell more: {failure_words(reading)})", reading)
        return
    state_dir = view.topology.runtime.state_dir
    if state_dir and said.mounts and said.mount_of(state_dir) is None:
        yield view.warned(
            f"{name} runs, but state_dir {state_dir} is no mount of the host: records and logs go with it",
            reading,
            remedy=f"create it anew with -v {state_dir}:{state_dir}",
        )
        return
    yield view.passed(f"{name} runs{f', {said.image}' if said.image else ''}", reading)


@check("host-network", "The container shares the host's network", needs=("container",))
def host_network(view: NodeView) -> Iterable[Result]:
    """HCCL and KV transfer bind and tell the node's address: behind a bridge they cannot (rule R66)."""
    name = view.topology.runtime.container
    if name is None:
        yield view.not_applicable(_ON_HOST)
        return
    reading: Reading[Container] = view.read("container")
    if reading.value is None:
        yield _silent(view, reading)
    elif reading.value.network is None:
        yield view.unknown(_unsaid(reading, "which network it has"))
    elif reading.value.network == "host":
        yield view.passed("the host's network", reading)
    else:
        yield view.failed(
            f"network {reading.value.network}: ranks cannot bind {view.node.address}, peers do not reach them",
            reading,
            remedy=f"create {name} anew with --net=host",
        )


def _silent(view: NodeView, reading: Reading[Container]) -> Result:
    """Return that the engine gave no answer; why its container is not reached says it best, if it is not."""
    connection = view.facts.connection
    if not connection.ranks and connection.kind == "no_container" and reading.failure is not Failure.TIMEOUT:
        return view.not_run(connection.error)
    return view.unknown(reading, what="the container's engine")


def _unsaid(reading: Reading[Container], what: str) -> Reading[Container]:
    return Reading(reading.command, reading.at, f"the engine does not say {what}", failure=Failure.EMPTY)


@check("shm", "Shared memory is large enough", needs=("place",))
def shm(view: NodeView) -> Iterable[Result]:
    """Where ranks run it has 1 GB, as the guides give it, and is not full."""
    reading: Reading[Shm] = view.read("place", "shm")
    found = reading.value
    if reading.failure is Failure.NOT_CONFIGURED:
        yield view.failed("there is no /dev/shm", reading, remedy="mount a tmpfs there")
        return
    if found is None:
        yield missing(view, reading, "shared memory")
        return
    words = f"shared memory {size_words(found.total)}, {size_words(found.free)} free"
    name = view.topology.runtime.container
    if found.total < SHM:
        say = view.failed if view.topology.has_npus else view.warned
        larger = f"create {name} anew with --shm-size=1g, or more" if name else "mount -o remount,size=8g /dev/shm"
        yield say(f"{words}: engines die with SIGBUS under load, 1 GB is the least", reading, remedy=larger)
    elif found.free < SHM_FREE:
        yield view.warned(
            f"{words}: nearly full", reading, remedy="ls -lS /dev/shm shows what ended processes left: remove that"
        )
    else:
        yield view.passed(words, reading)


@check("devices", "NPU device files are there", needs=("place",), platforms=("a2", "a3", "a5"))
def devices(view: NodeView) -> Iterable[Result]:
    """/dev/davinciN of every NPU that the plan gives to a rank here, and the driver's own, can be opened."""
    planned = sorted({device for rank in view.plan.on_node(view.name) for device in rank.devices})
    if not planned:
        yield view.not_applicable("no rank runs here")
        return
    reading: Reading[DeviceFiles] = view.read("place", "devices")
    found = reading.value
    if found is None:
        yield missing(view, reading, "/dev")
        return
    name = view.topology.runtime.container
    mend = f"create {name} anew with --device /dev/davinciN for each" if name else "load the driver: npu-smi info"
    lacking = [device for device in planned if device not in found.npus]
    absent = [file for file in MANAGEMENT if file not in found.management]
    closed = [device for device in planned if device in found.closed]
    if lacking and found.npus[:1] > (0,) and len(found.npus) > max(planned):
        yield view.warned(
            f"/dev/davinci{spans(found.npus)} are there, the plan counts {spans(planned)}: ids are counted anew",
            reading,
            remedy="hand in all NPUs of the server, or see that ASCEND_RT_VISIBLE_DEVICES means the right ones",
        )
    elif lacking:
        there = f"there are {spans(found.npus)}" if found.npus else "there is none"
        words = f"/dev/davinci{spans(lacking)} {'is' if len(lacking) == 1 else 'are'} missing; {there}"
        yield view.failed(words, reading, remedy=mend)
    if absent:
        also = f"create {name} anew with {' '.join(f'--device /dev/{file}' for file in absent)}" if name else mend
        yield view.failed(f"missing in /dev: {', '.join(absent)}", reading, remedy=also)
    if not found.driver:
        lib = "/usr/local/Ascend/driver/lib64"
        yield view.warned(
            "the driver's libraries (libascend_hal.so) are not found where ranks run",
            reading,
            remedy=f"create {name} anew with -v {lib}:{lib}" if name else "install the driver",
        )
    if closed:
        yield view.failed(
            f"/dev/davinci{spans(closed)} may not be opened by this user",
            reading,
            remedy="run as root, or put the user into the group HwHiAiUser",
        )
    if not (lacking or absent or closed) and found.driver:
        yield view.passed(f"/dev/davinci{spans(planned)}, the driver's files and libraries", reading)
