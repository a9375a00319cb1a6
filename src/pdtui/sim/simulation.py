"""A simulated cluster on this machine: nodes that are reached over SSH, with their tools, programs and faults."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import asyncssh

from pdtui.clock import Clock, SystemClock
from pdtui.errors import SimulationError
from pdtui.sim import faults
from pdtui.sim.addresses import Subnet
from pdtui.sim.folder import MARKER, Machine, build_node, build_shared
from pdtui.sim.npus import HARDWARE, Npus
from pdtui.sim.processes import NodeProcesses
from pdtui.sim.sshd import SshDaemon
from pdtui.sim.topology_file import Replacements, SimulatedNode, TopologyFile


class SimNode:
    """One simulated server."""

    def __init__(self, machine: Machine, npus: Npus, processes: NodeProcesses, ssh: SshDaemon) -> None:
        self.machine = machine
        self.npus = npus
        self.processes = processes
        self.ssh = ssh

    @property
    def name(self) -> str:
        """The node's name."""
        return self.machine.name

    @property
    def folder(self) -> Path:
        """Everything that belongs to the node."""
        return self.machine.folder


class Simulation:
    """The nodes of one topology file. `async with Simulation(path) as simulation:`

    Afterwards no process, port, namespace or temporary folder stays. `speed` divides every duration of the
    vLLM stand-in. `root` is kept when it was given, and removed when it was made here. Raises `FileError` for
    a file that cannot be read, `SimulationError` for what cannot be simulated.
    """

    def __init__(
        self,
        topology_path: Path,
        root: Path | None = None,
        *,
        speed: float = 1.0,
        isolate: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._source = TopologyFile(topology_path)
        self._source.check_flow()
        self._platform = self._source.platform()
        self._root = root
        self._speed = speed
        self._isolate = isolate
        self._clock = clock or SystemClock()
        self._stack = contextlib.AsyncExitStack()
        self.nodes: dict[str, SimNode] = {}
        self.root = root or Path()
        self.topology_path = Path()

    async def __aenter__(self) -> Self:
        """Bring the nodes up; they are reachable when this returns."""
        async with contextlib.AsyncExitStack() as stack:
            self.root = self._make_root(stack)
            subnet = Subnet()
            stack.callback(subnet.close)
            keys = await asyncio.to_thread(_Keys, self.root / "ssh")
            model, setup = await asyncio.to_thread(build_shared, self.root / "shared", self._source)
            for number, name in enumerate(self._source.nodes, 1):
                machine = Machine(
                    name=name,
                    folder=self.root / "nodes" / name,
                    shared=self.root / "shared",
                    address=subnet.address(number),
                    platform=self._platform,
                    container=self._source.container,
                    server_index=number - 1,
                    speed=self._speed,
                    version=self._source.vllm_version,
                )
                npus = await asyncio.to_thread(build_node, machine)
                processes = NodeProcesses(
                    machine.folder,
                    machine.name,
                    clock=self._clock,
                    isolate=self._isolate,
                    shared_state=self.state_dir,
                )
                stack.push_async_callback(processes.close)
                await processes.start()
                host_key = await asyncio.to_thread(keys.host_key, name)
                ssh = SshDaemon(
                    machine,
                    processes,
                    user=keys.user,
                    host_key=host_key,
                    authorized_keys=keys.authorized,
                    clock=self._clock,
                )
                stack.push_async_callback(ssh.close)
                await ssh.listen()
                keys.known(machine.address, ssh.port, host_key)
                self.nodes[name] = SimNode(machine, npus, processes, ssh)
            self.topology_path = self._write_topology(keys, model, setup)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Take everything down."""
        await self._stack.aclose()
        self.nodes.clear()

    @property
    def state_dir(self) -> Path:
        """The folder that is each node's own where the kernel allows it."""
        return self.root / "state"

    @property
    def npu_count(self) -> int:
        """Physical ids of one node."""
        return HARDWARE[self._platform].count

    @property
    def isolated(self) -> bool:
        """Whether the nodes have pid namespaces of their own."""
        return all(node.processes.isolation == "namespace" for node in self.nodes.values())

    async def fault(self, spec: str) -> str:
        """Switch a fault, written as for `pdtui demo --fault`. Raises `UsageError`, `SimulationError`."""
        return await faults.apply(self, spec)

    def node(self, name: str) -> SimNode:
        """Return a node. Raises `SimulationError` for an unknown name."""
        try:
            return self.nodes[name]
        except KeyError:
            raise SimulationError(f"no node {name}; there are {', '.join(self.nodes)}") from None

    def _make_root(self, stack: contextlib.AsyncExitStack) -> Path:
        if self._root is None:
            root = Path(tempfile.mkdtemp(prefix="pdtui-sim-"))
            stack.callback(shutil.rmtree, root, ignore_errors=True)
        else:
            root = self._root.resolve()
            root.mkdir(parents=True, exist_ok=True)
            if any(root.iterdir()) and not (root / MARKER).exists():
                raise SimulationError(
                    f"{root} is not empty and was not made by a simulation", remedy="name an empty or a new folder"
                )
            for name in ("nodes", "shared", "ssh", "state"):
                shutil.rmtree(root / name, ignore_errors=True)
        (root / MARKER).touch()
        for name in ("nodes", "state"):
            (root / name).mkdir()
        return root

    def _write_topology(self, keys: _Keys, model: str, setup: tuple[str, ...]) -> Path:
        config = keys.folder / "config"
        config.write_text("# Nothing of ~/.ssh/config applies to simulated nodes.\n", encoding="ascii")
        text = self._source.rewrite(
            Replacements(
                nodes={n.name: SimulatedNode(n.machine.address, n.ssh.port) for n in self.nodes.values()},
                user=keys.user,
                key=keys.client,
                known_hosts=keys.known_hosts,
                config=config,
                state_dir=str(self.state_dir),
                model_path=model,
                setup=setup,
            )
        )
        path = self.root / f"{self._source.name}.yaml"
        path.write_text(text, encoding="utf-8")
        return path


class _Keys:
    """The client's key, the nodes' keys and what knows them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self.client = folder / "id_ed25519"
        self.authorized = folder / "authorized_keys"
        self.known_hosts = folder / "known_hosts"
        folder.mkdir(mode=0o700)
        key = asyncssh.generate_private_key("ssh-ed25519", comment="pdtui simulation")
        key.write_private_key(str(self.client))
        self.client.chmod(0o600)
        key.write_public_key(str(self.authorized))
        self.known_hosts.touch()

    def host_key(self, name: str) -> asyncssh.SSHKey:
        """Return a new key for a node."""
        return asyncssh.generate_private_key("ssh-ed25519", comment=name)

    def known(self, address: str, port: int, key: asyncssh.SSHKey) -> None:
        """Make a node's key known."""
        public = key.export_public_key().decode("ascii").strip()
        with self.known_hosts.open("a", encoding="ascii") as file:
            file.write(f"[{address}]:{port} {public}\n")
