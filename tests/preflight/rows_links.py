"""Rows of what is asked of the nodes as a whole and between them: SSH, clocks, pings."""

from __future__ import annotations

from tests.preflight.rows import APART, Row, frozen, hangs, lost

ROWS = (
    Row("ssh", "bad", ("sshd-kill node1",), "node1", ("refused",), scene="table"),
    lost("ssh", "then: "),
    frozen("ssh", "then: "),
    Row("clock", "bad", ("clock node2 120",), "node2", ("ahead of the other nodes",), scene=APART),
    Row("ping", "bad", ("vnic node2/2 DOWN",), "node2/2", ("none of 3 packets",)),
    Row("ping", "unknown", ("garble node3/2 hccn_tool hccs_ping",), "node3", ("cannot be read",)),
    hangs("ping", "node4", "hang node4/2 hccn_tool hccs_ping", "no answer from hccn_tool"),
)

_PINGED = "it comes of the pings that keep the connection: known, or there is no connection; see test_runner"

EXCEPT: dict[tuple[str, str], str] = {("clock", "unknown"): _PINGED, ("clock", "hang"): _PINGED}
"""What cannot be shown here, and why."""
