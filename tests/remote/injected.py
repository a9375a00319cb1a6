"""Agents with something wrong: code of a test in them, or a console that is none."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

import pdtui.remote
from pdtui.remote import loader
from tests.support.required import skip_unless

FOLDER = Path(pdtui.remote.__file__).parent


def need_namespaces(flags: str) -> None:
    """Skip where this user may not make namespaces (`unshare` flags); fail in CI."""
    tool = shutil.which("unshare")
    usable = tool is not None and subprocess.run([tool, flags, "true"], capture_output=True).returncode == 0
    skip_unless(usable, f"no namespaces: unshare {flags}")


def inject(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let agents that are started from now on have `code` at their end, before they begin to serve."""
    program = (FOLDER / "agent.py").read_bytes() + b"\n" + code.encode()
    real = loader.source

    def source(name: str) -> bytes:
        return zlib.compress(program) if name == "agent" else real(name)

    monkeypatch.setattr(loader, "source", source)


class RawAgent:
    """An agent whose console is the test: frames as they are."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self.stdin, self.stdout = process.stdin, process.stdout
        self.transport: asyncio.SubprocessTransport = process._transport  # type: ignore[attr-defined]

    @classmethod
    async def start(cls, state: Path, *, silence: float = 30.0, code: str = "") -> RawAgent:
        """Start one and read its hello."""
        boot = loader.bootstrap(state_dir=str(state))
        params = json.loads(b"{" + boot.payload.rpartition(b"{")[2])
        program = state.with_name("program.py")
        program.write_bytes((FOLDER / "agent.py").read_bytes() + b"\n" + code.encode())
        start = (
            'import sys;g={"__name__":"pdtui_agent"};exec(open(sys.argv[1]).read(),g);g["main"](sys.stdin.buffer)'
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-u",
            "-c",
            start,
            str(program),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            limit=1 << 20,
        )
        agent = cls(process)
        agent.stdin.write(json.dumps(params | {"silence": silence}).encode() + b"\n")
        async with asyncio.timeout(30):
            while not (await agent.stdout.readline()).startswith(b"PDTUI-AGENT"):
                pass
        return agent

    def send(self, request: int, op: str, **args: Any) -> None:
        """Send a request."""
        self.stdin.write(json.dumps({"id": request, "op": op, "args": args}).encode() + b"\n")

    async def frames(self, until: int) -> list[dict[str, Any]]:
        """Return what comes, up to the end of request `until`."""
        found: list[dict[str, Any]] = []
        async with asyncio.timeout(60):
            while True:
                line = await self.stdout.readline()
                assert line, "the agent ended"
                found.append(json.loads(line))
                if found[-1]["id"] == until and ("ok" in found[-1] or "error" in found[-1]):
                    return found

    async def answer(self, until: int) -> dict[str, Any]:
        """Return the end of a request."""
        return (await self.frames(until))[-1]

    async def abort(self) -> None:
        """Kill it if it lives, and forget what is still in the pipes."""
        if self.process.returncode is None:
            self.process.kill()
        self.transport.close()
        await asyncio.gather(self.process.wait(), self.stdin.wait_closed(), return_exceptions=True)

    async def close(self) -> str:
        """End it; return what it said on stderr."""
        self.stdin.close()
        assert self.process.stderr is not None
        async with asyncio.timeout(30):
            _, said = await asyncio.gather(self.stdout.read(), self.process.stderr.read())
            await self.process.wait()
        return said.decode()
