"""What the sample files come to is what vLLM-Ascend's guides write by hand."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from pdtui.assets import asset_dir
from pdtui.topology.findings import Severity
from pdtui.topology.load import load, load_bytes
from pdtui.topology.plan import Plan, RankPlan
from pdtui.topology.planner import make_plan

DATA = Path(__file__).parent / "data"
MOONCAKE = "export LD_LIBRARY_PATH=/usr/local/lib64/python3.12/site-packages/mooncake:$LD_LIBRARY_PATH"
"""The guide has every rank start from a shell in which this was run."""


@dataclass(frozen=True)
class GuideRank:
    """One run of a guide's template, its parameters expanded as its launcher does."""

    env: dict[str, str]
    model: str
    flags: dict[str, object]


def sample(name: str) -> Path:
    return asset_dir("sample_configs") / name


def plan_of(name: str) -> Plan:
    loaded = load(sample(name))
    assert loaded.topology is not None
    assert not loaded.errors
    return make_plan(loaded.topology)


def templates(text: str) -> list[str]:
    """Return the scripts of a guide: from `nic_name=` to the end of the `vllm serve` command."""
    return re.findall(r"^nic_name=.*?^vllm serve .*?\n  \}\'$", text, re.MULTILINE | re.DOTALL)


def expand(script: str, arguments: list[str]) -> GuideRank:
    variables = dict(re.findall(r'^(\w+)="([^"]*)"', script, re.MULTILINE))
    for number, value in enumerate(arguments, 1):
        variables[str(number)] = value
    script = re.sub(r"\$(\w+)", lambda name: variables.get(name[1], name[0]), script)
    before, command = script.split("vllm serve ", 1)
    env = {}
    for line in before.splitlines():
        if line.startswith("export "):
            name, value = shlex.split(line.removeprefix("export "))[0].split("=", 1)
            env[name] = value
    words = shlex.split(command.replace("\\\n", " "))
    return GuideRank(env, words[0], flags(words[1:]))


def flags(words: list[str]) -> dict[str, object]:
    """Return flags by name, JSON as values, one that stands alone as True."""
    result: dict[str, object] = {}
    for index, word in enumerate(words):
        if not word.startswith("--"):
            continue
        value = words[index + 1] if index + 1 < len(words) and not words[index + 1].startswith("--") else None
        assert word not in result, f"{word} twice"
        result[word] = True if value is None else json.loads(value) if value.startswith("{") else value
    return result


def launches(text: str) -> dict[str, dict[str, str]]:
    """Return the launcher's options by server."""
    found = re.findall(r"^# on (\S+)\npython launch_online_dp.py (.*)$", text, re.MULTILINE)
    return {
        host: dict(zip(words[::2], words[1::2], strict=True))
        for host, words in ((host, options.split()) for host, options in found)
    }


def launched(options: dict[str, str]) -> list[list[str]]:
    """Return $1..$7 of each run, as launch_online_dp.py computes them."""
    size = int(options["--tp-size"])
    return [
        [
            ",".join(str(device) for device in range(index * size, (index + 1) * size)),
            str(int(options["--vllm-start-port"]) + index),
            options["--dp-size"],
            str(int(options["--dp-rank-start"]) + index),
            options["--dp-address"],
            options["--dp-rpc-port"],
            options["--tp-size"],
        ]
        for index in range(int(options["--dp-size-local"]))
    ]


def environment_on_a_node(rank: RankPlan) -> dict[str, str]:
    """Return the rank's environment as a shell with a LD_LIBRARY_PATH of its own makes it."""
    env = dict(rank.env)
    script = f'printf %s "{env["LD_LIBRARY_PATH"]}"'
    done = subprocess.run(
        ["bash", "-c", script], env={"LD_LIBRARY_PATH": "/old"}, capture_output=True, text=True, check=True
    )
    return {**env, "LD_LIBRARY_PATH": done.stdout}


@pytest.mark.parametrize(
    ("file", "connector"),
    [
        ("deepseek-r1-2p1d.yaml", "MooncakeConnectorV1"),
        ("deepseek-r1-2p1d-layerwise.yaml", "MooncakeLayerwiseConnector"),
    ],
)
def test_every_rank_of_2p1d_equals_the_guide(file: str, connector: str) -> None:
    text = (DATA / "guide_2p1d.txt").read_text()
    scripts = [script for script in templates(text) if connector in script]
    hosts = launches(text)
    assert len(scripts) == len(hosts) == 4
    plan = plan_of(file)
    compared = 0
    for script in scripts:
        match = re.search(r'^local_ip="(\S+)"', script, re.MULTILINE)
        assert match is not None
        host = match[1]
        ours = [rank for rank in plan.ranks if rank.host == host]
        runs = launched(hosts[host])
        assert len(ours) == len(runs)
        for rank, arguments in zip(ours, runs, strict=True):
            guide = expand(script, arguments)
            assert rank.argv[:3] == ("vllm", "serve", guide.model)
            assert flags(list(rank.argv[3:])) == guide.flags
            expected = {
                **guide.env,
                "LD_LIBRARY_PATH": MOONCAKE.split("=", 1)[1].replace("$LD_LIBRARY_PATH", "/old"),
            }
            added = {"VLLM_HOST_IP": host}
            assert environment_on_a_node(rank) == {**expected, **added}
            compared += 1
    assert compared == len(plan.ranks) == 36


def test_2p1d_ports_and_devices() -> None:
    plan = plan_of("deepseek-r1-2p1d.yaml")
    assert [rank.id for rank in plan.on_node("node4")] == [f"decode/{number}" for number in range(16, 32)]
    assert plan.by_id["p2/1"].kv_ports == tuple(range(36108, 36116))
    assert plan.by_id["decode/16"].kv_ports == (36216,)
    assert plan.by_id["decode/31"].devices == (15,)
    assert plan.by_id["decode/31"].api_port == 7115


def test_large_ep_has_the_guides_ranks_devices_and_ports() -> None:
    text = (DATA / "guide_large_ep_zh.txt").read_text()
    prefill, decode = (
        dict(re.findall(r'^(dp_\w+|engine_port) = "?([\d.]+)"?', part, re.MULTILINE))
        for part in text.split("import multiprocessing")[1:]
    )
    plan = plan_of("deepseek-r1-large-ep.yaml")
    hosts = [f"192.0.0.{number}" for number in range(1, 9)]
    assert [sum(rank.host == host for rank in plan.ranks) for host in hosts] == [2] * 4 + [16] * 4
    for index, host in enumerate(hosts):
        guide = prefill if index < 4 else decode
        start = 0 if index < 4 else 16 * (index - 4)
        address = host if index < 4 else guide["dp_ip"]
        size = 8 if index < 4 else 1
        for local, rank in enumerate(rank for rank in plan.ranks if rank.host == host):
            given = flags(list(rank.argv[3:]))
            assert rank.dp_rank == start + local
            assert rank.devices == tuple(range(local * size, (local + 1) * size))
            assert given["--data-parallel-size"] == guide["dp_size"]
            assert given["--data-parallel-address"] == address
            assert given["--data-parallel-rpc-port"] == guide["dp_port"]
            assert given["--data-parallel-rank"] == str(rank.dp_rank)
            assert given["--tensor-parallel-size"] == str(size)
            assert given["--port"] == str(int(guide["engine_port"]) + local)
    assert plan.by_id["p3/1"].kv_ports == tuple(range(36008, 36016))
    assert plan.by_id["decode/63"].kv_ports == (36163,)
    prefill_ports = {port for rank in plan.ranks if rank.role == "prefill" for port in rank.kv_ports}
    assert not prefill_ports & {port for rank in plan.ranks if rank.role == "decode" for port in rank.kv_ports}


def test_large_ep_keeps_the_guides_flags_and_variables() -> None:
    text = (DATA / "guide_large_ep_zh.txt").read_text()
    scripts = re.findall(
        r"^# run_dp_template.sh.*?^    --additional-config '[^']*'$", text, re.MULTILINE | re.DOTALL
    )
    assert len(scripts) == 2
    derived_or_gone = {"--additional-config", "--kv-transfer-config", "--port", "--tensor-parallel-size"}
    translated = {"--speculative-config": {"num_speculative_tokens": 1, "method": "mtp"}}
    plan = plan_of("deepseek-r1-large-ep.yaml")
    for script, name in zip(scripts, ("p1/0", "decode/0"), strict=True):
        command = re.sub(r"--(kv-transfer|additional)-config\s+\\?\s*'[^']*'", "", script.split("vllm serve ")[1])
        guide = flags(shlex.split(command.replace("\\\n", " "))[1:])
        ours = flags(list(plan.by_id[name].argv[3:]))
        for flag in set(guide) - derived_or_gone:
            assert ours[flag] == translated.get(flag, guide[flag]), flag
        assert plan.by_id[name].argv[2] == "vllm-ascend/DeepSeek-R1-W8A8"
        env = dict(re.findall(r'^export (\w+)="?([^"\n]*?)"?$', script, re.MULTILINE))
        kept = {key: value for key, value in env.items() if not key.startswith("VLLM_") and "$" not in value}
        assert kept.items() <= plan.by_id[name].env.items()
        assert plan.by_id[name].env["VLLM_USE_MODELSCOPE"] == env["VLLM_USE_MODELSCOPE"]


def test_large_ep_with_the_guides_kv_port_is_refused() -> None:
    text = re.sub(r"kv_port: 36\d00", "kv_port: 20001", sample("deepseek-r1-large-ep.yaml").read_text())
    findings = load_bytes(text.encode(), Path("ep.yaml")).findings
    assert [finding.path for finding in findings if finding.rule == "R14"] == [
        f"groups.{name}.kv_port" for name in ("p1", "p2", "p3", "p4", "decode")
    ]
    assert {finding.severity for finding in findings if finding.rule == "R14"} == {Severity.ERROR}
    assert "20001-20016" in findings[0].message


def test_samples_have_no_errors_and_only_the_known_warning() -> None:
    names = sorted(path.name for path in asset_dir("sample_configs").glob("*.yaml"))
    assert names == [
        "a2-1p1d-kv-pool.yaml",
        "a2-1p1d.yaml",
        "a2-2p1d.yaml",
        "cpu-1p1d.yaml",
        "cpu-2p2d-moe.yaml",
        "deepseek-r1-2p1d-layerwise.yaml",
        "deepseek-r1-2p1d.yaml",
        "deepseek-r1-large-ep.yaml",
        "demo.yaml",
    ]
    for name in names:
        rules = {finding.rule for finding in load(sample(name)).findings}
        old = {"S4", "V7"} if "2p1d" in name else set[str]()  # The guide's own words, which are older than it.
        assert rules == ({"R16", *old} if name.startswith("deepseek") else set()), name


def test_demo_is_2p1d_scaled_down() -> None:
    plan = plan_of("demo.yaml")
    assert len(plan.ranks) == 12
    assert [rank.id for rank in plan.on_node("node4")] == ["decode/4", "decode/5", "decode/6", "decode/7"]
    loaded = load(sample("demo.yaml"))
    assert loaded.topology is not None
    assert loaded.topology.runtime.container is None
    assert loaded.topology.runtime.setup
