"""Any bytes become a tree or findings with a place; nothing raises, nothing takes long."""

from __future__ import annotations

import time

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pdtui.topology import yaml_tree
from pdtui.topology.validate import to_data
from pdtui.topology.yaml_tree import MAX_DEPTH, parse
from tests.topology.examples import BASE, CPU, FILE, changed, loaded

BROKEN = [
    (b"", 1, 1, "empty"),
    (b"# only a comment\n", 1, 1, "empty"),
    (b"a:\n\t- b", 2, 1, "a tab in the indentation"),
    (b"a:\n  b: 1\n \tc: 2", 3, 2, "a tab in the indentation"),
    (b"a: b: c", 1, 5, "a colon where none can be"),
    (b"a: 'x", 1, 6, "a quotation mark that is not closed"),
    (b"\n{a: 1", 3, 1, "a bracket that is not closed"),
    (b"a: [1, 2\nb: 1", 2, 2, "a bracket that is not closed"),
    (b"a:\n    b: 1\n  c: 2", 3, 3, "not aligned"),
    (b"a: @x", 1, 4, "cannot begin a value"),
    (b"a: *", 1, 5, "put the value in quotes"),
    (b"a: *x", 1, 4, "the alias *x has no anchor"),
    (b"a: &x [*x]", 1, 8, "contains itself"),
    (b'a: "\\q"', 1, 5, "an unknown escape"),
    (b"name: caf\xe9", 1, 10, "0xe9 is not UTF-8"),
    ("a: 1".encode("utf-16"), 1, 1, "not UTF-8"),
    (b"a: x\x00y", 1, 5, "U+0000"),
    (b"a: \x1b[31m", 1, 4, "U+001B"),
    (b'a: "x\\0y"', 1, 4, "U+0000"),
    (b'a: "\\e[31m"', 1, 4, "U+001B"),
    (b"a: 1\n---\nb: 1", 2, 1, "second document"),
    (b"a: !!python/object:os.system 1", 1, 4, "tag"),
    (b"a: !x {b: 1}", 1, 4, "tag"),
    (b"? [a]\n: b", 1, 3, "a key must be a word"),
    (b"<<: {a: 1}", 1, 1, "merge keys"),
    (b"a:\n  b: 1\n  b: 2", 3, 3, "`b` is written twice: first on line 2"),
    (b"[" * 500, 1, 65, f"more than {MAX_DEPTH} levels"),
    (b"[" * 5000, 1, 1001, "nested too deeply"),
    (b"- " * 5000, 1, 129, f"more than {MAX_DEPTH} levels"),
    (b"x" * (5 << 20), 1, 1, "4 MiB"),
    *((f"a: 1\nb{sign}2\nc: 3".encode(), 3, 1, f"U+{ord(sign):04X} on line 2") for sign in "\u00a0\u3000\uff1a"),
    ("a: {b: 1\uff0cc: 2}".encode(), 1, 11, "only looks like a comma"),
    *((f"a: x{sign}y".encode(), 1, 4, f"U+{ord(sign):04X}") for sign in "\u200b\u202e\u2060\u2066"),
]


@pytest.mark.parametrize(("data", "line", "column", "says"), BROKEN, ids=[case[3] for case in BROKEN])
def test_broken_yaml_has_one_clear_finding(data: bytes, line: int, column: int, says: str) -> None:
    _, problems = parse(data, "f")
    (problem,) = problems
    assert says in problem.message
    assert problem.mark == (line, column)
    assert "\x1b" not in problem.message
    assert not any(word in problem.message for word in ("<unicode string>", "while parsing", "while scanning"))


def test_everything_wrong_with_the_yaml_comes_at_once() -> None:
    _, problems = parse(b"a: 1\na: 2\nb: !x 1\n<<: {}\n", "f")
    assert [problem.mark for problem in problems] == [(2, 1), (3, 4), (4, 1)]


def test_scalars_are_read_as_yaml_1_2_reads_them() -> None:
    text = b"""
    [1, -7, 010, 0x1F, 1_000, 12:30, 0.90, 1e3, .5, .inf, true, False, yes, no, on, ~, null, '', '1', !!str 5, v]
    """
    document, problems = parse(text, "f")
    assert not problems
    assert to_data(document.root) == [
        1,
        -7,
        "010",
        "0x1F",
        "1_000",
        "12:30",
        0.9,
        1000.0,
        ".5",
        ".inf",
        True,
        False,
        "yes",
        "no",
        "on",
        None,
        None,
        "",
        "1",
        "5",
        "v",
    ]
    assert [str(value) for value in to_data(document.root)[6:8]] == ["0.90", "1e3"]


def test_aliases_are_values() -> None:
    document, problems = parse(b"a: &x {b: [1]}\nc: *x\n", "f")
    assert not problems
    assert to_data(document.root) == {"a": {"b": [1]}, "c": {"b": [1]}}


def bomb(levels: int, width: int) -> bytes:
    bottom = f"a0: &a0 [{', '.join('x' * width)}]"
    above = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * width)}]" for level in range(1, levels)]
    return "\n".join([bottom, *above]).encode()


@pytest.mark.parametrize("data", [bomb(30, 9), bomb(200, 1)], ids=["wide", "deep"])
def test_alias_bombs_do_not_go_off(data: bytes) -> None:
    started = time.process_time()
    findings = loaded(data).findings
    assert time.process_time() - started < 5
    assert "aliases" in findings[0].message


def test_marks_count_characters_not_bytes() -> None:
    document, _ = parse("键: {值: x}\n".encode(), "f")
    assert document.mark(("键", "值"), on_key=True) == (1, 5)
    assert document.mark(("键", "值")) == (1, 8)
    assert document.mark(("键", "missing")) == (1, 1)


def test_the_parser_in_python_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = loaded(BASE)
    monkeypatch.setattr(yaml_tree, "_LOADER", yaml.SafeLoader)
    assert loaded(BASE) == fast
    for data, line, *_ in BROKEN:
        (problem,) = parse(data, "f")[1]
        assert problem.mark is not None
        assert problem.mark[0] <= line


PIECES = st.sampled_from(
    [
        *BASE.splitlines(keepends=True),
        *CPU.splitlines(keepends=True)[2:8],
        "{",
        "}",
        "[",
        "]",
        "&a ",
        "*a",
        "- ",
        ": ",
        "'",
        '"',
        "\t",
        "\n",
        "? ",
        "!x ",
    ]
)


@settings(max_examples=150)
@given(st.one_of(st.binary(max_size=300), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))))
@example(b"? ? ? [")
def test_any_bytes_can_be_loaded(data: bytes) -> None:
    check(data)


@settings(max_examples=150)
@given(st.lists(PIECES, max_size=30).map("".join))
def test_any_jumble_of_a_topology_can_be_loaded(text: str) -> None:
    check(text.encode())


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(max_size=5),
        st.sampled_from(["n1", "p", "a3", "cpu", "~/x"]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)


WITHOUT_NPUS = changed(
    (
        "{connector: NixlConnector}",
        "{connector: NixlConnector, extra: {kv_lease_duration: 9}, config: {kv_port: 1}}",
    ),
    ("OMP_NUM_THREADS: 1", "VLLM_NIXL_SIDE_CHANNEL_PORT: 14000, HCCL_X: 1"),
    ("dp_size: 2", "dp_size: 1, devices: 0-7, args: {data-parallel-rank: 0}"),
    base=CPU,
)


@settings(max_examples=200)
@given(st.data())
def test_any_value_in_any_place_can_be_loaded(data: st.DataObject) -> None:
    """The file's own values, replaced one or two at a time by something else."""
    tree = yaml.safe_load(data.draw(st.sampled_from([BASE, WITHOUT_NPUS])))
    for _ in range(data.draw(st.integers(1, 2))):
        node = tree
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = data.draw(st.sampled_from(keys))
            if not isinstance(node[key], (dict, list)) or not node[key] or data.draw(st.booleans()):
                node[key] = data.draw(VALUES)
                break
            node = node[key]
    check(yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "replace"))


def check(data: bytes) -> None:
    result = loaded(data)
    if result.topology is None:
        assert result.errors
    for finding in result.findings:
        assert finding.file == str(FILE)
        assert finding.line >= 1
        assert finding.column >= 1
        assert finding.message
