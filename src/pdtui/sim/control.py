"""How the shell reaches a simulation that runs: one Unix socket, one line of JSON each way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from pdtui.errors import SimulationError, UsageError
from pdtui.sim import faults
from pdtui.sim.simulation import Simulation

NAME = "demo.json"
"""In the root folder: where the socket is."""
_LIMIT = 4096
_SECONDS = 20.0


class Control:
    """Answers `{"fault": SPEC}` for one simulation, and leaves word of where."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Listen."""
        async with contextlib.AsyncExitStack() as stack:
            # A socket's path has to be short, and the root folder may be anywhere.
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pdtui-demo-")))
            path = folder / "control"
            server = await asyncio.start_unix_server(self._serve, str(path), limit=_LIMIT)
            stack.push_async_callback(server.wait_closed)
            stack.callback(server.close)
            word = json.dumps(
                {
                    "socket": str(path),
                    "root": str(self._simulation.root),
                    "topology": str(self._simulation.topology_path),
                }
            )
            stack.callback(_remove_if_empty, runtime_dir())
            for place in (self._simulation.root / NAME, runtime_dir() / f"demo-{os.getpid()}.json"):
                place.write_text(word, encoding="utf-8")
                stack.callback(place.unlink, missing_ok=True)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop listening."""
        await self._stack.aclose()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = json.loads(await reader.readline())
            text = await faults.apply(self._simulation, str(request["fault"]))
            answer = {"ok": True, "text": text}
        except (UsageError, SimulationError) as error:
            answer = {"ok": False, "text": str(error)}
        except (ValueError, KeyError, TypeError):
            answer = {"ok": False, "text": "not understood"}
        with contextlib.suppress(OSError):
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        writer.close()


def send_fault(spec: str, root: Path | None = None) -> str:
    """Switch a fault of a running simulation: the one with this root, or the only one.

    Returns what was done, and where. Raises `UsageError`, also when several run and none was named.
    """
    running = []
    for place in [root / NAME] if root else sorted(runtime_dir().glob("demo-*.json")):
        try:
            word = json.loads(place.read_text(encoding="utf-8"))
            running.append((str(word["root"]), _connect(str(word["socket"]))))
        except (OSError, ValueError, KeyError):
            continue
    with contextlib.ExitStack() as stack:
        for _, connection in running:
            stack.enter_context(connection)
        if not running:
            where = f"in {root}" if root else "here"
            raise UsageError(f"no simulated cluster runs {where}", remedy="begin one with: pdtui demo")
        if len(running) > 1:
            roots = "\n".join(f"  --root {folder}" for folder, _ in running)
            raise UsageError("several simulated clusters run here: say which", remedy=f"add one of\n{roots}")
        folder, connection = running[0]
        try:
            connection.sendall(json.dumps({"fault": spec}).encode() + b"\n")
            with connection.makefile("rb") as reader:
                answer = json.loads(reader.readline())
        except (OSError, ValueError) as error:
            raise UsageError(f"the simulated cluster in {folder} does not answer") from error
    if not answer["ok"]:
        raise UsageError(answer["text"])
    return f"{answer['text']}\n(the simulated cluster in {folder})"


def _connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(_SECONDS)
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def runtime_dir() -> Path:
    """Return the user's folder for runtime files, made if need be."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base) / "pdtui" if base else Path("/tmp") / f"pdtui-{os.getuid()}"  # noqa: S108 (checked below)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise UsageError(f"{folder} belongs to somebody else")
    return folder
