"""Where the servers of the contract come from: real vLLM, and the stand-in as the simulator installs it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pdtui.sim.folder import build_node, build_shared
from pdtui.sim.machine import Machine
from pdtui.sim.npus import SimPlatform
from pdtui.sim.topology_file import TopologyFile
from tests.engines.failures import Failure
from tests.engines.requests import LONGEST, MODEL
from tests.engines.server import Server
from tests.support.ports import free_ports
from tests.support.real_vllm import RealVllm

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SEATS = 4
"""--max-num-seqs."""
LEASE = 6
"""Seconds that the prefill server keeps blocks for a pull."""

FLAGS = (
    *("--host", "127.0.0.1", "--served-model-name", MODEL, "--max-model-len", str(LONGEST), "--seed", "1024"),
    *("--max-num-seqs", str(SEATS), "--enforce-eager", "--dtype", "float32"),
    *("--kv-cache-memory-bytes", str(128 << 20), "--no-enable-prefix-caching", "--enable-prompt-tokens-details"),
)
ENV = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1", "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo", "UCX_NET_DEVICES": "lo", "UCX_TLS": "tcp,cma,sysv,posix,self",
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
    "LANG": "C.UTF-8", "SPT_NOENV": "1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class House:
    """One implementation of `vllm serve`, and how patient one has to be with it."""

    name: str
    env: Mapping[str, str]
    """What finds its `vllm`; everything else is the same for all."""
    models: Mapping[str, str]
    """Paths of the `dense` and the `moe` model."""
    folder: Path
    """For logs."""
    start_s: float
    """Within which a server is ready, with others beside it."""
    hang_s: float
    """A start that has been silent for so long waits for ever."""
    silence_s: float
    """After which a stream that says nothing has been forgotten."""
    live: bool
    """Whether starts that fail are expensive, so that only some are tried."""
    whole: bool = True
    """Whether all of the contract is its own; else what is answered over HTTP."""

    def start(
        self,
        name: str,
        *flags: str,
        model: str = "dense",
        env: Mapping[str, str] | None = None,
        ports: Mapping[str, int],
    ) -> Server:
        """Start a server at `ports`, with `flags` beside those that all have."""
        argv = ["vllm", "serve", self.models.get(model, model), "--port", str(ports["api"]), *FLAGS, *flags]
        log = self.folder / f"{name.replace(' ', '-')}.log"
        return Server(name, argv, {**ENV, **self.env, "HOME": str(self.folder), **(env or {})}, log, ports)

    def plain(self, name: str) -> Server:
        """Start a server that does both."""
        return self.start(name, ports={"api": free_ports(1)[0]})

    def side(self, name: str, role: str) -> Server:
        """Start a server of one side of the pull flow."""
        api, side = free_ports(2)
        config: dict[str, object] = {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu", "kv_role": role}
        config["kv_connector_extra_config"] = {"kv_lease_duration": LEASE}
        env = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side)}
        ports = {"api": api, "side": side}
        return self.start(name, "--kv-transfer-config", json.dumps(config), env=env, ports=ports)

    def failure(self, failure: Failure, ports: Mapping[str, int]) -> Server:
        """Start what cannot succeed."""
        flags = [_filled(word, ports) for word in failure.flags]
        env = {key: _filled(value, ports) for key, value in failure.env.items()}
        return self.start(f"fail {failure.name}", *flags, model=failure.model, env=env, ports=ports)


def _filled(word: str, ports: Mapping[str, int]) -> str:
    for use, number in ports.items():
        word = word.replace(f"{{port:{use}}}", str(number))
    return word


def real(installed: RealVllm, folder: Path) -> House:
    """Return real vLLM, as it has been installed for tests."""
    env = {"PATH": f"{installed.vllm.parent}:{SYSTEM_PATH}"}
    models = {"dense": str(installed.dense), "moe": str(installed.moe)}
    return House("real", env, models, folder, start_s=300, hang_s=20, silence_s=6, live=True)


SPEED = 60.0
"""How much faster than the real one a stand-in starts."""
MODELS = {
    "dense": {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "num_key_value_heads": 2,
              "num_attention_heads": 4},
    "moe": {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "num_key_value_heads": 2,
            "num_experts": 4},
}  # fmt: skip
"""What the stand-in is told of the models that the real one has."""


def standin(folder: Path) -> House:
    """Return the stand-in as a node without NPUs has it."""
    return _simulated("standin", "cpu", "0.32.0", folder)


def ascend(folder: Path) -> House:
    """Return the stand-in as an Ascend node has it: what vLLM itself answers is the same there."""
    return _simulated("ascend", "a3", "0.23.0", folder)


def _simulated(name: str, platform: SimPlatform, version: str, folder: Path) -> House:
    file = folder / "cluster.yaml"
    file.write_text(
        f"pdtui: 1\nname: {name}\nplatform: {platform}\nmodel: {{path: /models/m, kind: dense}}\n"
        f"nodes: {{node: {{host: 127.0.0.1}}}}\ngroups: {{}}\n",
        encoding="utf-8",
    )
    shared = folder / "shared"
    build_shared(shared, TopologyFile(file))
    machine = Machine(
        name="node", folder=folder / "node", shared=shared, address="127.0.0.1", platform=platform, container="",
        server_index=0, speed=SPEED, version=version, networked=True,
    )  # fmt: skip
    build_node(machine)
    models = {}
    for kind, config in MODELS.items():
        place = shared / "models" / kind
        place.mkdir()
        (place / "config.json").write_text(
            json.dumps({**config, "max_position_embeddings": 4096}), encoding="utf-8"
        )
        (place / "model.safetensors").touch()
        models[kind] = str(place)
    env = {"PATH": f"{machine.rank_bin}:{SYSTEM_PATH}"}
    if platform != "cpu":
        cann = "/usr/local/Ascend/ascend-toolkit/latest"
        env |= {"ASCEND_TOOLKIT_HOME": cann, "LD_LIBRARY_PATH": f"{cann}/lib64", "ASCEND_RT_VISIBLE_DEVICES": "0"}
    return House(
        name, env, models, folder, start_s=60, hang_s=1.5, silence_s=1, live=False, whole=platform == "cpu"
    )
