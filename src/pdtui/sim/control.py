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
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def __aenter__(self) -> Self:
        """Listen."""
        async with contextlib.AsyncExitStack() as stack:
            # A socket's path has to be short, and the root folder may be anywhere.
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pdtui-demo-")))
            path = folder / "control"
            server = await asyncio.start_unix_server(self._accept, str(path), limit=_LIMIT)
            stack.push_async_callback(self._hang_up)
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

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._open[task] = writer
        task.add_done_callback(self._open.pop)

    async def _hang_up(self) -> None:
        """End what is still being answered; a server's own end does not wait for its connections."""
        connections = dict(self._open)
        for task, writer in connections.items():
            task.cancel()
            writer.close()
        await asyncio.gather(*connections, return_exceptions=True)
        await asyncio.gather(*(writer.wait_closed() for writer in connections.values()), return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(await reader.readline())
            writer.write(json.dumps(answer).encode() + b"\n")
        finally:
            writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _answer(self, line: bytes) -> dict[str, object]:
        try:
            spec = str(json.loads(line)["fault"])
            return {"ok": True, "text": await faults.apply(self._simulation, spec)}
        except (UsageError, SimulationError, OSError) as error:
            return {"ok": False, "text": str(error)}
        except (ValueError, KeyError, TypeError):
            return {"ok": False, "text": "not understood"}


def send_fault(spec: str, root: Path | None = None) -> str:
    """Switch a fault of a running simulation: the one with this root, or the only one.

    Returns what was done, and where. Raises `UsageError`, also when several run and none was named.
    """
    found = []
    for place in [root / NAME] if root else sorted(filter(_is_alive, runtime_dir().glob("demo-*.json"))):
        with contextlib.suppress(OSError, ValueError):
            found.append(json.loads(place.read_text(encoding="utf-8")))
    if not found:
        raise UsageError(
            f"no simulated cluster runs {f'in {root}' if root else 'here'}", remedy="begin one with: pdtui demo"
        )
    if len(found) > 1:
        roots = "\n".join(f"  --root {word['root']}" for word in found)
        raise UsageError("several simulated clusters run here: say which", remedy=f"add one of\n{roots}")
    (word,) = found
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_SECONDS)
            connection.connect(word["socket"])
            connection.sendall(json.dumps({"fault": spec}).encode() + b"\n")
            with connection.makefile("rb") as reader:
                answer = json.loads(reader.readline())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the simulated cluster in {word['root']} does not answer", remedy="begin one with: pdtui demo"
        ) from error
    if not answer["ok"]:
        raise UsageError(answer["text"])
    return f"{answer['text']}\n(the simulated cluster in {word['root']})"


def _is_alive(place: Path) -> bool:
    """Return whether the simulator that left this word still runs; its pid is in the name."""
    return Path("/proc", place.stem.removeprefix("demo-")).is_dir()


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
