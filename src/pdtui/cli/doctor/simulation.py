"""Whether `pdtui demo` can run here, and in which mode."""

from __future__ import annotations

import shutil

from pdtui.cli.doctor.items import Item, Section, ok, warn
from pdtui.sim.ability import Ability, ability


def section() -> Section:
    """Try what simulated nodes are made of."""
    found = ability()
    return Section("simulation", (_demo(found), _networks(found)))


def _demo(found: Ability) -> Item:
    if shutil.which("bash") is None:
        return warn("pdtui demo", "does not run: simulated nodes need bash", "Debian: apt install bash")
    if found.own_processes:
        return ok("pdtui demo", f"runs; its nodes share this machine's processes ({found.own_processes})")
    return ok("pdtui demo", "runs; each node with processes of its own")


def _networks(found: Ability) -> Item:
    if found.own_network:
        return ok(
            "--netns", f"does not run: no user and network namespaces, or no /dev/net/tun ({found.own_network})"
        )
    if not found.sshd:
        return ok("--netns", "does not run: there is no sshd (Debian: apt install openssh-server)")
    return ok("--netns", f"runs; each node with a network of its own, behind {found.sshd}")
