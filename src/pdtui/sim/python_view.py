"""What a simulated node's own Python sees of its clock and its network, and who else listens there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pdtui.sim.fault_words import Fault, switch, targets
from pdtui.sim.machine import python
from pdtui.sim.npus import write_file
from pdtui.sim.software import site_packages

if TYPE_CHECKING:
    from pdtui.sim.simulation import SimNode, Simulation


SITE = """\
import os, socket, time

FAULTS = {faults!r}
real_time, real_connect, real_connect_ex = time.time, socket.socket.connect, socket.socket.connect_ex
black = []


def lines(name):
    try:
        with open(FAULTS + "/" + name) as file:
            return file.read().split()
    except OSError:
        return []


def shifted():
    words = lines("clock")
    return real_time() + (float(words[0]) if words else 0.0)


def where(address):
    if isinstance(address, tuple) and len(address) == 2:
        said = lines("unreachable")
        if "%s:%s" % address in said or address[0] in said or ":%s" % address[1] in said:
            return hole()
    return address


def hole():
    # A listener with a full queue: whoever connects is kept waiting by the kernel, as by a dropped packet.
    if not black:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        black.append(listener)
        for _ in range(2):
            one = socket.socket()
            one.setblocking(False)
            real_connect_ex(one, listener.getsockname())
            black.append(one)
    return black[0].getsockname()


time.time = shifted
socket.socket.connect = lambda self, address: real_connect(self, where(address))
socket.socket.connect_ex = lambda self, address: real_connect_ex(self, where(address))
"""
"""sitecustomize.py of a node whose clock is wrong, or that cannot reach another."""


async def see_by_python(node: SimNode, file: str, words: Sequence[str]) -> None:
    """Have the node's own Python see another time, or nobody at an address; its connections begin anew."""
    write_file(node.folder / "fault" / file, "".join(f"{word}\n" for word in words))
    for base in {node.folder, node.machine.rank_root}:
        site = site_packages(base)
        site.mkdir(parents=True, exist_ok=True)
        config = base / "usr" / "local" / "pyvenv.cfg"
        if not config.exists():
            config.write_text(f"home = {Path(python()).parent}\n", encoding="utf-8")
        (site / "sitecustomize.py").write_text(SITE.format(faults=str(node.folder / "fault")), encoding="utf-8")
    await node.ssh.kill()
    await node.ssh.listen()


def forget_by_python(node: SimNode) -> None:
    """Have the node's Python see what is."""
    for base in {node.folder, node.machine.rank_root}:
        (site_packages(base) / "sitecustomize.py").unlink(missing_ok=True)


async def _clock(simulation: Simulation, words: Sequence[str]) -> str:
    word, text = words
    seconds = 0.0 if text == "off" else float(text.removesuffix("s"))
    for target in targets(simulation, word, npus=False):
        await see_by_python(target.node, "clock", [f"{seconds:g}"] if seconds else [])
    return f"the clock of {word} is {seconds:+g} s off; its connections began anew"


async def _unreachable(simulation: Simulation, words: Sequence[str]) -> str:
    """From a node another one, or one port of it, cannot be reached."""
    word, whom, *_ = words
    away = switch(words, 2)
    name, _, port = whom.rpartition(":") if ":" in whom else (whom, "", "")
    address = simulation.node(name).machine.address if name else ""
    spec = f"{address}:{int(port)}" if port else address
    for target in targets(simulation, word, npus=False):
        path = target.node.folder / "fault" / "unreachable"
        old = set(path.read_text(encoding="ascii").split()) if path.exists() else set()
        await see_by_python(target.node, "unreachable", sorted(old | {spec} if away else old - {spec}))
    return f"{word} {'does not reach' if away else 'reaches'} {whom}; its connections began anew"


async def _listen(simulation: Simulation, words: Sequence[str]) -> str:
    """Have somebody else listen on a port."""
    node, port, on = simulation.node(words[0]), int(words[1]), switch(words, 2)
    name = f"squatter-{port}"
    if on:
        host = node.machine.address if node.network is None else "0.0.0.0"  # noqa: S104
        code = (
            "import socket, time\n"
            f"listener = socket.create_server(({host!r}, {port}))\n"
            f"print('listening', flush=True)\nwhile True: time.sleep(60)\n"
        )
        with (node.folder / "run" / f"{name}.log").open("wb") as out:
            process = await node.processes.spawn(
                [str(node.machine.folder / "usr" / "local" / "bin" / "python3"), "-IS", "-c", code],
                env={"PATH": node.machine.tools},
                cwd=node.folder,
                descriptors=[out.fileno()] * 3,
            )
        write_file(node.folder / "run" / f"{name}.pid", f"{process.pid}\n")
        return f"pid {process.pid} listens on port {port} of {node.name}"
    await _end_listener(node, node.folder / "run" / f"{name}.pid")
    return f"nobody else listens on port {port} of {node.name}"


async def _end_listener(node: SimNode, path: Path) -> None:
    if path.exists():
        await node.processes.kill([int(path.read_text(encoding="ascii"))], 9)
        path.unlink()


async def heal_python(node: SimNode) -> None:
    """Undo all of this on one node."""
    forget_by_python(node)
    for path in (node.folder / "run").glob("squatter-*.pid"):
        await _end_listener(node, path)


PYTHON_FAULTS: dict[str, Fault] = {
    "clock": Fault("NODE|all SECONDS|off", "the node's clock is wrong, as its Python sees it", _clock),
    "unreachable": Fault(
        "NODE|all NODE|NODE:PORT|:PORT [on|off]",
        "the node's Python reaches no port, or not that one, of the other node",
        _unreachable,
    ),
    "listen": Fault("NODE PORT [on|off]", "somebody else listens on a port of the node", _listen),
}
