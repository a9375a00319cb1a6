"""Rows of what is asked of the nodes as a whole and between them: SSH, clocks, pings."""

from __future__ import annotations

from tests.preflight.rows import Row, hangs

ROWS = (
    Row("ssh", "bad", ("sshd-kill node3",), "node3", ("refused",), scene="unreachable"),
    Row("clock", "bad", ("clock node2 120",), "node2", ("ahead of the other nodes",), scene="clock"),
    Row("ping", "bad", ("vnic node2/2 DOWN",), "node2/2", ("none of 3 packets",)),
    Row("ping", "unknown", ("garble node3/2 hccn_tool hccs_ping",), "node3", ("cannot be read",)),
    hangs("ping", "node4", "hang node4/2 hccn_tool hccs_ping", "no answer from hccn_tool"),
)

EXCEPT = {
    ("ssh", "unknown"): "a connection stands or does not; what breaks afterwards is in test_runner",
    ("ssh", "hang"): "an sshd that hangs is a connection that does not come: it fails after its time",
    ("clock", "unknown"): "the agent answers with a number or not at all",
    ("clock", "hang"): "an agent that says nothing is in test_fleet",
}
"""What cannot be shown here, and why."""
