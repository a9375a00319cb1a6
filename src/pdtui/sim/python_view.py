"""What a simulated node's own Python sees of its clock and its network, and who else listens there."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pdtui.sim.fault_words import Fault, switch, targets
from pdtui.sim.machine import python, write_executable
from pdtui.sim.npus import write_file
from pdtui.sim.software import site_packages

if TYPE_CHECKING:
    from pdtui.sim.simulation import SimNode, Simulation


SITE = """\
import time

real_time = time.time


def shifted():
    try:
        with open({clock!r}) as file:
            return real_time() + float(file.read() or 0)
    except (OSError, ValueError):
        return real_time()


time.time = shifted
"""
"""The module of a node whose clock is wrong; a .pth file imports it (Debian has its own sitecustomize)."""

SITE_NAME = "simulated_clock"

SOCKET = """\
with open({socket!r}) as file:
    exec(compile(file.read(), {socket!r}, "exec"))

real_connect, real_connect_ex = socket.connect, socket.connect_ex
black = []


def where(address):
    try:
        with open({unreachable!r}) as file:
            said = file.read().split()
    except OSError:
        return address
    if not isinstance(address, tuple) or len(address) != 2:
        return address
    return hole() if {{"%s:%s" % address, address[0], ":%s" % address[1]}} & set(said) else address


def hole():
    # A listener with a full queue: whoever connects is kept waiting by the kernel, as by a dropped packet.
    if not black:
        listener = socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        black.append(listener)
        for _ in range(2):
            one = socket()
            one.setblocking(False)
            real_connect_ex(one, listener.getsockname())
            black.append(one)
    return black[0].getsockname()


socket.connect = lambda self, address: real_connect(self, where(address))
socket.connect_ex = lambda self, address: real_connect_ex(self, where(address))
"""
"""The module `socket` of a node that cannot reach another: the real one, but packets to that one are lost."""

WRAPPER = """\
#!/bin/bash
PYTHONPATH={folder}${{PYTHONPATH:+:$PYTHONPATH}} exec -a "$0" {python} "$@"
"""
"""python3 of such a node: with PYTHONPATH the module is found with and without `site`."""


async def _begin_anew(node: SimNode) -> None:
    """End the node's connections: programs that run keep what they have seen."""
    await node.ssh.kill()
    await node.ssh.listen()


async def set_clock(node: SimNode, seconds: float) -> None:
    """Have the node's Python see a time that is wrong."""
    path = node.folder / "fault" / "clock"
    write_file(path, f"{seconds:g}\n")
    for base in {node.folder, node.machine.rank_root}:
        site = site_packages(base)
        site.mkdir(parents=True, exist_ok=True)
        config = base / "usr" / "local" / "pyvenv.cfg"
        if not config.exists():
            config.write_text(f"home = {Path(python()).parent}\n", encoding="utf-8")
        (site / f"{SITE_NAME}.py").write_text(SITE.format(clock=str(path)), encoding="utf-8")
        (site / f"{SITE_NAME}.pth").write_text(f"import {SITE_NAME}\n", encoding="ascii")
    await _begin_anew(node)


async def set_unreachable(node: SimNode, spec: str, *, away: bool) -> None:
    """Have what the node's Python sends to ADDRESS, ADDRESS:PORT or :PORT be lost, or arrive."""
    path = node.folder / "fault" / "unreachable"
    old = set(path.read_text(encoding="ascii").split()) if path.exists() else set()
    write_file(path, "".join(f"{word}\n" for word in sorted(old | {spec} if away else old - {spec})))
    folder = node.folder / "run" / "python"
    folder.mkdir(exist_ok=True)
    text = SOCKET.format(socket=str(socket.__file__), unreachable=str(path))
    (folder / "socket.py").write_text(text, encoding="utf-8")
    wrapper = WRAPPER.format(folder=shlex.quote(str(folder)), python=shlex.quote(python()))
    for place in {node.folder / "usr" / "local" / "bin", node.machine.rank_bin}:
        write_executable(place / ".python3.new", wrapper)
        (place / ".python3.new").replace(place / "python3")
    await _begin_anew(node)


async def _clock(simulation: Simulation, words: Sequence[str]) -> str:
    word, text = words
    seconds = 0.0 if text == "off" else float(text.removesuffix("s"))
    for target in targets(simulation, word, npus=False):
        await set_clock(target.node, seconds)
    return f"the clock of {word} is {seconds:+g} s off; its connections began anew"


async def _unreachable(simulation: Simulation, words: Sequence[str]) -> str:
    """From a node another one, or one port of it, cannot be reached."""
    word, whom, *_ = words
    away = switch(words, 2)
    name, _, port = whom.rpartition(":") if ":" in whom else (whom, "", "")
    address = simulation.node(name).machine.address if name else ""
    spec = f"{address}:{int(port)}" if port else address
    if not spec:
        raise ValueError(whom)
    for target in targets(simulation, word, npus=False):
        await set_unreachable(target.node, spec, away=away)
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
    for base in {node.folder, node.machine.rank_root}:
        for suffix in ("pth", "py"):
            (site_packages(base) / f"{SITE_NAME}.{suffix}").unlink(missing_ok=True)
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
