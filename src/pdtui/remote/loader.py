"""Bring the agent to life at the far end of a channel: nothing is installed, nothing is left behind.

`python3 -u -c LOADER` skips lines up to a mark (a start-up file of the shell may read a line of our input, so some
blank ones go first), reads exactly N bytes, checks their SHA-256, executes them, and the agent goes on with the
same buffered reader. (`python3 -u -` reads to end of file and would run a cut upload; a whole agent as an argument
does not fit the kernel's 128 KiB a word.)
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import secrets
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdtui.errors import ConnectError
from pdtui.remote.channel import ByteReader
from pdtui.remote.messages.commands import PROTOCOL, Facts
from pdtui.text import clean_line

MAGIC = "PDTUI-AGENT"
BANNER_LIMIT = 1 << 18
"""Bytes of shell banners that are skipped before the agent's first line."""
MARK = b"pdtui"
_SPARE = b"\n" * 16
"""For what reads a line from its input before the loader does."""

# One line and no single quotes or exclamation marks: it passes through any login shell.
_LOADER = (
    "import sys;"
    'sys.version_info<(3,6) and sys.exit("pdtui needs Python 3.6 or newer, this is "+sys.version.split()[0]);'
    "import hashlib,zlib;r=sys.stdin.buffer;"
    'any(l.strip()==b"{mark}" for l in iter(r.readline,b""));d=r.read({size});'
    'hashlib.sha256(d).hexdigest()=="{digest}" or sys.exit("pdtui: the agent was damaged on its way");'
    'g={{"__name__":"pdtui_agent"}};exec(compile(zlib.decompress(d),"pdtui-agent","exec"),g);g["main"](r)'
)


@functools.cache
def source(name: str) -> bytes:
    """Return the text of a program for nodes (`agent` or `keeper`), compressed."""
    return zlib.compress(Path(__file__).with_name(f"{name}.py").read_bytes(), 9)


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """What starts one agent."""

    argv: tuple[str, ...]
    payload: bytes
    """Goes to its stdin first."""
    nonce: str
    """Comes back in its first line, so that no banner can be taken for it."""


def bootstrap(
    *, prefix: Sequence[str] = (), state_dir: str | None = None, machine: str = "", python: str = "python3"
) -> Bootstrap:
    """Return how to start an agent, behind `prefix` (sudo, docker exec) if need be.

    `machine` is the id of the machine around a container; `{id}` in the prefix becomes a word that is used once.
    """
    program = source("agent")
    text = _LOADER.format(mark=MARK.decode(), size=len(program), digest=hashlib.sha256(program).hexdigest())
    nonce = secrets.token_hex(8)
    params: dict[str, Any] = {
        "nonce": nonce,
        "state_dir": state_dir,
        "machine": machine or None,
        "keeper": base64.b64encode(source("keeper")).decode(),
    }
    payload = b"".join((_SPARE, MARK, b"\n", program, json.dumps(params).encode(), b"\n"))
    prefix = tuple(word.replace("{id}", f"pdtui-{nonce}") for word in prefix)
    return Bootstrap((*prefix, python, "-u", "-c", text), payload, nonce)


async def read_hello(reader: ByteReader, nonce: str) -> Facts | None:
    """Skip banners up to the agent's first line; None when the channel ends before. Raises `ConnectError`."""
    skipped = 0
    mark = f"{MAGIC} {nonce} ".encode()
    while skipped < BANNER_LIMIT:
        try:
            line = await reader.readline()
        except ValueError:  # a line beyond the reader's limit
            break
        if not line:
            return None
        if line.startswith(mark):
            return parse_facts(line[len(mark) :])
        skipped += len(line)
    raise ConnectError(
        "the node talks, but no agent answers",
        kind="protocol",
        remedy="check what its shell's start-up files print",
    )


def parse_facts(text: bytes) -> Facts:
    """Read the agent's first line. Raises `ConnectError` of kind `protocol`."""
    try:
        raw = json.loads(text)
        logout, others = raw.get("killed_at_logout") or {}, raw.get("other_records") or {}
        facts = Facts(
            protocol=int(raw["protocol"]),
            python=clean_line(str(raw["python"])),
            user=clean_line(str(raw["user"])),
            uid=int(raw["uid"]),
            hostname=clean_line(str(raw["hostname"])),
            machine_id=clean_line(str(raw["machine_id"])),
            boot_id=clean_line(str(raw["boot_id"])),
            wall=float(raw["wall"]),
            state_dir=clean_line(str(raw["state_dir"])),
            state_dir_error=clean_line(str(raw["state_dir_error"])),
            in_container=bool(raw["in_container"]),
            mount_namespace=clean_line(str(raw.get("mount_namespace", ""))),
            state_mount=clean_line(str(raw.get("state_mount", ""))),
            state_mount_type=clean_line(str(raw.get("state_mount_type", ""))),
            other_user=clean_line(str(others.get("user", ""))),
            other_folder=clean_line(str(others.get("folder", ""))),
            logout_user=clean_line(str(logout.get("user", ""))),
            logout_source=clean_line(str(logout.get("source", ""))),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ConnectError("the agent's first line is damaged", kind="protocol") from error
    if facts.protocol != PROTOCOL:
        raise ConnectError(
            f"the agent speaks protocol {facts.protocol}, this pdtui speaks {PROTOCOL}", kind="protocol"
        )
    return facts
