"""One session on a simulated node's SSH server: a real process, on pipes or on a terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
import termios

import asyncssh

from pdtui.errors import SimulationError
from pdtui.sim.machine import Machine
from pdtui.sim.processes import NodeProcesses, Spawned

_CHUNK = 65536


class Session:
    """One exec, shell or subsystem request."""

    def __init__(
        self,
        processes: NodeProcesses,
        machine: Machine,
        environment: dict[str, str],
        channel: asyncssh.SSHServerProcess[bytes],
        running: asyncio.Event,
    ) -> None:
        self._processes = processes
        self._server_running = running
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
                await self._server_running.wait()
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
