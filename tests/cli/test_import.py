"""`pdtui import`: topology on stdout, report on stderr, exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pdtui.cli.root import root
from pdtui.errors import PdtuiError
from pdtui.topology.load import load

SERVE = (
    "export HCCL_IF_IP=192.0.0.1 HCCL_SOCKET_IFNAME=eth0\n"
    "vllm serve /m --served-model-name m --port 7100 --kv-transfer-config "
    '\'{"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_producer", "kv_port": "14000", '
    '"kv_connector_extra_config": {"prefill": {"dp_size": 1, "tp_size": 1}, '
    '"decode": {"dp_size": 1, "tp_size": 1}}}\'\n'
)
VERSION = ("--vllm-ascend", "0.22.1rc1", "--platform", "a3")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "p.sh"
    path.write_text(SERVE)
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(root, ["import", *map(str, words)], standalone_mode=False)


def test_the_topology_goes_to_stdout_and_the_report_to_stderr(script: Path, tmp_path: Path) -> None:
    result = run(script, *VERSION)
    assert result.return_value == 0, result.stderr
    assert result.stdout.startswith("pdtui: 1 ")
    assert "what `pdtui check` says of the draft:" in result.stderr
    draft = tmp_path / "draft.yaml"
    draft.write_text(result.stdout)
    assert load(draft).topology is not None


def test_a_file_that_is_there_is_kept_unless_forced(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "cluster.yaml"
    out.write_text("mine")
    assert "there already" in str(run(script, "-o", out).exception)
    assert out.read_text() == "mine"
    result = run(script, "-o", out, "--force", *VERSION)
    assert (result.return_value, result.stdout) == (0, "")
    assert f"  {out}:" in result.stderr
    assert load(out).topology is not None


def test_a_host_before_the_file_says_where_it_runs(script: Path) -> None:
    result = run(f"bastion-3={script}", *VERSION, "--name", "mine")
    assert "name: mine" in result.stdout
    assert "{host: bastion-3, address: 192.0.0.1, nic: eth0}" in result.stdout


def test_a_file_with_an_equals_sign_in_its_name_is_a_file(script: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    script.rename(tmp_path / "a=b.sh")
    assert run("a=b.sh", *VERSION).return_value == 0


def test_what_is_left_to_write_makes_status_1(script: Path) -> None:
    result = run(script)
    assert result.return_value == 1
    assert "write it yourself, line 4 of the draft" in result.stderr


@pytest.mark.parametrize("words", [(), ("/nowhere/x.sh",), ("a\0b",)])
def test_no_file_and_files_that_are_not_there_are_errors_in_words(words: tuple[str, ...]) -> None:
    result = run(*words)
    assert result.exception is not None
    assert type(result.exception).__module__ == "pdtui.errors"


def test_a_topology_file_and_a_folder_are_told_with_what_to_do_instead(tmp_path: Path) -> None:
    there = tmp_path / "there.yaml"
    there.write_text("# ours\n\npdtui: 1\n")
    for path, said, remedy in (
        (there, "is a topology file already", f"pdtui check {there}"),
        (tmp_path, "it is a folder", f"name its files: {tmp_path}/*.sh"),
    ):
        error = run(path).exception
        assert isinstance(error, PdtuiError)
        assert said in str(error)
        assert error.remedy == remedy


def test_json_has_topology_notes_and_findings(script: Path) -> None:
    text = run(script, "--json", *VERSION).stdout
    answer = json.loads(text)
    assert answer.keys() == {"schema_version", "topology", "complete", "notes", "findings"}
    assert (answer["schema_version"], answer["complete"]) == (1, True)
    assert answer["topology"].startswith("pdtui: 1 ")
    for note in answer["notes"]:
        assert note.keys() == {"kind", "severity", "rule", "message", "path", "origins"}
        assert all(origin.keys() == {"source", "line", "pid"} for origin in note["origins"])
    assert {finding["rule"] for finding in answer["findings"]} >= {"T15"}


def test_check_loads_no_parser_of_shell() -> None:
    code = "import sys, pdtui.cli.check; print(any('tree_sitter' in name for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_shown_text_has_no_escape_sequences(tmp_path: Path) -> None:
    path = tmp_path / "p.sh"
    path.write_text(SERVE.replace("/m ", "'/m\x1b[2J\x07' "))
    result = run(path, *VERSION)
    assert "\x1b[2J" not in result.stdout + result.stderr


def test_origins_list_where_each_value_comes_from(script: Path) -> None:
    assert "where values come from" not in run(script, *VERSION).stderr
    lines = run(script, *VERSION, "--origins").stderr.split("\n")
    at = lines.index("  nodes.node1.nic: eth0")
    assert lines[at + 1].strip() == f"{script}:1"
    assert f"{script}:2" in lines[lines.index("  groups.prefill.kv_port: 14000") + 1]
