"""The container of a simulated node, as the simulation and its faults drive it."""

from __future__ import annotations

import shutil
from pathlib import Path

from pdtui.errors import SimulationError
from pdtui.sim.engine_files import mounts_of
from pdtui.sim.folder import write_launcher
from pdtui.sim.machine import Machine
from pdtui.sim.processes import NodeProcesses

VERBS = ("start", "stop", "restart", "kill", "remove", "pause", "unpause", "create")
_AT_ONCE = frozenset({"stop", "restart"})


def refusal(machine: Machine) -> str:
    """Return why the node's container has no namespaces of its own; empty when it has them."""
    plain = machine.engine / "plain"
    return plain.read_text(encoding="utf-8").strip() if plain.exists() else ""


def forget(machine: Machine) -> None:
    """Forget the processes of containers: the node boots, and none of them begins by itself."""
    for name in ("pid", "paused"):
        (machine.engine / machine.container / name).unlink(missing_ok=True)


async def begin(machine: Machine, processes: NodeProcesses) -> None:
    """Bring the node's container up.

    Without namespaces `docker exec` runs commands among the node's own processes, with the container's home and
    PATH; `refusal` then says why.
    """
    if not machine.container:
        return
    refused = ""
    if processes.isolation == "plain":
        refused = "the node itself has no namespaces"
    elif shutil.which("nsenter") is None:
        refused = "there is no nsenter (util-linux)"
    else:
        try:
            await act(machine, processes, "start")
        except SimulationError as error:
            refused = error.message
    if refused:
        (machine.engine / "plain").write_text(f"{refused}\n", encoding="utf-8")
        show_mounts(machine)
        image = machine.engine / "image"
        shutil.rmtree(image, ignore_errors=True)
        shutil.copytree(machine.rank_root, image, symlinks=True)


def show_mounts(machine: Machine) -> None:
    """Put what is mounted in the container below its folder: there it is seen by PDTUI_ROOT_VIEW."""
    write_launcher(machine, str(machine.rank_bin))
    for source, target, _ in mounts_of(machine):
        place = Path(f"{machine.rank_root}{target}")
        if source.startswith(f"{machine.folder}/") and not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to(source)


async def act(machine: Machine, processes: NodeProcesses, verb: str, *words: str) -> str:
    """Have the engine do something and return what it said. Raises `SimulationError` with its words."""
    if verb in _AT_ONCE and not words:
        words = ("0",)
    engine = str(machine.engine / "engine")
    log = machine.folder / "run" / "engine.log"
    with log.open("wb+") as out:
        argv = [engine, verb, machine.container, *words]
        process = await processes.spawn(
            argv, env={"PATH": machine.tools}, cwd=machine.folder, descriptors=[out.fileno()] * 3
        )
        status = await process.ended
        out.seek(0)
        said = out.read().decode("utf-8", "replace").strip()
    if status != 0:
        raise SimulationError(said or f"the container engine ended with status {status}")
    return said


async def heal(machine: Machine, processes: NodeProcesses) -> None:
    """Have the container run again, whatever was done to it. Raises `SimulationError`."""
    home = machine.engine / machine.container
    if not (machine.folder / "containers" / machine.container).is_dir() or (home / "no-state").exists():
        if (machine.folder / "containers" / machine.container).is_dir():
            await act(machine, processes, "remove")
        await act(machine, processes, "create")
    else:
        await act(machine, processes, "unpause")
        await act(machine, processes, "start")
