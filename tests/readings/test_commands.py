from __future__ import annotations

import pytest

from pdtui.readings.commands import QUERIES, Query, argv_of
from pdtui.topology.model import Platform

EXPECTED = {
    ("npu-smi", "info"),
    *(
        ("hccn_tool", "-i", "3", f"-{query}", "-g")
        for query in (
            "link",
            "net_health",
            "vnic",
            "ip",
            "gateway",
            "netdetect",
            "lldp",
            "tls",
            "link_stat",
        )
    ),
    *(("hccn_tool", "-g", f"-{query}", "-i", "3") for query in ("vnic", "tls")),
}


def test_these_commands_can_be_made_and_no_others() -> None:
    made = {argv_of(query, platform, 3) for platform, queries in QUERIES.items() for query in queries}
    assert made == EXPECTED


@pytest.mark.parametrize("platform", list(QUERIES))
def test_no_query_can_change_state_or_inject_traffic(platform: Platform) -> None:
    for query in QUERIES[platform]:
        argv = argv_of(query, platform, 0)
        words = set(argv[1:])
        assert not words & {
            "-s",
            "-c",
            "-t",
            "-cfg",
            "-ping",
            "-hccs_ping",
            "set",
            "clear",
            "upgrade",
            "watch",
            "proc",
        }
        assert argv[0] == "npu-smi" or "-g" in words


def test_a_query_that_makes_no_sense_here_is_an_error() -> None:
    with pytest.raises(ValueError, match="not asked"):
        argv_of(Query.TABLE, "cpu")
    with pytest.raises(ValueError, match="device"):
        argv_of(Query.LINK, "a3")
