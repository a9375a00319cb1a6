"""What a command of a script is, its wrappers taken off: server, launcher, proxy, container, another script."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pdtui.topology.importing.observed import Said

Kind = Literal["serve", "launch", "proxy", "container", "script", "source", "shell", "remote", "other"]

SERVER_MODULES = frozenset({"vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main"})
"""Modules that are `vllm serve` in another form."""

_WITH_OPTIONS: Mapping[str, frozenset[str]] = {
    "nohup": frozenset(),
    "exec": frozenset({"-a"}),
    "setsid": frozenset(),
    "time": frozenset(),
    "command": frozenset(),
    "sudo": frozenset({"-u", "-g"}),
    "nice": frozenset({"-n"}),
    "ionice": frozenset({"-c", "-n"}),
    "stdbuf": frozenset({"-o", "-e", "-i"}),
    "unbuffer": frozenset(),
    "numactl": frozenset({"-C", "-N", "-m"}),
    "timeout": frozenset({"-s", "-k"}),
    "taskset": frozenset(),
    "env": frozenset({"-u"}),
}
"""Words before a command that do not change what it is -> their options that take a word."""

_PLACED = {"timeout": 1, "taskset": 1}
"""Wrappers that take words of their own after the options."""

_LAUNCHER = re.compile(r"(?:^|/)[\w.-]*launch[\w.-]*dp[\w.-]*\.py$|(?:^|/)launch[\w.-]*\.py$")
_PROXY = re.compile(r"(?:^|/)[\w.-]*proxy[\w.-]*\.py$")
_INTERPRETER = re.compile(r"(?:^|/)(?:python|pypy)[\d.]*$")
_SHELLS = frozenset({"bash", "sh", "zsh", "dash", "/bin/bash", "/bin/sh", "/usr/bin/bash"})
_ENGINES = frozenset({"docker", "podman", "nerdctl"})


@dataclass(frozen=True, slots=True)
class Understood:
    """A command without its wrappers."""

    kind: Kind
    name: str
    """The program, or the script's file."""
    words: tuple[Said, ...]
    """What follows the name."""
    env: Mapping[str, Said]
    """Variables set by a wrapper, `env A=B`."""


def understand(words: Sequence[Said]) -> Understood:
    """Return what a command is."""
    rest, env = _unwrapped(list(words))
    if not rest:
        return Understood("other", "", (), env)
    name, after = rest[0].text, tuple(rest[1:])
    base = name.rsplit("/", 1)[-1]
    texts = [word.text for word in after]
    if base == "vllm" and texts[:1] == ["serve"]:
        return Understood("serve", "vllm serve", after[1:], env)
    if _INTERPRETER.search(name):
        return _python(list(after), env)
    if base in _ENGINES and texts[:1] in (["run"], ["create"]):
        return Understood("container", base, after[1:], env)
    if base in _ENGINES and texts[:1] == ["exec"]:
        return _inside(list(after[1:]), env)
    if name in {"source", "."}:
        return Understood("source", texts[0] if texts else "", after[1:], env)
    if name in _SHELLS:
        return _shell(list(after), env)
    if base == "ssh":
        return _ssh(list(after), env)
    if base.endswith(".sh"):
        return Understood("script", name, after, env)
    if _LAUNCHER.search(name):
        return Understood("launch", name, after, env)
    if _PROXY.search(name):
        return Understood("proxy", name, after, env)
    return Understood("other", name, after, env)


def _unwrapped(rest: list[Said]) -> tuple[list[Said], dict[str, Said]]:
    env: dict[str, Said] = {}
    while rest:
        name = rest[0].text.rsplit("/", 1)[-1]
        taking = _WITH_OPTIONS.get(name)
        if taking is None:
            break
        rest = rest[1:]
        while rest and rest[0].text.startswith("-"):
            rest = rest[2 if rest[0].text in taking else 1 :]
        if name == "env" or name == "sudo":
            while rest and (match := re.match(r"([A-Za-z_]\w*)=(.*)\Z", rest[0].text, re.DOTALL)):
                env[match[1]] = Said(match[2], rest[0].origin, rest[0].unknown)
                rest = rest[1:]
        rest = rest[_PLACED.get(name, 0) :]
    return rest, env


def _python(after: list[Said], env: Mapping[str, Said]) -> Understood:
    while after and after[0].text.startswith("-") and after[0].text not in {"-m", "-c"}:
        after = after[1:]
    if len(after) > 1 and after[0].text == "-m":
        if after[1].text in SERVER_MODULES:
            words = after[2:]
            return Understood(
                "serve", after[1].text, tuple(words[1:] if words[:1] and words[0].text == "serve" else words), env
            )
        return Understood("other", after[1].text, tuple(after[2:]), env)
    if not after:
        return Understood("other", "python", (), env)
    name = after[0].text
    kind: Kind = "launch" if _LAUNCHER.search(name) else "proxy" if _PROXY.search(name) else "other"
    if name.rsplit("/", 1)[-1] == "vllm" and [word.text for word in after[1:2]] == ["serve"]:
        return Understood("serve", name, tuple(after[2:]), env)
    return Understood(kind, name, tuple(after[1:]), env)


def _shell(after: list[Said], env: Mapping[str, Said]) -> Understood:
    while after and after[0].text.startswith("-"):
        option = after[0].text
        if "c" in option and not option.startswith("--") and len(after) > 1:
            return Understood("shell", "", tuple(after[1:]), env)
        after = after[1:]
    if not after:
        return Understood("other", "bash", (), env)
    return Understood("script", after[0].text, tuple(after[1:]), env)


_EXEC_OPTIONS = frozenset({"-e", "--env", "-u", "--user", "-w", "--workdir", "--env-file", "--detach-keys"})


def _inside(after: list[Said], env: Mapping[str, Said]) -> Understood:
    """Return what `docker exec [options] NAME COMMAND` runs."""
    found = dict(env)
    while after and after[0].text.startswith("-"):
        option = after[0].text
        if option in {"-e", "--env"} and len(after) > 1 and "=" in after[1].text:
            name, _, value = after[1].text.partition("=")
            found[name] = Said(value, after[1].origin, after[1].unknown)
        after = after[2 if option in _EXEC_OPTIONS else 1 :]
    inner = understand(after[1:])
    return Understood(inner.kind, inner.name, inner.words, {**found, **inner.env})


_SSH_OPTIONS = frozenset(f"-{letter}" for letter in "bcDEeFIiJLlmOopQRSWw")


def _ssh(after: list[Said], env: Mapping[str, Said]) -> Understood:
    """Return the host and the command line of `ssh HOST COMMAND`."""
    while after and after[0].text.startswith("-"):
        after = after[2 if after[0].text in _SSH_OPTIONS else 1 :]
    if not after:
        return Understood("other", "ssh", (), env)
    return Understood("remote", after[0].text, tuple(after[1:]), env)
