"""What one node of a simulation is made from, and where its things lie."""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path

from pdtui.sim.npus import SimPlatform
from pdtui.sim.software import Software

HERE = Path(__file__).resolve().parent
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


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
    vllm_ascend: str = "0.23.0"
    toolkits: tuple[str, ...] = ("/usr/local/Ascend/ascend-toolkit",)
    """Folders of CANN where ranks run."""
    model: str = ""
    """Path of the model that all nodes name, each with a folder of its own behind it."""
    moe: bool = True
    image: str = ""
    shm_size: str = ""
    """Of the container; empty: the engine was told 1g."""
    networked: bool = False
    """Whether the node has a network of its own, and does not share the machine's with the other nodes."""
    mounts: tuple[str, ...] = ()
    """Of the container, as the file has them: `host-path:container-path[:options]`."""
    options: tuple[str, ...] = ()
    """Words of the file for the engine's `run`."""
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
    def rank_root(self) -> Path:
        """The root folder where ranks run."""
        return self.folder / "containers" / self.container if self.container else self.folder

    @property
    def rank_bin(self) -> Path:
        """The folder of `vllm` where ranks run."""
        return self.rank_root / "usr" / "local" / "bin"

    @property
    def software(self) -> Software:
        """What is installed where ranks run."""
        return Software(self.platform, self.version, self.vllm_ascend)


def python() -> str:
    """Return the interpreter for the simulated nodes: the real one behind a virtual environment."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    return str(Path(base).resolve())


def write_executable(path: Path, text: str) -> None:
    """Write a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
