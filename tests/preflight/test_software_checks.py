"""Versions, Mooncake's import and the model: who has what, against what most have or the file says."""

from __future__ import annotations

from typing import Any

import pytest

from pdtui.fleet.preflight.outcome import Outcome
from tests.preflight.placed import GB, WHERE, Placed

FAIL, WARN, UNKNOWN, NA = Outcome.FAIL, Outcome.WARN, Outcome.UNKNOWN, Outcome.NA


def install(nodes: Placed, name: str, version: str, *where: str) -> None:
    """Install a package in a version on some nodes, or on all."""
    for node in where or tuple(nodes.topology.nodes):
        found = nodes.part("packages", node)
        if version:
            found["packages"] = {**found["packages"], name: {"version": version, "where": WHERE}}
        else:
            found["packages"] = {key: value for key, value in found["packages"].items() if key != name}


def test_one_node_with_another_vllm_ascend_is_named_with_both_versions() -> None:
    nodes = Placed()
    install(nodes, "vllm-ascend", "0.20.2rc1", "node3")
    found = nodes.one("vllm-ascend")
    assert (found.subject, found.outcome) == ("node3", FAIL)
    assert found.summary.startswith("node3 has vllm-ascend 0.20.2rc1; the file says 0.22.1rc1")
    assert 'set vllm_ascend: "0.20.2rc1"' in found.remedy


def test_all_nodes_unlike_the_file_are_one_line_and_another_build_of_the_release_is_a_warning() -> None:
    nodes = Placed()
    install(nodes, "vllm-ascend", "0.23.0")
    found = nodes.one("vllm-ascend")
    assert found.subject == "cluster"
    assert found.summary.startswith("all 4 nodes have vllm-ascend 0.23.0; the file says 0.22.1rc1")
    install(nodes, "vllm-ascend", "0.22.1rc2.dev3+g12ab")
    assert nodes.one("vllm-ascend").outcome is WARN
    install(nodes, "vllm-ascend", "0.22.1rc1+local")
    assert not nodes.bad("vllm-ascend")


def test_where_the_file_says_main_the_nodes_are_compared_with_each_other() -> None:
    nodes = Placed(text={'vllm_ascend: "0.22.1rc1"': "vllm_ascend: main"})
    install(nodes, "vllm-ascend", "0.27.1.dev1")
    assert not nodes.bad("vllm-ascend")
    install(nodes, "vllm-ascend", "0.27.1.dev2", "node4")
    found = nodes.one("vllm-ascend")
    assert (found.subject, found.outcome) == ("node4", FAIL)
    assert found.summary == "vllm-ascend 0.27.1.dev2; 3 of 4 nodes have 0.27.1.dev1"


def test_two_against_two_blames_nobody() -> None:
    nodes = Placed()
    install(nodes, "mooncake-transfer-engine", "0.3.10", "node3", "node4")
    found = nodes.one("mooncake")
    assert (found.subject, found.outcome) == ("cluster", FAIL)
    assert found.summary == "Mooncake: node1, node2 have 0.3.9; node3, node4 have 0.3.10"


def test_a_vllm_that_does_not_go_with_its_vllm_ascend() -> None:
    nodes = Placed()
    install(nodes, "vllm", "0.21.0+empty")
    assert {(one.subject, one.outcome) for one in nodes.bad("vllm")} == {(f"node{n}", WARN) for n in range(1, 5)}
    assert (
        nodes.bad("vllm")[0].summary == "vLLM 0.21.0+empty with vllm-ascend 0.22.1rc1, which goes with vLLM 0.22.1"
    )


def test_a_package_of_which_only_the_folder_is_there_has_the_version_of_its_own_file() -> None:
    nodes = Placed()
    install(nodes, "vllm-ascend", "", "node2")
    nodes.part("packages", "node2")["modules"] = {
        "vllm_ascend": {"where": "/w/vllm_ascend", "version": "0.22.1rc1"}
    }
    assert not nodes.bad("vllm-ascend")
    del nodes.part("packages", "node2")["modules"]["vllm_ascend"]["version"]
    found = nodes.one("vllm-ascend")
    assert found.outcome is UNKNOWN
    assert found.summary == "vllm-ascend is there, but its version cannot be read in /w/vllm_ascend"
    nodes.part("packages", "node2")["modules"] = {}
    found = nodes.one("vllm-ascend")
    assert found.outcome is FAIL
    assert "not installed for /usr/local/python3.12/bin/python3 (3.12.1)" in found.summary


def test_a_vllm_that_is_not_on_the_path_is_said_once() -> None:
    nodes = Placed()
    nodes.part("variables", "node2")["vllm"] = ""
    install(nodes, "vllm", "", "node2")
    found = nodes.one("vllm")
    assert (found.subject, found.outcome) == ("node2", FAIL)
    assert found.summary == "vllm is not found where p2 starts; PATH is /usr/local/bin:/usr/bin"


def test_without_npus_vllm_is_what_the_file_says_and_the_rest_makes_no_sense() -> None:
    nodes = Placed("cpu-2p2d-moe.yaml")
    assert not nodes.bad("vllm")
    install(nodes, "vllm", "0.31.0+cpu")
    assert "the file says 0.32.0" in nodes.one("vllm").summary


CANN = [
    ({"version": "8.5.1"}, [("node2", WARN, "CANN 8.5.1; 3 of 4 nodes have 9.0.0"),
                            ("node2", WARN, "node2 has CANN 8.5.1; vllm-ascend 0.22.1 is built with 9.0.0")]),
    ({"version": "9.1.0"}, [("node2", WARN, "CANN 9.1.0; 3 of 4 nodes have 9.0.0")]),
    ({"set": False}, [("node2", FAIL, "but ASCEND_HOME_PATH is not set where ranks start")]),
]  # fmt: skip


@pytest.mark.parametrize(("change", "wanted"), CANN)
def test_cann(change: dict[str, Any], wanted: list[tuple[str, Outcome, str]]) -> None:
    nodes = Placed()
    nodes.part("cann", "node2").update(change)
    for found, (subject, outcome, summary) in zip(nodes.bad("cann"), wanted, strict=True):
        assert (found.subject, found.outcome) == (subject, outcome)
        assert summary in found.summary


def test_no_cann_says_where_it_was_looked_for() -> None:
    nodes = Placed()
    nodes.fail("cann", "neither ASCEND_HOME_PATH nor ASCEND_TOOLKIT_HOME is set", "missing", "node2")
    found = nodes.one("cann")
    assert (found.subject, found.outcome) == ("node2", FAIL)
    assert found.summary.endswith("neither ASCEND_HOME_PATH nor ASCEND_TOOLKIT_HOME is set")
    assert "runtime.setup" in found.remedy


def test_a_mooncake_that_was_built_is_compared_by_what_it_is() -> None:
    nodes = Placed()
    install(nodes, "mooncake-transfer-engine", "")
    built = {"where": "/w/mooncake", "engine": "/w/mooncake/engine.so", "size": 41 << 20, "digest": "ab12cd34ef"}
    nodes.everywhere("packages", modules={"mooncake": built})
    assert not nodes.bad("mooncake")
    nodes.part("packages", "node1")["modules"] = {"mooncake": {**built, "digest": "ffff000011"}}
    found = nodes.one("mooncake")
    assert found.subject == "node1"
    assert found.summary == "Mooncake built, ffff0000 (41 MB); 3 of 4 nodes have built, ab12cd34 (41 MB)"
    nodes.part("packages", "node1")["modules"] = {"mooncake": {"where": "/w/mooncake"}}
    assert "/w/mooncake has no engine module" in nodes.one("mooncake").summary


def test_two_distributions_of_mooncake_are_named_both() -> None:
    nodes = Placed()
    install(nodes, "mooncake-transfer-engine-npu", "0.3.11.post1", "node2")
    found = nodes.one("mooncake")
    assert found.subject == "node2"
    assert "mooncake-transfer-engine 0.3.9 and mooncake-transfer-engine-npu 0.3.11.post1" in found.summary


def test_a_mooncake_of_another_age_moves_the_ports_that_it_picks_from() -> None:
    nodes = Placed()
    install(nodes, "mooncake-transfer-engine", "0.3.7.post2")
    found = nodes.one("mooncake")
    assert (found.subject, found.outcome) == ("cluster", WARN)
    assert "picks from 1000 ports for each NPU; the plan reckons with 100" in found.summary
    assert "keep kv_port out of 20000-35999" in found.remedy


IMPORTS = [
    ("ModuleNotFoundError: No module named 'mooncake'", "install Mooncake for this Python"),
    ("ImportError: libascendcl.so: cannot open shared object file: No such file or directory", "LD_LIBRARY_PATH"),
    ("ImportError: /w/engine.so: undefined symbol: aclrtMalloc", "built for another CANN"),
    ("ended by signal 11", "see dmesg"),
]


@pytest.mark.parametrize(("words", "remedy"), IMPORTS)
def test_an_import_that_fails_says_its_last_words(words: str, remedy: str) -> None:
    nodes = Placed()
    nodes.fail("import", f"Traceback (most recent call last):\n  File ...\n{words}", node="node4")
    found = nodes.one("mooncake-import")
    assert (found.subject, found.outcome) == ("node4", FAIL)
    assert words in found.summary
    assert remedy in found.remedy
    assert "Traceback" in found.evidence[0].raw


# ---- the model


def test_a_model_that_is_not_there_or_not_to_be_read() -> None:
    nodes = Placed()
    path = nodes.topology.model.path
    nodes.fail("model", f"{path}: No such file or directory", "missing", "node1")
    nodes.fail("model", f"{path}: Permission denied", "permission", "node2")
    absent, closed = nodes.bad("model")
    assert (absent.subject, absent.outcome, absent.summary) == ("node1", FAIL, f"{path} is not there")
    assert "mount it into vllm-ascend" in absent.remedy
    assert (closed.subject, closed.summary) == ("node2", f"{path} may not be read by this user")


MODELS = [
    ({"config": ""}, "has no config.json"),
    ({"config_error": "config.json is no JSON"}, "config.json is no JSON"),
    ({"files": [["config.json", 3, "x"]]}, "has no weight files"),
    (
        {"indexes": [{"name": "i.json", "shards": 163, "missing": ["a", "b", "c", "d"], "absent": 4}]},
        "4 of 163 weight files of i.json are missing: a, b, c and 1 more",
    ),
    ({"indexes": [{"name": "i.json", "error": "ValueError: x"}]}, "i.json cannot be read: ValueError: x"),
    ({"pointers": ["m.safetensors"]}, "Git LFS pointers in the place of m.safetensors"),
    ({"broken": ["m.safetensors"]}, "links that lead nowhere: m.safetensors"),
    ({"unreadable": ["m.safetensors"]}, "may not be read: m.safetensors"),
    ({"files": [["config.json", 3, "x"], ["m.safetensors", 0, ""]]}, "empty weight files: m.safetensors"),
]


@pytest.mark.parametrize(("change", "summary"), MODELS, ids=[row[1] for row in MODELS])
def test_a_model_that_is_not_whole(change: dict[str, Any], summary: str) -> None:
    nodes = Placed()
    nodes.part("model", "node3").update(change)
    found = nodes.one("model")
    assert (found.subject, found.outcome) == ("node3", FAIL)
    assert summary in found.summary


def other_file(nodes: Placed, node: str, name: str, size: int, digest: str = "") -> None:
    files = [file for file in nodes.part("model", node)["files"] if file[0] != name]
    nodes.part("model", node)["files"] = [*files, [name, size, digest]] if size else files


def test_the_odd_one_out_is_named_with_the_files_that_differ() -> None:
    nodes = Placed()
    other_file(nodes, "node2", "config.json", 1500, "decade")
    other_file(nodes, "node2", "model-00002-of-00002.safetensors", 3 * GB)
    other_file(nodes, "node2", "tokenizer.json", 0)
    other_file(nodes, "node2", "extra.json", 7, "e")
    found = nodes.one("model")
    assert (found.subject, found.outcome) == ("node2", FAIL)
    assert found.summary.endswith(
        "differs from that of 3 of 4 nodes: config.json has other text; "
        "model-00002-of-00002.safetensors has 3.0 GB, there 4.0 GB; lacks tokenizer.json; has extra.json beside"
    )
    assert "compare with node1" in found.remedy
    assert len(found.evidence) == 2


def test_a_size_that_differs_by_a_byte_is_told_in_bytes() -> None:
    nodes = Placed()
    other_file(nodes, "node1", "tokenizer.json", 7_800_001)
    assert "tokenizer.json has 7800001 bytes, there 7800000 bytes" in nodes.one("model").summary


def test_a_model_by_name_is_left_to_vllm() -> None:
    nodes = Placed()
    path = nodes.topology.model.path
    nodes = Placed(text={f"path: {path}": "path: deepseek-ai/DeepSeek-R1"})
    assert {result.outcome for result in nodes.run("model")} == {NA}
