"""Nodes over SSH: sessions are real processes, as under sshd, and nothing of them stays."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path

import asyncssh
import pytest

from pdtui.sim.simulation import Simulation
from tests.sim.support import CLUSTER, run, ssh
from tests.support.processes import carrying
from tests.support.waiting import eventually


def nothing_of(word: str) -> bool:
    return not carrying(word)


async def test_exit_status_and_streams(simulation: Simulation) -> None:
    done = await run(simulation, "echo out; echo err >&2; exit 3")
    assert (done.stdout, done.stderr, done.exit_status) == ("out\n", "err\n", 3)


async def test_end_of_input_reaches_the_process(simulation: Simulation) -> None:
    done = await run(simulation, "wc -c", input="x" * 300_000)
    assert str(done.stdout).strip() == "300000"


async def test_signals_reach_the_process_and_come_back(simulation: Simulation) -> None:
    async with ssh(simulation) as connection:
        process = await connection.create_process(
            "trap 'echo told; exit 7' TERM; echo up; while :; do sleep 0.01; done"
        )
        assert await process.stdout.readline() == "up\n"
        process.send_signal("TERM")
        assert await process.stdout.readline() == "told\n"
        await process.wait()
        assert process.exit_status == 7
    done = await run(simulation, "kill -KILL $$")
    assert done.exit_signal is not None
    assert done.exit_signal[0] == "KILL"


async def test_a_session_lasts_as_long_as_its_output_is_held(simulation: Simulation) -> None:
    done = await run(simulation, "(sleep 0.1; echo late) & exit 0")
    assert (done.stdout, done.exit_status) == ("late\n", 0)


async def test_the_environment_is_the_nodes(simulation: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_THIS_MACHINE", "1")
    node = simulation.node("node1")
    done = await run(simulation, "env; command -v hccn_tool npu-smi vllm python3")
    text = str(done.stdout)
    env = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert "OF_THIS_MACHINE" not in env
    assert env["HOME"] == str(node.machine.home)
    assert env["PDTUI_SIM_NODE"] == str(node.folder)
    assert env["PDTUI_ADDRESS_VIEW"] == node.machine.address
    # CANN's variables come with an interactive shell only.
    assert "ASCEND_TOOLKIT_HOME" not in env
    assert text.count(f"{node.folder}/usr/local") >= 4
    login = await run(simulation, "bash -ic 'echo $ASCEND_TOOLKIT_HOME'")
    assert str(login.stdout).strip().endswith("/ascend-toolkit/latest")


async def test_a_shell_on_a_terminal(simulation: Simulation) -> None:
    async with ssh(simulation) as connection:
        process = await connection.create_process(term_type="xterm", term_size=(91, 27))
        process.stdin.write("stty size; echo $((40 + 2)); exit 5\n")
        text = await process.stdout.read()
        await process.wait()
        assert "27 91" in text
        assert "42" in text
        assert "node1" in text
        assert process.exit_status == 5


async def test_only_the_generated_key_opens(simulation: Simulation, tmp_path: Path) -> None:
    node = simulation.node("node1")
    known = str(simulation.root / "ssh" / "known_hosts")
    other = asyncssh.generate_private_key("ssh-ed25519")
    with pytest.raises(asyncssh.PermissionDenied):
        await asyncssh.connect(
            node.machine.address,
            node.ssh.port,
            client_keys=[other],
            known_hosts=known,
            config=None,
            agent_path=None,
        )
    with pytest.raises(asyncssh.HostKeyNotVerifiable):
        await asyncssh.connect(
            node.machine.address, node.ssh.port, known_hosts=([], [], []), config=None, agent_path=None
        )


async def test_tcp_forwarding_reaches_what_the_node_serves(simulation: Simulation) -> None:
    address = simulation.node("node1").machine.address

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\n")
        writer.close()

    async with await asyncio.start_server(greet, address, 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with ssh(simulation) as connection:
            for host in (address, "127.0.0.1"):
                reader, writer = await connection.open_connection(host, port)
                assert await reader.readline() == b"hello\n"
                writer.close()
            with pytest.raises(asyncssh.ChannelOpenError):
                await connection.open_connection("127.0.0.1", 1)


async def test_cut_drops_and_refuses_until_healed(simulation: Simulation) -> None:
    async with ssh(simulation) as connection:
        process = await connection.create_process("sleep 1000")
        await simulation.fault("cut node1")
        with contextlib.suppress(asyncssh.Error, OSError):
            await process.wait()
        await connection.wait_closed()
    with pytest.raises(OSError, match=r"refused|Connect"):
        await run(simulation, "true")
    assert (await run(simulation, "echo there", "node2")).stdout == "there\n"
    await simulation.fault("heal node1")
    assert (await run(simulation, "echo back")).stdout == "back\n"


@pytest.mark.usefixtures("namespaces")
async def test_nodes_are_machines_of_their_own(simulation: Simulation) -> None:
    machine = "cat /etc/machine-id || echo none; cat /proc/sys/kernel/random/boot_id"
    command = f"hostname; {machine}; ls -d /proc/[0-9]* | wc -l"
    one, two = [(await run(simulation, command, name)).stdout for name in ("node1", "node2")]
    first, second = str(one).split(), str(two).split()
    assert (first[0], second[0]) == ("node1", "node2")
    assert first[1:3] != second[1:3]
    assert int(first[3]) < 10
    state = simulation.state_dir
    await run(simulation, f"echo mine > {state}/file")
    assert (await run(simulation, f"cat {state}/file", "node2")).exit_status != 0


async def test_a_command_that_is_left_dies_with_the_simulation(tmp_path: Path) -> None:
    for isolate in (True, False):
        marker = f"{4000000 + isolate + os.getpid()}"
        async with Simulation(CLUSTER, tmp_path / "sim", isolate=isolate) as simulation:
            await run(
                simulation, f"setsid nohup sh -c 'trap \"\" TERM; sleep {marker}; :' > /dev/null 2>&1 & exit 0"
            )
            await eventually(partial(carrying, marker), what="the process that is left")
        await eventually(partial(nothing_of, marker), what="the end of what was left")


async def test_everything_is_gone_at_the_end(tmp_path: Path) -> None:
    async with Simulation(CLUSTER) as simulation:
        root = simulation.root
        places = [(node.machine.address, node.ssh.port) for node in simulation.nodes.values()]
        assert root.is_dir()
    assert not root.exists()
    assert nothing_of(str(root))
    for place in places:
        with socket.socket() as probe:
            probe.bind(place)


async def test_simulations_do_not_meet(tmp_path: Path) -> None:
    async with Simulation(CLUSTER, tmp_path / "a") as one, Simulation(CLUSTER, tmp_path / "b") as two:
        addresses = {node.machine.address for each in (one, two) for node in each.nodes.values()}
        assert len(addresses) == 4


async def test_without_namespaces_the_nodes_keep_state_apart(tmp_path: Path) -> None:
    async with Simulation(CLUSTER, tmp_path, isolate=False) as simulation:
        assert not simulation.isolated
        assert (await run(simulation, "echo $HOME")).stdout != (
            await run(simulation, "echo $HOME", "node2")
        ).stdout
        assert (
            await run(simulation, "echo $PDTUI_MACHINE_VIEW")
        ).stdout == f"{simulation.node('node1').machine.address}\n"
        done = await run(simulation, "echo plain; kill -USR1 $$")
        assert done.exit_signal is not None


async def test_a_killed_simulator_takes_its_nodes_with_it(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "pdtui.sim", str(CLUSTER), "--root", str(tmp_path / "sim")],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert process.stdout
    assert (await process.stdout.readline()).strip().endswith(b"small.yaml")
    await eventually(lambda: len(carrying("pdtui.sim.node_init", str(tmp_path))) >= 2)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    await eventually(lambda: nothing_of(str(tmp_path)), what="the nodes' end")
