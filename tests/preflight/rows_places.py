"""Rows of the checks that look at where ranks run, and between nodes."""

from __future__ import annotations

from dataclasses import replace

from pdtui.topology.model import Topology
from tests.preflight.rows import FILE_SCENE, Row, frozen, hangs, lost

LOGIN = "login"
"""The scene in which a container is down, a shell waits, the import of Mooncake hangs, and a node is cut off."""


def _another_nic(topology: Topology) -> Topology:
    """Return a file that names an interface of node2 that has not its address."""
    node = replace(topology.nodes["node2"], nic="eth7")
    return replace(topology, nodes={**topology.nodes, "node2": node})


def _another_address(topology: Topology) -> Topology:
    """Return a file by whose words decode ranks tell an address that no interface has."""
    group = topology.groups["d"]
    told = replace(group, env={**group.env, "VLLM_HOST_IP": "192.0.0.99"})
    return replace(topology, groups={**topology.groups, "d": told})


IN_ENVIRONMENT = (
    "shm",
    "devices",
    "nic",
    "host-ip",
    "proxy-env",
    "disk",
    "ulimit",
    "ephemeral-ports",
)

ROWS: tuple[Row, ...] = (
    Row("container", "bad", ("container node1 stop",), "node1", ("is not running", "exited"), LOGIN),
    lost("container", "was reached"),
    frozen("container", "was reached", "hangs"),
    Row("host-network", "bad", ("network node2 bridge",), "node2", ("network bridge",)),
    Row("host-network", "unknown", ("engine-garble node3",), "node3", ("cannot be read",)),
    hangs("host-network", "node4", "engine-hang node4", "docker"),
    Row("nic", "bad", (), "node2", ("eth7",), FILE_SCENE, edit=_another_nic),
    Row("host-ip", "bad", (), "node2", ("VLLM_HOST_IP=192.0.0.99",), FILE_SCENE, edit=_another_address),
    Row("shm", "bad", ("shm node2 64m",), "node2", ("64 MB",)),
    Row("devices", "bad", ("device node2 davinci3 off",), "node2", ("davinci3",)),
    Row("ports", "bad", ("listen node2 7101",), "d/1", ("7101", "not started here")),
    lost("ports"),
    hangs("ports", "node4", "container node4 pause", "no answer within 4.5 s", scene=LOGIN),
    Row("container", "bad", ("container node4 pause",), "node4", ("paused", "stands still"), LOGIN),
    Row("reach", "unknown", ("no-python node1",), "node1", ("python3: not found",), FILE_SCENE),
    hangs("reach", "node4", "container node4 pause", "no answer from python3 within 4.5 s", scene=LOGIN),
    Row("reach", "bad", ("unreachable node3 node1",), "node3 -> node1", ("no answer",), LOGIN),
    Row("model", "bad", ("model node2 shard",), "node2", ("1 of 24 weight files", "missing")),
    hangs("model", "node4", "model node4 hang"),
    Row("cann", "bad", ("version node2 cann 8.5.1",), "node2", ("8.5.1", "9.0.0")),
    Row("cann", "unknown", ("version node3 cann garble",), "node3", ("says no version",)),
    hangs("cann", "node4", "version node4 cann hang"),
    Row("vllm", "bad", ("version node2 vllm 0.21.0",), "", ("node2 has 0.21.0", "node1 has 0.22.1")),
    Row("vllm", "unknown", ("version node3 vllm garble",), "node3", ("cannot be read",)),
    hangs("vllm", "node4", "version node4 vllm hang"),
    Row("vllm-ascend", "bad", ("version node2 vllm-ascend 0.20.2rc1",), "node2", ("0.20.2rc1", "0.22.1rc1")),
    Row("vllm-ascend", "unknown", ("version node3 vllm-ascend garble",), "node3", ("cannot be read",)),
    hangs("vllm-ascend", "node4", "version node4 vllm hang"),
    Row(
        "mooncake",
        "bad",
        ("version node2 mooncake 0.3.7.post2",),
        "",
        ("node2 has 0.3.7.post2", "node1 has 0.3.9"),
    ),
    Row("mooncake", "unknown", ("version node3 mooncake garble",), "node3", ("cannot be read",)),
    hangs("mooncake", "node4", "version node4 vllm hang"),
    Row("mooncake-import", "bad", ("no-mooncake node4 broken",), "node4", ("libascend_transport_mem.so",)),
    hangs("mooncake-import", "node3", "no-mooncake node3 hang", scene=LOGIN),
    Row("proxy-env", "bad", ("proxy-env node2 http://me:secret@corp:3128",), "node2", ("http://***@corp:3128",)),
    Row("disk", "bad", ("disk node2 200",), "node2", ("200 MB",)),
    Row("ulimit", "bad", ("ulimit node2 1024",), "node2", ("1024",)),
    Row("ephemeral-ports", "bad", ("ephemeral node2 7000-61000",), "node2", ("7100-7103", "7000-61000")),
    Row("ephemeral-ports", "unknown", ("ephemeral node3 garble",), "node3", ("cannot be read",)),
    *(
        hangs(check, "node2", "hang-login node2", "the shell that ranks start from", scene=LOGIN)
        for check in IN_ENVIRONMENT
    ),
    *(
        Row(check, "unknown", ("no-python node1",), "node1", ("python3 gives no answer",), FILE_SCENE)
        for check in (*IN_ENVIRONMENT, "model", "mooncake-import", "vllm")
    ),
    Row("vllm", "bad", ("exit-login node3",), "node3", ("the shell ended with status 0", "~/.bashrc"), FILE_SCENE),
)

EXCEPT: dict[tuple[str, str], str] = {}
"""What cannot be shown here, and why."""
