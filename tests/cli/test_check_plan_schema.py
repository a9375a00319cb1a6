"""`pdtui check`, `plan` and `schema` as a shell sees them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pdtui.assets import asset_dir
from pdtui.topology.rules.explained import EXPLANATIONS
from tests.support.command import pdtui
from tests.topology.examples import BASE, changed
from tests.topology.generate import large


def process(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command as a process of its own, for what only such a one shows."""
    return subprocess.run(
        [sys.executable, "-m", "pdtui", *words], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.yaml").write_text(BASE)
    (tmp_path / "bad.yaml").write_text(
        changed(("kv_port: 14000", "kv_port: 20001"), ("name: small", "nam: small"), ('"0.22.1rc1"', '"0.99"'))
    )
    (tmp_path / "warned.yaml").write_text(changed(("kv_port: 14000", "kv_port: 36000")))
    (tmp_path / "broken.yaml").write_text("pdtui: 1\n\tname: x\n")
    (tmp_path / "secret.yaml").write_text(
        changed(
            ("OMP_NUM_THREADS: 10", "HF_TOKEN: hunter2, A_TOKEN: {from_env: T}"),
            (
                "seed: 1024",
                "api-key: [hunter2, hunter2], other: {nested_api_key: hunter2}, max-num-batched-tokens: 700",
            ),
        )
    )
    return tmp_path


def test_check_of_a_good_file(folder: Path) -> None:
    done = pdtui("check", "good.yaml", cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "good.yaml: no findings\n")
    shell = process("check", "good.yaml", cwd=folder)
    assert (shell.returncode, shell.stdout, shell.stderr) == (0, "", "good.yaml: no findings\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize(
    "words", [["check", "bad.yaml"], ["plan", "good.yaml", "--json"], ["schema"]], ids=" ".join
)
def test_a_full_disk_is_one_line_and_a_closed_pipe_is_none(folder: Path, words: list[str]) -> None:
    command = [sys.executable, "-m", "pdtui", *words]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, cwd=folder, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (1, "pdtui: cannot write: No space left on device\n")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(
            command, cwd=folder, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert (done.returncode, done.stderr) == (1, "")


def test_check_shows_place_severity_rule_and_message(folder: Path) -> None:
    done = pdtui("check", "bad.yaml", cwd=folder)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "bad.yaml:2:1     error    F04  unknown key `nam`; did you mean `name`?"
    assert lines[1].startswith("bad.yaml:4:14    warning  R89  0.99 is newer than what is known here")
    assert lines[2].startswith("bad.yaml:16:101  error    R14  kv ports 20001-20016 lie where")
    assert done.stderr.splitlines() == [
        "bad.yaml: 2 errors, 1 warning",
        "why, and what to do: pdtui check --explain F04",
    ]
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout


def test_check_exits_0_with_warnings_only(folder: Path) -> None:
    done = pdtui("check", "warned.yaml", cwd=folder)
    assert done.returncode == 0
    assert "warning  R16  ports 36000-36015" in done.stdout
    assert done.stderr.splitlines() == [
        "warned.yaml: 1 warning",
        "why, and what to do: pdtui check --explain R16",
    ]


def test_accepted_findings_stay_in_sight_with_their_reason(folder: Path) -> None:
    text = (folder / "warned.yaml").read_text()
    (folder / "warned.yaml").write_text(text + "accept: {R16: reserved by sysctl}\n")
    done = pdtui("check", "warned.yaml", cwd=folder)
    assert (done.returncode, done.stderr.splitlines()[0]) == (0, "warned.yaml: 1 accepted")
    assert "  accepted  R16  ports 36000-36015" in done.stdout
    assert done.stdout.endswith("(accepted: reserved by sysctl)\n")
    (finding,) = json.loads(pdtui("check", "warned.yaml", "--json", cwd=folder).stdout)["findings"]
    assert (finding["accepted"], finding["reason"]) == (True, "reserved by sysctl")
    assert finding["severity"] == "info"
    assert "accepted: reserved" not in finding["message"]


def test_check_explains_a_rule_without_a_file() -> None:
    done = pdtui("check", "--explain", "r16")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("R16       Fixed ports are not among")
    assert lines[1] == "severity  warning"
    assert [line.split()[0] for line in lines if line[0] != " "][2:] == ["why", "remedy", "source", "accept"]
    assert 'accept: {R16: "' in lines[-1]
    assert all(len(line) <= 80 for line in lines)
    assert "accept: {" not in pdtui("check", "--explain", "R14").stdout
    by_version = pdtui("check", "--explain", "R34").stdout
    assert "severity  error; warning from vllm-ascend 0.23.0 on\n" in by_version


def test_check_explain_json_and_list() -> None:
    rule = json.loads(pdtui("check", "--explain", "t04", "--json").stdout)
    keys = (
        "schema_version",
        "rule",
        "title",
        "severities",
        "since",
        "why",
        "remedy",
        "source",
        "found_by",
        "can_be_accepted",
    )
    assert set(rule) == set(keys)
    assert rule["rule"] == "T4"
    assert rule["found_by"] == "check"
    assert json.loads(pdtui("check", "--explain", "R09", "--json").stdout)["found_by"] == "import"
    listed = pdtui("check", "--explain", "all").stdout
    assert "\nports\n" in listed
    assert "  R16 " in listed
    rules = json.loads(pdtui("check", "--explain", "all", "--json").stdout)["rules"]
    assert {rule["rule"] for rule in rules} == EXPLANATIONS.keys()


def test_check_explain_of_an_unknown_rule_exits_2() -> None:
    done = pdtui("check", "--explain", "T155")
    assert done.returncode == 2
    assert done.stderr.startswith("pdtui: there is no rule T155; did you mean T15?\n")
    assert pdtui("check", "--explain", "R16", "cluster.yaml").returncode == 2


def test_check_of_broken_yaml(folder: Path) -> None:
    done = pdtui("check", "broken.yaml", cwd=folder)
    assert done.returncode == 1
    assert (
        done.stdout
        == "broken.yaml:2:1  error    F02  no valid YAML: a tab in the indentation; YAML takes spaces only\n"
    )


def test_check_json(folder: Path) -> None:
    done = pdtui("check", "warned.yaml", "--json", cwd=folder)
    answer = json.loads(done.stdout)
    assert set(answer) == {"schema_version", "findings"}
    assert answer["schema_version"] == 1
    (finding,) = answer["findings"]
    message = finding.pop("message")
    assert message.startswith("ports 36000-36015")
    assert finding == {
        "rule": "R16",
        "severity": "warning",
        "file": "warned.yaml",
        "line": 16,
        "column": 101,
        "path": "groups.p.kv_port",
        "accepted": False,
        "reason": None,
    }
    assert BASE.splitlines()[15].index("14000") == 100
    assert json.loads(pdtui("check", "good.yaml", "--json", cwd=folder).stdout)["findings"] == []
    assert pdtui("check", "bad.yaml", "--json", cwd=folder).returncode == 1


@pytest.mark.parametrize("command", ["check", "plan"])
@pytest.mark.parametrize("file", ["missing.yaml", "."])
def test_a_file_that_cannot_be_read_exits_2(folder: Path, command: str, file: str) -> None:
    done = pdtui(command, file, cwd=folder)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"pdtui: cannot read {file}: ")
    assert done.stderr.count("\n") == 1


def test_no_file_is_a_usage_error() -> None:
    done = pdtui("check")
    assert done.returncode == 2
    assert "Missing argument 'FILE'" in done.stderr


@pytest.mark.parametrize(
    ("word", "guess"),
    [("statsu", "did you mean status?"), ("nothing.yaml", "pdtui --help lists the commands")],
)
def test_first_word_that_is_no_command_and_no_file(folder: Path, word: str, guess: str) -> None:
    done = pdtui(word, "good.yaml", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"pdtui: no command or file named {word}; {guess}\n"


def test_plan_of_a_file_with_errors_exits_2_and_says_them(folder: Path) -> None:
    done = pdtui("plan", "bad.yaml", cwd=folder)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "bad.yaml:2:1  F04  unknown key `nam`" in done.stderr


def test_plan_for_people(folder: Path) -> None:
    done = pdtui("plan", "good.yaml", cwd=folder)
    assert done.returncode == 0
    assert done.stderr == ""
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["RANK", "ROLE", "NODE", "HOST", "NPUS", "API", "KV"] in rows
    assert ["d/5", "decode", "n3", "192.0.2.3", "2-3", "7101", "14210-14211"] in rows
    assert ["192.0.2.3", "14208-14215", "kv", "d/4..7"] in rows
    assert ["192.0.2.1", "20000-21599", "transfer-engine", "n1"] in rows
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_plan_json(folder: Path) -> None:
    answer = json.loads(pdtui("plan", "good.yaml", "--json", cwd=folder).stdout)
    assert set(answer) == {"schema_version", "ranks", "ports"}
    assert answer["schema_version"] == 1
    assert len(answer["ranks"]) == 10
    rank = answer["ranks"][9]
    assert set(rank) == {
        "id",
        "group",
        "role",
        "node",
        "host",
        "dp_rank",
        "devices",
        "api_port",
        "kv_ports",
        "argv",
        "env",
    }
    assert (rank["id"], rank["role"], rank["node"], rank["host"]) == ("d/7", "decode", "n3", "192.0.2.3")
    assert (rank["devices"], rank["api_port"], rank["kv_ports"]) == ([6, 7], 7103, [14214, 14215])
    assert rank["argv"][:3] == ["vllm", "serve", "/models/m"]
    assert rank["env"]["OMP_NUM_THREADS"] == "10"
    assert {"host": "192.0.2.1", "first": 1999, "last": 1999, "use": "proxy", "owner": "proxy"} in answer["ports"]


def test_plan_prints_the_script_of_a_rank(folder: Path) -> None:
    done = pdtui("plan", "good.yaml", "--rank", "d/7", cwd=folder)
    assert done.returncode == 0
    assert done.stdout.startswith("#!/bin/bash\n")
    assert "exec vllm serve /models/m " in done.stdout
    wrong = pdtui("plan", "good.yaml", "--rank", "d/8", cwd=folder)
    assert wrong.returncode == 2
    assert "there is no rank d/8" in wrong.stderr
    assert "d/7" in wrong.stderr


@pytest.mark.parametrize("options", [["--json"], ["--commands"], ["--rank", "p/0"], []])
def test_plan_never_shows_a_secret(folder: Path, options: list[str]) -> None:
    done = pdtui("plan", "secret.yaml", *options, cwd=folder)
    assert done.returncode == 0
    assert "hunter2" not in done.stdout + done.stderr
    if options:
        assert "HF_TOKEN" in done.stdout
        assert "${T}" in done.stdout
        assert "max-num-batched-tokens" in done.stdout


@pytest.mark.parametrize(
    "options", [("--rank", "d/7", "--json"), ("--commands", "--json"), ("--ports", "--diff", "d/1", "d/2")]
)
def test_plan_refuses_what_cannot_be_printed_together(folder: Path, options: tuple[str, ...]) -> None:
    done = pdtui("plan", "good.yaml", *options, cwd=folder)
    assert done.returncode == 2
    assert f"{options[0]} and --" in done.stderr
    assert "do not go together" in done.stderr


def test_plan_with_commands(folder: Path) -> None:
    done = pdtui("plan", "good.yaml", "--commands", cwd=folder)
    assert "d/7 on n3" in done.stdout
    assert "  HCCL_IF_IP=192.0.2.3" in done.stdout
    assert done.stdout.count("  vllm serve /models/m ") == 10


def test_plan_without_npus_for_people_programs_and_bash() -> None:
    file = asset_dir("sample_configs") / "cpu-2p2d-moe.yaml"
    people = pdtui("plan", file, "--commands")
    rows = [line.split() for line in people.stdout.splitlines()]
    assert rows[0] == ["cpu-2p2d-moe:", "NixlConnector", "(pull),", "vllm", "0.32.0"]
    assert ["RANK", "ROLE", "NODE", "HOST", "API", "KV"] in rows
    assert ["d/1", "decode", "laptop", "127.0.0.1", "18122", "18712"] in rows
    assert ["127.0.0.1", "18711-18712", "kv", "d/0..1"] in rows
    assert people.stdout.count("  vllm serve ~/pdtui-vllm/tiny-qwen2-moe --host 127.0.0.1 ") == 4
    for word in ("HCCL", "ASCEND", "NPU", "hccl", "transfer-engine"):
        assert word not in people.stdout
    answer = json.loads(pdtui("plan", file, "--json").stdout)
    rank = answer["ranks"][3]
    assert (rank["id"], rank["devices"], rank["kv_ports"]) == ("d/1", [], [18712])
    assert rank["argv"][2] == "~/pdtui-vllm/tiny-qwen2-moe"
    assert rank["env"]["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "18711"
    assert {use["use"] for use in answer["ports"]} == {"api", "rpc", "kv", "proxy"}
    script = pdtui("plan", file, "--rank", "d/1").stdout
    assert '\n. ~/"pdtui-vllm/venv/bin/activate"\n' in script
    assert "\nexec vllm serve ~/pdtui-vllm/tiny-qwen2-moe " in script


@pytest.mark.parametrize(
    "name",
    [
        *("demo", "deepseek-r1-2p1d", "deepseek-r1-2p1d-layerwise", "deepseek-r1-large-ep"),
        *("cpu-1p1d", "cpu-2p2d-moe", "a2-1p1d", "a2-2p1d"),
    ],
)
def test_samples_check_and_plan(name: str) -> None:
    file = asset_dir("sample_configs") / f"{name}.yaml"
    assert pdtui("check", file).returncode == 0
    assert pdtui("plan", file).returncode == 0


def test_schema_is_a_json_schema_that_knows_the_samples_keys() -> None:
    done = pdtui("schema")
    assert done.returncode == 0
    schema = json.loads(done.stdout)
    for path in asset_dir("sample_configs").glob("*.yaml"):
        keys = yaml.safe_load(path.read_text())
        assert set(keys) <= set(schema["properties"])
        part = schema["then" if keys["platform"] == schema["if"]["properties"]["platform"]["const"] else "else"]
        assert set(part["required"]) <= set(keys)
        assert not [key for key, allowed in part["properties"].items() if not allowed and key in keys]


def test_check_of_a_large_file_starts_and_ends_in_a_second_of_cpu(tmp_path: Path) -> None:
    file = tmp_path / "large.yaml"
    file.write_text(large())
    before = os.times()
    assert process("check", str(file)).returncode == 0
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 1.0


@pytest.mark.parametrize("words", [("--read-only", "good.yaml"), ("good.yaml", "--read-only")])
def test_options_of_the_console_stand_before_the_file_or_after_it(folder: Path, words: tuple[str, ...]) -> None:
    done = pdtui(*words, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("pdtui: the console needs a terminal")
