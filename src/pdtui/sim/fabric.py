"""The network of a simulated cluster: a switch for the nodes' Ethernet frames, and the operator's own place at it.

Run as `python -m pdtui.sim.fabric FD DIALS ADDRESS`, standard library only, started by `pdtui.sim.network`. FD is
a Unix SEQPACKET socket: a `port` request carries the descriptor of a node's tap, `impair` changes what happens to
the frames of a port. DIALS is a Unix socket's path: whoever connects and writes `HOST PORT` gets a TCP connection
from ADDRESS, as a descriptor. TCP is the kernel's own on both sides: loss is answered by real retransmission.

The switch answers the nodes' ARP requests itself. A port that is cut therefore loses frames in silence, as behind
a router, and nobody is told that the neighbour is gone.
"""

from __future__ import annotations

import contextlib
import errno
import heapq
import json
import os
import random
import select
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from pdtui.sim.tap import CLONE_NEWNET, enter_namespaces, hardware_address, loopback_up, open_tap

_FRAME = 2048
"""More than an interface's frames have: their MTU stays at 1500."""
_BURST = 64
"""Frames taken from one port before another has its turn."""
_WAITING = 1 << 14
"""Delayed frames kept; beyond that they are lost, as in a full buffer."""
_ARP = b"\x08\x06"
_ARP_REQUEST = b"\x00\x01\x08\x00\x06\x04\x00\x01"
_ARP_REPLY = b"\x00\x01\x08\x00\x06\x04\x00\x02"


@dataclass
class Port:
    """One interface at the switch, and what is wrong with its cable."""

    name: str
    tap: int
    cut: bool = False
    loss: float = 0.0
    """Part of the frames that is lost, each way."""
    delay: float = 0.0
    """Seconds, half of them each way."""

    @property
    def impaired(self) -> bool:
        """Whether frames need a second look."""
        return self.cut or self.loss > 0.0 or self.delay > 0.0


class Switch:
    """Carries frames from port to port by their hardware addresses."""

    def __init__(self) -> None:
        self._ports: dict[bytes, Port] = {}
        self._by_tap: dict[int, Port] = {}
        self._known: set[bytes] = set()
        """Addresses of all ports that there ever were; a machine that is off is still answered for."""
        self._late: list[tuple[float, int, bytes, bytes]] = []
        self._count = 0

    def add(self, name: str, address: str, tap: int) -> int:
        """Put a port in; returns the descriptor of the one that it replaces, or -1."""
        hardware = hardware_address(address)
        old = self._ports.get(hardware)
        port = Port(name, tap)
        if old is not None:
            port.cut, port.loss, port.delay = old.cut, old.loss, old.delay
            self._by_tap.pop(old.tap, None)
        self._ports[hardware] = port
        self._by_tap[tap] = port
        self._known.add(hardware)
        return old.tap if old is not None else -1

    def impair(self, name: str, *, cut: bool, loss: float, delay: float) -> None:
        """Say what happens to the frames of a port from now on."""
        for port in self._ports.values():
            if port.name == name:
                port.cut, port.loss, port.delay = cut, loss, delay

    def has(self, descriptor: int) -> bool:
        """Say whether a descriptor is a port's."""
        return descriptor in self._by_tap

    def receive(self, tap: int) -> bool:
        """Carry what a port has to say; False when the port is gone."""
        port = self._by_tap[tap]
        for _ in range(_BURST):
            try:
                frame = os.read(tap, _FRAME)
            except BlockingIOError:
                break
            except OSError:
                return False
            if frame[12:14] == _ARP:
                self._answer(port, frame)
            else:
                self._carry(port, frame)
        return True

    def drop(self, tap: int) -> None:
        """Take a port out whose interface is gone."""
        # What is wrong with the cable stays, for the next interface at it.
        self._by_tap.pop(tap).tap = -1

    def _carry(self, source: Port, frame: bytes) -> None:
        hardware = frame[:6]
        target = self._ports.get(hardware)
        if target is None or target.tap < 0:
            return
        if not (source.impaired or target.impaired):
            _put(target.tap, frame)
            return
        if source.cut or target.cut:
            return
        if any(random.random() < port.loss for port in (source, target)):
            return
        delay = (source.delay + target.delay) / 2
        if not delay:
            _put(target.tap, frame)
        elif len(self._late) < _WAITING:
            self._count += 1
            heapq.heappush(self._late, (time.monotonic() + delay, self._count, hardware, frame))

    def late(self) -> float | None:
        """Deliver the frames whose time has come; returns the seconds until the next, None without one."""
        now = time.monotonic()
        while self._late and self._late[0][0] <= now:
            *_, hardware, frame = heapq.heappop(self._late)
            target = self._ports.get(hardware)
            if target is not None and target.tap >= 0 and not target.cut:
                _put(target.tap, frame)
        return self._late[0][0] - now if self._late else None

    def _answer(self, port: Port, frame: bytes) -> None:
        """Answer «who has?» for every address that the switch knows, and never for the asker's own."""
        sender, sender_ip, wanted = frame[22:28], frame[28:32], frame[38:42]
        hardware = b"\x02\x00" + wanted
        if frame[14:22] == _ARP_REQUEST and hardware in self._known and wanted != sender_ip:
            reply = sender + hardware + _ARP + _ARP_REPLY + hardware + wanted + sender + sender_ip
            _put(port.tap, reply)


def _put(tap: int, frame: bytes) -> None:
    """Hand a frame to an interface; one that is full or gone loses it."""
    with contextlib.suppress(OSError):
        os.write(tap, frame)


class Dial:
    """One connection that somebody asked for."""

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.connection: socket.socket | None = None
        self._line = b""

    def read(self, names: dict[str, str]) -> bool:
        """Read the wish and begin to connect; False at the end of the client or of the wish's hope."""
        try:
            data = self.client.recv(512)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not data or self.connection is not None:
            return False
        self._line += data
        if not self._line.endswith(b"\n"):
            return len(self._line) < 512
        host, _, port = self._line.decode("utf-8", "replace").strip().rpartition(" ")
        address = names.get(host, host)
        try:
            socket.inet_aton(address)
            number = int(port)
        except (OSError, ValueError):
            self.say(f"Could not resolve hostname {host}: Name or service not known")
            return False
        self.connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.connection.setblocking(False)
        code = self.connection.connect_ex((address, number))
        if code not in (0, errno.EINPROGRESS):
            self._refuse(code)
            return False
        return True

    def finish(self) -> None:
        """Hand over the connection, or say why there is none."""
        assert self.connection is not None
        code = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._refuse(code)
            return
        self.connection.setblocking(True)
        with contextlib.suppress(OSError):
            socket.send_fds(self.client, [b"ok\n"], [self.connection.fileno()])

    def _refuse(self, code: int) -> None:
        self.say(os.strerror(code))

    def say(self, text: str) -> None:
        """Answer in words; a client that is gone needs none."""
        with contextlib.suppress(OSError):
            self.client.send(f"{text}\n".encode())

    def close(self) -> None:
        """Let go of both sides."""
        self.client.close()
        if self.connection is not None:
            self.connection.close()


class Fabric:
    """The loop."""

    def __init__(self, control: socket.socket, dials: socket.socket, tap: int, address: str) -> None:
        self._control = control
        self._listener = dials
        self._switch = Switch()
        self._names: dict[str, str] = {}
        self._poll = select.epoll()
        self._dials: dict[int, Dial] = {}
        self._switch.add("", address, tap)
        for descriptor in (control.fileno(), dials.fileno(), tap):
            self._poll.register(descriptor, select.EPOLLIN)

    def run(self) -> None:
        """Serve until the simulation is gone."""
        self._say({"ready": True})
        control, listener = self._control.fileno(), self._listener.fileno()
        while True:
            wait = self._switch.late()
            for descriptor, events in self._poll.poll(-1 if wait is None else max(wait, 0.001)):
                if self._switch.has(descriptor):
                    if not self._switch.receive(descriptor):
                        self._switch.drop(descriptor)
                        self._forget(descriptor)
                elif descriptor == control:
                    if not self._command():
                        return
                elif descriptor == listener:
                    self._accept()
                elif descriptor in self._dials:
                    self._progress(descriptor, events)

    def _say(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._control.send(json.dumps(message).encode())

    def _forget(self, descriptor: int) -> None:
        with contextlib.suppress(OSError):
            self._poll.unregister(descriptor)
        os.close(descriptor)

    def _command(self) -> bool:
        """Handle one request; False at the end of the simulation."""
        try:
            packet, descriptors, _, _ = socket.recv_fds(self._control, 1 << 20, 1)
        except ConnectionResetError:
            return False
        if not packet:
            return False
        request = json.loads(packet)
        if request["op"] == "port":
            (tap,) = descriptors
            os.set_blocking(tap, False)
            old = self._switch.add(request["name"], request["address"], tap)
            if old >= 0:
                self._forget(old)
            self._poll.register(tap, select.EPOLLIN)
            self._names |= dict.fromkeys(request["names"], request["address"])
        elif request["op"] == "impair":
            self._switch.impair(request["name"], cut=request["cut"], loss=request["loss"], delay=request["delay"])
        self._say({"id": request["id"]})
        return True

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            client, _ = self._listener.accept()
            client.setblocking(False)
            self._dials[client.fileno()] = Dial(client)
            self._poll.register(client.fileno(), select.EPOLLIN)

    def _progress(self, descriptor: int, events: int) -> None:
        """Go on with a dial: its client has written or gone, or its connection has come or failed."""
        dial = self._dials[descriptor]
        if descriptor == dial.client.fileno():
            if dial.read(self._names):
                if dial.connection is not None:
                    self._dials[dial.connection.fileno()] = dial
                    self._poll.register(dial.connection.fileno(), select.EPOLLOUT)
                return
        elif events & (select.EPOLLOUT | select.EPOLLERR | select.EPOLLHUP):
            dial.finish()
        for end in (dial.client, dial.connection):
            if end is not None and self._dials.pop(end.fileno(), None) is not None:
                self._poll.unregister(end.fileno())
        dial.close()


def main() -> int:
    """Set the operator's place up and serve."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    dials = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dials.bind(sys.argv[2])
    dials.listen(256)
    dials.setblocking(False)
    address = sys.argv[3]
    try:
        enter_namespaces(CLONE_NEWNET, identity=True)
        loopback_up()
        tap = open_tap("eth0", address)
    except OSError as error:
        control.send(json.dumps({"refused": str(error)}).encode())
        return 1
    Fabric(control, dials, tap, address).run()
    # The simulation may have been killed: this is the last one who knows of the folder.
    with contextlib.suppress(OSError):
        os.unlink(sys.argv[2])
        os.rmdir(os.path.dirname(sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
