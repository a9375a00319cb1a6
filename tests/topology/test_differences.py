"""What two files make run differently."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdtui.assets import asset_dir
from pdtui.topology.compare import Change
from pdtui.topology.differences import Differences, Step, compare_files
from pdtui.topology.load import load
from tests.topology.examples import BASE, CPU, changed, loaded


def differences(*edits: tuple[str, str], base: str = BASE) -> Differences:
    old, new = loaded(base), loaded(changed(*edits, base=base))
    assert old.topology
    assert new.topology, new.findings
    return compare_files(old.topology, new.topology, old.findings, new.findings)


def words(changes: tuple[Change, ...]) -> list[str]:
    return [change.words() for change in changes]


def common(found: Differences, group: str) -> dict[str, tuple[str, ...]]:
    """Return what changes for the ranks of a group, and for which."""
    (one,) = (one for one in found.groups if one.name == group)
    return {alike.change.words(): alike.ranks for alike in one.alike()}


D = tuple(f"d/{number}" for number in range(8))
P = ("p/0", "p/1")


def test_comments_order_and_spelling_are_no_difference() -> None:
    found = differences(
        ("seed: 1024, max-model-len: 4000", "max_model_len: 4000, seed: 1024  # first\n "),
        ("{args: {enforce-eager: true}}", "{args: {no-enforce-eager: false}}"),
        ("OMP_NUM_THREADS: 10", "OMP_NUM_THREADS: '10'"),
        ("  n3: {host: 192.0.2.3, nic: eth0}", "  n3: {nic: eth0, address: 192.0.2.3, host: 192.0.2.3}"),
    )
    assert found.is_empty
    assert found.steps == ()
    assert found.reordered == (*P, *D)  # Their digest is another one, and so what status says.


def test_a_change_of_one_group_is_said_once_and_restarts_the_whole_moe_group() -> None:
    found = differences(("max-num-seqs: 40", "max-num-seqs: 50"))
    assert common(found, "d") == {"--max-num-seqs: 40 -> 50": D}
    assert [group.name for group in found.groups] == ["d"]
    assert (found.settings, found.nodes, found.ports) == ((), (), ())
    assert found.steps == (Step("restart", D, "d", ""),)


def test_a_larger_group_changes_the_other_role_too_and_starts_what_is_new() -> None:
    found = differences(
        ("nodes: [n2, n3], dp_size: 8", "nodes: [n2, n3, n4], dp_size: 12"),
        (
            "  n3: {host: 192.0.2.3, nic: eth0}",
            "  n3: {host: 192.0.2.3, nic: eth0}\n  n4: {host: 192.0.2.4, nic: e}",
        ),
    )
    assert [(node.name, node.fate) for node in found.nodes] == [("n4", "added")]
    d = found.groups[1]
    assert (d.name, d.fate, d.size, d.before) == ("d", "changed", 12, 8)
    assert d.of("added") == ("d/8", "d/9", "d/10", "d/11")
    assert common(found, "d")["--data-parallel-size: 8 -> 12"] == D
    assert common(found, "p") == {"--kv-transfer-config.kv_connector_extra_config.decode.dp_size: 8 -> 12": P}
    assert [(step.action, step.group, len(step.ranks)) for step in found.steps] == [
        ("restart", "p", 2),
        ("restart", "d", 12),
        ("proxy", "", 0),
    ]
    assert "192.0.2.4 api d: absent -> 7100-7103" in words(found.ports)


def test_ranks_that_move_are_stopped_with_the_old_file_first() -> None:
    found = differences(("nodes: [n2, n3]", "nodes: [n3, n2]"))
    (d,) = found.groups
    assert d.of("moved") == D
    assert {rank.node for rank in d.ranks[:4]} == {"n3"}
    bound = {alike.change.name for alike in d.alike() if alike.change.by_position}
    assert bound == {"node", "address", "HCCL_IF_IP", "VLLM_HOST_IP"}
    assert [(step.action, step.ranks) for step in found.steps] == [("stop", D), ("restart", D)]
    assert "192.0.2.2 rpc d: 12321 -> absent" in words(found.ports)


def test_a_server_with_another_name_is_the_same_server() -> None:
    text = BASE.replace("n1", "first")
    old, new = loaded(BASE).topology, loaded(text).topology
    assert old
    assert new
    found = compare_files(old, new)
    assert [(node.fate, node.was, node.name) for node in found.nodes] == [("renamed", "n1", "first")]
    assert (found.groups, found.ports) == ((), ())
    assert words(found.settings) == ["proxy.node: n1 -> first"]


def test_groups_come_and_go() -> None:
    line = "  p: {role: prefill, nodes: [n1]"
    found = differences((line, line.replace("p:", "q:", 1)))
    assert [(group.name, group.fate, group.size) for group in found.groups] == [
        ("q", "added", 2),
        ("p", "removed", 2),
    ]
    assert [(step.action, step.ranks) for step in found.steps] == [("stop", P), ("start", ("q/0", "q/1"))]
    assert words(found.ports)[:2] == ["192.0.2.1 api q: absent -> 7100-7101", "192.0.2.1 rpc q: absent -> 12321"]


def test_settings_say_what_they_ask_for() -> None:
    base = changed(("model: {", "runtime: {container: c, image: a, mounts: [/a:/a, /b:/b]}\nmodel: {"))
    found = differences(
        ("image: a, mounts: [/a:/a, /b:/b]", "image: b, mounts: [/b:/b, /c:/c], options: [-e, HF_TOKEN=hunter2]"),
        base=base,
    )
    assert words(found.settings) == [
        "runtime.image: a -> b",
        "runtime.mounts: /a:/a -> absent",
        "runtime.mounts: absent -> /c:/c",
        "runtime.options: absent -> -e",
        "runtime.options: absent -> HF_TOKEN=***",
    ]
    assert [step.action for step in found.steps] == ["recreate", "start"]
    setup = differences(("container: c,", "container: c, setup: [/x.sh],"), base=base)
    assert [(step.action, step.ranks) for step in setup.steps] == [("restart", (*P, *D))]
    elsewhere = differences(("container: c,", "container: other,"), base=base)
    assert [(step.action, step.ranks) for step in elsewhere.steps] == [("stop", (*P, *D)), ("start", (*P, *D))]
    mild = differences(("name: small", "name: small\nsafety: {protected: true}\nstart: {stagger: 3s}"))
    assert words(mild.settings) == ["safety.protected: false -> true", "start.stagger: 0.5 -> 3"]
    assert mild.steps == ()
    assert words(differences(("proxy: {node: n1, listen: 0.0.0.0, port: 1999}\n", "")).settings) == [
        "proxy.node: n1 -> absent",
        "proxy.listen: 0.0.0.0 -> absent",
        "proxy.advertise: 192.0.2.1 -> absent",
        "proxy.port: 1999 -> absent",
        "proxy.kind: pdtui -> absent",
    ]


def test_a_dense_model_restarts_only_what_changes() -> None:
    dense = changed(
        ("served_name: m", "served_name: m, kind: dense"),
        ("n2: {host: 192.0.2.2, nic", "n2: {host: 192.0.2.2, nic"),
    )
    found = differences(("n2: {host: 192.0.2.2, nic: eth0}", "n2: {host: 192.0.2.2, nic: eth7}"), base=dense)
    assert [(node.name, words(node.changes)) for node in found.nodes] == [("n2", ["nic: eth0 -> eth7"])]
    assert found.steps == (Step("restart", D[:4], "", ""),)
    moe = differences(("n2: {host: 192.0.2.2, nic: eth0}", "n2: {host: 192.0.2.2, nic: eth7}"))
    assert moe.steps == (Step("restart", D, "d", "the ranks of a MoE group live and die together"),)


def test_new_findings_are_told_wherever_lines_have_gone() -> None:
    found = differences(("name: small", "# a line more\nname: small"), ("kv_port: 14000", "kv_port: 20001"))
    assert found.new_findings
    assert {one.path for one in found.new_findings} == {"groups.p.kv_port"}
    assert found.gone_findings == ()
    assert not differences(("name: small", "# a line more\nname: small")).new_findings


@pytest.mark.parametrize("path", sorted(asset_dir("sample_configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_file_does_not_differ_from_itself_and_differs_from_every_other(path: Path) -> None:
    cluster = load(path).topology
    assert cluster
    assert compare_files(cluster, cluster) == Differences()
    small = loaded(BASE).topology
    assert small
    there, back = compare_files(small, cluster), compare_files(cluster, small)
    assert [(change.name, change.old, change.new) for change in there.ports] != []
    assert {(change.name, change.new, change.old) for change in there.ports} == {
        (change.name, change.old, change.new) for change in back.ports
    }
    assert {group.name for group in there.groups} == {group.name for group in back.groups}


def test_without_npus() -> None:
    found = differences(("nodes: [n1, n2], dp_size: 4", "nodes: [n1, n2], dp_size: 2"), base=CPU)
    assert found.groups[0].of("removed") == ("d/2", "d/3")
    assert "192.0.2.1 kv d: 14200-14201 -> 14200" in words(found.ports)
