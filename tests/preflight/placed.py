"""What was found where ranks run on four nodes, everything well until a test says otherwise."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pdtui.fleet.blockers import Look
from pdtui.fleet.preflight import checks
from pdtui.fleet.preflight.check import NodeView, Survey, barrier, chosen
from pdtui.fleet.preflight.checks.ports import listed
from pdtui.fleet.preflight.checks.reach import Reached, ways
from pdtui.fleet.preflight.facts import Connection, Key, NodeFacts
from pdtui.fleet.preflight.outcome import Outcome, Result
from pdtui.fleet.preflight.place import groups_of, parts_of
from pdtui.readings.answer import Answer, Failure, Reading
from pdtui.readings.container import read_container
from pdtui.readings.rank_place import read_place
from pdtui.remote.messages.processes import Listener
from pdtui.topology.load import load_bytes, load_checked
from pdtui.topology.model import Topology
from pdtui.topology.planner import make_plan

NOW = 1_800_000_000.0
SAMPLES = Path(__file__).parents[2] / "sample_configs"
GB = 1 << 30

WHERE = "/usr/local/python3.12/lib/python3.12/site-packages"


def well(topology: Topology, node: str) -> dict[str, Any]:
    """Return what the script says on a node where everything is well, by the names of its parts."""
    address = topology.nodes[node].address
    own = topology.vllm_ascend or "0.32.0"
    return {
        "shm": {"total": 2 * GB, "free": 2 * GB, "type": "tmpfs"},
        "devices": {
            "npus": list(range(topology.npus_per_node)),
            "closed": [],
            "management": ["davinci_manager", "devmm_svm", "hisi_hdc"],
            "driver": "/usr/local/Ascend/driver/lib64/driver/libascend_hal.so",
        },
        "limits": {
            "nofile": [1048576, 1048576],
            "memlock": [65536, 65536],
            "nproc": [-1, -1],
            "core": [0, -1],
            "uid": 0,
            "pids": -1,
        },
        "ports": {"range": [40000, 59999], "reserved": ""},
        "addresses": [["lo", True, ["127.0.0.1/8", "::1/128"]], ["eth0", True, [f"{address}/24", "fe80::1/64"]]],
        "variables": {
            "variables": {
                "VLLM_HOST_IP": address,
                "HCCL_IF_IP": address,
                "HCCL_SOCKET_IFNAME": "eth0",
                "GLOO_SOCKET_IFNAME": "eth0",
                "TP_SOCKET_IFNAME": "eth0",
            },
            "proxies": {},
            "default_ip": "10.9.9.9",
            "vllm": "/usr/local/python3.12/bin/vllm",
            "path": "/usr/local/bin:/usr/bin",
        },
        "cann": {
            "version": "9.0.0",
            "file": "/usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info",
            "home": "/usr/local/Ascend/ascend-toolkit/latest",
            "set": True,
        },
        "packages": {
            "python": "3.12.1",
            "executable": "/usr/local/python3.12/bin/python3",
            "packages": {
                "vllm": {"version": "0.22.1+empty" if topology.has_npus else "0.32.0+cpu", "where": WHERE},
                "vllm-ascend": {"version": own, "where": WHERE},
                "mooncake-transfer-engine": {"version": "0.3.9", "where": WHERE},
            },
            "modules": {},
        },
        "import": {"statement": "from mooncake.engine import TransferEngine", "seconds": 0.42},
        "model": {
            "path": topology.model.path,
            "files": [
                ["config.json", 1500, "c0ffee"],
                ["model-00001-of-00002.safetensors", 4 * GB, ""],
                ["model-00002-of-00002.safetensors", 4 * GB, ""],
                ["model.safetensors.index.json", 900, "1dea"],
                ["tokenizer.json", 7_800_000, ""],
            ],
            "broken": [],
            "unreadable": [],
            "pointers": [],
            "config": "c0ffee",
            "more": 0,
            "indexes": [{"name": "model.safetensors.index.json", "shards": 2, "missing": [], "absent": 0}],
        },
        "disk": {
            "path": "/var/lib/pdtui",
            "device": 1,
            "mount": "/",
            "type": "xfs",
            "total": 900 * GB,
            "free": 300 * GB,
            "files": 1_000_000,
            "files_free": 900_000,
            "writable": True,
        },
    }


INSPECTED: Mapping[str, Any] = {
    "Name": "/vllm-ascend",
    "State": {"Status": "running", "Running": True, "Paused": False},
    "Config": {"Image": "quay.io/ascend/vllm-ascend:v0.22.1rc1-a3", "Env": ["HF_TOKEN=very-secret"]},
    "HostConfig": {"NetworkMode": "host", "ShmSize": 1 << 30, "Privileged": False},
    "Mounts": [{"Type": "bind", "Source": "/var/lib/pdtui", "Destination": "/var/lib/pdtui"}],
}
"""What docker says of a container as the guide makes it."""


class Placed:
    """The nodes of a sample file. Change `said` (what the script says, by node and part), then `run` a check."""

    def __init__(self, file: str = "deepseek-r1-2p1d.yaml", text: Mapping[str, str] | None = None) -> None:
        path = SAMPLES / file
        self.topology = load_checked(path) if text is None else _changed(path, text)
        self.plan = make_plan(self.topology)
        self.said: dict[str, dict[str, Any]] = {name: well(self.topology, name) for name in self.topology.nodes}
        self.errors: dict[tuple[str, str], dict[str, Any]] = {}
        """(node, key or part) -> what the script says in place of a value."""
        self.answers: dict[str, Answer] = {}
        """Node -> the whole answer, in place of what the script says."""
        self.inspected: dict[str, Answer] = {}
        self.looks: dict[str, Look | None] = {name: Look() for name in self.topology.nodes}
        self.reached: dict[tuple[str, str], Mapping[int, str] | Failure] = {}
        """(node, address) -> what came of ports that are not merely refused."""
        self.connections = {name: Connection(host=True, ranks=True, at=NOW) for name in self.topology.nodes}

    def part(self, name: str, node: str = "node1") -> dict[str, Any]:
        """Return what the script says of a part, to be changed."""
        found: dict[str, Any] = self.said[node][name]
        return found

    def everywhere(self, part: str, **changes: Any) -> None:
        """Change a part on all nodes."""
        for said in self.said.values():
            said[part] = {**said[part], **changes}

    def hang(self, part: str, node: str = "node1") -> None:
        """Let a part not come back."""
        self.errors[node, part] = {"hangs": 8.0}

    def fail(self, part: str, error: str, kind: str = "failed", node: str = "node1") -> None:
        """Let a part end with these words."""
        self.errors[node, part] = {"error": error, "kind": kind}

    def listens(self, port: int, node: str = "node1", address: str = "0.0.0.0", **words: Any) -> None:
        """Let something listen on a node."""
        held = Listener(address, port, words.pop("pid", 4711), words.pop("command", "nc -l"), **words)
        look = self.looks[node] or Look()
        self.looks[node] = Look(listeners=(*look.listeners, held), records=look.records, processes=look.processes)

    def facts(self) -> dict[str, NodeFacts]:
        """Return what the checks get to see."""
        found: dict[str, NodeFacts] = {}
        for name in self.topology.nodes:
            readings: dict[Key, Reading[Any]] = {}
            if self.connections[name].ranks:
                readings |= self._place(name)
                look = self.looks[name]
                late: Reading[Look] = Reading("ss -ltnp", NOW, "no answer within 25 s", failure=Failure.TIMEOUT)
                readings["ports", None] = late if look is None else listed(look, self.topology.name, NOW)
                readings |= self._reach(name)
            inspected = self.inspected.get(name) or Answer(
                "docker inspect", json.dumps([INSPECTED]).encode(), at=NOW
            )
            readings["container", None] = read_container(inspected)
            found[name] = NodeFacts(name, self.connections[name], readings)
        return found

    def _place(self, node: str) -> dict[Key, Reading[Any]]:
        agent = SimpleNamespace(facts=SimpleNamespace(state_dir="/var/lib/pdtui"))
        asking: Any = SimpleNamespace(
            node=self.topology.nodes[node], topology=self.topology, plan=self.plan, agent=agent
        )
        readings: dict[Key, Reading[Any]] = {}
        groups = groups_of(node, self.topology, self.plan)
        for number, group in enumerate(groups or (None,)):
            parts = list(parts_of(asking, group, first=number == 0))
            document = {part.key: self._of_part(node, part.key, part.name) for part in parts}
            line = f"welcome\nPDTUI-PLACE {json.dumps(document)}\n"
            answer = self.answers.get(node) or Answer("bash -ic", line.encode(), at=NOW)
            asked = {part.key: (part.name, part.command) for part in parts}
            readings |= {("place", key): reading for key, reading in read_place(answer, asked).items()}
            if group is not None:
                made = node not in self.answers
                late = not made and answer.timed_out
                why = None if made else Failure.TIMEOUT if late else Failure.ERROR
                readings["place", f"environment {group.name}"] = Reading(
                    "bash -ic", NOW, "" if made else answer.text, made or None, why
                )
        return readings

    def _of_part(self, node: str, key: str, part: str) -> dict[str, Any]:
        for word in (key, part):
            if (node, word) in self.errors:
                return self.errors[node, word]
        return {"ok": copy.deepcopy(self.said[node].get(key, self.said[node][part]))}

    def _reach(self, node: str) -> dict[Key, Reading[Any]]:
        readings: dict[Key, Reading[Any]] = {}
        for way in ways(self.topology, self.plan):
            if way.node != node:
                continue
            came = self.reached.get((node, way.address), {})
            if isinstance(came, Failure):
                readings["reach", way.address] = Reading("nc", NOW, "no answer within 30 s", failure=came)
                continue
            ports = {port: came.get(port, "refused") for port in way.ports}
            value = Reached(way.address, self.topology.nodes[node].address, ports, way.ports)
            readings["reach", way.address] = Reading("nc", NOW, str(ports), value=value)
        return readings

    def run(self, check: str) -> list[Result]:
        """Return what a check says of all nodes."""
        checks.load()
        (one,) = chosen([check])
        facts = self.facts()
        if one.scope == "cluster":
            return list(one.body(Survey(one, self.topology, self.plan, facts, NOW)))
        results: list[Result] = []
        for name, found in facts.items():
            if not barrier(one, found):
                node = self.topology.nodes[name]
                results += one.body(NodeView(one, self.topology, self.plan, node, found, NOW))
        return results

    def bad(self, check: str) -> list[Result]:
        """Return what is not as it should be."""
        found = [result for result in self.run(check) if result.outcome not in (Outcome.PASS, Outcome.NA)]
        for result in found:
            assert result.remedy or result.outcome in (Outcome.UNKNOWN, Outcome.NOT_RUN), result
            assert result.evidence or result.outcome is Outcome.NOT_RUN, result
        return found

    def one(self, check: str) -> Result:
        """Return the only result that is not as it should be."""
        (found,) = self.bad(check)
        return found


def _changed(path: Path, text: Mapping[str, str]) -> Topology:
    """Return the file with pieces of its text replaced."""
    content = path.read_text(encoding="utf-8")
    for old, new in text.items():
        assert old in content, old
        content = content.replace(old, new)
    loaded = load_bytes(content.encode(), path)
    assert loaded.topology is not None, loaded
    return loaded.topology
