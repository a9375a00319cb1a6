"""The SSH server of a simulated node: sessions are real processes on it, as under OpenSSH's sshd."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Awaitable
from pathlib import Path

import asyncssh

from pdtui.clock import Clock
from pdtui.errors import SimulationError
from pdtui.sim.folder import Machine
from pdtui.sim.processes import NodeProcesses, Spawned

_CHUNK = 65536
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "0.0.0.0", "::1", ""})  # noqa: S104


class _Connection(asyncssh.SSHServer):
    """One client."""

    def __init__(self, daemon: SshDaemon) -> None:
        self._daemon = daemon
        self._connection: asyncssh.SSHServerConnection | None = None

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._daemon.connections.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._connection is not None:
            self._daemon.connections.discard(self._connection)

    def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Awaitable[asyncssh.SSHTCPSession[bytes]]:
        """Forward a TCP connection; the node's own loopback is its address."""
        if self._connection is None:
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "no connection")
        host = self._daemon.machine.address if dest_host in _LOCAL_NAMES else dest_host
        return self._connection.forward_connection(host, dest_port)  # type: ignore[return-value]


class SshDaemon:
    """Listens on the node's address while `listen` holds; keys only, one account."""

    def __init__(
        self,
        machine: Machine,
        processes: NodeProcesses,
        *,
        user: str,
        host_key: asyncssh.SSHKey,
        authorized_keys: Path,
        clock: Clock,
    ) -> None:
        self.machine = machine
        self.connections: set[asyncssh.SSHServerConnection] = set()
        self.port = 0
        self._processes = processes
        self._user = user
        self._host_key = host_key
        self._authorized_keys = authorized_keys
        self._clock = clock
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self._sessions: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Accept connections; the port, once chosen, stays. Raises `SimulationError`."""
        if self._acceptor is not None:
            return
        try:
            self._acceptor = await asyncssh.create_server(
                lambda: _Connection(self),
                self.machine.address,
                self.port,
                server_host_keys=[self._host_key],
                authorized_client_keys=str(self._authorized_keys),
                process_factory=self._session,
                encoding=None,
                allow_pty=True,
                agent_forwarding=False,
                x11_forwarding=False,
                public_key_auth=True,
                password_auth=False,
                kbdint_auth=False,
                host_based_auth=False,
                gss_host=None,
                line_editor=False,
                compression_algs=["none"],
                login_timeout=60,
                reuse_address=True,
            )
        except OSError as error:
            raise SimulationError(f"no SSH server on {self.machine.address}: {error.strerror or error}") from error
        self.port = self._acceptor.get_port()

    async def cut(self) -> None:
        """Drop every connection, without a word, and refuse new ones until `listen`."""
        acceptor, self._acceptor = self._acceptor, None
        if acceptor is not None:
            acceptor.close()
        for connection in list(self.connections):
            connection.abort()
        if acceptor is not None:
            await acceptor.wait_closed()
        for connection in list(self.connections):
            with contextlib.suppress(OSError, asyncssh.Error):
                await connection.wait_closed()

    async def close(self) -> None:
        """Stop serving for good."""
        await self.cut()
        for task in list(self._sessions):
            task.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)

    def environment(self) -> dict[str, str]:
        """Return what a session starts with: sshd's own variables, nothing of this machine's."""
        machine = self.machine
        # Without a pid namespace the node says itself which processes are its own.
        view = {} if self._processes.isolation == "namespace" else {"PDTUI_MACHINE_VIEW": machine.address}
        return view | {
            "PATH": machine.tools,
            "HOME": str(machine.home),
            "USER": self._user,
            "LOGNAME": self._user,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TMPDIR": str(machine.folder / "tmp"),
            "SSH_CONNECTION": f"{machine.address} 0 {machine.address} {self.port}",
            "PDTUI_SIM_NODE": str(machine.folder),
            "PDTUI_ADDRESS_VIEW": machine.address,
        }

    async def _session(self, channel: asyncssh.SSHServerProcess[bytes]) -> None:
        session = _Session(self._processes, self.machine, self.environment(), channel)
        task = asyncio.create_task(session.run())
        self._sessions.add(task)
        try:
            await task
        except SimulationError as error:
            channel.stderr.write(f"{error}\n".encode())
            channel.exit(255)
        finally:
            self._sessions.discard(task)


class _Session:
    """One exec, shell or subsystem request."""

    def __init__(
        self,
        processes: NodeProcesses,
        machine: Machine,
        environment: dict[str, str],
        channel: asyncssh.SSHServerProcess[bytes],
    ) -> None:
        self._processes = processes
        self._machine = machine
        self._channel = channel
        self._environment = environment
        # As sshd's usual AcceptEnv.
        environment.update({n: v for n, v in channel.env.items() if n == "LANG" or n.startswith("LC_")})

    async def run(self) -> None:
        """Start the process, carry its bytes, report its end."""
        if self._channel.subsystem:
            self._channel.exit(127)
            return
        if self._channel.term_type is not None:
            await self._run_on_terminal(self._channel.term_type)
        else:
            await self._run_on_pipes()

    def _argv(self) -> list[str]:
        command = self._channel.command
        return ["-bash"] if command is None else ["bash", "-c", command]

    async def _spawn(self, descriptors: list[int], *, tty: bool) -> Spawned:
        return await self._processes.spawn(
            self._argv(),
            file="/bin/bash",
            env=self._environment,
            cwd=self._machine.home,
            descriptors=descriptors,
            tty=tty,
        )

    async def _run_on_pipes(self) -> None:
        loop = asyncio.get_running_loop()
        in_read, in_write = os.pipe()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        try:
            process = await self._spawn([in_read, out_write, err_write], tty=False)
        except SimulationError:
            for descriptor in (in_write, out_read, err_read):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (in_read, out_write, err_write):
                os.close(descriptor)
        writer_transport, writer_protocol = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(in_write, "wb", 0)
        )
        writer = asyncio.StreamWriter(writer_transport, writer_protocol, None, loop)
        stdin = asyncio.create_task(self._feed(process, writer))
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._drain(out_read, self._channel.stdout))
                pumps.create_task(self._drain(err_read, self._channel.stderr))
                status = await process.ended
        finally:
            stdin.cancel()
            await asyncio.gather(stdin, return_exceptions=True)
            writer.close()
        self._exit(status)

    async def _feed(self, process: Spawned, writer: asyncio.StreamWriter) -> None:
        """Carry stdin and signals to the process until the client closes its side or goes away."""
        try:
            while True:
                try:
                    data = await self._channel.stdin.read(_CHUNK)
                except asyncssh.SignalReceived as received:
                    self._processes.signal(process, _signal_number(received.signal))
                    continue
                except (asyncssh.BreakReceived, asyncssh.TerminalSizeChanged):
                    continue
                if not data:
                    break
                writer.write(data)
                await writer.drain()
        except (OSError, asyncssh.Error):
            pass
        writer.close()
        # After end of file there can still be signals.
        while not self._channel.is_closing():
            try:
                await self._channel.stdin.read(1)
            except asyncssh.SignalReceived as received:
                self._processes.signal(process, _signal_number(received.signal))
            except (OSError, asyncssh.Error, asyncssh.BreakReceived, asyncssh.TerminalSizeChanged):
                continue
            else:
                return

    async def _drain(self, descriptor: int, out: asyncssh.SSHWriter[bytes]) -> None:
        """Carry one output; a client that is gone makes the process meet a closed pipe, as under sshd."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_CHUNK)
        pipe = os.fdopen(descriptor, "rb", 0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        try:
            while data := await reader.read(_CHUNK):
                out.write(data)
                await out.drain()
        except (OSError, asyncssh.Error):
            pass
        finally:
            transport.close()

    async def _run_on_terminal(self, term: str) -> None:
        master, slave = os.openpty()
        self._resize(master)
        self._environment["TERM"] = term
        try:
            process = await self._spawn([slave, slave, slave], tty=True)
        except SimulationError:
            os.close(master)
            raise
        finally:
            os.close(slave)
        os.set_blocking(master, False)
        reading = asyncio.create_task(self._typed(master, process))
        showing = asyncio.create_task(self._shown(master))
        try:
            status = await process.ended
            # What the terminal still holds; a background process may keep it open for ever.
            await asyncio.wait([showing], timeout=0.2)
        finally:
            for task in (reading, showing):
                task.cancel()
            await asyncio.gather(reading, showing, return_exceptions=True)
            os.close(master)
        self._exit(status)

    async def _typed(self, master: int, process: Spawned) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                data = await self._channel.stdin.read(4096)
            except asyncssh.TerminalSizeChanged:
                self._resize(master)
                continue
            except asyncssh.SignalReceived as received:
                self._processes.signal(process, _signal_number(received.signal))
                continue
            except asyncssh.BreakReceived:
                continue
            except (OSError, asyncssh.Error):
                data = b""
            if not data:
                # The terminal is gone: hang up, as sshd does.
                self._processes.signal(process, signal.SIGHUP)
                return
            while data:
                try:
                    data = data[os.write(master, data) :]
                except BlockingIOError:
                    await _ready(loop, master, write=True)
                except OSError:
                    return

    async def _shown(self, master: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                data = os.read(master, _CHUNK)
            except BlockingIOError:
                await _ready(loop, master, write=False)
                continue
            except OSError:
                return
            if not data:
                return
            try:
                self._channel.stdout.write(data)
                await self._channel.stdout.drain()
            except (OSError, asyncssh.Error):
                return

    def _resize(self, master: int) -> None:
        columns, rows, width, height = self._channel.term_size
        size = struct.pack("HHHH", rows, columns, width, height)
        fcntl.ioctl(master, termios.TIOCSWINSZ, size)

    def _exit(self, status: int) -> None:
        if self._channel.is_closing():
            return
        if status < 0:
            name = signal.Signals(-status).name.removeprefix("SIG")
            self._channel.exit_with_signal(name)
        else:
            self._channel.exit(status)


async def _ready(loop: asyncio.AbstractEventLoop, descriptor: int, *, write: bool) -> None:
    """Wait until a descriptor can be read or written."""
    future: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not future.done():
            future.set_result(None)

    add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)
    add(descriptor, wake)
    try:
        await future
    finally:
        remove(descriptor)


def _signal_number(name: str) -> int:
    try:
        return int(signal.Signals[f"SIG{name}"])
    except KeyError:
        return int(signal.SIGTERM)
