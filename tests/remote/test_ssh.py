"""The ways in which SSH can fail, each with its own word and remedy; jump hosts; the user's own configuration."""

from __future__ import annotations

import asyncio
import logging
import shlex
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from pdtui.errors import ConnectError
from pdtui.remote.client import AgentClient
from pdtui.remote.interface import Command
from pdtui.remote.transports.host_keys import accept_line
from pdtui.remote.transports.jump_hosts import JumpHosts, split_port
from pdtui.remote.transports.login import Handshakes
from pdtui.remote.transports.ssh import SshTransport
from pdtui.topology.model import SshOptions
from tests.remote.conftest import CLOCK, ssh_transport
from tests.remote.simulated_ssh import SimulatedSsh, simulated_ssh
from tests.support.sshd import make_key, require_sshd, running_sshd


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
    known.write_text(f"[127.0.0.1]:{server.port} {other}")
    error = await refusal(server.options)
    assert error.kind == "changed_host_key"
    assert "CHANGED" in str(error)
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
