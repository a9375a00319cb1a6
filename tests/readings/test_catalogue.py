"""From commands as people type them to readers, and from saved loops to one answer a device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtui.errors import UsageError
from pdtui.readings.answer import Answer, Failure
from pdtui.readings.catalogue import find, kinds, split
from pdtui.readings.commands import QUERIES, argv_of
from pdtui.text import decode
from tests.readings.samples import DATA, said


@pytest.mark.parametrize(
    ("command", "kind", "devices"),
    [
        ("hccn_tool -i 0 -link -g", "link", (0,)),
        ("hccn_tool -link -g -i 11", "link", (11,)),
        ("/usr/local/Ascend/driver/tools/hccn_tool -i 3 -net_health -g 2>/dev/null", "net_health", (3,)),
        ("sudo -n hccn_tool -i 15 -vnic -g | tee x", "vnic", (15,)),
        ("docker exec -i vllm bash -c 'hccn_tool -i 1 -ip -g'", "ip", (1,)),
        ("timeout -k 2 10 env LC_ALL=C hccn_tool -i 1 -ip -inet6 -g", "ip", (1,)),
        ("for i in {0..7}; do hccn_tool -i $i -lldp -g | grep Ifname; done", "lldp", tuple(range(8))),
        ("for i in 0 2 4;do hccn_tool -i $i -tls -g; done | grep switch", "tls", (0, 2, 4)),
        ("for i in $(seq 0 15); do hccn_tool -i $i -optical -g; done", "optical", tuple(range(16))),
        ("hccn_tool -i $i -gateway -g", "gateway", ()),
        ("hccn_tool -i 0 -ping -g address 10.0.0.1 pkt 64", "ping", (0,)),
        ("hccn_tool -i 0 -hccs_ping -g address 192.1.2.199", "hccs_ping", (0,)),
        ("hccn_tool -i 0 -cfg status", "cfg", (0,)),
        ("hccn_tool -g -dev_info -i 0", "dev_info", (0,)),
        ("hccn_tool -g -fec -i 0 -u 0 -p 4", "a5-fec", (0,)),
        ("hccn_tool -t -ub_ping -i 0 -src_eid 1 -dst_eid 2", "ub_ping", (0,)),
        ("npu-smi info", "table", ()),
        ("ssh root@node3 npu-smi info -t spod-info -i 4 -c 1", "spod-info", (4,)),
        ("npu-smi info -l", "list", ()),
        ("cat /etc/hccn.conf", "hccn-conf", ()),
        ("/etc/hccn.conf", "hccn-conf", ()),
        ("docker exec x cat /usr/local/Ascend/driver/version.info", "driver-version", ()),
        ("cat /usr/local/Ascend/firmware/version.info", "firmware-version", ()),
        ("cat /usr/local/Ascend/ascend-toolkit/latest/version.cfg", "cann-version", ()),
        (
            "cat /usr/local/Ascend/cann/aarch64-linux/ascend_toolkit_install.info",
            "cann-version",
            (),
        ),
    ],
)
def test_a_command_as_typed_is_known(command: str, kind: str, devices: tuple[int, ...]) -> None:
    asked = find(command)
    assert asked.kind.name == kind
    assert asked.devices == devices


def test_the_platform_decides_where_the_order_of_words_does_not() -> None:
    assert find("hccn_tool -i 0 -fec -g").kind.name == "fec"
    assert find("hccn_tool -i 0 -fec -g", "a5").kind.name == "a5-fec"
    assert find("hccn_tool -g -fec -i 0", "a3").kind.name == "fec"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("hccn_tool -i 0 -lnk -g", "-lnk is not known; did you mean -link?"),
        ("hccn_tool -i 0", "needs a query"),
        ("npu-smi info -t helth -i 0", "-t helth -i 0 is not known; did you mean health?"),
        ("npu-smi set -t reset -i 0", "no query"),
        ("hcn_tool -i 0 -link -g", "did you mean hccn_tool?"),
        ("hccn_tool -i 0 -ip -s address 10.0.0.1 netmask 255.0.0.0", "changes something"),
        ("hccn_tool -i 0 -link_stat -c", "changes something"),
        ("hccn_tool -i 0 -cfg recovery", "changes something"),
        ("cat /etc/hosts", "^cat /etc/hosts is not known\n"),
        ("cat /etc/hcnn.conf", "did you mean hccn.conf?"),
        ("npu-smi info watch", "^npu-smi info watch is not known\n"),
        ("cat 'x", "No closing quotation"),
        ("", "an empty command"),
    ],
)
def test_a_command_that_is_not_known_says_what_is(command: str, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("?", r"\?")) as caught:
        find(command)
    assert "pdtui read --list" in caught.value.remedy


def test_names_of_kinds_are_unique_and_their_commands_lead_to_them() -> None:
    names = [kind.name for kind in kinds()]
    assert len(set(names)) == len(names)
    for kind in kinds():
        assert find(kind.command).kind is kind, kind.command


@pytest.mark.parametrize("platform", ["a2", "a3", "a5"])
def test_everything_that_is_asked_can_be_read(platform: str) -> None:
    for query in QUERIES["a2" if platform == "a2" else "a3" if platform == "a3" else "a5"]:
        argv = argv_of(query, "a2" if platform == "a2" else "a3" if platform == "a3" else "a5", 1)
        assert find(" ".join(argv)).kind.name == query.value


def parts(command: str, text: str) -> list[tuple[int | None, object]]:
    """Return what is read of each device."""
    asked = find(command)
    found = []
    for device, answer in split(asked, said(text, command=command)):
        reading = asked.kind.read(answer)
        found.append((device, reading.failure or reading.value))
    return found


def test_a_device_of_a_loop_without_an_answer_has_its_own_place() -> None:
    loop = "for i in {0..3}; do hccn_tool -i $i -ip -g; done"
    text = (
        "ipaddr:10.0.0.1\nnetmask:255.0.0.0\n"
        "Get ipconf failed, because no ip was preset there!\n"
        "hccn_tool is busy, please try again.\n"
        "ipaddr:10.0.0.4\nnetmask:255.0.0.0\n"
    )
    found = parts(loop, text)
    assert [device for device, _ in found] == [0, 1, 2, 3]
    assert [value for _, value in found][1:3] == [Failure.NOT_CONFIGURED, Failure.BUSY]
    assert str(found[3][1]).count("10.0.0.4") == 1


def test_ids_are_not_guessed_when_answers_are_missing() -> None:
    loop = "for i in {0..3}; do hccn_tool -i $i -link -g; done"
    assert [device for device, _ in parts(loop, "link status: UP\nlink status: DOWN\n")] == [None, None]


def test_words_of_failure_after_a_ping_belong_to_it() -> None:
    text = (
        "device 0 PING 10.0.0.1\nrecv time out seq=0\nrecv time out seq=1\nrecv time out seq=2\n"
        "3 packets transmitted, 0 received, 100.00% packet loss\nCommand execute failed!\n"
    )
    found = parts(
        "for i in 0 1; do hccn_tool -i $i -ping -g address 10.0.0.1; done",
        text + text.replace("device 0", "device 1"),
    )
    assert [device for device, _ in found] == [0, 1]
    assert all("received=0" in str(value) for _, value in found)


def test_several_addresses_of_one_device_are_its_ports() -> None:
    text = "ipaddr:10.0.0.1\nnetmask:255.0.0.0\nipaddr:10.0.1.1\nnetmask:255.0.0.0\n"
    assert len(parts("hccn_tool -i 0 -ip -g", text)) == 1
    assert len(parts("hccn_tool -i $i -ip -g", text)) == 2


@given(st.text(max_size=60), st.sampled_from(["", "hccn_tool ", "npu-smi info ", "cat ", "for i in "]))
def test_no_command_raises_anything_else(text: str, start: str) -> None:
    try:
        find(start + text)
    except UsageError as error:
        refused = error.message
        assert not any(ord(char) < 32 for char in refused)


LINES = [line for path in sorted((DATA / "hccn").glob("*.txt")) for line in path.read_bytes().splitlines()]


@given(
    st.sampled_from(kinds()),
    st.lists(st.one_of(st.sampled_from(LINES), st.binary(max_size=30)), max_size=8).map(b"\n".join),
)
def test_no_text_is_lost_or_raises(kind: object, text: bytes) -> None:
    for one in kinds():
        if one is kind:
            answers = split(find(one.command), Answer("", text))
            joined = b"\n".join(answer.stdout for _, answer in answers)
            assert decode(joined).split() == decode(text).split()
            for _, answer in answers:
                one.read(answer)
