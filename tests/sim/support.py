"""A client of simulated nodes: SSH, HTTP, and the stand-in started by hand."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import asyncssh

from pdtui.sim.simulation import SimNode, Simulation
from tests.support.waiting import eventually

DATA = Path(__file__).parent / "data"
CLUSTER = DATA / "cluster.yaml"
FAST = 60.0
"""Speed of the stand-in in tests."""


@contextlib.asynccontextmanager
async def ssh(simulation: Simulation, name: str = "node1") -> AsyncIterator[asyncssh.SSHClientConnection]:
    """Connect to a node as pdtui does: its key, its host key checked, nothing of the user's own."""
    node = simulation.node(name)
    _, host = node.names
    async with asyncssh.connect(
        host if node.network else node.machine.address,
        node.ssh.port,
        client_keys=[str(simulation.root / "ssh" / "id_ed25519")],
        known_hosts=str(simulation.root / "ssh" / "known_hosts"),
        config=[str(simulation.root / "ssh" / "config")],
        agent_path=None,
    ) as connection:
        yield connection


async def run(
    simulation: Simulation, command: str, name: str = "node1", **options: Any
) -> asyncssh.SSHCompletedProcess:
    """Run one command on a node over a connection of its own."""
    async with ssh(simulation, name) as connection:
        return await connection.run(command, **options)


async def until(probe: Callable[[], Awaitable[bool]], what: str = "") -> None:
    """Wait for a condition that has to be asked for."""
    asked: Callable[[], bool | Awaitable[bool]] = probe
    await eventually(asked, what=what)


def kv_config(role: str, port: int, *, tp: int = 1, dp: int = 1, decode_tp: int = 1, decode_dp: int = 1) -> str:
    """Return the value of --kv-transfer-config."""
    sizes = {"prefill": {"tp_size": tp, "dp_size": dp}, "decode": {"tp_size": decode_tp, "dp_size": decode_dp}}
    return json.dumps(
        {
            "kv_connector": "MooncakeConnectorV1",
            "kv_role": role,
            "kv_port": str(port),
            "kv_connector_extra_config": sizes,
        }
    )


def with_pool(config: str) -> str:
    """Return the same with a KV pool beside it; the port at the top binds nobody."""
    child = json.loads(config)
    pool = {"kv_connector": "AscendStoreConnector", "kv_role": child["kv_role"]}
    top = {"kv_connector": "MultiConnector", "kv_role": child["kv_role"], "kv_port": 1}
    return json.dumps({**top, "kv_connector_extra_config": {"connectors": [child, pool]}})


class Server:
    """`vllm serve` started by hand on a node, its log in the node's home."""

    def __init__(self, simulation: Simulation, name: str, port: int, *, prefix: str = "") -> None:
        """`prefix`: what runs a command where ranks run (`docker exec -i NAME `)."""
        self.prefix = prefix
        self.simulation = simulation
        self.node: SimNode = simulation.node(name)
        self.port = port
        self.log_path = self.node.machine.home / f"{port}.log"
        self.status_path = self.node.machine.home / f"{port}.status"

    async def start(
        self,
        *flags: str,
        devices: str = "0",
        env: Mapping[str, str] | None = None,
        setup: str = ". ~/.bashrc; ",
        model: str = "",
    ) -> None:
        """Start it in a session of its own, as a launcher does."""
        self.log_path.unlink(missing_ok=True)
        self.status_path.unlink(missing_ok=True)
        model = model or str(next((self.simulation.root / "shared" / "models").iterdir()))
        words = ["vllm", "serve", model, "--host", "0.0.0.0", "--port", str(self.port)]
        words += ["--served-model-name", "ds_r1", "--max-model-len", "40000", *flags]
        variables = {
            "ASCEND_RT_VISIBLE_DEVICES": devices,
            "VLLM_HOST_IP": self.node.machine.address,
            **(env or {}),
        }
        exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
        line = f"{setup}{exports} {shlex.join(words)}; echo $? > {self.status_path}.new; "
        line += f"mv {self.status_path}.new {self.status_path}"
        await run(
            self.simulation,
            f"setsid {self.prefix}bash -c {shlex.quote(line)} > {self.log_path} 2>&1 < /dev/null & exit 0",
            self.node.name,
        )

    @property
    def log(self) -> str:
        """Everything that it wrote."""
        return self.log_path.read_text(encoding="utf-8") if self.log_path.exists() else ""

    @property
    def url(self) -> str:
        """Where it serves."""
        return f"http://{self.node.machine.address}:{self.port}"

    async def exit_status(self, *, within: float = 60.0) -> int:
        """Wait for its end."""
        await eventually(self.status_path.exists, within=within, what=f"end of {self.port}\n{self.log[-2000:]}")
        return int(self.status_path.read_text())

    async def health(self) -> int | None:
        """Return the status of /health, None when the port refuses."""
        try:
            async with aiohttp.ClientSession() as session, session.get(f"{self.url}/health") as reply:
                return reply.status
        except aiohttp.ClientError:
            return None

    async def ready(self) -> None:
        """Wait until it serves."""
        deadline = time.monotonic() + 60
        while await self.health() != 200:
            assert time.monotonic() < deadline, self.log[-3000:]
            assert not self.status_path.exists(), self.log[-3000:]
            await eventually(lambda: True)

    async def post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        """Send a JSON request; return status and JSON."""
        async with aiohttp.ClientSession() as session, session.post(f"{self.url}{path}", json=body) as reply:
            return reply.status, await reply.json()

    async def metric(self, name: str, **labels: str) -> float:
        """Return one value of /metrics."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as reply:
            text = await reply.text()
        for line in text.splitlines():
            if line.startswith(f"{name}{{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no {name} {labels} in /metrics")

    async def signal(self, name: str, pattern: str = "") -> None:
        """Signal the server, or the processes whose command line contains `pattern`."""
        match = pattern or f"bin/vllm serve.*--port {self.port}"
        await run(self.simulation, f"pkill -{name} -f -- {shlex.quote(match)}", self.node.name)
