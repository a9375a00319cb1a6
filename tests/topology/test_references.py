"""Secrets by reference: read where a rank starts, by the shell that starts it, and nowhere else."""

from __future__ import annotations

import copy
import subprocess
from pathlib import Path

import pytest

from pdtui.topology.planner import make_plan
from pdtui.topology.redact import HIDDEN, redacted
from pdtui.topology.reference import Reference
from pdtui.topology.script import export_lines, run_script
from tests.topology.examples import topology

HARD = 'it\'s "a" $HOME `id` \\ ${X} !x ä'


def run(lines: list[str], name: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    script = "\n".join([*lines, f'printf "%s" "${name}"'])
    return subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", **(env or {})},
    )


@pytest.mark.parametrize("name", ["key", "my key's $(id).txt"])
def test_a_variable_is_what_stands_in_the_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(f"{HARD}\n\n")
    done = run(export_lines("VLLM_API_KEY", Reference(file=str(path))), "VLLM_API_KEY")
    assert (done.returncode, done.stdout, done.stderr) == (0, HARD, "")


def test_a_file_in_the_home_is_found_where_the_rank_runs(tmp_path: Path) -> None:
    (tmp_path / "my key").write_text("k")
    lines = export_lines("A", Reference(file="~/my key"))
    assert run(lines, "A", {"HOME": str(tmp_path)}).stdout == "k"


def test_a_file_that_is_missing_ends_the_rank_with_a_line_that_names_it(tmp_path: Path) -> None:
    done = run(export_lines("VLLM_API_KEY", Reference(file=f"{tmp_path}/no key")), "VLLM_API_KEY")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"pdtui: cannot read {tmp_path}/no key (VLLM_API_KEY of the topology file)\n"


def test_a_variable_of_the_node_must_be_there_when_it_is_a_secret() -> None:
    lines = export_lines("VLLM_API_KEY", Reference(name="SITE_KEY"))
    assert run(lines, "VLLM_API_KEY", {"SITE_KEY": HARD}).stdout == HARD
    done = run(lines, "VLLM_API_KEY")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "pdtui: SITE_KEY is not set where the rank runs (VLLM_API_KEY of the topology file)\n"
    assert run(export_lines("LEVEL", Reference(name="SITE_LEVEL")), "LEVEL").returncode == 0


@pytest.mark.parametrize(
    ("said", "shown"), [("{file: /run/key}", "$(</run/key)"), ("{from_env: SITE_KEY}", "${SITE_KEY}")]
)
def test_the_key_for_clients_goes_into_the_environment(said: str, shown: str) -> None:
    rank = make_plan(topology(("seed: 1024", f"api_key: {said}, seed: 1024"))).ranks[0]
    assert not [word for word in rank.argv if "api" in word]
    assert rank.env["VLLM_API_KEY"] == shown
    assert redacted(rank.argv, rank.env)[1]["VLLM_API_KEY"] == shown
    assert "VLLM_API_KEY" in run_script(rank, topology().runtime)


def test_a_copy_is_read_from_the_same_place() -> None:
    for one in (Reference(file="/run/key"), Reference(name="SITE_KEY")):
        assert export_lines("A_TOKEN", copy.deepcopy(one)) == export_lines("A_TOKEN", one)


@pytest.mark.parametrize("value", ["$1secret", "$secret-", "${A:-secret}", "$(<a)secret", "x$A", "$(<secret"])
def test_what_only_looks_like_a_reference_is_hidden(value: str) -> None:
    assert redacted((), {"HF_TOKEN": value})[1] == {"HF_TOKEN": HIDDEN}


@pytest.mark.parametrize(
    "word",
    [
        '{"api_key": "S3CRET"}',
        '{"a": [{"hf_token": ["S3CRET"]}]}',
        '[{"password": 53, "x": "S3CRET", "token": "S3CRET"}]'.replace('"x": "S3CRET", ', ""),
        '{"url": "http://ann:S3CRET@store/x"}',
        '{"api_key": "S3CRET"',
    ],
)
def test_secrets_in_json_are_hidden(word: str) -> None:
    (shown,), _ = redacted((word,), {})
    assert "S3CRET" not in shown
    assert "53" not in shown


def test_words_without_secrets_stay_as_they_are() -> None:
    words = ("vllm", "serve", "/m", "--seed", "1024", "--x", '{"a":1,  "b": [true, null]}', '{"no json')
    env = {"PATH": "/a:/b", "A": "$HOME/x", "B": "expandable_segments:True"}
    assert redacted(words, env) == (words, env)


def test_dotted_flags_reach_the_command_as_one_word_each() -> None:
    args = "additional_config.scheduler_config.recompute_scheduler_enable: false, compilation-config.mode: 3"
    rank = make_plan(topology(("max-num-seqs: 40", f"max-num-seqs: 40, {args}"))).ranks[-1]
    at = rank.argv.index("--additional-config.scheduler_config.recompute_scheduler_enable")
    assert rank.argv[at + 1] == "false"
    assert rank.argv[rank.argv.index("--compilation-config.mode") + 1] == "3"
