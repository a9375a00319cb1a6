"""Faults of what is installed on a node and of the environment that ranks start from."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pdtui.errors import UsageError
from pdtui.sim.fault_words import Fault, one, require_npus, switch, targets
from pdtui.sim.files import ASIDE, GARBAGE, never_answers, put, take_away
from pdtui.sim.machine import Machine
from pdtui.sim.machine_faults import MACHINE_FAULTS, heal_machine, require_namespace
from pdtui.sim.npus import write_file
from pdtui.sim.python_view import PYTHON_FAULTS, heal_python
from pdtui.sim.software import (
    DRIVER_FILE,
    FIRMWARE_FILE,
    PACKAGE_WORDS,
    break_mooncake,
    cann_file,
    cann_text,
    driver_text,
    firmware_text,
    remove_package,
    site_packages,
    write_model,
    write_package,
)

if TYPE_CHECKING:
    from pdtui.sim.simulation import SimNode, Simulation


def _treat(path: Path, how: str, text: Callable[[str], str]) -> None:
    """Do to a file what the word says; `text` makes its content for a version, empty for the right one."""
    if how == "missing":
        take_away(path)
    elif how == "hang":
        never_answers(path)
    else:
        put(path, GARBAGE if how == "garble" else text("" if how == "off" else how).encode())


VERSION_WORDS = ("driver", "firmware", "cann", *PACKAGE_WORDS)


async def _version(simulation: Simulation, words: Sequence[str]) -> str:
    word, name, how = words
    name = one([name], *VERSION_WORDS)
    if name in {"driver", "firmware", "cann"}:
        require_npus(simulation)
    for target in targets(simulation, word, npus=False):
        set_version(target.node, name, how)
    return f"{name} of {word}: {how}"


def set_version(node: SimNode, name: str, how: str) -> None:
    """Have a node carry another version of something, none, or one that cannot be read."""
    machine, hardware = node.machine, node.npus.hardware
    if name == "driver":
        _treat(machine.folder / DRIVER_FILE, how, lambda version: driver_text(version or hardware.version))
    elif name == "firmware":
        _treat(machine.folder / FIRMWARE_FILE, how, lambda version: firmware_text(version or hardware.firmware))
    elif name == "cann":
        for root in machine.toolkits:
            right = machine.software.release.cann
            _treat(
                machine.rank_root / cann_file(root),
                how,
                lambda version, root=root, right=right: cann_text(version or right, root),  # type: ignore[misc]
            )
    else:
        _set_package(machine, name, how)
    if name in {"driver", "firmware"}:
        # npu-smi says them too.
        said = machine.folder / "fault" / f"{name}_version"
        if how in {"off", "missing", "hang", "garble"}:
            said.unlink(missing_ok=True)
        else:
            write_file(said, f"{how}\n")


def _set_package(machine: Machine, name: str, how: str) -> None:
    base, software = machine.rank_root, machine.software
    if name not in software.packages:
        raise UsageError(f"no package {name} on platform {machine.platform}")
    package, right = software.packages[name]
    if how == "missing":
        remove_package(base, software, name)
        return
    plain = how in {"off", "hang", "garble"}
    write_package(base, software, name, right if plain else how)
    (info,) = site_packages(base).glob(f"{package.replace('-', '_')}-*.dist-info")
    if how == "hang":
        never_answers(info / "METADATA")
    elif how == "garble":
        (info / "METADATA").write_bytes(GARBAGE)
        for file in ("__init__.py", "_version.py"):
            path = info.parent / ("mooncake" if name == "mooncake" else package.replace("-", "_")) / file
            if path.exists():
                path.write_bytes(b"# \xff\n")


async def _no_mooncake(simulation: Simulation, words: Sequence[str]) -> str:
    how = one(words[1:] or ["on"], "on", "broken", "hang", "off")
    for target in targets(simulation, words[0], npus=False):
        machine = target.node.machine
        if how == "on":
            remove_package(machine.rank_root, machine.software, "mooncake")
            continue
        write_package(machine.rank_root, machine.software, "mooncake")
        if how != "off":
            break_mooncake(machine.rank_root, how)
    return f"Mooncake on {words[0]}: {({'on': 'not there', 'off': 'there'}).get(how, how)}"


async def _model(simulation: Simulation, words: Sequence[str]) -> str:
    how = one(words[1:], "missing", "other", "shard", "empty", "hang", "garble", "off")
    for target in targets(simulation, words[0], npus=False):
        node = target.node
        require_namespace(node, "a model of its own")
        set_model(node.machine, how)
    return f"model of {words[0]}: {how}"


def set_model(machine: Machine, how: str) -> None:
    """Have the model of a node be missing, another one, without its last weights, empty, unreadable, or right."""
    folder = machine.folder / "models" / Path(machine.model).name
    aside = machine.folder / "models" / ASIDE
    if aside.exists():
        aside.rename(folder)
    for path in folder.iterdir():
        path.unlink()
    if how == "missing":
        folder.rename(aside)
        return
    if how == "empty":
        return
    write_model(folder, npus=machine.platform != "cpu", moe=machine.moe)
    if how == "other":
        write_model(folder, npus=machine.platform != "cpu", moe=not machine.moe)
    elif how == "shard":
        max(folder.glob("*.safetensors")).unlink()
    elif how == "garble":
        (folder / "config.json").write_bytes(GARBAGE)
    elif how == "hang":
        never_answers(folder / "model.safetensors.index.json")


# ---- the environment of ranks


def _bashrc(name: str, lines: Callable[[Sequence[str]], Sequence[str]]) -> Fault:
    """Return a fault that adds lines of its own to ~/.bashrc where ranks run."""

    async def change(simulation: Simulation, words: Sequence[str]) -> str:
        added = [f"{line} # {name}" for line in ([] if words[-1] == "off" else lines(words[1:]))]
        for target in targets(simulation, words[0], npus=False):
            path = target.node.machine.rank_home / ".bashrc"
            kept = [
                line for line in path.read_text(encoding="utf-8").splitlines() if not line.endswith(f"# {name}")
            ]
            path.write_text("\n".join([*kept, *added]) + "\n", encoding="utf-8")
        return f"{name} of {words[0]}: {' '.join(words[1:]) or 'on'}"

    usage, text = _BASHRC_HELP[name]
    return Fault(usage, text, change)


_BASHRC_HELP = {
    "proxy-env": ("NODE|all URL [NO_PROXY]|off", "proxy variables where ranks start"),
    "host-ip": ("NODE|all ADDRESS|off", "VLLM_HOST_IP in ~/.bashrc where ranks start"),
    "hang-login": ("NODE|all [on|off]", "an interactive shell where ranks run never gets through ~/.bashrc"),
    "exit-login": ("NODE|all [on|off]", "~/.bashrc where ranks run ends the interactive shell"),
}
BASHRC_FAULTS = tuple(_BASHRC_HELP)


def _proxy_lines(words: Sequence[str]) -> list[str]:
    url, *rest = words
    lines = [f"export http_proxy={shlex.quote(url)} https_proxy={shlex.quote(url)}"]
    return lines + [f"export no_proxy={shlex.quote(hosts)}" for hosts in rest]


def _host_ip_lines(words: Sequence[str]) -> list[str]:
    (address,) = words
    return [f"export VLLM_HOST_IP={shlex.quote(address)}"]


def _hang_lines(words: Sequence[str]) -> list[str]:
    return ["case $- in *i*) while :; do sleep 1000; done ;; esac"] if switch(words, 0) else []


def _exit_lines(words: Sequence[str]) -> list[str]:
    return ["case $- in *i*) exit ;; esac"] if switch(words, 0) else []


async def heal_node(simulation: Simulation, node: SimNode) -> None:
    """Undo all of this on one node."""
    machine = node.machine
    for name in VERSION_WORDS:
        if name in machine.software.packages or (simulation.npu_count and name in {"driver", "firmware", "cann"}):
            set_version(node, name, "off")
    for name in BASHRC_FAULTS:
        await NODE_FAULTS[name].apply(simulation, [node.name, "off"])
    if node.processes.own_namespace:
        set_model(machine, "off")
    await heal_python(node)
    await heal_machine(node)


NODE_FAULTS: dict[str, Fault] = {
    "version": Fault(
        f"NODE|all {'|'.join(VERSION_WORDS)} VERSION|missing|garble|hang|off",
        "the version of what is installed: another, none, one that cannot be read, a file that never answers",
        _version,
    ),
    "model": Fault(
        "NODE|all missing|other|shard|empty|garble|hang|off",
        "the model on that node: not there, another, without its last weights, an empty folder, ...",
        _model,
    ),
    "no-mooncake": Fault(
        "NODE|all [on|broken|hang|off]",
        "Mooncake is not there, lacks a library, or its import never ends",
        _no_mooncake,
    ),
    "proxy-env": _bashrc("proxy-env", _proxy_lines),
    "host-ip": _bashrc("host-ip", _host_ip_lines),
    "hang-login": _bashrc("hang-login", _hang_lines),
    "exit-login": _bashrc("exit-login", _exit_lines),
    **MACHINE_FAULTS,
    **PYTHON_FAULTS,
}
