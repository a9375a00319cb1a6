"""Scripts of several kinds, tied to hosts and to each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pdtui.topology.findings import Severity
from pdtui.topology.importing.assemble import assemble
from pdtui.topology.importing.observed import Wanted
from pdtui.topology.importing.report import Draft, Kind, Note
from pdtui.topology.importing.scripts import read
from pdtui.topology.importing.sources import Source
from pdtui.topology.load import load_bytes
from pdtui.topology.model import Topology
from pdtui.topology.planner import make_plan

WANTED = Wanted(vllm_ascend="0.22.1rc1", platform="a3")

TEMPLATE = """\
export HCCL_IF_IP={ip}
export GLOO_SOCKET_IFNAME=eth0 TP_SOCKET_IFNAME=eth0 HCCL_SOCKET_IFNAME=eth0
export HCCL_BUFFSIZE={buffer}
export ASCEND_RT_VISIBLE_DEVICES=$1
vllm serve /models/m --host 0.0.0.0 --port $2 --data-parallel-size $3 --data-parallel-rank $4 \\
  --data-parallel-address $5 --data-parallel-rpc-port $6 --tensor-parallel-size $7 --enable-expert-parallel \\
  --served-model-name m --seed 1024 --kv-transfer-config '{config}'
"""
LAUNCH = (
    "python launch_online_dp.py --dp-size {size} --tp-size {tp} --dp-size-local {local} --dp-rank-start {start} "
    "--dp-address {address} --dp-rpc-port 12321 --vllm-start-port 7100\n"
)


def config(role: str, port: int, **more: Any) -> str:
    sizes = {"prefill": {"dp_size": 2, "tp_size": 8}, "decode": {"dp_size": 24, "tp_size": 1}}
    return json.dumps(
        {
            "kv_connector": "MooncakeConnectorV1",
            "kv_role": f"kv_{role}",
            "kv_port": str(port),
            "kv_connector_extra_config": sizes,
            **more,
        }
    )


def template(ip: str, role: str, port: int, buffer: int) -> str:
    return TEMPLATE.format(ip=ip, buffer=buffer, config=config(role, port))


FILES = {
    "p.sh": template("192.0.0.1", "producer", 14000, 256),
    "d1.sh": template("192.0.0.2", "consumer", 14100, 600),
    "d2.sh": template("192.0.0.3", "consumer", 14100, 600),
    "launch.sh": "# on 192.0.0.1\n"
    + LAUNCH.format(size=2, tp=8, local=2, start=0, address="192.0.0.1")
    + "# on 192.0.0.2\n"
    + LAUNCH.format(size=24, tp=1, local=16, start=0, address="192.0.0.2")
    + "# on 192.0.0.3\n"
    + LAUNCH.format(size=24, tp=1, local=8, start=16, address="192.0.0.2"),
    "proxy.sh": "python load_balance_proxy_server_example.py --host 192.0.0.1 --port 1999 --prefiller-hosts "
    "192.0.0.1 192.0.0.1 --prefiller-ports 7100 7101 --decoder-hosts "
    + " ".join(["192.0.0.2"] * 16 + ["192.0.0.3"] * 8)
    + " --decoder-ports "
    + " ".join(str(7100 + index % 16) for index in range(24))
    + "\n",
}


def imported(files: dict[str, str], wanted: Wanted = WANTED) -> Draft:
    """Import files; a name `host=file` ties it to a host."""
    sources = []
    for name, text in files.items():
        host, equals, file = name.partition("=")
        sources.append(Source(file if equals else name, text.encode(), host if equals else ""))
    seen, notes = read(sources, wanted)
    return assemble(seen, wanted, notes)


def topology_of(draft: Draft) -> Topology:
    loaded = load_bytes(draft.text.encode(), Path("draft.yaml"))
    assert loaded.topology is not None, (draft.text, loaded.findings)
    return loaded.topology


def about(draft: Draft, kind: Kind) -> list[Note]:
    return [note for note in draft.notes if note.kind is kind]


def places(note: Note) -> list[str]:
    return [str(origin) for origin in note.origins]


def test_templates_launch_lines_and_proxy_become_one_file_with_nothing_said_twice() -> None:
    draft = imported(FILES)
    topology = topology_of(draft)
    decode = topology.groups["decode"]
    assert (decode.nodes, decode.ranks_per_node) == (("node2", "node3"), {"node2": 16, "node3": 8})
    assert draft.complete
    assert not about(draft, Kind.CONTRADICTION)
    assert not [finding for finding in draft.findings if finding.severity is not Severity.INFO]
    for once in ("HCCL_BUFFSIZE: 256", "seed: 1024", "eth0}", "ranks: {node2: 16, node3: 8}"):
        assert draft.text.count(once) == (3 if once == "eth0}" else 1)
    for derived in (
        "HCCL_IF_IP",
        "IFNAME",
        "kv_role",
        "data-parallel",
        "tensor-parallel-size",
        "devices:",
        "host: 0.0",
    ):
        assert derived not in draft.text
    ranks = make_plan(topology).by_id
    assert (ranks["decode/23"].host, ranks["decode/23"].api_port, ranks["decode/23"].devices) == (
        "192.0.0.3",
        7107,
        (7,),
    )


def test_what_differs_between_ranks_of_a_group_is_told_with_both_places() -> None:
    draft = imported({**FILES, "d2.sh": FILES["d2.sh"].replace("--seed 1024", "--seed 7")})
    [note] = about(draft, Kind.CONTRADICTION)[:1]
    assert "--seed differs between ranks of decode" in note.message
    assert places(note) == ["d1.sh:7", "d2.sh:7"]
    assert "seed: 7" not in draft.text


def test_a_rank_that_the_proxy_does_not_list_and_one_too_many_are_told_with_both_places() -> None:
    draft = imported({**FILES, "proxy.sh": FILES["proxy.sh"].replace("7100 7101 --dec", "7100 7109 --dec")})
    surplus, missing = [note for note in draft.notes if note.rule == "R71"]
    assert "192.0.0.1:7109" in surplus.message
    assert "192.0.0.1:7101" in missing.message
    assert places(missing) == ["proxy.sh:1", "p.sh:5"]


def test_a_rank_in_the_list_of_the_other_role_is_told() -> None:
    text = "vllm serve /m --port 7100 --kv-transfer-config '{}'\n".format(config("producer", 14000))
    proxy = (
        "python x_proxy.py --prefiller-hosts 192.0.0.2 --prefiller-ports 1 "
        "--decoder-hosts 192.0.0.1 --decoder-ports 7100"
    )
    draft = imported({"192.0.0.1=p.sh": text, "proxy.sh": proxy})
    assert any("listed for decode, but is started for prefill" in note.message for note in draft.notes)


def test_files_are_tied_to_hosts_by_name_and_named_after_them() -> None:
    serve = "HCCL_IF_IP={} vllm serve /m --port 7100 --kv-transfer-config '{}'\n"
    draft = imported(
        {
            "Rack1-A=p.sh": serve.format("192.0.0.1", config("producer", 14000)),
            "rack1-b.example=d.sh": serve.format("192.0.0.2", config("consumer", 14100)),
        }
    )
    nodes = topology_of(draft).nodes
    assert {name: (node.host, node.address) for name, node in nodes.items()} == {
        "rack1-a": ("Rack1-A", "192.0.0.1"),
        "rack1-b": ("rack1-b.example", "192.0.0.2"),
    }


def test_servers_started_in_a_loop_become_one_group() -> None:
    text = (
        "export HCCL_IF_IP=192.0.0.5 HCCL_SOCKET_IFNAME=eth1\n"
        "for i in {0..3}; do\n"
        "  ASCEND_RT_VISIBLE_DEVICES=$((i+8)) nohup vllm serve /m --port $((7100+i)) --data-parallel-size 4 \\\n"
        "    --data-parallel-rank $i --data-parallel-address 192.0.0.5 --data-parallel-rpc-port 9 \\\n"
        f"    --kv-transfer-config '{config('consumer', 14000)}' > d$i.log 2>&1 &\n"
        "done\nwait\n"
    )
    group = topology_of(imported({"d.sh": text})).groups["decode"]
    assert (group.dp_size, group.api_port, group.devices) == (4, 7100, {"node1": (8, 9, 10, 11)})


def test_instances_of_a_dense_model_become_one_group_when_their_ports_count_up() -> None:
    line = "ASCEND_RT_VISIBLE_DEVICES={} vllm serve /models/Qwen3-32B --port {} --tensor-parallel-size 2 "
    lines = [
        f"{line.format('0,1', 7100)} --kv-transfer-config '{config('producer', 14000)}' &",
        f"{line.format('2,3', 7101)} --kv-transfer-config '{config('producer', 14002)}' &",
    ]
    topology = topology_of(imported({"192.0.0.1=p.sh": "\n".join(lines)}))
    assert (topology.model.kind, topology.groups["prefill"].dp_size) == ("dense", 2)
    assert [rank.kv_ports[0] for rank in make_plan(topology).ranks] == [14000, 14002]


def test_scripts_that_are_called_in_other_ways_are_followed() -> None:
    inner = f"vllm serve /m --port 7100 --kv-transfer-config '{config('producer', 14000)}'"
    text = (
        "ssh root@192.0.0.1 'export HCCL_BUFFSIZE=9; source /usr/local/Ascend/ascend-toolkit/set_env.sh; "
        "bash /x/p.sh'\n"
        'ssh root@192.0.0.2 "docker exec -d vllm bash /x/d.sh 0 7200"\n'
    )
    d = f"ASCEND_RT_VISIBLE_DEVICES=$1 vllm serve /m --port $2 --kv-transfer-config '{config('consumer', 14100)}'"
    draft = imported({"all.sh": text, "d.sh": d, "192.0.0.1=p.sh": inner})
    topology = topology_of(draft)
    assert {rank.id: (rank.host, rank.api_port) for rank in make_plan(topology).ranks} == {
        "prefill/0": ("192.0.0.1", 7100),
        "decode/0": ("192.0.0.2", 7200),
    }
    assert topology.runtime.setup == ("/usr/local/Ascend/ascend-toolkit/set_env.sh",)


def test_a_container_becomes_the_runtime_without_what_every_container_has() -> None:
    run = (
        "docker run --rm --name v --net=host --shm-size=2g --device /dev/davinci0 --device /dev/davinci_manager "
        "-v /etc/hccn.conf:/etc/hccn.conf -v /data:/data:ro --privileged "
        "-it quay.io/ascend/vllm-ascend:v0.23.0-a3 bash\n"
    )
    draft = imported({**FILES, "docker.sh": run}, Wanted())
    runtime = topology_of(draft).runtime
    assert (runtime.container, runtime.shm_size, runtime.mounts) == ("v", "2g", ("/data:/data:ro",))
    assert (runtime.devices, runtime.options) == ((), ("--privileged",))
    assert 'vllm_ascend: "0.23.0"' in draft.text


def test_what_is_needed_and_said_nowhere_is_asked_for_with_the_line_to_write() -> None:
    draft = imported({"a.sh": "vllm serve /m --port 7100\n"}, Wanted())
    lines = draft.text.split("\n")
    asked = about(draft, Kind.ASKED)
    assert {note.path for note in asked} >= {"vllm_ascend", "kv.connector", "nodes.node1.host", "nodes.node1.nic"}
    for note in asked:
        line = int(note.message.split("line ")[1].split()[0])
        assert note.path.split(".")[-1] in lines[line - 1]
    assert any(finding.rule == "V2" for finding in draft.findings)
    assert not draft.complete


def test_a_value_that_only_the_machine_knows_is_named_and_not_guessed() -> None:
    draft = imported({"192.0.0.1=a.sh": "export A=$(nproc)\nvllm serve /m --port $PORT\n"})
    unread = [(note.message, places(note)) for note in about(draft, Kind.UNREAD)]
    assert ("A: `$(nproc)` is only known where it runs", ["a.sh:1"]) in unread
    assert any("--port" in message and "$PORT" in message for message, _ in unread)


def test_secrets_are_referred_to_and_not_copied() -> None:
    exports = "export HF_TOKEN=hf_secret HF_ENDPOINT=https://ann:s3cret@mirror.example"
    draft = imported({"192.0.0.1=a.sh": f"{exports}\nvllm serve /m --api-key hunter2 --port 7100\n"})
    assert "HF_TOKEN: {from_env: HF_TOKEN}" in draft.text
    assert "VLLM_API_KEY: {from_env: VLLM_API_KEY}" in draft.text
    everything = draft.text + "".join(note.message for note in draft.notes)
    assert "HF_ENDPOINT: {from_env: HF_ENDPOINT}" in draft.text
    assert "hf_secret" not in everything
    assert "s3cret" not in everything
    assert "hunter2" not in everything


def test_no_line_of_the_report_repeats_a_secret() -> None:
    script = (
        "docker run -e HF_TOKEN=s3cret --env=URL=https://ann:s3cret@host --name c img:1 bash\n"
        "vllm serve /m --port 7100 --api-key s3cret\\\n--served-model-name m\n"
        "( ( export MY_TOKEN=s3cret\n"
    )
    draft = imported({"192.0.0.1=a.sh": script})
    assert "s3cret" not in draft.text + " ".join(note.message for note in draft.notes)
    assert 'options: ["-e", HF_TOKEN, "--env=URL"]' in draft.text
    assert any("bash reads one word" in note.message for note in draft.notes)


def test_a_secret_flag_that_is_no_key_for_clients_is_left_to_the_user() -> None:
    draft = imported({"192.0.0.1=a.sh": "vllm serve /m --hf-token hunter2 --port 7100\n"})
    assert "VLLM_API_KEY" not in draft.text
    assert "hunter2" not in draft.text
    assert [note.message.partition(";")[0] for note in about(draft, Kind.ASKED) if "hf-token" in note.message] == [
        "--hf-token is a secret and was left out"
    ]
    assert not draft.complete


@pytest.mark.parametrize(
    ("files", "rule", "words"),
    [
        (
            {**FILES, "launch.sh": FILES["launch.sh"].replace("192.0.0.3\n", "192.0.0.2\n")},
            "R08",
            "NPUs from 0 up",
        ),
        ({**FILES, "p.sh": FILES["p.sh"].replace("--port $2", "--port $6")}, "R59", "passes it as $2"),
        (
            {**FILES, "p.sh": FILES["p.sh"].replace("DEVICES=$1", "DEVICES=0")},
            "R59",
            "ASCEND_RT_VISIBLE_DEVICES=$1",
        ),
        ({**FILES, "p.sh": FILES["p.sh"].replace('"14000", ', '"14000", /* x */ ')}, "R22", "a comment"),
        ({**FILES, "p.sh": FILES["p.sh"].replace('{"dp_size": 2', '{"dp_size": 4')}, "R26", "dp4 tp8"),
        ({**FILES, "p.sh": FILES["p.sh"].replace("$4 \\\n", "$4 \\ \n")}, "R60", "the command ends here"),
        ({**FILES, "proxy.sh": FILES["proxy.sh"].replace("--port", "--workers 2 --prot")}, "R74", "--prot"),
        (
            {**FILES, "proxy.sh": FILES["proxy.sh"].replace("--port 1999", "--port 1999 --decoder-hosts-num 1 2")},
            "X3",
            "2 numbers for 24 hosts",
        ),
        (
            {**FILES, "d2.sh": FILES["d2.sh"].replace("--served-model-name m", "--served-model-name n")},
            "R44",
            "n there",
        ),
        ({**FILES, "d2.sh": FILES["d2.sh"].replace("$3 --data-parallel-rank $4", "$3")}, "R10", "rank is missing"),
    ],
)
def test_what_is_wrong_in_scripts_is_told_by_rule(files: dict[str, str], rule: str, words: str) -> None:
    notes = [note for note in imported(files).notes if note.rule == rule]
    assert any(words in note.message for note in notes), notes
    assert all(note.origins for note in notes)


def test_sound_scripts_have_no_such_findings() -> None:
    assert not [note for note in imported(FILES).notes if note.rule]


@pytest.mark.parametrize("delimiter", ["'EOF'", "EOF"])
def test_a_template_that_a_script_writes_is_read(delimiter: str) -> None:
    body = FILES["p.sh"] if delimiter != "EOF" else FILES["p.sh"].replace("$", "\\$").replace("\\\n", "\\\\\n")
    text = f"cat > /x/run_dp_template.sh <<{delimiter}\n{body}EOF\ncd /x\n{FILES['launch.sh'].splitlines()[1]}\n"
    group = topology_of(imported({"all.sh": text})).groups["prefill"]
    assert (group.dp_size, group.tp_size, group.kv_port) == (2, 8, 14000)


def test_a_condition_that_only_the_machine_knows_is_read_as_if_it_held_and_named() -> None:
    text = (
        f"if [ -d /data ]; then\n  vllm serve /m --port 1 --kv-transfer-config '{config('producer', 14000)}'\nfi\n"
    )
    draft = imported({"192.0.0.1=a.sh": text})
    assert topology_of(draft).groups["prefill"].api_port == 1
    [note] = [note for note in draft.notes if "as if it held" in note.message]
    assert places(note) == ["a.sh:1"]


def test_hosts_by_name_are_matched_with_the_addresses_that_others_call_them_by() -> None:
    unknown = {name: text.replace("HCCL_IF_IP=192", "HCCL_IF_IP=$(hostname -I)#") for name, text in FILES.items()}
    lines = FILES["launch.sh"].split("\n")
    draft = imported(
        {
            "atlas1=p.sh": unknown["p.sh"],
            "atlas1=l1.sh": lines[1],
            "atlas2=d1.sh": unknown["d1.sh"],
            "atlas2=l2.sh": lines[3],
            "atlas3=d2.sh": unknown["d2.sh"],
            "atlas3=l3.sh": lines[5],
            "proxy.sh": FILES["proxy.sh"],
        }
    )
    topology = topology_of(draft)
    assert {name: node.address for name, node in topology.nodes.items()} == {
        "atlas1": "192.0.0.1",
        "atlas2": "192.0.0.2",
        "atlas3": "192.0.0.3",
    }
    assert topology.groups["decode"].ranks_per_node == {"atlas2": 16, "atlas3": 8}
    assert topology.proxy is not None
    assert topology.proxy.node == "atlas1"
    assert not about(draft, Kind.CONTRADICTION)


def test_short_flags_are_read_by_their_long_names_and_strange_ones_named() -> None:
    transfer = config("producer", 14000)
    script = (
        "export HCCL_IF_IP=192.0.0.1 GLOO_SOCKET_IFNAME=eth0\n"
        f"vllm serve /models/m -tp 8 -ep -q=ascend --port 7100 --served-model-name m -cc.cudagraph_mode FULL -O3 "
        f"--max-num-seqs 4 --kv-transfer-config '{transfer}'\n"
    )
    made = imported({"p.sh": script})
    text = made.text
    assert "tp_size: 8" in text
    assert "enable-expert-parallel: true" in text
    assert "quantization: ascend" in text
    assert "max-num-seqs: 4" in text
    assert "compilation-config.cudagraph_mode: FULL" in text
    assert [one.message for one in made.notes if one.kind is Kind.UNREAD] == [
        "-O3 was left out: write optimization-level, or compilation-config.level before vLLM 0.12"
    ]


def test_keys_behind_a_dot_keep_their_underscores() -> None:
    script = "vllm serve /models/m --port 7100 --compilation_config.cudagraph_mode FULL\n"
    assert "compilation-config.cudagraph_mode: FULL" in imported({"p.sh": script}).text


def test_variables_of_a_file_reach_every_server() -> None:
    env = "# shared\nHCCL_CONNECT_TIMEOUT=600\nexport A='x y'\nB={\"a\": [1]}\n"
    topology = topology_of(imported({**FILES, "all.env": env}))
    for rank in make_plan(topology).ranks:
        assert (rank.env["HCCL_CONNECT_TIMEOUT"], rank.env["A"], rank.env["B"]) == ("600", "x y", '{"a": [1]}')


def test_a_dollar_that_a_topology_would_expand_is_told() -> None:
    serve = (
        f"export A='$HOME' B=\"\\$5\"\nvllm serve /m --port 1 --kv-transfer-config '{config('producer', 14000)}'\n"
    )
    notes = [note for note in imported({"192.0.0.1=a.sh": serve}).notes if "literal" in note.message]
    assert [note.message.split()[0] for note in notes] == ["A"]
