"""Loopback addresses for the nodes of one simulation, kept from other simulations on the machine."""

from __future__ import annotations

import random
import socket

from pdtui.errors import SimulationError

CLAIM_PORT = 46047
"""Bound on a subnet's last address for as long as a simulation uses the subnet; never listened on."""
LAST_NODE = 250


class Subnet:
    """127.x.y.0/24, ours until `close`."""

    def __init__(self) -> None:
        self._claim, self.prefix = _claim()

    def address(self, number: int) -> str:
        """Return the address of node `number`, from 1. Raises `SimulationError` when there are too many."""
        if not 1 <= number <= LAST_NODE:
            raise SimulationError(f"a simulated cluster has at most {LAST_NODE} nodes")
        return f"{self.prefix}.{number}"

    def close(self) -> None:
        """Give the subnet back."""
        self._claim.close()


def _claim() -> tuple[socket.socket, str]:
    choice = random.SystemRandom()
    for _ in range(200):
        prefix = f"127.{choice.randint(32, 223)}.{choice.randint(1, 254)}"
        claim = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            claim.bind((f"{prefix}.254", CLAIM_PORT))
        except OSError:
            claim.close()
        else:
            return claim, prefix
    raise SimulationError(
        "no loopback subnet for the simulated nodes could be had",
        remedy="the simulator needs 127.0.0.0/8 as Linux has it; on other systems it cannot run",
    )
