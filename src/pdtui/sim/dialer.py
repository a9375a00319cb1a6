"""The ProxyCommand of a simulated network: `dialer.py SOCKET HOST PORT`.

Asks the network for a TCP connection from the operator's place in it, and carries bytes between that and standard
input and output. Standard library only: it is started once for each SSH connection.
"""

import os
import socket
import sys
import threading

_CHUNK = 65536


def main() -> int:
    """Connect and carry until the far side ends."""
    path, host, port = sys.argv[1:4]
    asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        asking.connect(path)
        asking.sendall(f"{host} {port}\n".encode())
        answer, descriptors, _, _ = socket.recv_fds(asking, 512, 1)
    except OSError as error:
        answer, descriptors = str(error).encode(), []
    if not descriptors:
        reason = answer.decode().strip() or "the simulated network is gone"
        sys.stderr.write(f"connect to host {host} port {port}: {reason}\n")
        return 255
    connection = socket.socket(fileno=descriptors[0])
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=_send, args=(connection,), daemon=True).start()
    try:
        while data := connection.recv(_CHUNK):
            _write(1, data)
    except OSError as error:
        sys.stderr.write(f"{host} port {port}: {error.strerror}\n")
        return 255
    return 0


def _send(connection: socket.socket) -> None:
    """Carry standard input; its end is the end of the connection."""
    try:
        while data := os.read(0, _CHUNK):
            connection.sendall(data)
    except OSError:
        pass
    # The program that started this one has closed its side, or is gone.
    os._exit(0)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    # Nothing of Python's own ending: the thread may still wait in its read.
    os._exit(main())
