"""The one comparison of commands and environments."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtui.topology.compare import argv_changes, env_changes, ranks_compared, seen_env_changes
from pdtui.topology.planner import make_plan
from tests.topology.examples import topology


def words(old: tuple[str, ...], new: tuple[str, ...]) -> list[str]:
    return [change.words() for change in argv_changes(old, new)]


def test_flags_are_named_json_is_compared_by_value_and_secrets_are_hidden() -> None:
    new = ("vllm", "serve", "/m", "--seed", "1", "--api-key", "aaa", "--c", '{"a": 1, "b": 2}', "--eager")
    old = ("vllm", "serve", "/n", "--api-key=bbb", "--c", '{"b":2,"a":1}', "--seed", "2", "--old", "x")
    assert words(old, new) == [
        "--api-key: *** -> ***",
        "--eager: absent -> set",
        "--seed: 2 -> 1",
        "command: vllm serve /n -> vllm serve /m",
        "--old: x -> absent",
    ]
    assert words(new, new) == []
    env = env_changes({"HF_TOKEN": "bbb", "B": "2"}, {"A": "1", "HF_TOKEN": "aaa"})
    assert [change.words() for change in env] == ["A: absent -> 1", "B: 2 -> absent", "HF_TOKEN: *** -> ***"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("--seed=1",), ("--seed", "1")),
        (("--max_num_seqs", "1"), ("--max-num-seqs", "1")),
        (("-tp", "4"), ("--tensor-parallel-size", "4")),
        (("--a", "1", "--b", "2"), ("--b", "2", "--a", "1")),
        (("--seed", "1", "--seed", "2"), ("--seed", "2")),
        (("--kv-transfer-config", '{"kv_port": "36000"}'), ("--kv-transfer-config", '{"kv_port": 36000}')),
        (("--kv-transfer-config.kv_port", "36000"), ("--kv-transfer-config", '{"kv_port": 36000}')),
        (("--c.x_y.z", "t"), ("--c", '{"x_y": {"z": "t"}}')),
        (("--c", '{"a": NaN}'), ("--c", '{"a":  NaN}')),
    ],
)
def test_another_spelling_is_no_difference(old: tuple[str, ...], new: tuple[str, ...]) -> None:
    assert words(old, new) == words(new, old) == []


def test_json_is_compared_key_by_key() -> None:
    child = {"kv_connector": "A", "kv_port": "1"}
    old = {"kv_port": "1", "same": [1, 2], "deep": {"connectors": [child, {"x": 1}], "list": [1]}, "gone": None}
    new = {
        "kv_port": "2",
        "same": [1, 2],
        "deep": {"connectors": [{**child, "kv_port": "9"}, {"x": 1}], "list": [1, 2]},
        "my_token": "hunter2",
    }
    assert words(("--c", json.dumps(old)), ("--c", json.dumps(new))) == [
        "--c.kv_port: 1 -> 2",
        "--c.deep.connectors[0].kv_port: 1 -> 9",
        "--c.deep.list: [1] -> [1, 2]",
        "--c.my_token: absent -> ***",
        "--c.gone: null -> absent",
    ]
    assert words(("--c", '{"a": 1}'), ("--c", '{"a": true}')) == ["--c.a: 1 -> true"]
    assert words((), ("--c", '{"a": {"password": "hunter2"}}')) == ['--c: absent -> {"a": {"password": "***"}}']


@pytest.mark.parametrize("value", ["{", "[" * 5000, "[" * 5000 + "]" * 5000, '{"a":' * 2000 + "1" + "}" * 2000])
def test_what_is_no_json_is_compared_as_text(value: str) -> None:
    assert words(("--c", value), ("--c", value)) == []
    assert len(words(("--c", value), ("--c", value + " "))) == 1


WORDS = st.lists(
    st.sampled_from(
        ["--a", "--b-c", "--b_c", "--kv-transfer-config", "--kv-transfer-config.x.y", "-tp", "v", "1", "--d=1"]
    )
    | st.from_regex(
        r'(\{"(a|b_token|kv_port)": ("?[12]"?|\{"c": null\}|\[\{"d": 1\}\])\}|\[1, 2\]|\{)', fullmatch=True
    ),
    max_size=8,
)


@given(WORDS, WORDS)
@settings(max_examples=150, deadline=None)
def test_nothing_differs_from_itself_and_a_difference_has_two_sides(one: list[str], other: list[str]) -> None:
    assert argv_changes(one, one) == ()
    there, back = argv_changes(one, other), argv_changes(other, one)
    assert {(change.name, change.old, change.new) for change in there} == {
        (change.name, change.new, change.old) for change in back
    }


def test_what_a_process_has_is_held_against_values_that_refer_to_the_node() -> None:
    planned = {
        "A": "1",
        "LD_LIBRARY_PATH": "/mooncake${LD_LIBRARY_PATH:+:${LD_LIBRARY_PATH}}",
        "HF_TOKEN": "${HF_TOKEN}",
        "P": "$HOME/x.y",
        "API_KEY": "$(</etc/key)",
    }
    seen = {"A": "1", "LD_LIBRARY_PATH": "/mooncake:/usr/lib", "P": "/home/op/x.y", "OTHER": "1", "API_KEY": "k"}
    assert seen_env_changes(seen, planned) == ()
    assert seen_env_changes({**seen, "LD_LIBRARY_PATH": "/mooncake"}, planned) == ()
    wrong = seen_env_changes({"LD_LIBRARY_PATH": "/usr/lib:/mooncake", "P": "/home/op/xzy"}, planned)
    assert [(change.name, change.old) for change in wrong] == [
        ("A", None),
        ("LD_LIBRARY_PATH", "/usr/lib:/mooncake"),
        ("P", "/home/op/xzy"),
    ]


def test_what_follows_from_the_place_of_ranks_is_told_from_what_somebody_wrote() -> None:
    cluster = topology(("enforce-eager: true", "enforce-eager: true, seed: 7"))
    ranks = make_plan(cluster).by_id
    found = ranks_compared(cluster, ranks["d/1"], ranks["d/5"])
    assert all(change.by_position for change in found)
    assert {change.name: (change.old, change.new) for change in found} == {
        "node": ("n2", "n3"),
        "address": ("192.0.2.2", "192.0.2.3"),
        "KV ports": ("14202-14203", "14210-14211"),
        "--data-parallel-rank": ("1", "5"),
        "HCCL_IF_IP": ("192.0.2.2", "192.0.2.3"),
        "VLLM_HOST_IP": ("192.0.2.2", "192.0.2.3"),
    }
    across = {change.name: change for change in ranks_compared(cluster, ranks["p/0"], ranks["d/0"])}
    assert across["--kv-transfer-config.kv_port"].by_position
    assert across["--data-parallel-address"].by_position
    assert not across["--seed"].by_position
    assert not across["--kv-transfer-config.kv_role"].by_position
    assert not across["--tensor-parallel-size"].by_position


def test_a_port_that_the_file_says_itself_is_no_matter_of_position() -> None:
    cluster = topology(("d: {role: decode,", "d: {role: decode, args: {port: 9000},"))
    ranks = make_plan(cluster).by_id
    found = {change.name: change.by_position for change in ranks_compared(cluster, ranks["p/0"], ranks["d/0"])}
    assert found["--port"] is False
