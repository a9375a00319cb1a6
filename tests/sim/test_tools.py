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

    def __init__(self, folder: Path, platform: SimPlatform) -> None:
        self.machine = Machine("n", folder, folder / "shared", "127.0.0.1", platform, "", 5, 1.0, "0.23.0")
        self.npus: Npus = build_node(self.machine)

    def run(self, *argv: str) -> tuple[int, str, str]:
        env = {"PATH": self.machine.tools}
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=20, check=False)
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
