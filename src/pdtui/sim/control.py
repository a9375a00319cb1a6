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
    """Switch a fault of a running simulation: the one with this root, or the newest. Raises `UsageError`."""
    for place in [root / NAME] if root else _newest_first():
        try:
            word = json.loads(place.read_text(encoding="utf-8"))
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(_SECONDS)
                connection.connect(word["socket"])
                connection.sendall(json.dumps({"fault": spec}).encode() + b"\n")
                answer = json.loads(connection.makefile("rb").readline())
        except (OSError, ValueError, KeyError):
            continue
        if not answer["ok"]:
            raise UsageError(answer["text"])
        text: str = answer["text"]
        return text
    raise UsageError(
        f"no simulated cluster runs {f'in {root}' if root else 'here'}", remedy="begin one with: pdtui demo"
    )


def _newest_first() -> list[Path]:
    places = list(runtime_dir().glob("demo-*.json"))
    return sorted(places, key=lambda place: place.stat().st_mtime, reverse=True)


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
