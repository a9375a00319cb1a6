"""The start script, really run by bash against a stand-in that prints what it got."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtui.topology.model import Role, Runtime
from pdtui.topology.plan import RankPlan
from pdtui.topology.planner import make_plan
from pdtui.topology.script import double_quoted, in_home, run_script
from tests.topology.examples import topology

HOSTILE = [
    "plain",
    "two words  and more",
    "'single' and \"double\"",
    "`touch pwned`",
    "$(touch pwned)",
    "${X:-$(touch pwned)}",
    "${X:-`touch pwned`}",
    "a\nb\n\nc\n",
    "!history !! !$",
    "\\ back\\\\slash \\n \\",
    "; touch pwned; # & | > pwned",
    "ünï 中文 🙂",
    "-n",
    "*",
    "~",
    "$",
    "$$ $1 $@ $* $# $? $-",
    "$[1+1] $((1+1))",
    "${",
    "${}",
    "${X",
    "${X:?touch}",
    "${X//a/b}",
    "${!X}",
    "}{",
    "",
]


def rank_of(env: Mapping[str, str], argv: tuple[str, ...] = ("vllm", "serve", "m")) -> RankPlan:
    return RankPlan("g/0", "g", Role.DECODE, "n", "192.0.2.1", 0, 0, (0,), 7100, (), argv, env, "")


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Return a folder with a `vllm` that prints its words and environment as JSON."""
    folder = tmp_path / "bin"
    folder.mkdir()
    stand_in = folder / "vllm"
    stand_in.write_text(
        f"#!{sys.executable} -IS\nimport json, os, sys\n"
        "print(json.dumps([os.getpid(), sys.argv, dict(os.environ)]))\n"
    )
    stand_in.chmod(0o755)
    return folder


def run(script: str, tools: Path, **env: str) -> subprocess.CompletedProcess[str]:
    file = tools / "run.sh"
    file.write_text(script)
    return subprocess.run(
        ["bash", str(file)],
        cwd=tools,
        env={"PATH": f"{tools}:{os.environ['PATH']}", **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def printed(done: subprocess.CompletedProcess[str]) -> tuple[int, list[str], dict[str, str]]:
    assert done.returncode == 0, done.stderr
    pid, argv, env = json.loads(done.stdout)
    return pid, argv, env


def test_hostile_values_arrive_as_they_are(tools: Path) -> None:
    env = {f"V{index}": value for index, value in enumerate(HOSTILE)}
    argv = ("vllm", "serve", *HOSTILE)
    done = run(run_script(rank_of(env, argv), Runtime()), tools)
    _, words, given = printed(done)
    assert words[1:] == list(argv[1:])
    for name, value in env.items():
        if value.startswith("${X:-"):
            assert given[name] == value.removeprefix("${X:-").removesuffix("}")
        else:
            assert given[name] == value
    assert not list(tools.glob("pwned*"))
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$HOME/x", "/home/u/x"),
        ("${HOME}x", "/home/ux"),
        ("$HOME$EMPTY$NONE.", "/home/u."),
        ("a${NONE:+:${NONE}}", "a"),
        ("a${HOME:+:${HOME}}", "a:/home/u"),
        ("${NONE:-$HOME/d}", "/home/u/d"),
        ('${NONE:-"quoted" $(id)}', '"quoted" $(id)'),
        ("${EMPTY-unset}${NONE-unset}", "unset"),
        ("${HOME+it's}", "it's"),
        ("$1$HOME", "$1/home/u"),
        ("$(echo $HOME)", "$(echo /home/u)"),
        ("${NONE:-${NONE:-${HOME}}}}", "/home/u}"),
    ],
)
def test_only_references_to_variables_are_alive(text: str, value: str, tools: Path) -> None:
    done = run(run_script(rank_of({"V": text}), Runtime()), tools, HOME="/home/u", EMPTY="")
    assert printed(done)[2]["V"] == value


def test_later_variables_see_earlier_ones(tools: Path) -> None:
    done = run(run_script(rank_of({"A": "1", "B": "$A:2", "A2": "${B}"}), Runtime()), tools)
    given = printed(done)[2]
    assert (given["B"], given["A2"]) == ("1:2", "1:2")


@pytest.mark.parametrize(("before", "after"), [({"LD_LIBRARY_PATH": "/old"}, "/new:/old"), ({}, "/new")])
def test_prepended_paths_stay_valid_without_a_value_on_the_node(
    before: dict[str, str], after: str, tools: Path
) -> None:
    plan = make_plan(topology(("OMP_NUM_THREADS: 10", "LD_LIBRARY_PATH: {prepend: /new}")))
    done = run(run_script(plan.by_id["p/0"], Runtime()), tools, **before)
    assert printed(done)[2]["LD_LIBRARY_PATH"] == after


def test_setup_files_are_sourced_in_order_before_the_environment(tools: Path) -> None:
    odd = tools / "set env's.sh"
    odd.write_text("export A=from-setup ORDER=1\nexport ARGS=$#\n")
    second = tools / "second.sh"
    second.write_text('export ORDER="$ORDER,2"\n')
    runtime = Runtime(setup=(str(odd), str(second)))
    done = run(run_script(rank_of({"A": "file:$A"}), runtime), tools)
    given = printed(done)[2]
    assert (given["A"], given["ORDER"], given["ARGS"]) == ("file:from-setup", "1,2", "0")


def test_a_missing_setup_file_is_named_and_nothing_starts(tools: Path) -> None:
    done = run(run_script(rank_of({}), Runtime(setup=("/no/such $(x) file",))), tools)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "pdtui: cannot read /no/such $(x) file (runtime.setup of the topology file)\n"


def test_a_setup_file_may_use_the_home_folder(tools: Path) -> None:
    (tools / "env.sh").write_text("export A=1\n")
    done = run(run_script(rank_of({}), Runtime(setup=("$HOME/env.sh",))), tools, HOME=str(tools))
    assert printed(done)[2]["A"] == "1"


HOMES = ["/plain", "/two words", '/it\'s $(touch pwned) `x` "q" \\ *']


@pytest.mark.parametrize("home", HOMES)
def test_the_models_path_and_set_up_files_may_lie_in_the_home(home: str, tools: Path) -> None:
    folder = Path(f"{tools}{home}")
    folder.mkdir()
    (folder / "set up's.sh").write_text("export A=from-home\n")
    rank = rank_of({}, ("vllm", "serve", "~/models/m", "--tokenizer", "~/t", "~/u"))
    done = run(run_script(rank, Runtime(setup=("~/set up's.sh",))), tools, HOME=str(folder))
    _, words, given = printed(done)
    assert words[1:] == ["serve", f"{folder}/models/m", "--tokenizer", "~/t", "~/u"]
    assert given["A"] == "from-home"
    assert in_home(rank.argv, str(folder))[1:] == tuple(words[1:])
    assert not list(tools.glob("**/pwned*"))


def test_a_rank_without_home_variable_has_the_home_of_its_user(tools: Path) -> None:
    done = run(run_script(rank_of({}, ("vllm", "serve", "~/m")), Runtime()), tools)
    assert printed(done)[1][2] == f"{pwd.getpwuid(os.geteuid()).pw_dir}/m"


@pytest.mark.parametrize("path", [*(f"~/{value}" for value in HOSTILE), "~", "~root/m", "a~/b", "~\\/x"])
def test_hostile_model_paths_arrive_as_they_are(path: str, tools: Path) -> None:
    done = run(run_script(rank_of({}, ("vllm", "serve", path)), Runtime()), tools, HOME="/home/u")
    words = printed(done)[1]
    assert words[2] == (f"/home/u/{path[2:]}" if path.startswith("~/") else path)
    assert not list(tools.glob("pwned*"))


def test_a_missing_set_up_file_in_the_home_is_named_with_its_whole_path(tools: Path) -> None:
    done = run(run_script(rank_of({}), Runtime(setup=("~/no $(x) file",))), tools, HOME="/home/u")
    assert done.returncode == 1
    assert done.stderr == "pdtui: cannot read /home/u/no $(x) file (runtime.setup of the topology file)\n"


def test_a_command_without_a_path_is_left_as_it_is() -> None:
    for argv in ((), ("vllm",), ("vllm", "serve"), ("ls", "serve", "~/x"), ("vllm", "serve", "/m")):
        assert in_home(argv, "/home/u") == argv
    assert in_home(("vllm", "serve", "~/m"), "") == ("vllm", "serve", "~/m")
    assert in_home(("vllm", "serve", "~/m"), "/") == ("vllm", "serve", "/m")


def test_the_server_takes_the_place_of_the_shell(tools: Path) -> None:
    file = tools / "run.sh"
    file.write_text(run_script(rank_of({}), Runtime()))
    env = {"PATH": f"{tools}:{os.environ['PATH']}"}
    with subprocess.Popen(["bash", str(file)], stdout=subprocess.PIPE, text=True, env=env) as process:
        output, _ = process.communicate(timeout=30)
    assert json.loads(output)[0] == process.pid


def test_every_rank_of_a_plan_starts_with_its_own_command(tools: Path) -> None:
    cluster = topology()
    for rank in make_plan(cluster).ranks:
        _, words, given = printed(run(run_script(rank, cluster.runtime), tools))
        assert words[1:] == list(rank.argv[1:])
        assert rank.env.items() <= given.items()


def evaluated(texts: list[str]) -> list[str]:
    """Return what bash makes of quoted words, with A set, B empty and N unset; it must not complain."""
    script = "A='a  *' B= pdtui_quote=\\'\nunset N\n" + "".join(
        f"printf '%s\\0' {double_quoted(text)}\n" for text in texts
    )
    done: subprocess.CompletedProcess[bytes] = subprocess.run(
        ["/bin/bash", "--norc", "-c", script],
        env={"PATH": "/nowhere"},
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert done.stderr == b""
    results = [result.decode() for result in done.stdout.split(b"\0")[:-1]]
    assert len(results) == len(texts)
    return results


PIECE = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0$"), max_size=20),
    st.sampled_from(["$", "${", "}", ":-", ":+", "`", "$(", ")", '"', "'", "\\", "$A", "${A}", "${N:-", "${A+"]),
)


@settings(max_examples=40)
@given(st.lists(st.lists(PIECE, max_size=8).map("".join), min_size=20, max_size=20))
def test_any_text_is_one_word_and_runs_nothing(texts: list[str]) -> None:
    for text, result in zip(texts, evaluated(texts), strict=True):
        if "$" not in text:
            assert result == text


VALUES = {"A": "a  *", "B": "", "N": None}
Word = tuple[str, str]
"""(text in the file, what it comes to)."""


def expansion(name: str, operator: str, word: Word) -> Word:
    value = VALUES[name]
    present = value is not None if len(operator) == 1 else bool(value)
    wanted = (value or "") if present else word[1]
    if operator.endswith("+"):
        wanted = word[1] if present else ""
    return f"${{{name}{operator}{word[0]}}}", wanted


def joined(words: list[Word]) -> Word:
    return "".join(text for text, _ in words), "".join(value for _, value in words)


NAMES = st.sampled_from(sorted(VALUES))
LITERAL = st.text(st.sampled_from("ab'\"`\\ !*~{#%/:-+=()中\n"), max_size=6).map(lambda text: (text, text))
NAMED = NAMES.map(lambda name: (f"${{{name}}}", VALUES[name] or ""))
WORDS = st.recursive(
    st.one_of(LITERAL, NAMED),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(joined),
        st.builds(expansion, NAMES, st.sampled_from(["-", ":-", "+", ":+"]), inner),
    ),
    max_leaves=8,
)


@settings(max_examples=60)
@given(st.lists(WORDS, min_size=20, max_size=20))
def test_expansions_come_to_what_they_say(words: list[Word]) -> None:
    assert evaluated([text for text, _ in words]) == [value for _, value in words]


def test_quoting_takes_linear_time() -> None:
    text = "${A:-" * 50_000
    assert double_quoted(text) == '"' + text.replace("$", "\\$") + '"'
