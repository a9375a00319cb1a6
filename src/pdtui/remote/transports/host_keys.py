"""Words about host keys that are not trusted, and the commands that put it right."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

import asyncssh

from pdtui.errors import ConnectError
from pdtui.text import clean_line
from pdtui.topology.model import SshOptions


def host_key_error(
    error: asyncssh.HostKeyNotVerifiable,
    key: asyncssh.SSHKey | None,
    host: str,
    options: SshOptions,
    known: asyncssh.SSHClientConnectionOptions,
) -> ConnectError:
    """Return whether the key is unknown or has changed, with the line that accepts it and what to compare."""
    algorithm = key.get_algorithm() if key is not None else "unknown algorithm"
    fingerprint = key.get_fingerprint() if key is not None else "unknown"
    files = known.known_hosts if isinstance(known.known_hosts, str | list) and known.known_hosts else None
    place = _other_key(files, known.host, known.port)
    if place:
        name = known.host if known.port == 22 else f"[{known.host}]:{known.port}"
        return ConnectError(
            f"{host}: the host key HAS CHANGED; it is now {algorithm} {fingerprint}",
            kind="changed_host_key",
            remedy=f"{place} has another. If the machine was reinstalled: {keygen_line(name, options)};"
            f" then connect once with {accept_line(host, options)} and compare the fingerprint."
            " If not, somebody may be listening.",
        )
    if key is None:
        return ConnectError(f"{host}: {clean_line(error.reason)}", kind="unknown_host_key")
    return ConnectError(
        f"{host}: unknown host key {algorithm} {fingerprint}",
        kind="unknown_host_key",
        remedy=f"compare the fingerprint, then accept the key with: {accept_line(host, options)}",
    )


def _other_key(known_hosts: str | list[str] | None, host: str, port: int) -> str:
    """Return the line of known_hosts that has a key for the host, `FILE line N`; empty without one."""
    default = Path.home() / ".ssh" / "known_hosts"
    paths = [known_hosts] if isinstance(known_hosts, str) else known_hosts or [str(default)]
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
                if _knows(line, host, port):
                    return f"{path} line {number}"
    return ""


def _knows(line: str, host: str, port: int) -> bool:
    """Say whether a line of known_hosts, hashed or not, is about a host."""
    try:
        keys, *_ = asyncssh.match_known_hosts(
            asyncssh.import_known_hosts(line), host, "", port if port != 22 else None
        )
    except ValueError:
        return False
    return bool(keys)


def accept_line(host: str, options: SshOptions) -> str:
    """Return the command that shows a host key, asks, and remembers it."""
    words = ["ssh"]
    if options.config is not None:
        words += ["-F", str(options.config)]
    if options.known_hosts is not None:
        words += ["-o", f"UserKnownHostsFile={options.known_hosts}"]
    if options.key is not None:
        words += ["-i", str(options.key)]
    if options.jump:
        words += ["-J", options.jump]
    if options.port is not None:
        words += ["-p", str(options.port)]
    words += [f"{options.user}@{host}" if options.user else host, "true"]
    return shlex.join(words)


def keygen_line(name: str, options: SshOptions) -> str:
    """Return the command that forgets a host key."""
    words = ["ssh-keygen", "-R", name]
    if options.known_hosts is not None:
        words += ["-f", str(options.known_hosts)]
    return shlex.join(words)
