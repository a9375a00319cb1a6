"""A small HTTP/1.1 server: a thread for each connection, keep-alive, chunked answers, aborts noticed."""

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from .log import uvicorn

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
           422: "Unprocessable Entity", 500: "Internal Server Error", 501: "Not Implemented",
           503: "Service Unavailable"}  # fmt: skip
DATE = "%a, %d %b %Y %H:%M:%S GMT"
MAX_HEAD = 65536
MAX_BODY = 64 << 20


class Gone(Exception):
    """The client closed its connection."""


@dataclass(slots=True)
class Request:
    """One HTTP request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: socket.socket
    client: str

    def check(self) -> None:
        """Raise `Gone` when the client has left."""
        ready, _, _ = select.select([self.connection], [], [], 0)
        if ready:
            try:
                if self.connection.recv(1, socket.MSG_PEEK) == b"":
                    raise Gone
            except OSError:
                raise Gone from None


@dataclass(slots=True)
class Reply:
    """One HTTP answer: a body, or events that are sent as they come."""

    status: int = 200
    body: bytes = b""
    kind: str = "application/json"
    events: Iterator[bytes] | None = None
    headers: dict[str, str] = field(default_factory=dict)


def as_json(value: Any, status: int = 200, **headers: str) -> Reply:
    """Return a JSON answer."""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return Reply(status, body, headers=headers)


class Server:
    """Listens on a bound socket; `handle` answers requests in the connections' threads."""

    def __init__(self, listener: socket.socket, handle: Callable[[Request], Reply], *, access_log: bool) -> None:
        self._listener = listener
        self._handle = handle
        self._access_log = access_log
        self._open: set[socket.socket] = set()
        self._answering = 0
        self._lock = threading.Lock()
        threading.stack_size(256 * 1024)

    def accept(self) -> None:
        """Take one waiting connection."""
        try:
            connection, (host, port, *_) = self._listener.accept()
        except OSError:
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open.add(connection)
        threading.Thread(target=self._serve, args=(connection, f"{host}:{port}"), daemon=True).start()

    @property
    def answering(self) -> int:
        """How many answers are on their way, health probes included."""
        with self._lock:
            return self._answering

    def refuse(self) -> None:
        """Take no more connections."""
        self._listener.close()

    def close(self) -> None:
        """Close the listener and every connection."""
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _serve(self, connection: socket.socket, client: str) -> None:
        try:
            with connection:
                rest = b""
                while True:
                    request, rest = self._read(connection, client, rest)
                    if request is None:
                        return
                    self._count(1)
                    try:
                        goes_on = self._answer(request)
                    finally:
                        self._count(-1)
                    if not goes_on:
                        return
        except (OSError, Gone):
            return
        finally:
            with self._lock:
                self._open.discard(connection)

    def _count(self, change: int) -> None:
        with self._lock:
            self._answering += change

    def _read(self, connection: socket.socket, client: str, data: bytes) -> tuple[Request | None, bytes]:
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece or len(data) > MAX_HEAD:
                return None, b""
            data += piece
        head, _, data = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, _, target = first.partition(" ")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
        if headers.get("expect", "").lower() == "100-continue":
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" in headers.get("transfer-encoding", "").lower():
            body, data = self._read_chunks(connection, data)
        else:
            length = int(headers.get("content-length") or 0)
            if length > MAX_BODY:
                return None, b""
            while len(data) < length:
                piece = connection.recv(65536)
                if not piece:
                    return None, b""
                data += piece
            body, data = data[:length], data[length:]
        path = target.rpartition(" ")[0].partition("?")[0]
        return Request(method, path, headers, body, connection, client), data

    def _read_chunks(self, connection: socket.socket, data: bytes) -> tuple[bytes, bytes]:
        body = b""
        while True:
            while b"\r\n" not in data:
                data += self._more(connection)
            size, _, data = data.partition(b"\r\n")
            length = int(size.split(b";")[0] or b"0", 16)
            while len(data) < length + 2:
                data += self._more(connection)
            body, data = body + data[:length], data[length + 2 :]
            if length == 0:
                return body, data

    def _more(self, connection: socket.socket) -> bytes:
        piece = connection.recv(65536)
        if not piece:
            raise Gone
        return piece

    def _answer(self, request: Request) -> bool:
        """Send the answer; False when the connection ends with it."""
        reply = self._handle(request)
        if self._access_log:
            line = f'{request.client} - "{request.method} {request.path} HTTP/1.1"'
            uvicorn(f"{line} {reply.status} {REASONS.get(reply.status, '')}")
        keep = request.headers.get("connection", "").lower() != "close"
        head = [f"HTTP/1.1 {reply.status} {REASONS.get(reply.status, 'Unknown')}"]
        head += [f"date: {time.strftime(DATE, time.gmtime())}", "server: uvicorn"]
        head += [f"{name}: {value}" for name, value in reply.headers.items()]
        if reply.events is None:
            head.append(f"content-length: {len(reply.body)}")
        if reply.kind:
            head.append(f"content-type: {reply.kind}")
        head.append("vary: Origin")
        if not keep:
            head.append("connection: close")
        if reply.events is None:
            body = b"" if request.method == "HEAD" else reply.body
            request.connection.sendall("\r\n".join([*head, "", ""]).encode("latin-1") + body)
            return keep
        head.append("transfer-encoding: chunked")
        request.connection.sendall("\r\n".join([*head, "", ""]).encode("latin-1"))
        for event in reply.events:
            request.connection.sendall(b"%x\r\n%s\r\n" % (len(event), event))
        request.connection.sendall(b"0\r\n\r\n")
        return keep
