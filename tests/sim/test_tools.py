"""The vendor tools' answers, byte for byte in the formats of real ones."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from pdtui.sim.folder import build_node
from pdtui.sim.machine import Machine
from pdtui.sim.npus import Npus, SimPlatform
from tests.sim.support import DATA


class Server:
    """A node's folder with its tools, run without SSH."""

    def __init__(self, folder: Path, platform: SimPlatform, index: int = 5) -> None:
        shared = folder.parent / f"{platform}-shared"
        name = f"n{index}"
        self.machine = Machine(name, folder, shared, "127.0.0.1", platform, "", index, 1.0, "0.23.0")
        self.npus: Npus = build_node(self.machine)

    def run(self, *argv: str) -> tuple[int, str, str]:
        env = {"PATH": self.machine.tools}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def a3(tmp_path: Path) -> Server:
    return Server(tmp_path / "a3", "a3")


@pytest.fixture
def a2(tmp_path: Path) -> Server:
    return Server(tmp_path / "a2", "a2")


def shape(text: str) -> str:
    """Return a text with its values made equal: only the format is left."""
    text = re.sub(r"\d+\.\d+\.\d+\.\d+", "ADDRESS", text)
    text = re.sub(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}", "TIME", text)
    return re.sub(r"\d+", "N", text).rstrip()


def sample(name: str) -> str:
    return (DATA / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("link", "hccn_link_up.a2.txt"),
        ("vnic", "hccn_vnic_up.a3.txt"),
        ("gateway", "hccn_gateway.a2.txt"),
        ("netdetect", "hccn_netdetect.a2.txt"),
        ("ip", "hccn_ip.a2.txt"),
        ("hw_stats", "hccn_hw_stats.a2.txt"),
    ],
)
def test_hccn_tool_prints_what_a_real_one_prints(a3: Server, query: str, name: str) -> None:
    status, out, err = a3.run("hccn_tool", "-i", "9", f"-{query}", "-g")
    assert (status, shape(out), err) == (0, shape(sample(name)), "")


def test_tls_of_all_devices(a2: Server) -> None:
    out = "".join(a2.run("hccn_tool", "-i", str(phy), "-tls", "-g")[1] for phy in range(8))
    assert out == sample("hccn_tls_switch_loop8.a2.txt")


def test_link_down_and_up_again_is_recorded(a3: Server) -> None:
    a3.npus.set_link(0, up=False)
    assert a3.run("hccn_tool", "-i", "0", "-link", "-g")[1] == "link status: DOWN\n"
    assert a3.run("hccn_tool", "-i", "0", "-net_health", "-g")[1] == sample("hccn_net_health_fault.doc.txt")
    a3.npus.set_link(0, up=True)
    assert shape(a3.run("hccn_tool", "-i", "0", "-link_stat", "-g")[1]) == shape(
        sample("hccn_link_stat_flap.a2a3.txt")
    )
    assert a3.run("hccn_tool", "-i", "0", "-net_health", "-g")[1] == "net health status: Success\n"


def test_lldp_names_the_switch_port(a3: Server) -> None:
    out = a3.run("hccn_tool", "-i", "3", "-lldp", "-g")[1]
    assert re.search(r"^\s+Ifname: \S+$", out, re.MULTILINE)
    assert out.rstrip().endswith("End of LLDPDU TLV")


@pytest.mark.parametrize(
    ("argv", "status", "stream", "text"),
    [
        (("-i", "16", "-link", "-g"), 4, "err", "Get invalid device id."),
        (("-i", "x", "-link", "-g"), 4, "err", "Get invalid device id."),
        (("-i", "0"), 4, "err", "The total count of input parameters is wrong!"),
        (("-k", "0", "-link", "-g"), 3, "err", "Get unknown option!"),
        (("-i", "0", "-frob", "-g"), 1, "err", "Enter [ hccn_tool -h ] for more details."),
        (("-i", "0", "-tls", "-s", "enable", "0"), 12, "err", "permission denied"),
    ],
)
def test_hccn_tool_fails_as_a_real_one(
    a3: Server, argv: tuple[str, ...], status: int, stream: str, text: str
) -> None:
    code, out, err = a3.run("hccn_tool", *argv)
    assert code == status
    assert text in (err if stream == "err" else out)


def test_states_that_are_no_answer(a3: Server, a2: Server) -> None:
    a3.npus.set(1, "ip", "")
    assert a3.run("hccn_tool", "-i", "1", "-ip", "-g") == (13, "", sample("hccn_ip_not_preset.txt"))
    a3.npus.set(1, "gateway", "")
    assert a3.run("hccn_tool", "-i", "1", "-gateway", "-g")[0] == 2
    (a3.npus.folder / "2" / "gone").touch()
    assert a3.run("hccn_tool", "-i", "2", "-link", "-g") == (4, "", "The device is not exist!\n")
    fault = a3.machine.folder / "fault" / "hccn_tool.3"
    fault.write_text("busy\n")
    assert a3.run("hccn_tool", "-i", "3", "-link", "-g") == (11, "hccn_tool is busy, please try again.\n", "")
    fault.write_text("empty\n")
    assert a3.run("hccn_tool", "-i", "3", "-link", "-g") == (0, "", "")
    assert a2.run("hccn_tool", "-i", "0", "-vnic", "-g") == (
        13,
        "The command is not supported on this product.\n",
        "",
    )


def test_the_big_table_of_an_a3(a3: Server) -> None:
    real = sample("npu_smi_info_16chips_idle.a3.txt")
    out = a3.run("npu-smi", "info")[1]
    assert [len(line) for line in out.splitlines()] == [len(line) for line in real.splitlines()]
    assert columns(out) == columns(real)
    # Everything but versions, temperatures, power and memory is the same server.
    rows = [line for line in out.splitlines() if "Ascend910" in line]
    assert [line.split()[1] for line in rows] == [
        line.split()[1] for line in real.splitlines() if "Ascend910" in line
    ]
    assert re.findall(r"0000:..:00\.0", out) == re.findall(r"0000:..:00\.0", real)


def test_the_big_table_of_an_a2(a2: Server) -> None:
    real, out = sample("npu_smi_info_alarm_edited.a2.txt").splitlines(), a2.run("npu-smi", "info")[1].splitlines()
    assert out[2:6] == real[2:6]
    assert columns("\n".join(out[6:9])) == columns("\n".join(real[6:9]))
    assert sum(line.startswith("| ") and "910B3" in line for line in out) == 8


def columns(text: str) -> list[list[int]]:
    """Return where the bars stand in every line."""
    return [[at for at, sign in enumerate(line) if sign in "|+"] for line in text.splitlines()]


def test_hbm_counts_processes_that_live(a3: Server) -> None:
    hbm = a3.npus.folder / "3" / "hbm"
    (hbm / str(os.getpid())).write_text("7746 python\n")
    (hbm / "99999999").write_text("5000 dead\n")
    out = a3.run("npu-smi", "info")[1]
    (row,) = [line for line in out.splitlines() if "| 1     3 " in line]
    idle = int(a3.npus.folder.joinpath("3", "smi").read_text().split()[4])
    assert f"{idle + 7746}" in row
    real = next(line for line in sample("npu_smi_info_2npu_process.a3.txt").splitlines() if "990711" in line)
    process = next(line for line in out.splitlines() if f"| {os.getpid()}" in line)
    assert process == real.replace("990711".ljust(14), str(os.getpid()).ljust(14))
    assert "dead" not in out
    assert "No running processes found in NPU 1 " not in out
    assert "No running processes found in NPU 0 " in out


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (("-l",), "npu_smi_l.a2.txt"),
        (("-t", "usages", "-i", "0"), "npu_smi_usages_new.a2.txt"),
        (("-t", "power", "-i", "0"), "npu_smi_power.a2.txt"),
        (("-t", "health", "-i", "0", "-c", "0"), "npu_smi_health_ok.a1.txt"),
        (("-t", "product", "-i", "1"), "npu_smi_unsupported_product.a2a3.txt"),
        (("-t", "cpu", "-i", "0"), "npu_smi_bad_type.a5.txt"),
        (("-t", "temp", "-i", "0"), "npu_smi_temp.a2.txt"),
        (("-t", "memory", "-i", "1"), "npu_smi_memory.a2.txt"),
        (("-t", "common", "-i", "1"), "npu_smi_common_idle.a2.txt"),
    ],
)
def test_key_value_answers(a2: Server, argv: tuple[str, ...], name: str) -> None:
    out = a2.run("npu-smi", "info", *argv)[1]
    # Copies from web pages have eight blanks where the tool prints a tab.
    assert shape(out) == shape(re.sub(r"^ {8}", "\t", sample(name), flags=re.MULTILINE))
    assert [line.partition(":")[0] for line in out.splitlines()] == [
        line.partition(":")[0] for line in re.sub(r"^ {8}", "\t", sample(name), flags=re.MULTILINE).splitlines()
    ]


def test_super_pod_answers_agree(a3: Server) -> None:
    out = a3.run("npu-smi", "info", "-t", "spod-info", "-i", "5", "-c", "0")[1]
    assert shape(out) == shape(sample("npu_smi_spod_info_dev10.a3.txt"))
    values = dict(re.findall(r"^\t(\S[^:]*?) *: (\d+)$", out, re.MULTILINE))
    sdid, server = int(values["SDID"]), int(values["Server Index"])
    assert (sdid >> 22, sdid & 0xFFFF) == (server, 10)
    vnic = a3.run("hccn_tool", "-i", "10", "-vnic", "-g")[1]
    assert f"vnic ipaddr: 192.{server}.2.{199 - 10}" in vnic


def test_mapping_and_bad_ids(a3: Server) -> None:
    real = sample("npu_smi_m.a3.txt").splitlines()
    out = a3.run("npu-smi", "info", "-m")[1].splitlines()
    assert [line.split() for line in out[: len(real)]] == [line.split() for line in real]
    status, out_text, _ = a3.run("npu-smi", "info", "-t", "spod-info", "-i", "8", "-c", "0")
    assert status != 0
    assert out_text.startswith("Invalid card id.\n")
    assert "must input card id and chip id" in a3.run("npu-smi", "info", "-t", "spod-info", "-i", "0")[1]


def test_alarm_shows_in_table_and_detail(a3: Server) -> None:
    a3.npus.set_smi(9, health="Alarm", temperature=88)
    rows = [line for line in a3.run("npu-smi", "info")[1].splitlines() if "Alarm" in line]
    assert len(rows) == 1
    assert rows[0].startswith("| 4     Ascend910 ")
    assert "| -           88 " in rows[0]
    assert (
        "Health Status                  : Alarm"
        in a3.run("npu-smi", "info", "-t", "health", "-i", "4", "-c", "1")[1]
    )
    a3.npus.heal(9)
    assert "Alarm" not in a3.run("npu-smi", "info")[1]


def test_pings_look_at_whom_they_mean(tmp_path: Path) -> None:
    here, there = Server(tmp_path / "here", "a3", 0), Server(tmp_path / "there", "a3", 1)

    def ping(phy: int, address: str) -> tuple[int, str]:
        status, out, _ = here.run("hccn_tool", "-i", str(phy), "-ping", "-g", "address", address)
        return status, out

    peer = there.npus.get(9, "ip")
    status, out = ping(8, peer)
    assert status == 0
    assert shape(out) == shape(sample("hccn_ping_ok.a2.txt"))
    assert ping(8, here.npus.get(9, "ip"))[0] == 1  # The two dies of one NPU do not reach each other.
    status, out = ping(8, "10.9.9.9")
    assert status == 1
    assert "recv time out seq=0" in out
    assert out.endswith("3 packets transmitted, 0 received, 100.00% packet loss\n")

    def is_alone() -> None:
        assert ping(8, peer)[0] == 1

    there.npus.set_link(9, up=False)
    is_alone()
    there.npus.set_link(9, up=True)
    there.npus.power(on=False)
    is_alone()
    there.npus.power(on=True)
    (there.npus.folder / "9" / "gone").touch()
    is_alone()
    there.npus.forget(9, "gone")
    for name, value in (("tls", "1"), ("ip", "10.21.0.77")):
        old = there.npus.get(9, name)
        there.npus.set(9, name, value)
        is_alone()
        there.npus.set(9, name, old)
        assert ping(8, peer)[0] == 0
    here.npus.set(8, "lossy", "3")
    assert "3 packets transmitted, 2 received, 33.33% packet loss" in ping(8, peer)[1]
    here.npus.set_link(8, up=False)
    assert ping(8, peer) == (22, "")


def test_hccs_pings_end_as_if_all_were_well(tmp_path: Path) -> None:
    here, there = Server(tmp_path / "here", "a3", 0), Server(tmp_path / "there", "a3", 1)
    argv = ("hccn_tool", "-i", "0", "-hccs_ping", "-g", "address")
    good = here.run(*argv, there.npus.get(5, "vnic_ip"), "cnt", "3")
    assert "3 packets transmitted, 3 received, 0.00% packets loss" in good[1]
    sdid = str(1 << 22 | 2 << 18 | 1 << 16 | 5)
    assert here.run("hccn_tool", "-i", "0", "-hccs_ping", "-g", "sdid", sdid) == good
    there.npus.set(5, "vnic", "DOWN")
    status, out, err = here.run(*argv, there.npus.get(5, "vnic_ip"))
    assert (status, err) == (0, "")
    assert "3 packets transmitted, 0 received, 100.00% packets loss" in out
    assert out.endswith("Cmd executed successfully!\n")
    for address in ("192.168.2.199", "10.0.0.1"):
        assert here.run(*argv, address) == (6, "", "The ip address you configured is invalid!\n")


def test_counters_move_and_errors_only_by_faults(a3: Server) -> None:
    def counters() -> dict[str, int]:
        first, *lines = a3.run("hccn_tool", "-i", "3", "-stat", "-g")[1].splitlines()
        assert first == "packet statistics:"
        return {key: int(value) for key, _, value in (line.partition(":") for line in lines)}

    known = {line.partition(":")[0] for line in sample("hccn_stat_short.a1.txt").splitlines()[1:]}
    before = counters()
    assert known <= before.keys()
    assert before["roce_tx_all_pkt_num"] > 0
    assert before["roce_rx_err_pkt_num"] == 0
    a3.npus.grow(3, "counters", "roce_rx_err_pkt_num", 7, 0)
    assert counters()["roce_rx_err_pkt_num"] == 7
    a3.npus.grow(3, "counters", "roce_rx_err_pkt_num", 1, 1000)
    (line,) = (a3.npus.folder / "3" / "counters").read_text().splitlines()
    write_earlier = line.rsplit(" ", 1)[0] + f" {int(line.rsplit(' ', 1)[1]) - 2}"
    (a3.npus.folder / "3" / "counters").write_text(f"{write_earlier}\n")
    assert counters()["roce_rx_err_pkt_num"] >= 2001
    a3.npus.heal(3)
    assert counters()["roce_rx_err_pkt_num"] == 0


def test_certificates_that_have_expired_are_told_on_stderr(a3: Server) -> None:
    a3.npus.set(0, "certs", "0")
    out = a3.run("hccn_tool", "-i", "0", "-tls", "-g")[1]
    real = sample("hccn_tls_full.a5.doc.txt").splitlines()
    assert [line.split("[")[0].strip() for line in out.splitlines()[:6]] == [
        line.split("[")[0].strip() for line in real[:6]
    ]
    a3.npus.set(0, "certs", "2")
    _, out, err = a3.run("hccn_tool", "-i", "0", "-tls", "-g")
    assert err == "\t tls expiration status[2](0:normal, 1:near expiration, 2:has expired)\n"
    a3.npus.set(0, "certs", "none")
    assert a3.run("hccn_tool", "-i", "0", "-tls", "-g")[0] == 14


def test_optical_modules(a3: Server) -> None:
    def values() -> dict[str, str]:
        lines = a3.run("hccn_tool", "-i", "0", "-optical", "-g")[1].splitlines()[1:]
        return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}

    real = [line.partition(":")[0].strip() for line in sample("hccn_optical_elided.doc.txt").splitlines()[1:]]
    lanes = {name.rstrip("0123") for name in values()}
    assert {name for name in real if name != "..."} <= lanes
    a3.npus.set(0, "optical", "los")
    assert values()["Rx Los Flag"] == "0xff"
    a3.npus.set(0, "optical", "absent")
    status, out, _ = a3.run("hccn_tool", "-i", "0", "-optical", "-g")
    assert (status, out) == (20, "Optical module is not present.\n")


def test_errors_of_memory_and_of_links(a3: Server) -> None:
    a3.npus.grow(3, "ecc", "double", 2, 0)
    out = a3.run("npu-smi", "info", "-t", "ecc", "-i", "1", "-c", "1")[1]
    keys = [line.partition(":")[0].strip() for line in out.splitlines()]
    assert [key for key in keys if "Next" not in key] == [
        line.partition(":")[0].strip() for line in sample("npu_smi_ecc.a1.doc.txt").splitlines()
    ]
    assert re.search(r"^\tHBM Double Bit Error Count +: 2$", out, re.MULTILINE)
    assert (
        "HBM Double Bit Error Count               : 0"
        in a3.run("npu-smi", "info", "-t", "ecc", "-i", "1", "-c", "0")[1]
    )
    out = a3.run("npu-smi", "info", "-t", "hccs", "-i", "1", "-c", "1")[1]
    real = [line.partition(":")[0] for line in sample("npu_smi_hccs_3links.a3.txt").splitlines()]
    assert [line.partition(":")[0] for line in out.splitlines() if line.partition(":")[0] in real] == real
    a3.npus.set(3, "hccs", "NOK 1111")
    assert (
        "hccs health status             : NOK" in a3.run("npu-smi", "info", "-t", "hccs", "-i", "1", "-c", "1")[1]
    )


def test_topology_matrix(a2: Server) -> None:
    out = a2.run("npu-smi", "info", "-t", "topo")[1].splitlines()
    real = sample("npu_smi_topo.a2.txt").splitlines()
    assert [line.split()[:9] for line in out[1:9]] == [line.split()[:9] for line in real[1:9]]
    assert out[9:] == real[9:]


def test_a_chip_off_the_bus_is_no_chip(a3: Server) -> None:
    (a3.npus.folder / "3" / "gone").touch()
    rows = [line.split() for line in a3.run("npu-smi", "info", "-m")[1].splitlines()[1:]]
    phys = {int(row[3]): int(row[2]) for row in rows if row[3] != "-"}
    assert 3 not in phys
    assert phys[4] == 3  # Logic ids shift.
    status, out, _ = a3.run("npu-smi", "info", "-t", "health", "-i", "1", "-c", "1")
    assert status != 0
    assert out.startswith("Invalid chip id.\n")
    (a3.npus.folder / "2" / "gone").touch()
    assert a3.run("npu-smi", "info", "-t", "health", "-i", "1", "-c", "1")[1].startswith("Invalid card id.\n")
    assert a3.run("npu-smi", "info", "-l")[1].startswith("\tTotal Count                    : 7\n")


@pytest.mark.parametrize(
    ("name", "mode", "argv", "status", "text"),
    [
        ("hccn_tool.all.link", "denied", ("hccn_tool", "-i", "3", "-link", "-g"), 12, "permission denied"),
        ("hccn_tool.3", "driver", ("hccn_tool", "-i", "3", "-link", "-g"), 1, "Command execute failed!"),
        ("hccn_tool.3.link", "unsupported", ("hccn_tool", "-i", "3", "-link", "-g"), 13, "not supported"),
        ("hccn_tool.3.link", "libraries", ("hccn_tool", "-i", "3", "-link", "-g"), 127, "shared libraries"),
        ("npu-smi.all", "occupied", ("npu-smi", "info"), 172, "npu_smi_fail_8020_occupied.txt"),
        ("npu-smi.all.table", "driver", ("npu-smi", "info"), 187, "npu_smi_fail_8005_nonroot.txt"),
        ("npu-smi.all", "libraries", ("npu-smi", "info"), 127, "npu_smi_fail_loader_libdrvdsmi.txt"),
        ("npu-smi.3.health", "busy", ("npu-smi", "info", "-t", "health", "-i", "1", "-c", "1"), 180, "-8012"),
    ],
)
def test_a_question_can_go_wrong_alone(
    a3: Server, name: str, mode: str, argv: tuple[str, ...], status: int, text: str
) -> None:
    other = ("hccn_tool", "-i", "4", "-net_health", "-g")
    (a3.machine.folder / "fault" / name).write_text(f"{mode}\n")
    code, out, err = a3.run(*argv)
    assert code == status
    said = sample(text).splitlines()[-1] if text.endswith(".txt") else text
    assert said in out + err
    assert a3.run(*other)[0] == 0
    (a3.machine.folder / "fault" / name).unlink()
    assert a3.run(*argv)[0] == 0
