"""A simulated cluster on this machine: nodes that are reached over SSH, with their tools, programs and faults."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self

import asyncssh

from pdtui.clock import Clock, SystemClock
from pdtui.errors import SimulationError
from pdtui.sim import container, faults
from pdtui.sim.addresses import Subnet
from pdtui.sim.folder import MARKER, build_node, build_shared, new_boot_id, write_accounts
from pdtui.sim.machine import Machine
from pdtui.sim.network import Network
from pdtui.sim.npus import HARDWARE, Npus
from pdtui.sim.openssh import OpenSshDaemon, find_sshd
from pdtui.sim.processes import Interface, NodeProcesses
from pdtui.sim.sshd import SshDaemon
from pdtui.sim.topology_file import Place, Replacements, SimulatedNode, TopologyFile

NetworkKind = Literal["loopback", "netns"]
DEFAULT_PORT = 22
"""Without it in known_hosts."""


class SshServer(Protocol):
    """A node's SSH server, OpenSSH's or the one in here, and what can happen to it."""

    port: int

    async def listen(self) -> None:
        """Accept connections, after whatever has happened to it."""

    async def kill(self) -> None:
        """Drop every connection, without a word, and refuse new ones until `listen`."""

    async def freeze(self) -> None:
        """Stop answering, on old connections and new ones, until `listen`."""

    async def allow_forwarding(self, *, allowed: bool) -> None:
        """Allow TCP forwarding to new connections, or forbid it."""

    async def change_host_key(self, key: asyncssh.SSHKey) -> None:
        """Be another machine to whoever connects: a new key, and no connection left of the old one."""

    async def close(self) -> None:
        """Stop serving for good."""


@dataclass(frozen=True, slots=True)
class SimNode:
    """One simulated server."""

    machine: Machine
    npus: Npus
    processes: NodeProcesses
    ssh: SshServer
    host_key: asyncssh.SSHKey
    """The key that the client knows."""
    names: tuple[str, ...]
    """By which the file calls it, its address aside."""
    network: Network | None
    """None where the machine's loopback stands for one."""

    @property
    def name(self) -> str:
        """The node's name."""
        return self.machine.name

    @property
    def folder(self) -> Path:
        """Everything that belongs to the node."""
        return self.machine.folder

    @property
    def container_refused(self) -> str:
        """Why its container shares the node's processes and files; empty when it has its own."""
        return container.refusal(self.machine)

    async def power_on(self) -> None:
        """Boot: a new boot id, no process of before, disks as they were, a container that has to be started.

        Raises `SimulationError`.
        """
        new_boot_id(self.machine)
        container.forget(self.machine)
        shutil.rmtree(self.folder / "run" / "vllm", ignore_errors=True)
        for held in (self.folder / "npu").glob("*/hbm/*"):
            held.unlink(missing_ok=True)  # Its process's number will be another one's.
        self.npus.power(on=True)
        await self.processes.start()
        if self.network is not None:
            await self.network.plug(self.name, self.machine.address, self.names, self.processes.take_tap())
        await self.ssh.listen()

    async def power_off(self) -> None:
        """End every process; peers learn it where they are told at all."""
        self.npus.power(on=False)
        await self.ssh.kill()
        await self.processes.close()


class Simulation:
    """The nodes of one topology file. `async with Simulation(path) as simulation:`

    Afterwards no process, port, namespace or temporary folder stays. `speed` divides every duration of the
    vLLM stand-in. `root` is kept when it was given, and removed when it was made here. With the network `netns`
    every node is a machine of its own behind OpenSSH's sshd, at the addresses of the file. Raises `FileError` for
    a file that cannot be read, `SimulationError` for what cannot be simulated.
    """

    def __init__(
        self,
        topology_path: Path,
        root: Path | None = None,
        *,
        speed: float = 1.0,
        isolate: bool = True,
        network: NetworkKind = "loopback",
        clock: Clock | None = None,
    ) -> None:
        self._source = TopologyFile(topology_path)
        self._source.check_flow()
        self._platform = self._source.platform()
        self._root = root
        self._speed = speed
        self._isolate = isolate
        self._network = network
        self._clock = clock or SystemClock()
        self._stack = contextlib.AsyncExitStack()
        self.nodes: dict[str, SimNode] = {}
        self.root = root or Path()
        self.topology_path = Path()

    async def __aenter__(self) -> Self:
        """Bring the nodes up; they are reachable when this returns."""
        async with contextlib.AsyncExitStack() as stack:
            self.root = self._make_root(stack)
            keys = await asyncio.to_thread(_Keys, self.root / "ssh")
            model, setup = await asyncio.to_thread(build_shared, self.root / "shared", self._source)
            network = await self._start_network(stack)
            subnet = None
            if network is None:
                subnet = Subnet()
                stack.callback(subnet.close)
            places = self._source.places_apart() if network else self._source.places()
            for number, (name, place) in enumerate(places.items(), 1):
                machine = Machine(
                    name=name,
                    folder=self.root / "nodes" / name,
                    shared=self.root / "shared",
                    address=subnet.address(number) if subnet else place.address,
                    platform=self._platform,
                    container=self._source.container,
                    mounts=self._source.mounts,
                    options=self._source.options,
                    state=self.state_dir,
                    server_index=number - 1,
                    speed=self._speed,
                    version=self._source.vllm_version,
                    vllm_ascend=self._source.vllm_ascend_version,
                    toolkits=self._source.toolkits,
                    model=model,
                    moe=self._source.is_moe,
                    image=self._source.image,
                    shm_size=self._source.shm_size,
                    networked=network is not None,
                )
                npus = await asyncio.to_thread(build_node, machine)
                if network is not None:
                    everybody = {name: other.address for name, other in places.items()}
                    everybody |= {
                        other.host: other.address for other in places.values() if other.host != other.address
                    }
                    write_accounts(machine, keys.user, everybody)
                processes = NodeProcesses(
                    machine.folder,
                    machine.name,
                    clock=self._clock,
                    isolate=self._isolate,
                    shared_state=self.state_dir,
                    interface=Interface(place.nic, place.address) if network else None,
                )
                stack.push_async_callback(processes.close)
                host_key = await asyncio.to_thread(keys.host_key, name)
                daemon = OpenSshDaemon if network else SshDaemon
                ssh: SshServer = daemon(
                    machine,
                    processes,
                    user=keys.user,
                    host_key=host_key,
                    authorized_keys=keys.authorized,
                    clock=self._clock,
                )
                stack.push_async_callback(ssh.close)
                node = SimNode(machine, npus, processes, ssh, host_key, (name, place.host), network)
                await node.power_on()
                await container.begin(machine, processes)
                keys.known(place.host if network else machine.address, ssh.port, host_key)
                self.nodes[name] = node
            self.topology_path = self._write_topology(keys, model, setup, network, places)
            self._stack = stack.pop_all()
        return self

    async def _start_network(self, stack: contextlib.AsyncExitStack) -> Network | None:
        if self._network == "loopback":
            return None
        find_sshd()
        network = Network(self.root / "network.log", clock=self._clock)
        stack.push_async_callback(network.close)
        await network.start()
        return network

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
        return all(node.processes.own_namespace for node in self.nodes.values())

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

    def _write_topology(
        self,
        keys: _Keys,
        model: str,
        setup: tuple[str, ...],
        network: Network | None,
        places: Mapping[str, Place],
    ) -> Path:
        nodes = {
            name: SimulatedNode(
                place.host if network else self.nodes[name].machine.address,
                self.nodes[name].machine.address,
                self.nodes[name].ssh.port,
                # On the machine's loopback, without a network of their own, that is where their addresses are.
                (place.nic if place.nic != self._source.places()[name].nic else "") if network else "lo",
            )
            for name, place in places.items()
        }
        config = _ssh_config(keys, nodes, network)
        text = self._source.rewrite(
            Replacements(
                nodes=nodes,
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


def _ssh_config(keys: _Keys, nodes: Mapping[str, SimulatedNode], network: Network | None) -> Path:
    """Write what reaches the nodes, by name or host, without the topology: `ssh -F`, `pdtui import --from`."""
    lines = ["# Nothing of ~/.ssh/config applies to simulated nodes."]
    if network is not None:
        lines.append(f"ProxyCommand {network.proxy_command}")
    lines += [f"IdentityFile {keys.client}", f"UserKnownHostsFile {keys.known_hosts}", f"User {keys.user}"]
    for name, node in nodes.items():
        lines += [f"Host {name} {node.host}", f"  HostName {node.host}", f"  Port {node.port}"]
    path = keys.folder / "config"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
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
        name = address if port == DEFAULT_PORT else f"[{address}]:{port}"
        with self.known_hosts.open("a", encoding="ascii") as file:
            file.write(f"{name} {public}\n")
