"""What is read out of shell text is what bash makes of it."""

from __future__ import annotations

import json
import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtui.topology.importing.evaluate import Evaluator, Ran
from pdtui.topology.importing.observed import Origin, Said
from pdtui.topology.importing.report import Kind
from pdtui.topology.importing.scripts import read
from pdtui.topology.importing.shell import Script
from pdtui.topology.importing.sources import Source
from pdtui.topology.importing.values import State
from pdtui.topology.vllm_flags import long_name

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00\r"), max_size=20)
NAME = st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True)


def ran(text: str, *words: str) -> list[Ran]:
    positional = tuple(Said(word, Origin("launch", 1)) for word in words) if words else None
    return Evaluator(Script(text), "run.sh", State(positional=positional)).run()


def words_of(text: str, *words: str) -> list[list[str]]:
    return [[word.text for word in one.words] for one in ran(text, *words)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("p a 'b c' \"d e\" f\\ g $'h\\ti\\x41'", ["p", "a", "b c", "d e", "f g", "h\tiA"]),
        ("p 'a'\"b\"c\\\nd", ["p", "abcd"]),
        ("p 1 \\\n  2", ["p", "1", "2"]),
        ("p 192.0.0.1\\\n192.0.0.2", ["p", "192.0.0.1192.0.0.2"]),
        ("p m \\ \\\n --x", ["p", "m", " ", "--x"]),
        ("X='a b'; p $X \"$X\" ${X} x${X}y", ["p", "a", "b", "a b", "a", "b", "xa", "by"]),
        ('p ${X:-d} ${X-d} "${X:-$(date)}"', ["p", "d", "d", "$(date)"]),
        ('X=; p ${X:-d} "${X-d}" ${X:+e} a', ["p", "d", "", "a"]),
        ("p {0..3} a{b,c}d '{0..1}' {x}", ["p", "0", "1", "2", "3", "abd", "acd", "{0..1}", "{x}"]),
        ("p $((7100 + 2 * 3)) $(( (1+2)*3 ))", ["p", "7106", "9"]),
        ('A=(x \'y z\'); p "${A[@]}" "${A[1]}"', ["p", "x", "y z", "y z"]),
        ('A=(x); A+=(y); p "${A[@]}"', ["p", "x", "y"]),
        ("A=1 B=2\np $A$B", ["p", "12"]),
        ("p a > log 2>&1 b # c", ["p", "a", "b"]),
        ('p "a # b" c#d', ["p", "a # b", "c#d"]),
        ("f() { p \"$1\" $#; }\nf 'x y' z", ["p", "x y", "2"]),
        ('X=; if [ "$X" = y ]; then q; else p 1; fi', ["p", "1"]),
        ("X=y; if [[ $X == y ]]; then p 1; else q; fi", ["p", "1"]),
        ("case b in a) q;; b|c) p 1;; *) q;; esac", ["p", "1"]),
        ("cd x || exit 1; p 1", ["p", "1"]),
        ("cat <<EOF\nq 1\nEOF\np 1", ["p", "1"]),
        ("X=a:$X; p $X", ["p", "a"]),
    ],
)
def test_words_are_those_of_bash(text: str, words: list[str]) -> None:
    assert words in words_of(text)
    assert ["q"] not in words_of(text)


def test_loops_over_lists_run_as_often_as_they_say() -> None:
    assert words_of("for i in {0..1} 7; do p $i $((7100+i)); done") == [
        ["p", "0", "7100"],
        ["p", "1", "7101"],
        ["p", "7", "7107"],
    ]
    assert words_of("for ((i=0; i<4; i+=2)); do p $i; done") == [["p", "0"], ["p", "2"]]


def test_words_of_a_template_come_from_its_launcher() -> None:
    [one] = ran("export V=$1\np $2 ${3:-x} $4", "0,1", "7100", "", "b")
    assert [word.text for word in one.words] == ["p", "7100", "x", "b"]
    assert one.env["V"] == Said("0,1", Origin("launch", 1))


def test_what_only_the_machine_knows_stays_as_it_is_written() -> None:
    [one] = ran("export A=$(hostname -I | awk '{print $1}') B=`date` C=$HOME/x\np")
    assert {name: (said.text, said.unknown) for name, said in one.env.items()} == {
        "A": ("$(hostname -I | awk '{print $1}')", "$(hostname -I | awk '{print $1}')"),
        "B": ("`date`", "`date`"),
        "C": ("$HOME/x", "$HOME"),
    }


@pytest.mark.parametrize(
    "text", ["L=/a:$L", "L=/a:${L}", 'L="/a:$L"', "L=/a${L:+:$L}", "L=/a:${L:-}", "L=$L; export L=/a:$L"]
)
def test_a_path_put_before_the_nodes_own_is_one_to_prepend(text: str) -> None:
    [one] = ran(f"export {text.split('; ')[-1].removeprefix('export ')}\np")
    assert (one.env["L"].text, one.env["L"].prepended) == ("/a", True)


def test_exports_reach_commands_and_other_variables_do_not() -> None:
    [one] = ran("A=1; B=2; export B; export C=3 D=4; unset D; E=5 p")
    assert {name: said.text for name, said in one.env.items()} == {"B": "2", "C": "3", "E": "5"}


def test_comments_say_where_it_runs() -> None:
    found = ran("# on 192.0.0.1\np\n# 在 192.0.0.2 上\np\n# on node3\np\n# 10.0.0.1 is the gateway of all\np")
    assert [one.host for one in found] == ["192.0.0.1", "192.0.0.2", "node3", "node3"]


def test_what_cannot_be_followed_is_named_by_its_line() -> None:
    evaluator = Evaluator(
        Script("x\nwhile read h; do\n vllm serve m\ndone\nfor h in $(cat hosts); do vllm serve m; done"), "r"
    )
    assert [word.text for one in evaluator.run() for word in one.words] == ["x"]
    assert [(note.kind, str(note.origins[0])) for note in evaluator.notes] == [
        (Kind.UNREAD, "r:2"),
        (Kind.UNREAD, "r:5"),
    ]


SEPARATOR = "\x1f"
PARTS = st.sampled_from(
    [
        "a",
        "'b c'",
        '"d e"',
        "${X}",
        '"$X"',
        "${Y:-z w}",
        '"${Y:-z w}"',
        "\\ ",
        "\\$",
        "{1..3}",
        "{p,q}",
        "$'\\n'",
        "''",
        "$((2+3))",
        "${X:+u}",
        '"$X$X"',
        "*",
        "\\\n",
        "--f=",
        '"a\\"b\\\\c\\d"',
        "'{}'",
        "=",
        "x#",
        "~",
    ]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(PARTS, min_size=1, max_size=4), min_size=1, max_size=5))
def test_random_words_become_those_of_bash(words: list[list[str]]) -> None:
    line = " ".join("".join(parts) for parts in words)
    loop = f'for w in "$@"; do printf "%s{SEPARATOR}" "$w"; done'
    script = f"set -f; HOME='~'; X='v w'; p() {{ {loop}; }}\np {line}\n"
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True)
    expected = done.stdout.removesuffix(SEPARATOR).split(SEPARATOR)
    found = words_of(f"X='v w'; q {line}")
    assert found[-1][1:] == ([] if done.stdout == "" else expected)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(TEXT.filter(lambda text: not text.startswith("--") and not long_name(text)), max_size=3),
    st.dictionaries(NAME, TEXT, max_size=4),
)
def test_any_values_that_are_quoted_are_given_back(values: list[str], env: dict[str, str]) -> None:
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    config = json.dumps({"a": values}, ensure_ascii=False)
    words = ["vllm", "serve", "/m", "--listed", "x", *values, "--additional-config", config]
    text = f"{exports}{shlex.join(words)}\n"
    seen, notes = read([Source("run.sh", text.encode())])
    [command] = seen.commands
    assert command.flags["listed"].value == (("x", *values) if values else "x")
    assert command.flags["additional-config"].text == config
    assert {name: said.text for name, said in command.env.items()} == env
    assert not [note for note in notes if note.kind is Kind.UNREAD]
