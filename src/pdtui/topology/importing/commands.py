"""What a command of a script is, its wrappers taken off: server, launcher, proxy, container, another script."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    "sudo": frozenset({"-u", "-g", "-h", "-D", "-C", "--user", "--group", "--host", "--chdir"}),
    "nice": frozenset({"-n", "--adjustment"}),
    "ionice": frozenset({"-c", "-n", "--class", "--classdata"}),
    "stdbuf": frozenset({"-o", "-e", "-i", "--output", "--error", "--input"}),
    "unbuffer": frozenset(),
    "numactl": frozenset(
        {
            *("-C", "-N", "-m", "-i", "-p", "--physcpubind", "--cpunodebind", "--membind", "--interleave"),
            *("--preferred", "--preferred-many", "--weighted-interleave", "-w", "-P"),
        }
    ),
    "timeout": frozenset({"-s", "-k", "--signal", "--kill-after"}),
    "taskset": frozenset(),
    "env": frozenset({"-u", "--unset", "-C", "--chdir"}),
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
    kept: frozenset[str] | None = None
    """Variables of the script that reach it, None: all but `removed`; in a container or on another host: few."""
    removed: frozenset[str] = frozenset()
    """Variables that `env -u` takes away."""

    def environment(self, outer: Mapping[str, Said]) -> dict[str, Said]:
        """Return what it has of the script's exported variables, and its own."""
        reach = {
            name: said
            for name, said in outer.items()
            if (self.kept is None or name in self.kept) and name not in self.removed
        }
        return reach | dict(self.env)


def understand(words: Sequence[Said]) -> Understood:
    """Return what a command is."""
    rest, env, kept, removed = _unwrapped(list(words))
    found = _program(rest, env)
    own = found.kept if kept is None else kept if found.kept is None else kept & found.kept
    return replace(found, kept=own, removed=found.removed | removed)


def _program(rest: list[Said], env: Mapping[str, Said]) -> Understood:
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
    if name == "eval":
        line = " ".join(texts)
        unknown = next((word.unknown for word in after if word.unknown), "")
        return Understood("shell", "eval", (Said(line, rest[0].origin, unknown),), env)
    if base == "ssh":
        return _ssh(list(after), env)
    if base.endswith(".sh"):
        return Understood("script", name, after, env)
    if _LAUNCHER.search(name):
        return Understood("launch", name, after, env)
    if _PROXY.search(name):
        return Understood("proxy", name, after, env)
    return Understood("other", name, after, env)


def _unwrapped(rest: list[Said]) -> tuple[list[Said], dict[str, Said], frozenset[str] | None, frozenset[str]]:
    """Return a command without its wrappers, and what they set, keep (None: all) and remove of its variables."""
    env: dict[str, Said] = {}
    kept: frozenset[str] | None = None
    removed: set[str] = set()
    while rest:
        name = rest[0].text.rsplit("/", 1)[-1]
        taking = _WITH_OPTIONS.get(name)
        if taking is None:
            break
        rest = rest[1:]
        while rest and rest[0].text.startswith("-"):
            option, _, value = rest[0].text.partition("=")
            if name == "env" and option in {"-", "-i", "--ignore-environment"}:
                kept = frozenset()
            elif name == "env" and option in {"-u", "--unset"}:
                removed.add(value or "".join(word.text for word in rest[1:2]))
            rest = rest[2 if rest[0].text in taking else 1 :]
        if name == "env" or name == "sudo":
            while rest and (match := re.match(r"([A-Za-z_]\w*)=(.*)\Z", rest[0].text, re.DOTALL)):
                env[match[1]] = Said(match[2], rest[0].origin, rest[0].unknown)
                rest = rest[1:]
        rest = rest[_PLACED.get(name, 0) :]
    return rest, env, kept, frozenset(removed)


def _python(after: list[Said], env: Mapping[str, Said]) -> Understood:
    while after and after[0].text.startswith("-") and after[0].text not in {"-m", "-c"}:
        after = after[2 if after[0].text in {"-W", "-X"} else 1 :]
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
    found: dict[str, Said] = {}
    kept: set[str] = set()
    while after and after[0].text.startswith("-"):
        option = after[0].text
        said = None
        if option in {"-e", "--env"} and len(after) > 1:
            said = after[1]
        elif option.startswith("--env=") or (option.startswith("-e") and len(option) > 2):
            said = replace(after[0], value=option.removeprefix("--env=").removeprefix("-e"))
        if said is not None:
            name, equals, value = said.text.partition("=")
            if equals:
                found[name] = Said(value, said.origin, said.unknown)
            elif name in env:
                found[name] = env[name]
            else:
                kept.add(name)  # `-e NAME` hands the script's own on.
        after = after[2 if option in _EXEC_OPTIONS else 1 :]
    inner = understand(after[1:])
    reach = frozenset(kept) if inner.kept is None else inner.kept & kept
    return replace(inner, env={**found, **inner.env}, kept=reach)


_SSH_OPTIONS = frozenset(f"-{letter}" for letter in "bcDEeFIiJLlmOopQRSWw")


def _ssh(after: list[Said], env: Mapping[str, Said]) -> Understood:
    """Return the host and the command line of `ssh HOST COMMAND`."""
    while after and after[0].text.startswith("-"):
        after = after[2 if after[0].text in _SSH_OPTIONS else 1 :]
    if not after:
        return Understood("other", "ssh", (), env)
    return Understood("remote", after[0].text, tuple(after[1:]), {}, frozenset())
