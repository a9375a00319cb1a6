"""Faults of the way to a node, of its sshd, and of the node as a machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import asyncssh

from pdtui.errors import UsageError
from pdtui.sim.fault_words import amount, one, switch

if TYPE_CHECKING:
    from pdtui.sim.network import Network
    from pdtui.sim.simulation import SimNode, Simulation


async def cut(simulation: Simulation, words: Sequence[str]) -> str:
    """Let nothing through to a node. Where it has no network: end its SSH connections and refuse new ones."""
    (name,) = words
    node = simulation.node(name)
    if node.network is None:
        await node.ssh.kill()
    else:
        await node.network.impair(name, cut=True)
    return f"{name} is not reachable"


def _networked(simulation: Simulation, name: str) -> tuple[SimNode, Network]:
    """Return a node and its network. Raises `UsageError` where the machine's loopback stands for one."""
    node = simulation.node(name)
    if node.network is None:
        raise UsageError(
            "the nodes of this simulated cluster have no network of their own",
            remedy="begin with: pdtui demo --netns",
        )
    return node, node.network


async def slow(simulation: Simulation, words: Sequence[str]) -> str:
    """Delay a node's packets."""
    name, text = words
    node, network = _networked(simulation, name)
    delay = amount(text, ("ms", 0.001), ("s", 1.0))
    await network.impair(node.name, delay=delay)
    return f"packets to {name} and back take {delay * 1000:.0f} ms longer"


async def lossy(simulation: Simulation, words: Sequence[str]) -> str:
    """Lose some of a node's packets."""
    name, text = words
    node, network = _networked(simulation, name)
    loss = amount(text, ("%", 0.01))
    await network.impair(node.name, loss=min(loss, 1.0))
    return f"{loss:.0%} of the packets to and from {name} are lost"


async def sshd(simulation: Simulation, words: Sequence[str]) -> str:
    """Let a node's sshd run again."""
    (name,) = words
    await simulation.node(name).ssh.listen()
    return f"sshd of {name} runs"


async def sshd_kill(simulation: Simulation, words: Sequence[str]) -> str:
    """Kill a node's sshd."""
    (name,) = words
    await simulation.node(name).ssh.kill()
    return f"sshd of {name} is dead, with its sessions"


async def sshd_freeze(simulation: Simulation, words: Sequence[str]) -> str:
    """Stop a node's sshd as SIGSTOP does."""
    (name,) = words
    await simulation.node(name).ssh.freeze()
    return f"sshd of {name} is stopped, with its sessions"


async def reboot(simulation: Simulation, words: Sequence[str]) -> str:
    """Boot a node anew; its peers see its connections end."""
    (name,) = words
    node = simulation.node(name)
    await node.power_off()
    await node.power_on()
    return f"{name} has rebooted"


async def power(simulation: Simulation, words: Sequence[str]) -> str:
    """Switch a node off or on."""
    node = simulation.node(words[0])
    on = one(words[1:], "on", "off") == "on"
    if not on and node.processes.running:
        if node.network is not None:
            # A machine without power says good-bye to nobody.
            await node.network.impair(node.name, cut=True)
        await node.power_off()
    elif on and not node.processes.running:
        if node.network is not None:
            await node.network.impair(node.name, cut=False)
        await node.power_on()
    return f"{node.name} is {'on' if on else 'off'}"


async def rekey(simulation: Simulation, words: Sequence[str]) -> str:
    """Give a node another host key, or its first one."""
    node, on = simulation.node(words[0]), switch(words, 1)
    new = asyncssh.generate_private_key("ssh-ed25519", comment=node.name)
    await node.ssh.change_host_key(new if on else node.host_key)
    return f"{node.name} has {'another' if on else 'its first'} host key"


async def no_forwarding(simulation: Simulation, words: Sequence[str]) -> str:
    """Forbid a node's sshd TCP forwarding, or allow it."""
    node, on = simulation.node(words[0]), switch(words, 1)
    await node.ssh.allow_forwarding(allowed=not on)
    return f"sshd of {node.name} {'forbids' if on else 'allows'} TCP forwarding to new connections"
