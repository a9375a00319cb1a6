"""The ways in which SSH can fail, each with its own word and remedy; jump hosts; the user's own configuration."""

from __future__ import annotations

import asyncio
import logging
import os
import shlex
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from pdtui.errors import ConnectError, JumpHostError
from pdtui.remote.client import AgentClient
from pdtui.remote.messages.commands import Command
from pdtui.remote.transports.host_keys import accept_line
from pdtui.remote.transports.jump_hosts import JumpHosts, split_port
from pdtui.remote.transports.login import SILENCE, Handshakes
from pdtui.remote.transports.ssh import SshTransport
from pdtui.topology.model import SshOptions
from tests.remote.conftest import CLOCK, ssh_transport
from tests.remote.simulated_ssh import SimulatedSsh, simulated_ssh
from tests.support.manual_clock import ManualClock, settle
from tests.support.netns import Rack
from tests.support.sshd import make_key, require_sshd, running_sshd
from tests.support.waiting import eventually


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[SimulatedSsh]:
    """A server that knows one key."""
    async with simulated_ssh(tmp_path / "ssh") as running:
        yield running


async def refusal(options: SshOptions, host: str = "127.0.0.1") -> ConnectError:
    """Return why a connection fails."""
    async with AsyncExitStack() as stack:
        with pytest.raises(ConnectError) as caught:
            await ssh_transport(stack, options, host)
    return caught.value


async def echo(transport: SshTransport, state: Path) -> bytes:
    """Run a command through a whole agent."""
    client = await AgentClient.connect(transport, clock=CLOCK, state_dir=str(state))
    result = await client.run(Command(("echo", "there")))
    await client.close()
    return result.stdout


async def test_an_unknown_host_key_is_refused_with_the_line_that_accepts_it(server: SimulatedSsh) -> None:
    known = server.options.known_hosts
    assert known is not None
    fingerprint = asyncssh.import_public_key(known.read_text().split(" ", 1)[1]).get_fingerprint()
    known.unlink()
    error = await refusal(server.options)
    assert error.kind == "unknown_host_key"
    assert fingerprint in str(error)
    assert accept_line("127.0.0.1", server.options) in error.remedy
    assert f"-p {server.port}" in error.remedy


@pytest.mark.sshd
async def test_the_line_that_accepts_a_host_key_works(server: SimulatedSsh, state: Path) -> None:
    require_sshd()
    known = server.options.known_hosts
    assert known is not None
    known.unlink()
    error = await refusal(server.options)
    words = shlex.split(error.remedy.partition("with: ")[2])
    # What the operator answers with «yes».
    words[1:1] = ["-o", "StrictHostKeyChecking=accept-new", "-o", "BatchMode=yes"]
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, stderr = await process.communicate()
    assert process.returncode == 0, stderr
    async with AsyncExitStack() as stack:
        assert await echo(await ssh_transport(stack, server.options), state) == b"there\n"


async def test_a_changed_host_key_says_so_and_how_to_go_on(server: SimulatedSsh) -> None:
    known = server.options.known_hosts
    assert known is not None
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode()
    known.write_text(f"# mine\nsomebody-else {other}[127.0.0.1]:{server.port} {other}")
    error = await refusal(server.options)
    assert error.kind == "changed_host_key"
    assert "CHANGED" in str(error)
    assert f"{known} line 3 has another" in error.remedy
    assert f"ssh-keygen -R '[127.0.0.1]:{server.port}'" in error.remedy


async def test_a_key_that_is_not_accepted(server: SimulatedSsh, tmp_path: Path) -> None:
    stranger = asyncssh.generate_private_key("ssh-ed25519")
    stranger.write_private_key(str(tmp_path / "stranger"))
    error = await refusal(replace(server.options, key=tmp_path / "stranger"))
    assert error.kind == "auth"
    assert "ssh-agent" in error.remedy


async def test_a_missing_or_unreadable_key_file(server: SimulatedSsh, tmp_path: Path) -> None:
    error = await refusal(replace(server.options, key=tmp_path / "none"))
    assert error.kind == "auth"
    assert "none" in str(error)
    (tmp_path / "broken").write_text("not a key")
    assert (await refusal(replace(server.options, key=tmp_path / "broken"))).kind == "auth"


async def test_a_key_with_a_passphrase_is_never_asked_for(server: SimulatedSsh, tmp_path: Path) -> None:
    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(str(tmp_path / "locked"), "pkcs8-pem", passphrase="secret-words")
    error = await refusal(replace(server.options, key=tmp_path / "locked"))
    assert error.kind == "auth"


async def test_refused_dns_and_timeout(server: SimulatedSsh) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        error = await refusal(replace(server.options, port=port))
        assert (error.kind, error.message) == ("refused", f"127.0.0.1:{port}: connection refused")
    assert (await refusal(server.options, "no-such-name.invalid")).kind == "dns"
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        error = await refusal(replace(server.options, port=port, connect_timeout=0.3))
    assert error.kind == "timeout"


async def test_a_server_that_hangs_up_or_is_no_ssh_server(server: SimulatedSsh) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as bad:
        port = bad.sockets[0].getsockname()[1]
        assert (await refusal(replace(server.options, port=port))).kind == "lost"

    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 9000)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(web, "127.0.0.1", 0) as bad:
        port = bad.sockets[0].getsockname()[1]
        assert (await refusal(replace(server.options, port=port))).kind in ("lost", "protocol")


async def test_one_connection_and_two_sessions_a_node(server: SimulatedSsh, state: Path) -> None:
    async with AsyncExitStack() as stack:
        transport = await ssh_transport(stack, server.options)
        assert await echo(transport, state) == b"there\n"
        assert await echo(transport, state) == b"there\n"
    assert server.logins == 1


async def test_the_jump_host_is_shared_and_its_own_key_is_checked(
    server: SimulatedSsh, tmp_path: Path, state: Path
) -> None:
    async with simulated_ssh(tmp_path / "jump") as jump, AsyncExitStack() as stack:
        known = server.options.known_hosts
        assert known is not None
        both = tmp_path / "both"
        jump_known = (tmp_path / "jump" / "known_hosts").read_text()
        both.write_text(known.read_text() + jump_known)
        (tmp_path / "jump" / "authorized_keys").write_bytes((tmp_path / "ssh" / "authorized_keys").read_bytes())
        options = replace(server.options, known_hosts=both, jump=f"tester@127.0.0.1:{jump.port}")
        handshakes = Handshakes(CLOCK)
        jumps = JumpHosts(CLOCK, handshakes)
        stack.push_async_callback(jumps.close)
        transports = await asyncio.gather(
            *(
                SshTransport.connect("127.0.0.1", options, clock=CLOCK, jumps=jumps, handshakes=handshakes)
                for _ in range(4)
            )
        )
        for transport in transports:
            stack.push_async_callback(transport.close)
        assert await echo(transports[0], state) == b"there\n"
        assert (jump.logins, server.logins) == (1, 4)
        both.write_text(known.read_text())
        error = await refusal(options)
        assert error.kind == "unknown_host_key"
        assert f"-p {jump.port}" in error.remedy


async def test_proxyjump_and_hostname_of_the_users_configuration(
    server: SimulatedSsh, tmp_path: Path, state: Path
) -> None:
    async with simulated_ssh(tmp_path / "jump") as jump, AsyncExitStack() as stack:
        both = tmp_path / "both"
        known = [(tmp_path / name / "known_hosts").read_text() for name in ("ssh", "jump")]
        both.write_text("".join(known))
        config = tmp_path / "config"
        config.write_text(
            f"Host bastion\n HostName 127.0.0.1\n Port {jump.port}\n User tester\n"
            f" IdentityFile {tmp_path}/jump/id\n"
            f"Host inner\n HostName 127.0.0.1\n Port {server.port}\n User tester\n"
            f" IdentityFile {tmp_path}/ssh/id\n ProxyJump bastion\n"
            f"Host *\n UserKnownHostsFile {both}\n"
        )
        transport = await ssh_transport(stack, SshOptions(config=config), "inner")
        assert await echo(transport, state) == b"there\n"
        assert (jump.logins, server.logins) == (1, 1)


async def test_an_unreachable_node_behind_a_jump_host(server: SimulatedSsh) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        jump = f"tester@127.0.0.1:{server.port}"
        error = await refusal(replace(server.options, jump=jump, port=closed.getsockname()[1]))
    assert error.kind == "unreachable"
    assert "jump host" in str(error)


async def test_at_most_eight_handshakes_at_once(server: SimulatedSsh) -> None:
    handshakes = Handshakes(CLOCK)
    jumps = JumpHosts(CLOCK, handshakes)
    transports = await asyncio.gather(
        *(
            SshTransport.connect("127.0.0.1", server.options, clock=CLOCK, jumps=jumps, handshakes=handshakes)
            for _ in range(20)
        )
    )
    assert server.most_at_once <= 8
    for transport in transports:
        await transport.close()


async def test_nothing_secret_is_logged(
    server: SimulatedSsh, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    asyncssh.set_debug_level(2)
    try:
        async with AsyncExitStack() as stack:
            client = await AgentClient.connect(
                await ssh_transport(stack, server.options), clock=CLOCK, state_dir=str(state)
            )
            await client.run(Command(("env",), env={"API_KEY": "very-secret-value"}))
            await client.close()
    finally:
        asyncssh.set_debug_level(1)
    assert "very-secret-value" not in caplog.text
    assert "PRIVATE KEY" not in caplog.text


@pytest.mark.sshd
async def test_openssh_kinds(tmp_path: Path) -> None:
    async with running_sshd(tmp_path) as sshd:
        make_key(tmp_path / "other")
        assert (await refusal(replace(sshd.options, key=tmp_path / "other"))).kind == "auth"
        (tmp_path / "known_hosts").write_text("")
        error = await refusal(sshd.options)
        assert error.kind == "unknown_host_key"
        public = asyncssh.import_public_key(sshd.host_key)
        assert public.get_fingerprint() in str(error)


@pytest.mark.sshd
async def test_openssh_that_allows_no_session_says_maxsessions(tmp_path: Path, state: Path) -> None:
    async with running_sshd(tmp_path, extra="MaxSessions 0\n") as sshd, AsyncExitStack() as stack:
        transport = await ssh_transport(stack, sshd.options)
        with pytest.raises(ConnectError) as caught:
            await AgentClient.connect(transport, clock=CLOCK, state_dir=str(state))
    assert "MaxSessions" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("host", ("host", None)),
        ("host:22", ("host", 22)),
        ("[::1]:2222", ("::1", 2222)),
        ("[fe80::1]", ("fe80::1", None)),
        ("fe80::1", ("fe80::1", None)),
    ],
)
def test_split_port(text: str, parts: tuple[str, int | None]) -> None:
    assert split_port(text) == parts


def alias(server: SimulatedSsh, folder: Path, command: str, *, name: str = "inner") -> SshOptions:
    """Return options with which a host is reached by a ProxyCommand, as an operator's ~/.ssh/config has it."""
    config = folder / "config"
    config.write_text(
        f"Host {name}\n HostName 127.0.0.1\n Port {server.port}\n User tester\n IdentityFile {folder}/ssh/id\n"
        f" UserKnownHostsFile {folder}/ssh/known_hosts\n ProxyCommand {command}\n"
    )
    return SshOptions(config=config, connect_timeout=20.0)


RELAY = """
import socket, sys, threading, os
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def send():
    while data := os.read(0, 65536):
        connection.sendall(data)
    os._exit(0)
threading.Thread(target=send, daemon=True).start()
while data := connection.recv(65536):
    os.write(1, data)
"""


async def test_proxycommand_of_the_users_configuration(server: SimulatedSsh, tmp_path: Path, state: Path) -> None:
    (tmp_path / "relay.py").write_text(RELAY)
    # With the shell's words, which OpenSSH allows too; the pid shows whose session it has.
    command = f"sh -c 'echo $$ > {tmp_path}/pid; exec {sys.executable} {tmp_path}/relay.py %h %p 2> /dev/null'"
    options = alias(server, tmp_path, command)
    async with AsyncExitStack() as stack:
        transport = await ssh_transport(stack, options, "inner")
        assert await echo(transport, state) == b"there\n"
        assert server.logins == 1
        pid = int((tmp_path / "pid").read_text())
        assert os.getsid(pid) != os.getsid(0)
    await eventually(lambda: not Path(f"/proc/{pid}").exists(), what="the proxy ends with the connection")


@pytest.mark.parametrize(
    ("command", "kind", "word"),
    [
        ("sh -c 'echo nc: connect to %h port %p failed: Connection refused >&2; exit 1'", "refused", "refused"),
        ("sh -c 'echo ssh: Could not resolve hostname bastion >&2; exit 255'", "dns", "bastion"),
        ("no-such-program-here %h %p", "protocol", "not found"),
        ("sh -c 'exit 3'", "lost", "ended with status 3"),
    ],
)
async def test_proxycommand_that_fails_says_why(
    server: SimulatedSsh, tmp_path: Path, command: str, kind: str, word: str
) -> None:
    error = await refusal(alias(server, tmp_path, command), "inner")
    assert error.kind == kind
    assert word in str(error)


async def test_proxycommand_that_says_nothing_is_given_up_and_ended(server: SimulatedSsh, tmp_path: Path) -> None:
    command = f"sh -c 'echo $$ > {tmp_path}/pid; trap \"\" TERM; exec sleep 1000'"
    error = await refusal(replace(alias(server, tmp_path, command), connect_timeout=0.5), "inner")
    assert error.kind == "timeout"
    pid = int((tmp_path / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


async def test_jump_host_goes_before_a_proxycommand(server: SimulatedSsh, tmp_path: Path, state: Path) -> None:
    async with simulated_ssh(tmp_path / "jump") as jump, AsyncExitStack() as stack:
        both = (tmp_path / "ssh" / "known_hosts").read_text() + (tmp_path / "jump" / "known_hosts").read_text()
        (tmp_path / "ssh" / "known_hosts").write_text(both)
        (tmp_path / "jump" / "authorized_keys").write_bytes((tmp_path / "ssh" / "authorized_keys").read_bytes())
        options = replace(
            alias(server, tmp_path, "no-such-program-here"),
            jump=f"tester@127.0.0.1:{jump.port}",
            key=tmp_path / "ssh" / "id",
            known_hosts=tmp_path / "ssh" / "known_hosts",
        )
        assert await echo(await ssh_transport(stack, options, "inner"), state) == b"there\n"
        assert (jump.logins, server.logins) == (1, 1)


@pytest.mark.sshd
async def test_jump_host_that_a_proxycommand_leads_to(netns_rack: Rack, state: Path) -> None:
    # A name that only the jump host knows, on a network that only it reaches.
    options = replace(netns_rack.options("node2"), jump=f"{netns_rack.options('node1').user}@192.0.0.1")
    async with AsyncExitStack() as stack:
        transport = await ssh_transport(stack, options, "node-two")
        client = await AgentClient.connect(transport, clock=CLOCK, state_dir=str(state))
        told = await client.run(Command(("sh", "-c", "hostname; echo $SSH_CONNECTION")))
        await client.close()
    assert told.stdout.split()[:2] == [b"node2", b"192.0.0.1"]


@pytest.mark.sshd
async def test_jump_host_without_tcp_forwarding_is_named(tmp_path: Path) -> None:
    async with running_sshd(tmp_path, extra="AllowTcpForwarding no\n") as sshd:
        options = replace(sshd.options, jump=f"{sshd.options.user}@127.0.0.1:{sshd.port}")
        error = await refusal(options)
    assert error.kind == "forbidden"
    assert "AllowTcpForwarding" in error.remedy


async def test_failure_of_a_jump_host_is_found_once_for_all_who_wait(server: SimulatedSsh) -> None:
    taken = 0

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        taken += 1
        await asyncio.sleep(0.1)
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as dead:
        jump = f"tester@127.0.0.1:{dead.sockets[0].getsockname()[1]}"
        handshakes = Handshakes(CLOCK)
        jumps = JumpHosts(CLOCK, handshakes)
        options = replace(server.options, jump=jump)
        results = await asyncio.gather(
            *(
                SshTransport.connect("127.0.0.1", options, clock=CLOCK, jumps=jumps, handshakes=handshakes)
                for _ in range(20)
            ),
            return_exceptions=True,
        )
        await jumps.close()
    assert {type(result) for result in results} == {JumpHostError}
    assert taken == 1


async def test_hosts_that_say_nothing_give_their_places_to_others() -> None:
    clock = ManualClock()
    handshakes = Handshakes(clock, limit=2)
    done: list[str] = []

    async def shake(name: str, *, speaks: bool, seconds: float) -> None:
        async with handshakes.turn(lambda: speaks):
            done.append(f"{name} begins")
            await clock.sleep(seconds)
        done.append(f"{name} ends")

    tasks = [
        asyncio.create_task(shake(name, speaks=speaks, seconds=seconds))
        for name, speaks, seconds in (
            ("hung", False, 20),
            ("slow", True, 20),
            ("quick", True, 1),
            ("last", True, 1),
        )
    ]
    await settle()
    assert done == ["hung begins", "slow begins"]
    await clock.advance(SILENCE)
    assert done == ["hung begins", "slow begins", "quick begins"]
    await clock.advance(1)
    await clock.advance(1)
    assert done[3:] == ["quick ends", "last begins", "last ends"]
    await clock.advance(20)
    await asyncio.gather(*tasks)
    # No place was given back twice: two at once, and no more.
    late = [asyncio.create_task(shake(str(n), speaks=True, seconds=1)) for n in range(3)]
    await settle()
    assert [line for line in done if line in ("0 begins", "1 begins", "2 begins")] == ["0 begins", "1 begins"]
    await clock.advance(1)
    await clock.advance(1)
    await asyncio.gather(*late)
