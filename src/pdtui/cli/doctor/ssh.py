"""What this user logs in with: SSH agent, keys (names and types, nothing else), configuration, known hosts."""

from __future__ import annotations

import os
import socket
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from pdtui.cli.doctor.items import Item, Section, counted, fail, ok, warn
from pdtui.text import clean_line

_ASK_IDENTITIES, _IDENTITIES = 11, 12
"""Messages of the agent's protocol (draft-ietf-sshm-ssh-agent)."""
_TIMEOUT = 3.0
"""Seconds."""
_MOST = 1 << 20
"""Bytes; an agent that says more is none."""


def section(environ: Mapping[str, str]) -> Section:
    """Look at what SSH needs, without connecting anywhere."""
    folder = Path.home() / ".ssh"
    agent, held = _agent(environ.get("SSH_AUTH_SOCK", ""))
    keys = list(_keys(folder))
    items = [agent, *keys]
    if not held and not keys:
        items.append(
            warn(
                "keys",
                f"none in {folder}, none in an agent: only ssh.key of a topology file can log in",
                "ssh-keygen -t ed25519, then ssh-copy-id HOST",
            )
        )
    return Section("ssh", (*items, _config(folder / "config"), _known_hosts(folder / "known_hosts")))


def _agent(path: str) -> tuple[Item, int]:
    """Return what the agent holds, and how many keys these are."""
    if not path:
        return ok("agent", "none (SSH_AUTH_SOCK is not set)"), 0
    try:
        found = list(identities(path))
    except (OSError, ValueError, struct.error) as error:
        why = clean_line(getattr(error, "strerror", None) or str(error))
        remedy = "log in with ssh -A, or begin one: eval $(ssh-agent); in an old tmux SSH_AUTH_SOCK is outdated"
        return warn("agent", f"does not answer: {why}", remedy), 0
    if not found:
        return ok("agent", "answers; holds no keys"), 0
    kinds = ", ".join(f"{name or 'unnamed'} ({kind})" for kind, name in found)
    return ok("agent", f"answers; holds {kinds}"), len(found)


def identities(path: str) -> Iterator[tuple[str, str]]:
    """Yield type and comment of each key that an agent holds. Raises `OSError`, ValueError, `struct.error`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
        agent.settimeout(_TIMEOUT)
        agent.connect(path)
        agent.sendall(struct.pack(">IB", 1, _ASK_IDENTITIES))
        (length,) = struct.unpack(">I", _exactly(agent, 4))
        if not 5 <= length <= _MOST:
            raise ValueError("what it says is not understood")
        data = _exactly(agent, length)
    kind, count = struct.unpack_from(">BI", data)
    if kind != _IDENTITIES:
        raise ValueError("it refuses")
    at = 5
    for _ in range(count):
        blob, at = _string(data, at)
        comment, at = _string(data, at)
        yield (
            clean_line(_string(blob, 0)[0].decode("ascii", "replace")),
            clean_line(comment.decode("utf-8", "replace")),
        )


def _exactly(agent: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = agent.recv(count - len(data))
        if not piece:
            raise ValueError("it closed the connection")
        data += piece
    return data


def _string(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = struct.unpack_from(">I", data, at)
    if at + 4 + length > len(data):
        raise ValueError("what it says is cut")
    return data[at + 4 : at + 4 + length], at + 4 + length


def _keys(folder: Path) -> Iterator[Item]:
    """Yield an item a key file of the usual names; contents of private ones are never read."""
    for path in sorted(folder.glob("id_*")) if os.access(folder, os.X_OK) else ():
        if path.suffix == ".pub" or path.name.endswith("-cert.pub") or not path.is_file():
            continue
        kind = _type(path.with_name(f"{path.name}.pub"))
        text = f"{path}{f' ({kind})' if kind else ''}"
        if not os.access(path, os.R_OK):
            yield warn("key", f"{text} cannot be read", f"chown and chmod 600 {path}")
        elif path.stat().st_mode & 0o077:
            yield warn("key", f"{text} may be read by others: ssh refuses it", f"chmod 600 {path}")
        else:
            yield ok("key", text)


def _type(public: Path) -> str:
    try:
        words = public.read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return ""
    return clean_line(words[0])[:60] if words else ""


def _config(path: Path) -> Item:
    if not _exists(path):
        return ok("config", f"{path}: there is none")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not UTF-8"
        return fail("config", f"{path}: {why}: no node can be reached", f"mend it, or chmod u+r {path}")
    words = Counter(line.split()[0].lower() for line in lines if line.strip())
    return ok("config", f"{path}: {words['host']} Host, {words['match']} Match, {words['include']} Include")


def _known_hosts(path: Path) -> Item:
    if not _exists(path):
        return ok("known hosts", f"{path}: there is none yet; the first connection to a node says what to do")
    try:
        count = sum(1 for line in path.read_bytes().splitlines() if line.strip() and not line.startswith(b"#"))
    except OSError as error:
        return fail("known hosts", f"{path}: {error.strerror}: no key of a node is known", f"chmod u+r {path}")
    return ok("known hosts", f"{path}: {counted(count, 'key')}")


def _exists(path: Path) -> bool:
    """Return whether there is something; a folder that may not be searched says no."""
    try:
        return path.exists()
    except OSError:
        return False
