"""Tools, count, health, super pod, memory, driver, firmware: what is said of which NPU, and what is not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from pdtui.fleet.preflight.checks.driver import DRIVER, FIRMWARE
from pdtui.fleet.preflight.checks.hbm import HOLDERS, Holders
from pdtui.fleet.preflight.outcome import Outcome, Result
from pdtui.readings.answer import Answer, Failure, Reading
from pdtui.readings.commands import Query, npu_and_chip
from pdtui.readings.npu_smi import read_table
from pdtui.readings.versions import read_version_file
from pdtui.remote.messages.processes import ProcessInfo
from pdtui.remote.messages.ranks import ProcessState, RankRecord
from pdtui.topology.model import Platform
from tests.preflight.gathered import NO_IP, Gathered
from tests.readings.samples import sample
from tests.support.fake_fleet import NOW, make_plan, make_topology

FAIL, WARN, UNKNOWN, PASS = Outcome.FAIL, Outcome.WARN, Outcome.UNKNOWN, Outcome.PASS
NA, NOT_RUN = Outcome.NA, Outcome.NOT_RUN

POD = "\tSDID                           : {sdid}\n\tSuper Pod Size                 : {size}\n"
POD += "\tSuper Pod ID                   : {pod}\n\tServer Index                   : {server}\n"


def spod(server: int, device: int, *, pod: int = 0, size: int = 384, sdid: int | None = None) -> str:
    npu, chip = npu_and_chip("a3", device)
    made = server << 22 | npu << 18 | chip << 16 | device
    return POD.format(sdid=made if sdid is None else sdid, size=size, pod=pod, server=server)


def vnic(address: str, status: str = "UP") -> str:
    return f"vnic link status: {status}\nvnic ipaddr: {address}\nvnic netmask: 255.0.0.0"


def health(word: str = "OK", codes: str = "NA", information: str = "NA") -> str:
    keys = (("Health Status", word), ("Error Code", codes), ("Error Information", information))
    return "".join(f"\t{key:<30} : {value}\n" for key, value in keys)


def table(
    platform: Platform,
    devices: Sequence[int],
    *,
    words: Mapping[int, str] | None = None,
    used: Mapping[int, int] | None = None,
    processes: Sequence[tuple[int, int, str, int]] = (),
    name: str = "",
) -> str:
    """Write the table as the tool does; `processes`: device, pid, name, MB."""
    name = name or ("Ascend910" if platform == "a3" else "910B3")
    rule = "+---------------------------+---------------+----------------------------------------------------+"
    lines = [
        rule,
        "| npu-smi 25.5.1                   Version: 25.5.1                                              |",
        rule,
        "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|",
        "| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |",
        rule,
    ]
    for device in devices:
        npu, chip = npu_and_chip(platform, device)
        ids = f"{chip} {device}" if platform == "a3" else f"{chip}"
        lines += [
            f"| {npu} {name} | {(words or {}).get(device, 'OK')} | 90.1 40 0 / 0 |",
            f"| {ids} | 0000:C1:00.0 | 0 0 / 0 {(used or {}).get(device, 3000 + device)}/ 65536 |",
            rule,
        ]
    lines += ["| NPU     Chip | Process id | Process name | Process memory(MB) |", rule]
    for device, pid, process, memory in processes:
        npu, chip = npu_and_chip(platform, device)
        lines += [f"| {npu} {chip} | {pid} | {process} | {memory} |", rule]
    return "\n".join((*lines, "| No running processes found in NPU 0 |", rule, ""))


class Nodes(Gathered):
    """Servers whose NPUs are all well, in one super pod, with one driver."""

    def __init__(self, platform: Platform = "a3", *, nodes: int = 2) -> None:
        super().__init__(platform, nodes=nodes)
        for number, name in enumerate(self.topology.nodes, 1):
            self.table(name)
            for device in self.devices:
                self.say(name, Query.HEALTH, device, health())
                if platform == "a3":
                    self.say(name, Query.SPOD, device, spod(number, device))
                    self.say(name, Query.VNIC, device, vnic(f"192.{number}.{2 + device % 2}.{199 - device}"))
            self.held(name)
            self.version(name, DRIVER, "Version=25.5.1\npackage_version=25.5.1\n")
            self.version(name, FIRMWARE, "Version=7.8.0.6.201\npackage_version=25.5.1\n")

    def table(self, node: str, text: str | None = None, **changes: object) -> None:
        """Let npu-smi print this table."""
        written = text if text is not None else table(self.topology.platform, self.devices, **changes)  # type: ignore[arg-type]
        self.readings[node][Query.TABLE, None] = read_table(Answer("npu-smi info", written.encode(), at=NOW))

    def fails(self, node: str, answer: Answer) -> None:
        """Let npu-smi answer this when it is asked for its table."""
        self.readings[node][Query.TABLE, None] = read_table(answer)

    def held(self, node: str, *processes: ProcessInfo, records: Sequence[RankRecord] = ()) -> None:
        """Let these be the processes that the table lists, and the records of ranks."""
        value = Holders({info.pid: info for info in processes}, tuple(records))
        self.readings[node][HOLDERS, None] = Reading("ps", NOW, "", value=value)

    def version(self, node: str, need: str, text: str = "", *, stderr: str = "", status: int = 0) -> None:
        """Give a node this version file."""
        answer = Answer("cat version.info", text.encode(), stderr.encode(), status, at=NOW)
        self.readings[node][need, None] = read_version_file(answer)


def process(pid: int, command: str = "python train.py", *, rank: str = "", user: str = "ann") -> ProcessInfo:
    return ProcessInfo(pid, 1, pid, NOW, tuple(command.split()), {}, user, rank=rank)


LATE = Answer("npu-smi info", timed_out=True, error="no answer from npu-smi within 10 s", at=NOW)

CHECKS = ("tools", "npu-count", "npu-health", "vnic", "spod", "hbm", "driver", "firmware")


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("platform", ["a2", "a3"])
def test_healthy_nodes_pass_in_few_lines(check: str, platform: str) -> None:
    if platform == "a2" and check in ("vnic", "spod"):
        return
    results = Nodes("a3" if platform == "a3" else "a2").run(check)
    assert {result.outcome for result in results} == {PASS}
    assert len(results) <= 4


# --- tools


def test_a_user_whom_only_the_tls_switch_is_denied_has_a_tool_that_answers() -> None:
    nodes = Nodes()
    for device in nodes.devices:
        denied = "permission denied: pls check this cmd run permission."
        nodes.say("node1", Query.TLS, device, "", stderr=denied, status=12)
    (found,) = [result for result in nodes.run("tools") if result.outcome is not PASS]
    assert found.outcome is WARN
    assert "to root only" in found.summary
    for device in nodes.devices:
        for query in (Query.LINK, Query.VNIC):
            nodes.say("node1", query, device, "", stderr=denied, status=12)
    (found,) = [result for result in nodes.run("tools") if result.outcome is not PASS]
    assert found.outcome is FAIL


@pytest.mark.parametrize(
    ("text", "status", "words", "remedy"),
    [
        (
            "dcmi module initialize failed. ret is -8005",
            187,
            "npu-smi: no permission, or the driver is not",
            "root",
        ),
        ("bash: npu-smi: command not found", 127, "npu-smi: the tool or one of its libraries", "mount"),
        ("bash: /usr/local/sbin/npu-smi: Permission denied", 126, "npu-smi: no permission", "ssh.sudo"),
        (
            "dcmi model initialized failed, because the device is used. ret is -8020",
            172,
            "npu-smi: the device is held by another container or VM (-8020)",
            "container",
        ),
    ],
)
def test_a_tool_that_cannot_work_fails_with_its_class_and_remedy(
    text: str, status: int, words: str, remedy: str
) -> None:
    nodes = Nodes()
    nodes.fails("node1", Answer("npu-smi info", text.encode(), b"", status, at=NOW))
    (found,) = [result for result in nodes.run("tools") if result.outcome is not PASS]
    assert (found.subject, found.outcome) == ("node1", FAIL)
    assert found.summary.startswith(words)
    assert remedy in found.remedy
    assert found.evidence[0].raw == text


def test_a_tool_that_hangs_is_unknown_and_says_since_which_limit() -> None:
    nodes = Nodes()
    nodes.fails("node2", LATE)
    nodes.hang("node1", Query.TLS, 9)
    found = nodes.bad("tools")
    assert found["node2"] == (UNKNOWN, "npu-smi: hangs: no answer from npu-smi within 10 s")
    assert found["node1/9"] == (UNKNOWN, "hccn_tool: hangs: no answer from hccn_tool within 10 s")


@pytest.mark.parametrize("check", ["npu-count", "npu-health", "spod", "hbm"])
def test_what_rests_on_a_tool_that_does_not_work_says_so_once(check: str) -> None:
    nodes = Nodes()
    text = b"dcmi module initialize failed. ret is -8005"
    nodes.fails("node1", Answer("npu-smi info", text, b"", 187, at=NOW))
    nodes.every("node1", Query.HEALTH, text.decode(), status=187)
    nodes.every("node1", Query.SPOD, text.decode(), status=187)
    words = "npu-smi does not work there: no permission, or the driver is not loaded (-8005)"
    assert nodes.bad(check) == {"node1": (NOT_RUN, words)}


def test_hccn_tool_without_its_libraries_fails_once_for_the_node() -> None:
    nodes = Nodes()
    text = "hccn_tool: error while loading shared libraries: libc_sec.so: cannot open shared object file"
    nodes.every("node1", Query.TLS, stderr=text, status=127)
    found = nodes.bad("tools")
    assert found == {
        "node1": (FAIL, "all 16 NPUs: hccn_tool: the tool or one of its libraries is not there (libc_sec.so)")
    }


def test_an_answer_that_says_no_shows_that_the_tool_works() -> None:
    nodes = Nodes()
    nodes.every("node1", Query.TLS, stderr="No certificate found, please set certs firstly!", status=14)
    nodes.fails("node1", Answer("npu-smi info", b"There is no NPU card on this server.\n", b"", 1, at=NOW))
    assert nodes.bad("tools") == {}


def test_what_nobody_can_read_is_neither_good_nor_bad() -> None:
    nodes = Nodes()
    nodes.table("node1", "Segmentation fault (core dumped)\n")
    nodes.say("node2", Query.TLS, 3, "hccn_tool is busy, please try again.", status=11)
    found = nodes.bad("tools")
    assert found["node1"][0] is found["node2/3"][0] is UNKNOWN
    assert "Segmentation fault" in found["node1"][1]
    assert "busy" in found["node2/3"][1]
    for check in ("npu-count", "hbm"):
        assert nodes.bad(check)["node1"][0] is UNKNOWN


# --- npu-count


def test_a_missing_npu_is_named_with_the_rank_that_needs_it() -> None:
    nodes = Nodes()
    nodes.table("node2", table("a3", [d for d in range(16) if d != 9]))
    found = nodes.bad("npu-count")
    assert found == {
        "node2/9": (FAIL, "not in npu-smi's table (15 of 16 are); decode/25 is to run on it"),
    }
    (result,) = [one for one in nodes.run("npu-count") if one.outcome is FAIL]
    assert "lspci" in result.remedy
    assert nodes.bad("npu-health") == {"node2/9": (NOT_RUN, "npu-smi does not list it")}
    assert nodes.bad("hbm") == {"node2/9": (NOT_RUN, "npu-smi does not list it")}


def test_a_missing_npu_that_no_rank_uses_is_a_warning() -> None:
    nodes = Nodes("a2")
    nodes.plan = replace(nodes.plan, ranks=())
    nodes.table("node1", table("a2", range(7)))
    assert nodes.bad("npu-count") == {
        "node1/7": (WARN, "not in npu-smi's table (7 of 8 are); no rank is to run on it")
    }


def test_many_missing_npus_are_one_line() -> None:
    nodes = Nodes()
    nodes.table("node1", table("a3", range(4)))
    assert nodes.bad("npu-count") == {"node1": (FAIL, "NPU 4-15: not in npu-smi's table (4 of 16 are)")}


def test_a_table_that_is_cut_does_not_make_an_npu_missing() -> None:
    nodes = Nodes()
    whole = table("a3", range(16))
    nodes.table("node1", whole[: whole.index("| 7 Ascend910")])
    assert nodes.bad("npu-count") == {
        "node1/14": (UNKNOWN, "npu-smi's table is cut, it is not in what came"),
        "node1/15": (UNKNOWN, "npu-smi's table is cut, it is not in what came"),
    }
    assert nodes.bad("npu-health") == {}, "asked itself, a chip is well whatever the table lacks"


def test_a_server_of_another_generation_is_said_once() -> None:
    nodes = Nodes()
    nodes.table("node1", table("a2", range(8)))
    assert nodes.bad("npu-count") == {"node1": (FAIL, "the NPUs are 910B3 (A2), the file says platform: a3")}


def test_more_npus_than_the_platform_has_are_a_warning() -> None:
    nodes = Nodes("a2")
    nodes.table("node1", table("a2", range(16), name="910B2C"))
    assert nodes.bad("npu-count") == {
        "node1": (WARN, "npu-smi lists NPU 8-15 besides the 8 of a server of a2"),
    }


@pytest.mark.parametrize("check", ["npu-count", "npu-health", "hbm"])
def test_a_server_of_a5_may_have_few_cards(check: str) -> None:
    nodes = Nodes("a2", nodes=1)
    nodes.topology, nodes.plan = replace(nodes.topology, platform="a5"), replace(nodes.plan, ranks=())
    nodes.table("node1", sample("npu_smi_info_idle.a5.txt").decode())
    (found,) = nodes.run(check)
    assert found.outcome is PASS
    assert found.summary.startswith("all 3 NPUs: ")


@pytest.mark.parametrize("check", ["npu-count", "hbm"])
def test_without_an_answer_nothing_is_counted(check: str) -> None:
    nodes = Nodes()
    nodes.fails("node1", LATE)
    assert nodes.bad(check) == {"node1": (UNKNOWN, "npu-smi's table: hangs: no answer from npu-smi within 10 s")}


# --- npu-health


def test_a_chip_that_is_not_well_has_its_error_codes() -> None:
    nodes = Nodes()
    nodes.say("node2", Query.HEALTH, 9, health("Alarm", "8C03A000 8C084E00", "Heartbeat Lost."))
    nodes.table("node2", words={9: "Alarm"})
    (found,) = [result for result in nodes.run("npu-health") if result.outcome is not PASS]
    assert (found.subject, found.outcome) == ("node2/9", FAIL)
    assert found.summary == "npu-smi health Alarm, error code 8C03A000 8C084E00 Heartbeat Lost."
    assert "-i 4 -c 1" in found.remedy, "as npu-smi calls NPU 9 of an A3"
    assert "8C084E00" in found.evidence[0].raw


def test_the_worse_of_table_and_chip_counts() -> None:
    nodes = Nodes()
    nodes.table("node1", words={3: "Warning", 4: "Critical", 5: "UNKNOWN"})
    nodes.say("node1", Query.HEALTH, 4, "hccn_tool is busy, please try again.", status=11)
    found = nodes.bad("npu-health")
    assert found["node1/3"] == (WARN, "npu-smi health Warning (minor fault)")
    assert found["node1/4"] == (FAIL, "npu-smi health Critical")
    assert found["node1/5"] == (UNKNOWN, "npu-smi health UNKNOWN")


def test_a_chip_that_does_not_answer_is_unknown_though_the_table_says_ok() -> None:
    nodes = Nodes()
    nodes.hang("node1", Query.HEALTH, 2)
    nodes.say("node1", Query.HEALTH, 7, "garbage")
    found = nodes.bad("npu-health")
    assert found["node1/2"][0] is found["node1/7"][0] is UNKNOWN
    assert "hangs: no answer" in found["node1/2"][1]


def test_where_health_cannot_be_asked_of_a_chip_the_table_counts() -> None:
    nodes = Nodes("a2")
    nodes.every("node1", Query.HEALTH, "This device does not support querying health.")
    nodes.table("node1", words={6: "Alarm"})
    assert nodes.bad("npu-health") == {"node1/6": (FAIL, "npu-smi health Alarm")}


# --- vnic


def test_a_vnic_that_is_down_fails_and_one_without_an_address_hurts() -> None:
    nodes = Nodes()
    nodes.say("node1", Query.VNIC, 3, vnic("192.1.3.196", "DOWN"))
    nodes.say("node1", Query.VNIC, 4, vnic(""))
    nodes.say("node2", Query.VNIC, 5, "This is not the answer")
    nodes.hang("node2", Query.VNIC, 6)
    found = nodes.bad("vnic")
    assert found["node1/3"] == (FAIL, "vnic link DOWN")
    assert found["node1/4"] == (WARN, "vnic UP but without an address")
    (down,) = [result for result in nodes.run("vnic") if result.outcome is FAIL]
    assert "-t hccs -i 1 -c 1" in down.remedy, "as npu-smi calls NPU 3 of an A3"
    assert found["node2/5"][0] is found["node2/6"][0] is UNKNOWN
    assert len(found) == 4


def test_a_vnic_address_must_follow_from_the_sdid() -> None:
    nodes = Nodes()
    nodes.say("node2", Query.VNIC, 1, vnic("192.1.3.198"))
    nodes.say("node2", Query.VNIC, 2, vnic("192.168.2.197"))
    nodes.say("node2", Query.VNIC, 3, vnic("192.2.2.198"))
    found = nodes.bad("vnic")
    assert found["node2/1"] == (FAIL, "vnic address is of server 1 (192.1), the SDID of server 2")
    assert found["node2/2"][0] is WARN
    assert "outside a super pod (192.168)" in found["node2/2"][1]
    assert found["node2/3"] == (FAIL, "vnic address 192.2.2.198, by its SDID it is 192.2.3.196")
    alone = Nodes(nodes=1)
    alone.say("node1", Query.VNIC, 2, vnic("192.168.2.197"))
    assert alone.bad("vnic") == {}, "a single server needs no super pod"


def test_a_board_of_another_server_is_one_line() -> None:
    nodes = Nodes()
    for device in nodes.devices:
        nodes.say("node2", Query.VNIC, device, vnic(f"192.7.{2 + device % 2}.{199 - device}"))
    assert nodes.bad("vnic") == {
        "node2": (FAIL, "all 16 NPUs: vnic address is of server 7 (192.7), the SDID of server 2")
    }


def test_an_npu_that_is_not_there_is_not_asked_for_its_place() -> None:
    nodes = Nodes()
    nodes.say("node1", Query.SPOD, 9, "Invalid chip id.\nError parameter of -c\n", status=1)
    nodes.say("node1", Query.VNIC, 9, stderr="The device is not exist!", status=4)
    for check in ("vnic", "spod"):
        assert nodes.bad(check) == {"node1/9": (NOT_RUN, "there is no such NPU")}


# --- spod


def over(results: Sequence[Result]) -> list[Result]:
    return [result for result in results if result.subject == "cluster"]


def test_nodes_of_one_super_pod_pass_with_their_place() -> None:
    results = Nodes().run("spod")
    assert [result.summary for result in results] == [
        "all 16 NPUs: super pod 0 of 384, server index 1",
        "all 16 NPUs: super pod 0 of 384, server index 2",
        "2 nodes in super pod 0, each with a server index of its own",
    ]


def test_an_sdid_that_does_not_decode_fails_on_its_npu() -> None:
    nodes = Nodes()
    other = 7 << 22 | 1 << 18 | 1 << 16 | 3
    nodes.say("node1", Query.SPOD, 3, spod(1, 3, sdid=other))
    nodes.say("node1", Query.SPOD, 4, spod(1, 4, sdid=1 << 22 | 1 << 18 | 1 << 16 | 3))
    nodes.say("node1", Query.SPOD, 5, spod(1, 5, pod=9))
    nodes.hang("node1", Query.SPOD, 6)
    found = nodes.bad("spod")
    assert found["node1/3"] == (
        FAIL,
        f"SDID {7 << 22 | 1 << 18 | 1 << 16 | 3} is of server 7, the server index is 1",
    )
    assert found["node1/4"][0] is FAIL
    assert "is of NPU 1 chip 1 (id 3), this one is 2/0 (id 4)" in found["node1/4"][1]
    assert found["node1/5"][1] == (
        "super pod 9 of 384, server index 1; most NPUs of this node say super pod 0 of 384, server index 1"
    )
    assert found["node1/6"][0] is UNKNOWN


def test_two_servers_with_one_index_fail() -> None:
    nodes = Nodes()
    for device in nodes.devices:
        nodes.say("node2", Query.SPOD, device, spod(1, device))
    (found,) = over(nodes.run("spod"))
    assert (found.outcome, found.summary) == (FAIL, "node1 and node2 have server index 1 in super pod 0")
    assert len(found.evidence) == 2


def test_ranks_over_two_super_pods_need_roce() -> None:
    nodes = Nodes()
    for device in nodes.devices:
        nodes.say("node2", Query.SPOD, device, spod(1, device, pod=1))
    (found,) = over(nodes.run("spod"))
    assert (found.outcome, found.summary) == (
        WARN,
        "ranks in several super pods: node1 in super pod 0; node2 in super pod 1",
    )
    nodes.without_roce()
    (found,) = over(nodes.run("spod"))
    assert found.outcome is FAIL
    assert "(decode would be split)" in found.summary
    nodes.every("node1", Query.IP, "", NO_IP, 13)
    nodes.hang("node1", Query.IP, 0)
    nodes.every("node2", Query.IP, "hccn_tool is busy, please try again.", status=11)
    (found,) = over(nodes.run("spod"))
    assert found.outcome is FAIL, "one side without RoCE suffices"


def test_a_server_outside_a_super_pod_is_not_applicable() -> None:
    nodes = Nodes(nodes=1)
    nodes.every("node1", Query.SPOD, "This device does not support querying spod-info.")
    assert {result.outcome for result in nodes.run("spod")} == {NA}


def test_without_an_answer_the_place_is_unknown() -> None:
    nodes = Nodes()
    nodes.every("node2", Query.SPOD, "garbage")
    found = nodes.bad("spod")
    assert list(found) == ["node2"]
    assert found["node2"][0] is UNKNOWN


# --- hbm

GB = 1024


def record(rank: str, devices: Sequence[int], state: ProcessState, **changes: object) -> RankRecord:
    made = RankRecord("deepseek-r1-2p1d", rank, state, run=1, devices=tuple(devices))
    return replace(made, **changes)  # type: ignore[arg-type]


def test_memory_of_ranks_that_run_is_fine() -> None:
    nodes = Nodes()
    nodes.table("node1", used={0: 60000, 1: 60000}, processes=[(0, 71, "VLLMWorker", 57000)])
    running = record("decode/1", [1], ProcessState.RUNNING)
    nodes.held("node1", process(71, rank="deepseek-r1-2p1d:decode/0"), records=[running])
    assert nodes.bad("hbm") == {}
    passed = [result.summary for result in nodes.run("hbm")]
    assert passed[0] == "NPU 0-1: used by ranks of this cluster that run"


def test_a_process_that_is_not_ours_is_named_with_what_to_do() -> None:
    nodes = Nodes()
    nodes.table("node1", used={4: 30 * GB}, processes=[(4, 4711, "python", 28000), (4, 4712, "python", 90)])
    nodes.held("node1", process(4711, "/usr/bin/python3 train.py --api-key SECRET"))
    (found,) = [result for result in nodes.run("hbm") if result.outcome is FAIL]
    assert found.subject == "node1/4"
    assert found.summary.startswith("30.0 GB used by python3 train.py")
    assert "(pid 4711 of ann) and 1 more, not started here" in found.summary
    assert "SECRET" not in str(found)
    assert "ps -fp 4711" in found.remedy
    rows = found.evidence[0].raw.splitlines()
    assert [row.split()[1] for row in rows] == ["2", "0", "2", "2"], "only what is about NPU 4, with its processes"
    nodes.held("node1", process(4711, rank="other:decode/3"))
    assert "rank decode/3 of cluster other" in nodes.bad("hbm")["node1/4"][1]
    (found,) = [result for result in nodes.run("hbm") if result.outcome is FAIL]
    assert found.remedy == "stop it with the file of other, or leave this NPU out of this file"
    nodes.plan = replace(nodes.plan, ranks=())
    assert nodes.bad("hbm")["node1/4"][0] is WARN, "no rank is to run there"


def test_one_job_on_all_npus_is_one_line() -> None:
    nodes = Nodes()
    jobs = [(device, 100 + device, "python", 28000) for device in range(16)]
    nodes.table("node1", used={device: 30 * GB + 200 * device for device in range(16)}, processes=jobs)
    nodes.held("node1", *(process(100 + device) for device in range(16)))
    (found,) = [result for result in nodes.run("hbm") if result.outcome is FAIL]
    assert found.summary == (
        "all 16 NPUs: 30.0 GB to 32.9 GB used by python train.py (pid 115 of ann) and others, not started here"
    )


def test_whose_a_process_is_can_be_unknown() -> None:
    nodes = Nodes()
    nodes.table("node1", used={4: 30 * GB}, processes=[(4, 4711, "python", 28000)])
    nodes.readings["node1"][HOLDERS, None] = Reading("ps", NOW, "no answer within 10 s", failure=Failure.TIMEOUT)
    assert nodes.bad("hbm") == {
        "node1/4": (UNKNOWN, "30.0 GB used by python (pid 4711); whose it is, is not known")
    }
    nodes.table("node1", used={4: 30 * GB})
    found = nodes.bad("hbm")["node1/4"]
    assert found[0] is UNKNOWN, "a rank of ours may run there whose process npu-smi does not show"


def test_memory_without_an_owner_is_measured_against_what_is_usual() -> None:
    nodes = Nodes()
    nodes.table("node1", used={1: 20 * GB, 2: 6 * GB, 3: 6 * GB})
    before = record("decode/3", [3], ProcessState.EXITED, hbm_before={"3": 5800})
    nodes.held("node1", records=[before])
    found = nodes.bad("hbm")
    assert found["node1/1"] == (FAIL, "20.0 GB held by no process, 2.9 GB on the other idle NPUs")
    assert found["node1/2"] == (WARN, "6.0 GB held by no process, 2.9 GB on the other idle NPUs")
    assert "node1/3" not in found, "it held as much before its last start"
    nodes.held("node1", records=[replace(before, hbm_before={"3": 3000})])
    assert nodes.bad("hbm")["node1/3"] == (WARN, "6.0 GB held by no process, 2.9 GB before the last start")


def test_memory_held_on_all_npus_is_one_line() -> None:
    nodes = Nodes("a2")
    nodes.plan = make_plan(replace(make_topology(prefill_nodes=0, decode_nodes=2)))
    nodes.table("node1", used={device: 20 * GB + 100 * device for device in range(8)})
    assert nodes.bad("hbm") == {"node1": (FAIL, "all 8 NPUs: 20.0 GB to 20.7 GB held by no process")}


def test_of_a_cut_table_it_is_not_said_that_nobody_owns_memory() -> None:
    nodes = Nodes()
    whole = table("a3", range(16), used={1: 20 * GB})
    nodes.table("node1", whole[: whole.index("Process id")])
    assert nodes.bad("hbm")["node1/1"] == (
        UNKNOWN,
        "20.0 GB in use, by whom is not known: npu-smi's table is cut",
    )


# --- driver, firmware


@pytest.mark.parametrize(("check", "need"), [("driver", DRIVER), ("firmware", FIRMWARE)])
def test_versions_must_be_equal_over_nodes(check: str, need: str) -> None:
    nodes = Nodes(nodes=3)
    nodes.version("node2", need, "Version=25.3.0\n")
    found = nodes.bad(check)
    assert list(found) == ["node2"]
    assert found["node2"][0] is FAIL
    assert found["node2"][1].startswith(f"{check} 25.3.0; 2 of 3 have ")
    nodes.version("node2", need, "no version here\n")
    nodes.version("node3", need, stderr="cat: version.info: No such file or directory", status=1)
    nodes.readings["node1"][need, None] = Reading(need, NOW, "no answer within 15 s", failure=Failure.TIMEOUT)
    found = nodes.bad(check)
    assert {outcome for outcome, _ in found.values()} == {UNKNOWN}
    assert set(found) == {"node1", "node2", "node3"}
    assert "hangs: no answer within 15 s" in found["node1"][1]
