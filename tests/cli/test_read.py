"""`pdtui read` as a shell sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from pdtui.cli.read import command
from pdtui.errors import FileError, UsageError
from tests.readings.samples import DATA, sample


def pdtui(*arguments: str, text: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "pdtui", *arguments],
        env={**os.environ, "NO_COLOR": "1"},
        input=text,
        capture_output=True,
        check=False,
        timeout=60,
    )


def read(*arguments: str, text: bytes = b"") -> tuple[dict[str, Any], int]:
    """Run the command in this process; return what it prints and its exit status."""
    done = CliRunner().invoke(command, arguments, input=text, standalone_mode=False)
    assert done.exception is None, done.exception
    return json.loads(done.stdout), done.return_value


def test_the_shape_of_one_answer_is_an_interface() -> None:
    done = pdtui("read", "hccn_tool -i 3 -link -g", "--platform", "a2", text=b"link status: DOWN\n")
    found = json.loads(done.stdout)
    reason = found.pop("reason")
    answers = found.pop("answers")
    assert found == {
        "schema_version": 1,
        "kind": "link",
        "command": "hccn_tool -i 3 -link -g",
        "platform": "a2",
        "device": 3,
        "values": {"status": "DOWN"},
        "failure": None,
        "verdict": "failed",
    }
    assert set(reason) == {"id", "summary", "meaning", "remedy"}
    assert reason["id"] == "link-down"
    assert "hccn_tool -i 3 -optical -g" in reason["remedy"]
    assert answers == [
        {"device": 3, "values": {"status": "DOWN"}, "failure": None, "verdict": "failed", "reason": reason}
    ]
    assert (done.returncode, done.stderr) == (1, b"")


def test_a_loop_is_several_answers() -> None:
    path = DATA / "hccn" / "hccn_tls_switch_loop8.a2.txt"
    found, status = read("for i in {0..7}; do hccn_tool -i $i -tls -g ; done | grep switch", "-f", str(path))
    assert [answer["device"] for answer in found["answers"]] == list(range(8))
    assert all(answer["values"]["enabled"] is False for answer in found["answers"])
    assert (found["kind"], found["values"], found["verdict"]) == ("tls", None, "healthy")
    assert status == 0


def test_a_failure_has_its_class_words_and_remedy(tmp_path: Path) -> None:
    said = tmp_path / "stderr.txt"
    said.write_bytes(sample("hccn_ip_not_preset.txt"))
    found, status = read("hccn_tool -i 0 -ip -g", "--status", "13", "--stderr", str(said))
    assert found["failure"]["class"] == "not_configured"
    assert found["failure"]["words"] == "not configured"
    assert "/etc/hccn.conf" in found["failure"]["remedy"]
    assert (found["values"], found["verdict"], status) == (None, "n/a", 1)


def test_garbage_is_neither_good_nor_bad() -> None:
    found, status = read("hccn_tool -i 0 -net_health -g", text=b"\xff\x00\x1b[31mnet health stat\n")
    assert found["failure"]["class"] == "unreadable"
    assert (found["verdict"], status) == ("unknown", 1)


def test_a_verdict_that_depends_on_the_platform_needs_it() -> None:
    down = b"link status: DOWN\n"
    assert read("hccn_tool -i 0 -link -g", text=down)[0]["verdict"] is None
    on_a3, _ = read("hccn_tool -i 0 -link -g", "--platform", "a3", text=down)
    assert on_a3["verdict"] == "unknown"
    assert on_a3["reason"]["id"] == "link-unknown"


def test_a5_is_read_without_a_verdict() -> None:
    text = sample("hccn_ub_connect_partial.a5.doc.txt")
    found, _ = read("hccn_tool -g -ub_connect -i 0", text=text)
    assert found["values"] == {"status": "PARTIAL LINK", "ports": {"4": "UP", "5": "DOWN", "6": "PARTIAL UP"}}
    assert found["verdict"] is None
    found, _ = read("hccn_tool -g -link -i 0", "--platform", "a5", text=b"link status: DOWN")
    assert (found["values"], found["verdict"]) == ({"status": "DOWN"}, None)


def test_a_table_of_cards_is_read_without_a_verdict() -> None:
    found, _ = read("npu-smi info", text=sample("npu_smi_info_id24.300i.txt"))
    assert found["kind"] == "table"
    assert found["values"]["chips"][0]["health"] == "OK"
    assert "rows" not in found["values"]["chips"][0]
    assert found["verdict"] is None


def test_what_cannot_be_read_is_said_and_what_can_is_listed() -> None:
    done = pdtui("read", "hccn_tool -i 0 -lnk -g", text=b"x")
    assert done.returncode == 2
    assert done.stderr.decode().splitlines() == [
        "pdtui: hccn_tool -lnk is not known; did you mean -link?",
        "pdtui read --list shows what can be read",
    ]
    for words, error in (([], UsageError), (["npu-smi info", "-f", "/nonexistent"], FileError)):
        assert isinstance(CliRunner().invoke(command, words, standalone_mode=False).exception, error)
    listed = CliRunner().invoke(command, ["--list"], standalone_mode=False).stdout
    for line in ("hccn_tool -i N -link -g ", "npu-smi info -t ecc ", "cat /etc/hccn.conf "):
        assert line in listed


def test_npu_smi_counts_cards_of_two_chips_on_a3() -> None:
    for chip, name in ((0, "dev0"), (1, "dev1")):
        line = f"npu-smi info -t spod-info -i 0 -c {chip}"
        found, _ = read(line, text=sample(f"npu_smi_spod_info_{name}.a3.txt"))
        assert found["verdict"] == "healthy", line
    found, _ = read("npu-smi info -t spod-info -i 0 -c 0", text=sample("npu_smi_spod_info_dev1.a3.txt"))
    assert "is of NPU 0 chip 1 (id 1), this one is 0/0 (id 0)" in found["reason"]["summary"]
