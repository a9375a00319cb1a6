"""`pdtui plan --ports` as a shell sees it: tables that fit, equal hosts once, JSON that programs read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.support.command import pdtui
from tests.topology.examples import BASE, CPU, changed
from tests.topology.generate import large


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.yaml").write_text(BASE)
    (tmp_path / "near.yaml").write_text(
        changed(("kv_port: 14000", "kv_port: 36000"), ("kv_port: 14200", "kv_port: 21700"))
    )
    (tmp_path / "cpu.yaml").write_text(CPU)
    (tmp_path / "large.yaml").write_text(large())
    return tmp_path


def test_a_node_shows_who_binds_what_and_what_lies_near(folder: Path) -> None:
    done = pdtui("plan", "near.yaml", "--ports", "@n1", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split(maxsplit=3) for line in done.stdout.splitlines()] == [
        ["n1", "(192.0.2.1)"],
        ["PORTS", "USE", "OWNER", "NEAR"],
        ["1999", "proxy", "proxy", "13001 below 15000-17000"],
        ["7100-7101", "api", "p/0..1", "7899 below 15000-17000"],
        ["12321", "rpc", "p", "2679 below 15000-17000"],
        ["15000-17000", "transfer-engine-rpc", "-"],
        ["20000-21599", "transfer-engine", "-"],
        ["32768-60999", "ephemeral", "-", "in hccl"],
        ["36000-36015", "kv", "p/0..1", "in ephemeral"],
        ["60000-60016", "hccl", "-", "in ephemeral"],
    ]
    assert (
        "21700-21707  kv                   d/0..3  nobody listens, 101 above 20000-21599"
        in pdtui("plan", "near.yaml", "--ports", "@n2", cwd=folder).stdout
    )


def test_64_nodes_are_a_table_for_each_kind_of_host_on_80_columns(folder: Path) -> None:
    done = pdtui("plan", "large.yaml", "--ports", cwd=folder)
    lines = done.stdout.splitlines()
    assert all(len(line) <= 80 for line in lines)
    nodes = set(re.findall(r"^ *(\S+) +\(?\d+\.\d+\.\d+\.\d+", done.stdout, re.MULTILINE))
    assert len(nodes) == 64
    assert done.stdout.count("PORTS") <= 6
    assert len(lines) < 64 + 6 * 15


def test_json_has_every_host_in_full_and_says_which_are_alike(folder: Path) -> None:
    answer = json.loads(pdtui("plan", "large.yaml", "--ports", "--json", cwd=folder).stdout)
    assert set(answer) == {"schema_version", "hosts"}
    assert answer["schema_version"] == 1
    hosts = answer["hosts"]
    assert len(hosts) == 64
    assert all(set(host) == {"node", "host", "like", "ports"} for host in hosts)
    names = {host["node"] for host in hosts}
    assert {host["like"] for host in hosts} - names == {None}
    port = hosts[0]["ports"][0]
    assert set(port) == {"first", "last", "use", "range", "bound", "owners", "near"}
    near = json.loads(pdtui("plan", "near.yaml", "--ports", "--json", "@n1", cwd=folder).stdout)["hosts"][0]
    (kv,) = [port for port in near["ports"] if port["use"] == "kv"]
    assert (kv["owners"], kv["bound"]) == (["p/0", "p/1"], True)
    ephemeral = {"use": "ephemeral", "first": 32768, "last": 60999, "where": "inside", "distance": 0, "owner": ""}
    engine = {"use": "transfer-engine", "first": 20000, "last": 21599, "where": "above", "distance": 14401}
    assert kv["near"] == [ephemeral, {**engine, "owner": ""}]


def test_ports_of_the_role_that_only_calls_are_kept_free(folder: Path) -> None:
    (folder / "layerwise.yaml").write_text(changed(("MooncakeConnectorV1", "MooncakeLayerwiseConnector")))
    bound = {}
    for file in ("good.yaml", "layerwise.yaml", "cpu.yaml"):
        hosts = json.loads(pdtui("plan", file, "--ports", "--json", cwd=folder).stdout)["hosts"]
        ports = [port for host in hosts for port in host["ports"] if port["use"] == "kv"]
        bound[file] = {port["owners"][0].split("/")[0]: port["bound"] for port in ports}
    assert bound == {
        "good.yaml": {"p": True, "d": False},
        "layerwise.yaml": {"p": False, "d": True},
        "cpu.yaml": {"p": True, "d": True},
    }


def test_the_map_of_a_file_whose_ports_collide_shows_where(folder: Path) -> None:
    (folder / "broken.yaml").write_text(changed(("port: 1999", "port: 7101")))
    done = pdtui("plan", "broken.yaml", "--ports", "@n1", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "broken.yaml: 1 error: `pdtui check broken.yaml` shows it\n")
    assert re.search(r"7101 +proxy +proxy +COLLIDES with api of p/0\.\.1\n", done.stdout)
    assert re.search(r"7100-7101 +api +p/0\.\.1 +COLLIDES with proxy of proxy\n", done.stdout)
    (folder / "broken.yaml").write_text("pdtui: 1\n")
    assert pdtui("plan", "broken.yaml", "--ports", cwd=folder).returncode == 2


def test_without_npus_there_are_no_ranges_but_the_kernel_s(folder: Path) -> None:
    done = pdtui("plan", "cpu.yaml", "--ports", cwd=folder)
    assert "ephemeral" in done.stdout
    assert "hccl" not in done.stdout
    assert "transfer-engine" not in done.stdout


def test_words_that_are_no_nodes_are_usage_errors(folder: Path) -> None:
    done = pdtui("plan", "good.yaml", "--ports", "@n4", cwd=folder)
    assert (done.returncode, done.stderr) == (2, "pdtui: there is no node n4\n")
    assert pdtui("plan", "good.yaml", "--ports", "n1", cwd=folder).returncode == 2
    assert pdtui("plan", "good.yaml", "@n1", cwd=folder).returncode == 2
    assert pdtui("plan", "good.yaml", "--ports", "--polling", cwd=folder).returncode == 2
