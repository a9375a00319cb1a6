"""From text to model: levels, defaults, names, paths."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from pdtui.errors import FileError
from pdtui.topology.load import load, load_checked
from pdtui.topology.model import Flow, Role, SshOptions
from pdtui.topology.schema import json_schema
from tests.topology.examples import BASE, changed, loaded, topology


def test_base_is_understood() -> None:
    cluster = topology()
    assert cluster.name == "small"
    assert cluster.flow is Flow.PULL
    assert cluster.connector == "MooncakeConnectorV1"
    assert cluster.npus_per_node == 16
    assert cluster.roles_of("n3") == (Role.DECODE,)
    assert cluster.groups["d"].ranks_per_node == {"n2": 4, "n3": 4}
    assert cluster.groups["d"].dp_address == "192.0.2.2"
    assert cluster.groups["p"].devices == {"n1": tuple(range(16))}
    assert cluster.proxy is not None
    assert cluster.proxy.advertise == "192.0.2.1"
    assert len(cluster.digest) == 64


def test_layerwise_connector_means_layerwise_flow() -> None:
    assert topology(("MooncakeConnectorV1", "MooncakeLayerwiseConnector")).flow is Flow.LAYERWISE


def test_levels_override_key_by_key_and_json_values_whole() -> None:
    cluster = topology(
        (
            "args: {seed: 1024, max-model-len: 4000}",
            "args: {seed: 1024, max-model-len: 4000, additional-config: {a: 1, b: 2}}",
        ),
        ("{max-num-seqs: 40}", "{max-num-seqs: 40, additional-config: {c: 3}, seed: null}"),
        ("kv_port: 14200", "kv_port: 14200, args: {max_num_seqs: 50, no-enforce-eager: true}"),
    )
    assert cluster.groups["p"].args == {
        "seed": 1024,
        "max-model-len": 4000,
        "additional-config": {"a": 1, "b": 2},
        "enforce-eager": True,
    }
    assert cluster.groups["d"].args == {
        "seed": None,
        "max-model-len": 4000,
        "additional-config": {"c": 3},
        "max-num-seqs": 50,
        "enforce-eager": False,
    }


def test_environment_is_the_text_as_written() -> None:
    env = (
        "A: false, B: True, C: 010, D: 1.50, E: '', F: null, G: ~, H: 'null', I: yes, J: {prepend: /x}, "
        "K: {from_env: OTHER}, L: $HOME/x, M: 12:30:00"
    )
    cluster = topology(("OMP_NUM_THREADS: 10", env))
    assert cluster.groups["p"].env == {
        "A": "false",
        "B": "True",
        "C": "010",
        "D": "1.50",
        "E": "",
        "F": None,
        "G": None,
        "H": "null",
        "I": "yes",
        "J": {"prepend": "/x"},
        "K": {"from_env": "OTHER"},
        "L": "$HOME/x",
        "M": "12:30:00",
    }


def test_unquoted_numbers_are_text_where_text_is_meant() -> None:
    cluster = topology(('"0.22.1rc1"', "0.20"), ("served_name: m", "served_name: 7"))
    assert cluster.vllm_ascend == "0.20"
    assert cluster.model.served_name == "7"


def test_host_that_is_an_address_is_the_address() -> None:
    cluster = topology(("host: 192.0.2.1,", "host: local, address: 192.0.2.9,"))
    assert cluster.nodes["n1"].host == "local"
    assert cluster.nodes["n1"].address == "192.0.2.9"
    assert cluster.nodes["n2"].address == cluster.nodes["n2"].host


def test_ssh_of_a_node_overrides_that_of_the_file() -> None:
    cluster = topology(
        ("name: small", "name: small\nssh: {user: root, port: 2222, key: keys/id, jump: ops@gate:22}"),
        (
            "192.0.2.2, nic: eth0",
            "192.0.2.2, nic: eth0, ssh: {user: ops, known_hosts: ~/k, sudo: true, connect_timeout: 3}",
        ),
    )
    assert cluster.nodes["n1"].ssh == SshOptions(user="root", port=2222, key=Path("keys/id"), jump="ops@gate:22")
    assert cluster.nodes["n2"].ssh == SshOptions(
        user="ops",
        port=2222,
        key=Path("keys/id"),
        jump="ops@gate:22",
        known_hosts=Path("~/k").expanduser(),
        sudo=True,
        connect_timeout=3.0,
    )


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(changed(("name: small", "name: small\nssh: {key: id}")))
    cluster = load_checked(file)
    assert cluster.nodes["n1"].ssh.key == tmp_path / "id"
    assert cluster.path == file


def test_runtime() -> None:
    runtime = (
        "runtime: {container: c, exec: [podman, exec, -i], setup: [/s.sh], state_dir: /d, image: i, shm_size: 1g, "
        "devices: [/dev/x], mounts: ['/a:/b'], options: [--privileged]}"
    )
    given = topology(("name: small", f"name: small\n{runtime}")).runtime
    assert given.exec_prefix == ("podman", "exec", "-i", "c")
    assert (given.setup, given.state_dir, given.image) == (("/s.sh",), "/d", "i")
    assert topology().runtime.exec_prefix == ()


def test_start_takes_durations_as_people_write_them() -> None:
    plain = topology().start
    assert (plain.stagger, plain.deadline, plain.warm_up) == (0.5, 3600.0, True)
    given = topology(
        ("name: small", "name: small\nstart: {stagger: 250ms, deadline: 40min, warm_up: false}")
    ).start
    assert (given.stagger, given.deadline, given.warm_up) == (0.25, 2400.0, False)
    assert topology(("name: small", "name: small\nstart: {stagger: 2, deadline: 1.5h}")).start.deadline == 5400.0


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("{stagger: soon}", "duration"),
        ("{stagger: true}", "duration"),
        ("{stagger: 5min}", "at most 60"),
        ("{deadline: 0}", "greater than 0"),
        ("{deadline: -3s}", "duration"),
        ("{staggered: 2s}", "did you mean `stagger`"),
    ],
)
def test_start_that_makes_no_sense_is_refused(start: str, said: str) -> None:
    findings = loaded(changed(("name: small", f"name: small\nstart: {start}"))).findings
    assert [said in finding.message for finding in findings if str(finding.severity) == "error"] == [True]


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("0-7", {"n2": tuple(range(8)), "n3": tuple(range(8))}),
        ("[0, 2, 4, 6, 8-11]", {"n2": (0, 2, 4, 6, 8, 9, 10, 11), "n3": (0, 2, 4, 6, 8, 9, 10, 11)}),
        ("{n2: '0-3,8-11'}", {"n2": (0, 1, 2, 3, 8, 9, 10, 11), "n3": tuple(range(16))}),
    ],
)
def test_devices_in_every_form(devices: str, expected: dict[str, tuple[int, ...]]) -> None:
    cluster = topology(("kv_port: 14200", f"kv_port: 14200, devices: {devices}"))
    assert cluster.groups["d"].devices == expected


def test_kv_settings_by_role_and_group() -> None:
    cluster = topology(
        ("{connector: MooncakeConnectorV1}", "{connector: MooncakeConnectorV1, config: {kv_buffer_device: npu}}"),
        ("{max-num-seqs: 40}", "{max-num-seqs: 40}, kv: {extra: {x: 1}}"),
        ("kv_port: 14200", "kv_port: 14200, kv: {extra: {y: 2}, config: {engine_id: e}}"),
    )
    assert cluster.groups["d"].kv_extra == {"x": 1, "y": 2}
    assert cluster.groups["d"].kv_config == {"kv_buffer_device": "npu", "engine_id": "e"}
    assert cluster.groups["p"].kv_extra == {}


def test_unknown_keys_do_not_hide_what_else_is_wrong() -> None:
    result = loaded(changed(("name: small", "name: small\nnam: x"), ("kv_port: 14000", "kv_port: 20001")))
    assert [finding.rule for finding in result.findings] == ["F04", "R14"]
    assert result.topology is not None


def test_misspelt_keys_are_read_as_what_they_were_meant_to_be() -> None:
    result = loaded(
        changed(("groups:", "group:"), ("kv_port: 14000", "kvport: 20001"), ("name: small", "nam: small"))
    )
    assert [(finding.rule, finding.path, finding.line) for finding in result.findings] == [
        ("F04", "nam", 2),
        ("F04", "group", 15),
        ("F04", "groups.p.kvport", 16),
        ("R14", "groups.p.kv_port", 16),
    ]


def test_findings_carry_no_control_characters() -> None:
    hostile = '"\\e]0;x\\a\\e[31m\\n\\u202e"'
    for edit in (("platform: a3", f"platform: {hostile}"), ("name: small", f"name: small\n{hostile}: 1")):
        findings = loaded(changed(edit)).findings
        assert findings
        for finding in findings:
            assert not re.search("[\x00-\x1f\u202e]", finding.message + finding.path)


def test_load_checked_lists_the_errors(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(changed(("kv_port: 14000", "kv_port: 20001"), ("port: 1999", "port: 7100")))
    with pytest.raises(FileError) as caught:
        load_checked(file)
    text = str(caught.value)
    assert f"{file}:16:" in text
    assert "R14" in text
    assert "R72" in text
    assert "2 errors" in text
    assert "pdtui check" in caught.value.remedy


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"cannot read .*missing\.yaml: No such file"):
        load(tmp_path / "missing.yaml")
    with pytest.raises(FileError, match="directory"):
        load(tmp_path)
    with pytest.raises(FileError, match="cannot read"):
        load("a\0b")


def test_a_file_without_an_end_is_told_from_a_topology() -> None:
    assert [finding.rule for finding in load("/dev/zero").findings] == ["F02"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(BASE)
    file.chmod(0)
    with pytest.raises(FileError, match="Permission denied"):
        load(file)


def test_byte_order_mark_and_windows_line_ends() -> None:
    result = loaded(b"\xef\xbb\xbf" + BASE.replace("\n", "\r\n").encode())
    assert result.findings == ()


def test_schema_knows_every_key_and_explains_it() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert set(schema["required"]) == {
        "pdtui",
        "name",
        "platform",
        "model",
        "kv",
        "nodes",
        "groups",
    }
    assert (schema["then"]["required"], schema["else"]["required"]) == (["vllm"], ["vllm_ascend"])
    assert schema["additionalProperties"] is False
    for part in (schema, *schema["$defs"].values()):
        for name, field in part["properties"].items():
            referred = schema["$defs"].get(field.get("$ref", "").removeprefix("#/$defs/"), {})
            help_text = field.get("description") or referred.get("description")
            assert help_text, f"{part.get('title')}.{name} has no description"
    json.dumps(schema)
