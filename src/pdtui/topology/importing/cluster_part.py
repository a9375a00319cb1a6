"""What a file says once for the whole cluster: name, platform, version, runtime, model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pdtui.topology.build import CPU_CONNECTORS
from pdtui.topology.importing import compared
from pdtui.topology.importing.observed import ContainerCommand, Said
from pdtui.topology.importing.ranks import PLACEHOLDER, Rank, is_placeholder
from pdtui.topology.importing.report import Kind, note
from pdtui.topology.importing.work import Work
from pdtui.topology.model import NPUS_PER_NODE
from pdtui.topology.redact import redacted_text
from pdtui.topology.render.container import STATE_DIR, usual
from pdtui.topology.versions import release_of


def name(work: Work) -> str:
    """Return the cluster's name: as wanted, else made of the served name or the model's."""
    if work.wanted.name:
        return work.wanted.name
    said = next((rank.served or rank.model for rank in work.ranks if rank.served or rank.model), None)
    base = said.text.rstrip("/").rsplit("/", 1)[-1] if said is not None else ""
    name = re.sub(r"[^a-z0-9]+", "-", base.lower()).strip("-")[:63].strip("-")
    return name if name and not is_placeholder(name) and name not in {"all", "failed"} else "imported"


def platform(work: Work) -> str:
    """Return the platform: as wanted, else by the image's name, else by how many NPUs are used on a host."""
    if work.wanted.platform:
        return work.wanted.platform
    for container in work.seen.containers:
        if match := re.search(r"-(a2|a3|a5|950\w*)\b", container.image.rsplit(":", 1)[-1]):
            return "a5" if match[1].startswith("950") else match[1]
    counts = [host.npus for host in work.seen.hosts if host.npus]
    used = [1 + max(rank.devices) if rank.devices else rank.tp_size * rank.pp_size for rank in work.ranks]
    each = [sum(rank.tp_size * rank.pp_size for rank in work.ranks if rank.host == name) for name in work.places]
    davinci = [
        1 + max(numbers)
        for container in work.seen.containers
        if (numbers := [int(m[1]) for d in container.devices if (m := re.search(r"davinci(\d{1,3})$", d))])
    ]
    most = max([*counts, *used, *each, *davinci, 0])
    if _is_cpu(work):
        message = "platform cpu: NixlConnector and no NPUs; --platform says otherwise"
        work.notes.append(note(Kind.ASSUMPTION, message, work.ranks[0].origin, path="platform"))
        return "cpu"
    platform = "a3" if most > NPUS_PER_NODE["a2"] else "a2"
    count = f"{most} NPUs are used on a host" if most > 1 else "nothing says how many NPUs a host has"
    message = f"platform {platform}: {count}; --platform says otherwise"
    work.notes.append(note(Kind.ASSUMPTION, message, path="platform"))
    return platform


def _is_cpu(work: Work) -> bool:
    """Whether this is vLLM without NPUs: its own connector, and no NPU is named."""
    names = {str(rank.connector.value) for rank in work.ranks if rank.connector is not None}
    named = any(rank.devices is not None or "HCCL_IF_IP" in rank.command.env for rank in work.ranks)
    return bool(names) and names <= CPU_CONNECTORS and not named and not work.wanted.vllm_ascend


def version(work: Work) -> str:
    """Return the version: as wanted, as read from what runs, or as the image's tag says; else ask for it."""
    if work.wanted.vllm_ascend:
        return work.wanted.vllm_ascend
    if work.seen.version is not None:
        return work.seen.version.text
    for container in work.seen.containers:
        tag = container.image.rsplit(":", 1)[-1] if ":" in container.image.rsplit("/", 1)[-1] else ""
        match = re.match(r"v?(\d+\.\d+\.\d+(?:rc\d+)?|main)(?:-|$)", tag)
        if match and release_of(match[1]) is not None:
            message = f"vllm_ascend {match[1]}: the tag of the image"
            work.notes.append(note(Kind.ORIGIN, message, container.origin, path="vllm_ascend"))
            return match[1]
    key = "vllm" if work.is_cpu else "vllm_ascend"
    work.asked.append(((key,), "nothing says which version runs (--vllm-ascend)"))
    return "main"


def runtime(work: Work) -> dict[str, Any]:
    """Return `runtime`: the first container without what every container gets; empty on the hosts themselves."""
    containers = list(work.seen.containers)
    said: dict[str, Any] = {}
    if containers:
        first = containers[0]
        _compare(work, containers)
        said["container"] = first.name or "vllm-ascend"
        if not first.name:
            work.asked.append((("runtime", "container"), "the container has no name"))
    elif name := next((rank.command.container for rank in work.ranks if rank.command.container), ""):
        said["container"] = name
    if said and work.seen.exec:
        said["exec"] = list(work.seen.exec)
    if work.seen.setup:
        said["setup"] = [one.text for one in work.seen.setup]
    if work.seen.state_dir is not None:
        said["state_dir"] = work.seen.state_dir.text
    if containers:
        first = containers[0]
        said["image"] = first.image
        said |= {"shm_size": first.shm_size} if first.shm_size else {}
        devices, mounts = _beyond_usual(work, first)
        said |= {"devices": devices} if devices else {}
        said |= {"mounts": mounts} if mounts else {}
        own = [word for word in first.options if (work.platform, word) != ("a5", "--pid=host")]
        said |= {"options": own} if own else {}
    return {key: value for key, value in said.items() if value}


def _beyond_usual(work: Work, container: ContainerCommand) -> tuple[list[str], list[str]]:
    """Return device files and mounts that are not every container's: NPUs, their driver, the folder of records."""
    usual_devices, usual_mounts = usual(work.platform)
    state_dir = work.seen.state_dir.text if work.seen.state_dir is not None else STATE_DIR
    usual_mounts |= {f"{state_dir}:{state_dir}"}
    devices = [
        name for name in container.devices if not re.search(r"/davinci\d+$", name) and name not in usual_devices
    ]
    mounts = [mount for mount in container.mounts if mount.removesuffix(":ro") not in usual_mounts]
    return devices, mounts


def _compare(work: Work, containers: Sequence[ContainerCommand]) -> None:
    first = containers[0]
    for other in containers[1:]:
        for name in ("name", "image", "shm_size", "mounts", "options"):
            one, two = getattr(first, name), getattr(other, name)
            if one != two:
                message = f"{name} of the container differs; a topology has one for all nodes, the first was taken"
                work.notes.append(note(Kind.CONTRADICTION, message, first.origin, other.origin))


def model(work: Work) -> dict[str, Any]:
    """Return `model`; where ranks disagree, the first, and a note."""
    path, notes = compared.one_value(work.ranks, lambda rank: rank.model, "model", "R45")
    work.notes += notes
    served, notes = compared.one_value(work.ranks, _first_served, "served name", "R44")
    work.notes += notes
    said: dict[str, Any] = {"path": path.text if path else PLACEHOLDER}
    if path is None:
        work.asked.append((("model", "path"), "nothing says which model is served"))
    elif path.unknown:
        _unknown(work, path, ("model", "path"), "the model's path")
        said["path"] = PLACEHOLDER
    said["served_name"] = served.text if served else said["path"]
    if served is None and path is not None:
        message = "no --served-model-name: clients name the model by its path"
        work.notes.append(note(Kind.TRANSLATION, message, path.origin, path="model.served_name"))
    if work.kind != "moe":
        said["kind"] = work.kind
        message = "a dense model, by its name: its ranks are independent instances"
        work.notes.append(note(Kind.ASSUMPTION, message, *((path.origin,) if path else ()), path="model.kind"))
    return said


def _unknown(work: Work, said: Said, path: tuple[str | int, ...], what: str) -> None:
    shown = redacted_text(said.unknown)
    work.asked.append((path, f"{what} is only known where it runs (`{shown}` in {said.origin})"))


def _first_served(rank: Rank) -> Said | None:
    """Return the first of the names under which a rank serves."""
    if rank.served is None or not isinstance(rank.served.value, tuple):
        return rank.served
    return replace(rank.served, value=rank.served.value[0])
