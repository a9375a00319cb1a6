"""Faults of a node as a machine: devices, shared memory, room, limits, and how its container was made."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pdtui.errors import SimulationError, UsageError
from pdtui.sim import container
from pdtui.sim.engine_files import mounts_of, write_inspect
from pdtui.sim.engine_words import size_of
from pdtui.sim.fault_words import Fault, one, require_npus, switch, targets
from pdtui.sim.files import GARBAGE
from pdtui.sim.machine import HERE, Machine, python
from pdtui.sim.npus import write_file
from pdtui.sim.software import PORT_RANGE, RESERVED, RESERVED_PORTS, device_names

if TYPE_CHECKING:
    from pdtui.sim.simulation import SimNode, Simulation


def require_namespace(node: SimNode, what: str) -> None:
    if not node.processes.own_namespace:
        raise UsageError(
            f"{node.name} has no namespaces, and so not {what}", remedy="begin without --no-namespaces"
        )


async def change_mounts(node: SimNode, *words: str, inside: bool = False) -> None:
    """Run the program that changes mounts, on the node or in its container. Raises `SimulationError`."""
    if inside:
        pid = (node.machine.engine / node.machine.container / "pid").read_text(encoding="ascii").strip()
        words = (*words, pid)
    code = f"import sys; sys.path.insert(0, {str(HERE.parents[1])!r}); from pdtui.sim.mounts import main; main()"
    log = node.folder / "run" / "mounts.log"
    with log.open("wb+") as out:
        process = await node.processes.spawn(
            [python(), "-ISB", "-c", f"{code.removesuffix('main()')}sys.exit(main())", *words],
            env={"PATH": node.machine.tools, "PDTUI_SIM_NODE": str(node.folder)},
            cwd=node.folder,
            descriptors=[out.fileno()] * 3,
        )
        status = await process.ended
        out.seek(0)
        said = out.read().decode("utf-8", "replace").strip()
    if status:
        raise SimulationError(f"{node.name}: {words[0]}: {said or f'status {status}'}")


def _has_container(node: SimNode) -> bool:
    """Return whether ranks have mounts of their own, in a container that runs."""
    home = node.machine.engine / node.machine.container
    return bool(node.machine.container) and not node.container_refused and (home / "pid").exists()


async def _shm(simulation: Simulation, words: Sequence[str]) -> str:
    word, size = words
    for target in targets(simulation, word, npus=False):
        await set_shm(target.node, size)
    return f"shared memory of {word}: {size}"


async def set_shm(node: SimNode, size: str) -> None:
    """Give /dev/shm where ranks run another size."""
    require_namespace(node, "a /dev/shm of its own")
    machine = node.machine
    contained = _has_container(node)
    right = (machine.shm_size or "1g") if contained else "50%"
    size = right if size == "off" else size
    if size != "50%":
        size_of(size)
    if machine.container:
        write_file(machine.engine / machine.container / "shm", f"{size}\n")
    if contained or not machine.container:
        await change_mounts(node, "shm", size, inside=contained)
    _mark(node, "shm", on=size != right)


def _mark(node: SimNode, name: str, *, on: bool) -> None:
    """Note that a fault is on, for `heal`."""
    path = node.folder / "run" / f"{name}.changed"
    if on:
        path.touch()
    else:
        path.unlink(missing_ok=True)


def _is_marked(node: SimNode, name: str) -> bool:
    return (node.folder / "run" / f"{name}.changed").exists()


async def _disk(simulation: Simulation, words: Sequence[str]) -> str:
    word, much = words
    for target in targets(simulation, word, npus=False):
        await set_disk(target.node, much)
    return f"room on the disk under state_dir of {word}: {much} MB"


async def set_disk(node: SimNode, much: str) -> None:
    """Leave so many MB under state_dir where ranks run; `off`: the machine's disk."""
    require_namespace(node, "a disk of its own")
    verb = ("unsmall", str(node.machine.state)) if much == "off" else ("small", str(node.machine.state), much)
    await change_mounts(node, *verb, inside=_has_container(node))
    _mark(node, "disk", on=much != "off")


async def _ulimit(simulation: Simulation, words: Sequence[str]) -> str:
    word, text = words
    for target in targets(simulation, word, npus=False):
        await target.node.processes.limit_files(0 if text == "off" else int(text))
    return f"open files of a process on {word}: {text}"


async def _ephemeral(simulation: Simulation, words: Sequence[str]) -> str:
    word, text = words
    for target in targets(simulation, word, npus=False):
        path = target.node.folder / PORT_RANGE
        reserved = target.node.folder / RESERVED_PORTS
        reserved.write_text(f"{RESERVED}\n" if text == "off" else "\n", encoding="ascii")
        if text == "off":
            path.write_bytes(Path("/", PORT_RANGE).read_bytes())
        elif text == "garble":
            path.write_bytes(b"\xff\x00x\n")
        else:
            low, high = (int(part) for part in text.split("-"))
            path.write_text(f"{low}\t{high}\n", encoding="ascii")
    return f"ports of outgoing connections on {word}: {text}"


async def _device(simulation: Simulation, words: Sequence[str]) -> str:
    require_npus(simulation)
    word, name, *_ = words
    for target in targets(simulation, word):
        machine = target.node.machine
        name = one([name], *device_names(machine.platform))
        await set_device(target.node, name, there=switch(words, 2))
    return f"/dev/{name} of {word} is {'there' if switch(words, 2) else 'not there'}"


async def set_device(node: SimNode, name: str, *, there: bool) -> None:
    """Have a device file be there where ranks run, or not."""
    machine = node.machine
    contained = _has_container(node)
    if not contained:
        link = machine.rank_root / "dev" / name
        link.unlink(missing_ok=True)
        if there:
            link.symlink_to("/dev/null")
    if contained:
        await change_mounts(node, "remove", f"/dev/{name}", inside=True)
        if there:
            await change_mounts(node, "bind", "/dev/null", f"/dev/{name}", inside=True)
    if machine.container:
        closed = _list(machine, "closed")
        _write_list(machine, "closed", closed - {name} if there else closed | {name})
        _say_inspect(machine)


def _list(machine: Machine, name: str) -> set[str]:
    path = machine.engine / machine.container / name
    return set(path.read_text(encoding="utf-8").split()) if path.exists() else set()


def _write_list(machine: Machine, name: str, words: set[str]) -> None:
    write_file(machine.engine / machine.container / name, "".join(f"{word}\n" for word in sorted(words)))


def _say_inspect(machine: Machine) -> None:
    (network,) = _list(machine, "network") or {""}
    write_inspect(machine, network=network, hidden=_list(machine, "hidden"), closed=_list(machine, "closed"))


def _require_container(node: SimNode) -> None:
    if not node.machine.container:
        raise UsageError(
            f"{node.name} has no container: this cluster's ranks run on the hosts themselves",
            remedy="rehearse a file with runtime.container: pdtui demo FILE",
        )


async def _unmounted(simulation: Simulation, words: Sequence[str]) -> str:
    word, path, *_ = words
    hidden = switch(words, 2)
    for target in targets(simulation, word, npus=False):
        _require_container(target.node)
        await set_mounted(target.node, path, mounted=not hidden)
    return f"{path} is {'not ' if hidden else ''}mounted in the container of {word}"


async def set_mounted(node: SimNode, path: str, *, mounted: bool) -> None:
    """Have the container be made with or without one of its mounts. Raises `UsageError`."""
    machine = node.machine
    sources = {target: source for source, target, _ in mounts_of(machine)}
    if path not in sources:
        raise UsageError(f"{path} is no mount of the container: {', '.join(sources)}")
    hidden = _list(machine, "hidden")
    _write_list(machine, "hidden", hidden - {path} if mounted else hidden | {path})
    _say_inspect(machine)
    if node.container_refused:
        Path(f"{machine.rank_root}{path}").unlink(missing_ok=True)
        if mounted:
            container.show_mounts(machine)
    elif _has_container(node) and mounted == (path in hidden):
        words = ("bind", sources[path], path) if mounted else ("remove", path)
        await change_mounts(node, *words, inside=True)


async def _network(simulation: Simulation, words: Sequence[str]) -> str:
    word, mode = words
    for target in targets(simulation, word, npus=False):
        _require_container(target.node)
        machine = target.node.machine
        _write_list(machine, "network", {mode})
        _say_inspect(machine)
    return f"network of the container of {word}: {mode}"


def _engine_file(name: str, data: bytes) -> Callable[[Simulation, Sequence[str]], Awaitable[str]]:
    async def turn(simulation: Simulation, words: Sequence[str]) -> str:
        on = switch(words, 1)
        for target in targets(simulation, words[0], npus=False):
            _require_container(target.node)
            path = target.node.machine.engine / name
            if on:
                path.write_bytes(data)
            else:
                path.unlink(missing_ok=True)
        return f"what the engine of {words[0]} says of containers: {name if on else 'well'}"

    return turn


async def _name_taken(simulation: Simulation, words: Sequence[str]) -> str:
    on = switch(words, 1)
    for target in targets(simulation, words[0], npus=False):
        _require_container(target.node)
        machine = target.node.machine
        path = machine.engine / "taken"
        if on:
            write_file(path, f"{machine.container}\n")
        else:
            path.unlink(missing_ok=True)
    return f"the name of the container of {words[0]} is {'taken' if on else 'free'}"


async def _image_missing(simulation: Simulation, words: Sequence[str]) -> str:
    on = switch(words, 1)
    for target in targets(simulation, words[0], npus=False):
        _require_container(target.node)
        machine = target.node.machine
        write_file(machine.engine / "images", "" if on else f"{machine.image}\n")
    return f"the image of {words[0]} is {'not ' if on else ''}there"


async def _other_image(simulation: Simulation, words: Sequence[str]) -> str:
    on = switch(words, 1)
    for target in targets(simulation, words[0], npus=False):
        _require_container(target.node)
        set_image(target.node, OTHER_IMAGE if on else target.node.machine.image)
    return f"the container of {words[0]} was made from {'another' if on else 'its'} image"


OTHER_IMAGE = "quay.io/ascend/vllm-ascend:v0.9.1"


def set_image(node: SimNode, image: str) -> None:
    """Have the container be made from an image."""
    path = node.machine.engine / node.machine.container / "made.json"
    made = {**json.loads(path.read_text(encoding="utf-8")), "image": image}
    write_file(path, json.dumps(made))
    _say_inspect(node.machine)


async def heal_machine(node: SimNode) -> None:
    """Undo all of this on one node."""
    machine = node.machine
    (node.folder / PORT_RANGE).write_bytes(Path("/", PORT_RANGE).read_bytes())
    (node.folder / RESERVED_PORTS).write_text(f"{RESERVED}\n", encoding="ascii")
    await node.processes.limit_files(0)
    if _is_marked(node, "disk"):
        await set_disk(node, "off")
    if _is_marked(node, "shm"):
        await set_shm(node, "off")
    if machine.platform != "cpu" and not _has_container(node):
        for name in device_names(machine.platform):
            if not (machine.rank_root / "dev" / name).exists():
                await set_device(node, name, there=True)
    if machine.container:
        for name in ("hang", "garble", "full", "taken"):
            (machine.engine / name).unlink(missing_ok=True)
        write_file(machine.engine / "images", f"{machine.image}\n")
        set_image(node, machine.image)
        for name in _list(machine, "closed"):
            await set_device(node, name, there=True)
        for target in _list(machine, "hidden"):
            await set_mounted(node, target, mounted=True)
        (machine.engine / machine.container / "network").unlink(missing_ok=True)
        _say_inspect(machine)


MACHINE_FAULTS: dict[str, Fault] = {
    "shm": Fault("NODE|all SIZE|off", "size of /dev/shm where ranks run (64m, 1g)", _shm),
    "disk": Fault("NODE|all MB|off", "room on the disk under state_dir", _disk),
    "ulimit": Fault("NODE|all FILES|off", "how many files a process may have open", _ulimit),
    "ephemeral": Fault("NODE|all LOW-HIGH|garble|off", "ports that outgoing connections take", _ephemeral),
    "device": Fault(
        "NODE|all NAME [on|off]", "a file below /dev where ranks run (davinci3, davinci_manager)", _device
    ),
    "unmounted": Fault("NODE|all PATH [on|off]", "the container was made without one of its mounts", _unmounted),
    "network": Fault("NODE|all host|bridge|NAME", "the network that the container was given", _network),
    "image-missing": Fault("NODE|all [on|off]", "the image of the container is not on the node", _image_missing),
    "other-image": Fault("NODE|all [on|off]", "the container was made from another image", _other_image),
    "name-taken": Fault(
        "NODE|all [on|off]", "a container that others made has the name of the ranks' container", _name_taken
    ),
    "engine-full": Fault(
        "NODE|all [on|off]", "the disk of the container engine is full", _engine_file("full", b"")
    ),
    "engine-hang": Fault(
        "NODE|all [on|off]", "the container engine never says how a container is made", _engine_file("hang", b"")
    ),
    "engine-garble": Fault(
        "NODE|all [on|off]", "the container engine says rubbish of containers", _engine_file("garble", GARBAGE)
    ),
}
