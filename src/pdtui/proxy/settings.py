"""Limits and durations of the proxy, handed in whole."""

from __future__ import annotations

from dataclasses import dataclass

KV_LEASE_S = 480.0
"""How long a prefiller keeps blocks for a decoder: VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT of vllm-ascend."""

_MARGIN = 1 / 3
"""Part of a short lease that stays the margin: NixlConnector's is 30 s."""


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Durations are seconds, sizes are bytes; the defaults fit a cluster behind SSH."""

    connect_s: float = 5.0
    """Until a TCP connection to a rank stands."""
    resolve_s: float = 20.0
    """Until the resolver says where a rank is; a tunnel may have to be opened first."""
    prefill_s: float = 450.0
    """Until P has answered; the lease begins with that answer."""
    first_token_s: float = 300.0
    """From D's request to its first token; never longer than what is left of a lease that nobody renews."""
    idle_s: float = 120.0
    """Between two pieces of a streamed answer, and until the client takes a piece."""
    answer_s: float = 3600.0
    """Until D has answered a request that is not streamed; real engines say nothing before the end."""
    lease_s: float = KV_LEASE_S
    lease_margin_s: float = 10.0
    """A pull is not sent when less than this is left, or a third of a short lease: P's answer was on its way for
    a while, and D still has to admit the request and fetch the blocks."""
    lease_renewed: bool = False
    """A decoder renews P's lease as long as the request waits in its queue (NixlConnector's heartbeats)."""
    prefills: int = 2
    """How often a request may be prefilled before its failure is passed on."""
    recomputes: int = 8
    """How often a running answer may be taken up again after D dropped it for lack of memory."""
    body_limit: int = 64 << 20
    """Longest request."""
    answer_limit: int = 64 << 20
    """Longest answer that is not streamed."""
    event_limit: int = 4 << 20
    """Longest server-sent event."""
    retry_after_s: int = 5
    """What a client is told to wait when no rank can serve it."""
    eject_after: int = 3
    """Failures in a row that take a rank out; one is enough if it cannot be connected."""
    eject_s: float = 1.0
    """First wait before an ejected rank is probed; doubles with each failed probe."""
    eject_max_s: float = 30.0
    probe_s: float = 3.0
    """Until a probe or a question about models is answered."""
    traces: int = 200
    """How many finished requests are remembered."""
    shutdown_s: float = 2.0
    """How long running requests may go on when the proxy is closed."""

    @property
    def margin_s(self) -> float:
        """The margin that goes with this lease."""
        return min(self.lease_margin_s, self.lease_s * _MARGIN)
