"""Commands of templates: what of them only their launcher knows, and which flow they are for."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from pdtui.topology.build import FLOWS, MULTI, is_ip, is_nobodys
from pdtui.topology.importing import tolerant
from pdtui.topology.importing.launches import Launch
from pdtui.topology.importing.observed import Said, ServeCommand
from pdtui.topology.importing.stores import connector_of
from pdtui.topology.model import Flow


def is_address(text: str) -> bool:
    """Whether a text is the IP address of one server."""
    return is_ip(text) and not is_nobodys(text)


def needs_words(command: ServeCommand) -> bool:
    """Whether a command depends on the words with which its script is started."""
    saids: Iterator[Said] = iter((*command.flags.values(), *command.env.values()))
    model = command.model.unknown if command.model is not None else ""
    return any(re.search(r"\$\{?[1-9]", text) for text in (model, *(said.unknown for said in saids)))


def without_words(command: ServeCommand) -> ServeCommand:
    """Return a template's command without what only its launcher knows."""
    flags = {name: said for name, said in command.flags.items() if not re.search(r"\$\{?[1-9]", said.unknown)}
    env = {name: said for name, said in command.env.items() if not re.search(r"\$\{?[1-9]", said.unknown)}
    return replace(command, flags=flags, env=env)


def flow_of(command: ServeCommand) -> str:
    """Return the flow of a command's connector, `pull` for one that is not known; empty where none is named."""
    said = command.flags.get("kv-transfer-config")
    found = tolerant.read(said.text) if said is not None else None
    name = connector_of(found.value) if found is not None else ""
    return FLOWS.get(name, Flow.PULL).value if name not in ("", MULTI) else ""


def first_address(started: Launch) -> str:
    """Return where a launch without a host runs: the first rank's node is where its group meets."""
    return started.address if started.first_rank == 0 else ""
