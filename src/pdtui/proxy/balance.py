"""Which rank a request goes to: a policy gives each request a cost and each rank a priority."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Role = Literal["prefill", "decode"]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a request adds to its rank while it is there, in the policy's own unit."""

    tokens: float = 0.0
    kv: float = 0.0


@dataclass(frozen=True, slots=True)
class Load:
    """What a rank carries now: the sum of the costs, and how many requests they came from."""

    tokens: float = 0.0
    kv: float = 0.0
    requests: int = 0


class Policy(Protocol):
    """Chooses among usable ranks: the smallest priority wins, the earlier rank wins a tie."""

    def cost(self, role: Role, body_bytes: int) -> Cost:
        """Return what a request with a JSON body of `body_bytes` adds to a rank of `role`."""
        ...

    def priority(self, role: Role, load: Load) -> float:
        """Return a rank's priority under `load`; smaller is better."""
        ...


class ReferencePolicy:
    """The scores of vllm-ascend's load_balance_proxy_server_example.py (main, August 2026).

    With L bytes of body a prefill costs (L / 4) * 0.0345 + 120.0745 and a decode L. A prefill's cost counts as KV,
    held until D's first token, and weighs 0.3; a decoder's counts as tokens until the answer ends.
    """

    def cost(self, role: Role, body_bytes: int) -> Cost:
        """Return the reference's score of a body."""
        if role == "prefill":
            return Cost(kv=(body_bytes / 4) * 0.0345 + 120.0745)
        return Cost(tokens=float(body_bytes))

    def priority(self, role: Role, load: Load) -> float:
        """Return the reference's priority."""
        if role == "prefill":
            return load.tokens + 0.3 * load.kv
        return load.tokens
