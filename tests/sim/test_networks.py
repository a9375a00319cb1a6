"""What happens on the way to a node: over loopback, and in namespaces with networks and OpenSSH of their own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import asyncssh
import pytest

from pdtui.errors import UsageError
from pdtui.sim.simulation import Simulation
from tests.sim.support import CLUSTER, FAST, run, ssh
from tests.support.netns import require_netns
from tests.support.processes import carrying
from tests.support.waiting import eventually

NETNS = pytest.param("netns", marks=pytest.mark.sshd)


@pytest.fixture(params=["loopback", NETNS])
async def network(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Simulation]:
    """A running simulation of the small cluster on every network."""
    if request.param == "netns":
        require_netns()
    async with Simulation(CLUSTER, tmp_path / "sim", speed=FAST, network=request.param) as running:
        yield running


@pytest.fixture
async def netns(tmp_path: Path) -> AsyncIterator[Simulation]:
    """A running simulation with networks of its own."""
    require_netns()
    async with Simulation(CLUSTER, tmp_path / "sim", speed=FAST, network="netns") as running:
        yield running


async def words(simulation: Simulation, command: str, node: str = "node1") -> list[str]:
    """Return what a command on a node says."""
    done = await run(simulation, command, node)
    assert done.exit_status == 0, done.stderr
    return str(done.stdout).split()


async def answers(connection: asyncssh.SSHClientConnection, *, within: float) -> bool:
    """Say whether a command is carried out in time."""
    try:
        async with asyncio.timeout(within):
            return str((await connection.run("echo there")).stdout) == "there\n"
    except TimeoutError:
        return False


@pytest.mark.sshd
async def test_nodes_have_the_files_addresses_and_reach_one_another(netns: Simulation) -> None:
    text = netns.topology_path.read_text()
    assert "host: 192.0.0.1" in text
    assert "host: node-two" in text
    assert "address: 192.0.0.2" in text
    home = netns.node("node1").machine.home
    command = "hostname; echo $HOME; cat /sys/class/net/eth0/address; ls -d /proc/[0-9]* | wc -l"
    name, where, hardware, processes = await words(netns, command)
    assert (name, where, hardware) == ("node1", str(home), "02:00:c0:00:00:01")
    assert int(processes) < 12
    assert await words(netns, "echo ${PDTUI_ADDRESS_VIEW-none} ${PDTUI_MACHINE_VIEW-none}") == ["none", "none"]
    for host in ("192.0.0.2", "node-two", "node2"):
        (banner,) = await words(netns, f"exec 3<>/dev/tcp/{host}/22; head -c 8 <&3")
        assert banner.startswith("SSH-2.0")
    # Two nodes, one port, every address: no conflict.
    listen = "import os, socket, time; s = socket.create_server(('0.0.0.0', 7100)); os.fork() or time.sleep(999)"
    for node in ("node1", "node2"):
        await words(netns, f'python3 -c "{listen}" < /dev/null > /dev/null 2>&1', node)


async def test_rebooted_node_has_its_files_and_no_process(network: Simulation) -> None:
    before = await words(network, "cat /proc/sys/kernel/random/boot_id")
    state = network.state_dir if network.isolated else network.node("node1").folder
    marker = f"{5000000 + os.getpid()}"
    await words(network, f"echo kept > {state}/file; setsid sleep {marker} < /dev/null > /dev/null 2>&1 &")
    async with ssh(network) as connection:
        await network.fault("reboot node1")
        async with asyncio.timeout(60):
            await connection.wait_closed()
    assert not carrying(marker)
    assert await words(network, f"cat {state}/file") == ["kept"]
    if network.isolated:
        assert await words(network, "cat /proc/sys/kernel/random/boot_id") != before


async def test_killed_sshd_refuses_and_leaves_processes_alone(network: Simulation) -> None:
    marker = f"{6000000 + os.getpid()}"
    async with ssh(network) as connection:
        await connection.run(f"setsid sleep {marker} < /dev/null > /dev/null 2>&1 &")
        await network.fault("sshd-kill node1")
        async with asyncio.timeout(60):
            await connection.wait_closed()
    with pytest.raises((OSError, asyncssh.Error)):
        await run(network, "true")
    assert carrying(marker)
    assert await words(network, "echo there", "node2") == ["there"]
    await network.fault("sshd node1")
    assert await words(network, f"pkill -c -f {marker}") == ["1"]


async def test_frozen_sshd_answers_nobody_and_goes_on_where_it_stopped(network: Simulation) -> None:
    async with ssh(network) as connection:
        assert await answers(connection, within=60)
        await network.fault("sshd-freeze node1")
        late = asyncio.create_task(connection.run("echo late"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await run(network, "true")
            pytest.fail("a frozen sshd let somebody in")
        assert not late.done()
        await network.fault("sshd node1")
        async with asyncio.timeout(60):
            assert (await late).stdout == "late\n"
    assert await words(network, "echo there") == ["there"]


async def test_changed_host_key_is_another_until_it_is_changed_back(network: Simulation) -> None:
    await network.fault("rekey node1")
    with pytest.raises(asyncssh.HostKeyNotVerifiable):
        await run(network, "true")
    await network.fault("rekey node1 off")
    assert await words(network, "echo there") == ["there"]


async def test_forbidden_forwarding_concerns_new_connections(network: Simulation) -> None:
    here = network.node("node1").ssh.port
    async with ssh(network) as old:
        await network.fault("no-forwarding node1")
        async with ssh(network) as new:
            assert await answers(new, within=60)
            with pytest.raises(asyncssh.ChannelOpenError) as refused:
                await new.open_connection("127.0.0.1", here)
            assert refused.value.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED
        reader, writer = await old.open_connection("127.0.0.1", here)
        assert (await reader.readline()).startswith(b"SSH-2.0")
        writer.close()
    await network.fault("heal node1")
    async with ssh(network) as again:
        reader, writer = await again.open_connection("127.0.0.1", here)
        assert (await reader.readline()).startswith(b"SSH-2.0")
        writer.close()


@pytest.mark.sshd
async def test_cut_cable_is_silent_and_its_connections_survive_a_short_one(netns: Simulation) -> None:
    async with ssh(netns) as connection:
        assert await answers(connection, within=60)
        await netns.fault("cut node1")
        late = asyncio.create_task(connection.run("echo late"))
        await asyncio.wait({late}, timeout=0.3)
        assert not late.done()
        assert await words(netns, "echo there", "node2") == ["there"]
        await netns.fault("heal node1")
        async with asyncio.timeout(60):
            assert (await late).stdout == "late\n"


@pytest.mark.sshd
async def test_slow_and_lossy_cables_carry_everything(netns: Simulation) -> None:
    async with ssh(netns) as connection:
        assert await answers(connection, within=60)
        await netns.fault("slow node1 300ms")
        start = time.monotonic()
        assert await answers(connection, within=60)
        assert time.monotonic() - start >= 0.3
        await netns.fault("slow node1 20ms")
        await netns.fault("lossy node1 10%")
        done = await connection.run("head -c 300000 /dev/zero | tr '\\0' x")
        assert done.stdout == "x" * 300000
        await netns.fault("lossy node1 off")
        await netns.fault("slow node1 off")


@pytest.mark.sshd
async def test_node_without_power_says_no_good_bye(netns: Simulation) -> None:
    marker = f"{7000000 + os.getpid()}"
    async with ssh(netns) as connection:
        await connection.run(f"setsid sleep {marker} < /dev/null > /dev/null 2>&1 &")
        await netns.fault("power node1 off")
        assert not carrying(marker)
        assert not await answers(connection, within=0.3)
        connection.abort()
    await netns.fault("power node1 on")
    assert await words(netns, "echo there") == ["there"]


async def test_network_faults_need_a_network(simulation: Simulation) -> None:
    for spec in ("slow node1 300ms", "lossy node1 10%"):
        with pytest.raises(UsageError, match="no network of their own") as refused:
            await simulation.fault(spec)
        assert "--netns" in refused.value.remedy
    await simulation.fault("power node1 off")
    with pytest.raises((OSError, asyncssh.Error)):
        await run(simulation, "true")
    await simulation.fault("heal node1")
    assert await words(simulation, "echo there") == ["there"]


@pytest.mark.sshd
async def test_what_is_no_network_fault_is_said(netns: Simulation) -> None:
    for spec in ("slow node1", "slow node1 300", "lossy node1 much%", "power node1", "power node1 up"):
        with pytest.raises(UsageError):
            await netns.fault(spec)


@pytest.mark.sshd
async def test_somebody_without_privileges_has_networks_too_and_nothing_of_them_is_left(tmp_path: Path) -> None:
    require_netns()
    # Nobody's number is all that exists there: no root, no capability.
    alone = ["unshare", "--user", "--map-user=65534", "--map-group=65534"]
    argv = [sys.executable, "-m", "pdtui.sim", str(CLUSTER), "--netns", "--root", str(tmp_path / "sim")]
    process = await asyncio.create_subprocess_exec(
        *alone,
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    assert process.stdout
    assert (await process.stdout.readline()).strip().endswith(b"small.yaml")
    ssh_argv = [
        "ssh",
        "-tt",
        "-F",
        str(tmp_path / "sim" / "ssh" / "config"),
        "192.0.0.1",
        "id -un; tty; wc -l < /proc/net/dev",
    ]
    shell = await asyncio.create_subprocess_exec(
        *ssh_argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await shell.communicate()
    user, terminal, devices = out.decode().split()
    assert user == "nobody", err
    assert terminal.startswith("/dev/pts/")
    assert devices == "4"
    (dials,) = [
        word for word in (tmp_path / "sim" / "ssh" / "config").read_text().split() if word.endswith("/dial")
    ]
    assert Path(dials).exists()
    process.kill()
    await process.wait()
    await eventually(lambda: not carrying(str(tmp_path)), what="the end of nodes and network")
    await eventually(lambda: not Path(dials).parent.exists(), what="the end of the network's folder")
