from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtui.readings.commands import (
    NODE_QUERIES,
    QUERIES,
    Plane,
    Query,
    argv_of,
    is_read_only,
    npu_and_chip,
    ping_argv,
)
from pdtui.topology.model import Platform

ROCE = ("link", "net_health", "ip", "gateway", "netdetect", "lldp", "tls", "link_stat", "stat", "optical")
SMI = ("health", "ecc", "board", "usages", "common", "memory", "temp", "power", "proc-mem")

EXPECTED: dict[Platform, set[str]] = {
    "a2": {
        "npu-smi info",
        "npu-smi info -l",
        "npu-smi info -m",
        *(f"hccn_tool -i 5 -{query} -g" for query in ROCE),
        *(f"npu-smi info -t {query} -i 5 -c 0" for query in (*SMI, "hccs") if query != "board"),
        "npu-smi info -t board -i 5",
    },
    "a3": {
        "npu-smi info",
        "npu-smi info -l",
        "npu-smi info -m",
        *(f"hccn_tool -i 5 -{query} -g" for query in (*ROCE, "vnic")),
        *(f"npu-smi info -t {query} -i 2 -c 1" for query in (*SMI, "hccs", "spod-info") if query != "board"),
        "npu-smi info -t board -i 2",
    },
    "a5": {
        "npu-smi info",
        "npu-smi info -l",
        "npu-smi info -m",
        "hccn_tool -g -vnic -i 5",
        "hccn_tool -g -tls -i 5",
        *(f"npu-smi info -t {query} -i 5" for query in (*SMI, "spod-info")),
    },
    "cpu": set(),
}
"""What device 5 of a platform is asked, as an operator would type it."""


@pytest.mark.parametrize("platform", list(QUERIES))
def test_these_commands_can_be_made_and_no_others(platform: Platform) -> None:
    assert {" ".join(argv_of(query, platform, 5)) for query in QUERIES[platform]} == EXPECTED[platform]


def test_every_query_is_asked_on_some_platform() -> None:
    assert {query for queries in QUERIES.values() for query in queries} == set(Query)


@pytest.mark.parametrize("platform", list(QUERIES))
def test_every_query_of_every_device_is_on_the_list_of_what_may_be_sent(platform: Platform) -> None:
    for query in QUERIES[platform]:
        for device in range(64):
            assert is_read_only(argv_of(query, platform, device))


def test_a_query_that_makes_no_sense_here_is_an_error() -> None:
    with pytest.raises(ValueError, match="not asked"):
        argv_of(Query.TABLE, "cpu")
    with pytest.raises(ValueError, match="device"):
        argv_of(Query.LINK, "a3")
    with pytest.raises(ValueError, match="device"):
        argv_of(Query.HEALTH, "a3", -1)


def test_a3_has_two_chips_an_npu() -> None:
    assert [npu_and_chip("a3", device) for device in (0, 1, 14, 15)] == [(0, 0), (0, 1), (7, 0), (7, 1)]
    assert [npu_and_chip("a2", device) for device in (0, 1, 15)] == [(0, 0), (1, 0), (15, 0)]


def test_what_is_asked_of_the_node_needs_no_device() -> None:
    assert [argv_of(query, "a2") for query in sorted(NODE_QUERIES)] == [
        ("npu-smi", "info", "-l"),
        ("npu-smi", "info", "-m"),
        ("npu-smi", "info"),
    ]


REFUSED = (
    # Changes state.
    "hccn_tool -i 0 -link -s down",
    "hccn_tool -i 0 -ip -s address 10.0.0.1 netmask 255.255.255.0",
    "hccn_tool -i 0 -ip -g -s",
    "hccn_tool -i 0 -tls -c",
    "hccn_tool -i 0 -tls -s enable 0",
    "hccn_tool -i 0 -stat -c",
    "hccn_tool -i 0 -link_stat -c",
    "hccn_tool -i 0 -roce_test -t",
    "hccn_tool -i 0 -cfg recovery",
    "hccn_tool -i 0 -cfg -g recovery",
    "hccn_tool -g -cfg_recovery -i 0",
    "hccn_tool -s -ip -i 0",
    "hccn_tool -t -ub_ping -i 0",
    "npu-smi set -t reset -i 0 -c 0",
    "npu-smi clear -t ecc-info -i 0",
    "npu-smi upgrade -b mcu -i 0",
    "npu-smi info -t reset -i 0 -c 0",
    # Never ends.
    "npu-smi info watch",
    "npu-smi info watch -i 2",
    "npu-smi info proc",
    "npu-smi info -t sensors -i 0",
    # Traffic.
    "hccn_tool -i 0 -ping -g address 10.0.0.2",
    "hccn_tool -i 0 -hccs_ping -g address 192.0.2.199",
    "hccn_tool -i 0 -bandwidth -g -time 3000",
    # Other words around a query.
    "hccn_tool -i 0 -link -g ; reboot",
    "hccn_tool -i 0 -link -g -s",
    "hccn_tool -i 0 -link",
    "hccn_tool -i 0",
    "hccn_tool",
    "hccn_tool -i -1 -link -g",
    "hccn_tool -i a -link -g",
    "/tmp/hccn_tool -i 0 -link -g",
    "sudo npu-smi info",
    "sh -c npu-smi",
    "npu-smi",
    "",
)


@pytest.mark.parametrize("line", REFUSED)
def test_what_changes_state_never_ends_or_injects_traffic_is_not_on_the_list(line: str) -> None:
    assert not is_read_only(line.split())


@pytest.mark.parametrize(
    "argv", [("npu-smi info",), ("npu-smi", "info -l"), ("hccn_tool", "-i", "0 -link", "-g"), ("npu-smi", "")]
)
def test_words_cannot_be_joined_into_a_query(argv: tuple[str, ...]) -> None:
    assert not is_read_only(argv)


WORDS = sorted({word for line in (*REFUSED, *EXPECTED["a3"]) for word in line.split()})


@given(st.lists(st.sampled_from(WORDS), max_size=8))
def test_no_mix_of_the_tools_words_gets_a_state_changing_one_through(words: list[str]) -> None:
    if is_read_only(words):
        assert words[0] in ("hccn_tool", "npu-smi")
        dangerous = {"-s", "-c", "-ping", "-hccs_ping", "set", "clear", "upgrade", "watch", "proc", "reset"}
        chip = words[0] == "npu-smi"  # There -c names a chip.
        assert not set(words) & (dangerous - ({"-c"} if chip else set()))


def test_pings_stand_apart() -> None:
    roce = ping_argv(3, "10.0.0.4", "roce")
    assert " ".join(roce) == "hccn_tool -i 3 -ping -g address 10.0.0.4"
    hccs = ping_argv(3, "192.40.2.199", "hccs", packets=1)
    assert " ".join(hccs) == "hccn_tool -i 3 -hccs_ping -g address 192.40.2.199 cnt 1"
    planes: tuple[Plane, ...] = ("roce", "hccs")
    assert not any(is_read_only(ping_argv(0, "10.0.0.4", plane)) for plane in planes)


@pytest.mark.parametrize("address", ["", "10.0.0", "10.0.0.4 -s", "-s", "host", "10.0.0.4\n"])
def test_a_ping_goes_to_an_address_and_nothing_else(address: str) -> None:
    with pytest.raises(ValueError, match="no NPU to ping"):
        ping_argv(0, address, "roce")
