"""What is rendered from the sample files means what vLLM-Ascend's guides write by hand.

Each difference that is on purpose stands here, with its reason.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pdtui.assets import asset_dir
from pdtui.topology.load import load
from pdtui.topology.render.files import render
from tests.topology.test_guides import MOONCAKE, expand, flags, launches, templates

DATA = Path(__file__).parents[1] / "data"
SYMBOLS = [f"<{number}>" for number in range(1, 8)]
"""Stand for $1 to $7, so that a comparison shows which goes where."""

FLOWS = {
    "deepseek-r1-2p1d.yaml": ("MooncakeConnectorV1", "load_balance_proxy_server_example.py"),
    "deepseek-r1-2p1d-layerwise.yaml": (
        "MooncakeLayerwiseConnector",
        "load_balance_proxy_layerwise_server_example.py",
    ),
}


@cache
def rendered(sample: str) -> dict[str, str]:
    topology = load(asset_dir("sample_configs") / sample).topology
    assert topology is not None
    return {file.path: file.text for file in render(topology).files}


def folders(sample: str) -> dict[str, str]:
    """Return address -> folder of the ranks there."""
    topology = load(asset_dir("sample_configs") / sample).topology
    assert topology is not None
    return {
        topology.nodes[node].address: f"{node}/{name}"
        for name, group in topology.groups.items()
        for node in group.nodes
    }


def guide(name: str) -> str:
    return (DATA / f"guide_{name}.txt").read_text()


def commands(text: str, begin: str) -> list[list[str]]:
    """Return the words of every command over several lines that begins so."""
    found = re.findall(rf"^{re.escape(begin)}.*?(?<!\\)\n", text + "\n", re.MULTILINE | re.DOTALL)
    return [shlex.split(command.replace("\\\n", " ")) for command in found]


def options(words: list[str]) -> dict[str, list[str]]:
    result: dict[str, list[str]] = {}
    for word in words:
        if word.startswith("--"):
            result[word] = []
        elif result:
            list(result.values())[-1].append(word)
    return result


@pytest.mark.parametrize("sample", FLOWS)
def test_templates_of_2p1d(sample: str) -> None:
    connector, _ = FLOWS[sample]
    scripts = [script for script in templates(guide("2p1d")) if connector in script]
    assert len(scripts) == 4
    for script in scripts:
        match = re.search(r'^local_ip="(\S+)"', script, re.MULTILINE)
        assert match is not None
        theirs = expand(script, SYMBOLS)
        ours = expand(rendered(sample)[f"{folders(sample)[match[1]]}/run_dp_template.sh"], SYMBOLS)
        assert ours.model == theirs.model
        assert ours.flags == theirs.flags
        assert ours.flags["--port"] == "<2>"
        assert ours.flags["--tensor-parallel-size"] == "<7>"
        added = {
            # On servers with several interfaces the KV cache's address is otherwise that of the default route.
            "VLLM_HOST_IP": match[1],
            # The guide exports it by hand before a template runs; it does not depend on the shell now.
            "LD_LIBRARY_PATH": MOONCAKE.split("=")[1].replace(
                ":$LD_LIBRARY_PATH", "${LD_LIBRARY_PATH:+:${LD_LIBRARY_PATH}}"
            ),
        }
        assert ours.env == theirs.env | added


@pytest.mark.parametrize("sample", FLOWS)
def test_launch_lines_of_2p1d_are_the_guides_word_for_word(sample: str) -> None:
    """But for `python3`, which servers have that have no `python`; also for the proxy."""
    theirs = launches(guide("2p1d"))
    assert len(theirs) == 4
    for host, folder in folders(sample).items():
        text = rendered(sample)[f"{folder}/launch.sh"]
        (line,) = re.findall(r"^python3 launch_online_dp.py.*$", text, re.MULTILINE)
        assert line.split()[2:] == [word for pair in theirs[host].items() for word in pair]


@pytest.mark.parametrize("sample", FLOWS)
def test_proxy_of_2p1d(sample: str) -> None:
    _, name = FLOWS[sample]
    (theirs,) = commands(guide("2p1d_services"), f"python {name} ")
    (ours,) = commands(rendered(sample)["node1/proxy.sh"], f"python3 {name} ")
    ours[0] = "python"
    if sample == "deepseek-r1-2p1d.yaml":
        # The file says that the proxy listens everywhere; only in the layerwise flow --host is called back, too.
        assert (options(ours)["--host"], options(theirs)["--host"]) == (["0.0.0.0"], ["192.0.0.1"])
        ours[ours.index("0.0.0.0")] = "192.0.0.1"
    assert ours == theirs
    assert len(options(ours)["--decoder-ports"]) == 32


@pytest.mark.parametrize("sample", FLOWS)
def test_container_of_2p1d(sample: str) -> None:
    (theirs,) = commands(guide("2p1d_services"), "docker run ")
    for form in ("container_shell.sh", "start_container.sh"):
        (ours,) = commands(rendered(sample)[f"node3/{form}"], "docker run ")
        same = [word.replace("$NAME", "vllm-ascend") for word in theirs]
        # The guide's image is a mirror's for A2; A3 needs that with -a3.
        same[same.index("$IMAGE")] = "quay.io/ascend/vllm-ascend:v0.22.1rc1-a3"
        # Records of ranks are to survive the container.
        records = ["-v", "/var/lib/pdtui:/var/lib/pdtui"]
        at = ours.index(records[1]) - 1
        assert ours[at : at + 2] == records
        del ours[at : at + 2]
        if form == "start_container.sh":
            # In the background it neither has a terminal nor is it removed when it ends: its log is still wanted.
            image = same.index("-it")
            keep = ["-c", "trap exit TERM; sleep infinity & wait"]
            same = [*same[:image], "--entrypoint", "bash", same[image + 1], *keep]
            same[same.index("--rm")] = "-d"
        assert ours == same


def aisbench(text: str) -> dict[str, Any]:
    """Return the one model of a configuration, as AISBench evaluates it."""
    (found,) = re.findall(r"^models = \[.*?^\]", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"VLLMCustomAPIChatStream": "VLLMCustomAPIChatStream"}
    exec(found, names)
    (model,) = names["models"]
    assert isinstance(model, dict)
    return model


@pytest.mark.parametrize("sample", [*FLOWS, "deepseek-r1-large-ep.yaml"])
def test_benchmark(sample: str) -> None:
    theirs = aisbench(guide("2p1d_services" if sample in FLOWS else "large_ep_services"))
    ours = aisbench(rendered(sample)["benchmark/vllm_api_stream_chat.py"])
    # The guides' benchmarks ask for a model that nobody serves ...
    assert theirs.pop("model") == "dsr1"
    assert ours.pop("model") == ("ds_r1" if sample in FLOWS else "deepseek_r1")
    if sample in FLOWS:
        # ... and that of 2P1D at a port where nobody listens; its tokenizer lies elsewhere than its weights.
        assert (theirs.pop("host_port"), ours.pop("host_port")) == (8000, 1999)
        assert theirs.pop("path") == "/root/.cache/ds_r1"
        assert ours.pop("path") == "/path_to_weight/DeepSeek-r1_w8a8_mtp"
    assert ours == theirs


@pytest.mark.parametrize(("sample", "loop"), [("deepseek-r1-2p1d.yaml", "{0..15}"), ("a2-2p1d.yaml", "{0..7}")])
def test_checks_of_the_servers_are_the_guides(sample: str, loop: str) -> None:
    def normal(text: str) -> set[str]:
        found = re.findall(r"^\s*(for i in .*|cat /etc/hccn.conf)$", text, re.MULTILINE)
        return {re.sub(r"\s*;\s*", "; ", line) for line in found}

    theirs = {line for line in normal(guide("2p1d_services")) if loop in line or line.startswith("cat")}
    assert len(theirs) in {9, 10}
    assert normal(rendered(sample)["README.md"]) == theirs


@pytest.mark.parametrize("sample", FLOWS)
def test_the_question_of_the_guide_goes_to_where_the_proxy_listens(sample: str) -> None:
    theirs = shlex.split("curl " + guide("2p1d_services").split("curl ")[1].replace("\\\n", " "))
    (ours,) = commands(rendered(sample)["README.md"], "curl ")
    assert theirs[1] == "http://192.0.0.1:8080/v1/completions"  # Its own proxy listens on 1999.
    assert ours[1] == "http://192.0.0.1:1999/v1/completions"
    assert ours[2:4] == theirs[2:4]
    assert ours[4] == "-d"
    # max_completion_tokens is of /v1/chat/completions; here it is not read.
    body = theirs[5].replace("max_completion_tokens", "max_tokens")
    assert "".join(ours[5].split()) == "".join(body.split())


EP = "deepseek-r1-large-ep.yaml"


def test_proxy_of_the_ep_guide() -> None:
    """The options that repeat hosts and count ports up are gone; what they came to is written out."""
    (theirs,) = commands(guide("large_ep_zh"), "python load_balance_proxy_server_example.py ")
    (ours,) = commands(rendered(EP)["node1/proxy.sh"], "python3 load_balance_proxy_server_example.py ")
    old, new = options(theirs), options(ours)
    for role in ("prefiller", "decoder"):
        hosts, ports = [], []
        counts = old.pop(f"--{role}-hosts-num"), old.pop(f"--{role}-ports-inc")
        for host, times in zip(old[f"--{role}-hosts"], counts[0], strict=True):
            hosts += [host] * int(times)
        for port, times in zip(old[f"--{role}-ports"], counts[1], strict=True):
            ports += [str(int(port) + index) for index in range(int(times))]
        old |= {f"--{role}-hosts": hosts, f"--{role}-ports": ports}
    assert new == old


def test_launches_and_templates_of_the_ep_guide() -> None:
    """Its launcher hands over other arguments in another order, and its templates take the rank from variables."""
    text = guide("large_ep_zh")
    constants = [
        dict(re.findall(r'^(dp_\w+|engine_port) = "?([\d.]+)"?', part, re.MULTILINE))
        for part in text.split("import multiprocessing")[1:]
    ]
    scripts = re.findall(
        r"^# run_dp_template.sh.*?^    --additional-config '[^']*'$", text, re.MULTILINE | re.DOTALL
    )
    gone = {
        "--kv-transfer-config",
        "--additional-config",
    }  # Keys that today's vllm-ascend refuses or does not read.
    for script, said, folder, tp, start in zip(
        scripts, constants, ("node1/p1", "node6/decode"), ("8", "1"), ("0", "16"), strict=True
    ):
        launch = rendered(EP)[f"{folder}/launch.sh"]
        ours = options(shlex.split(launch.splitlines()[-1]))
        assert {name: value[0] for name, value in ours.items()} == {
            "--dp-size": said["dp_size"],
            "--tp-size": tp,
            "--dp-size-local": said["dp_size_local"],
            "--dp-rank-start": start,
            "--dp-address": said["dp_ip"],
            "--dp-rpc-port": said["dp_port"],
            "--vllm-start-port": said["engine_port"],
        }
        command = re.sub(r"--(kv-transfer|additional)-config\s+\\?\s*'[^']*'", "", script.split("vllm serve ")[1])
        theirs = flags(shlex.split(command.replace("\\\n", " "))[1:])
        now = expand(rendered(EP)[f"{folder}/run_dp_template.sh"], SYMBOLS)
        changed = {
            "--port": "<2>",  # Was the sixth argument.
            "--tensor-parallel-size": "<7>",  # Was written in the template.
            "--speculative-config": {"num_speculative_tokens": 1, "method": "mtp"},  # Renamed.
            "--data-parallel-size": "<3>",  # These four were VLLM_DP_* variables.
            "--data-parallel-rank": "<4>",
            "--data-parallel-address": "<5>",
            "--data-parallel-rpc-port": "<6>",
        }
        assert {name: value for name, value in now.flags.items() if name not in gone} == theirs | changed
        assert now.env["ASCEND_RT_VISIBLE_DEVICES"] == "<1>"  # Was left to the local rank.
        exported = dict(re.findall(r'^export (\w+)="?([^"\n$]*?)"?$', script, re.MULTILINE))
        obsolete = {"VLLM_WORKER_MULTIPROC_METHOD", "VLLM_ASCEND_EXTERNAL_DP_LB_ENABLED"}
        assert {name: value for name, value in exported.items() if name not in obsolete}.items() <= now.env.items()
