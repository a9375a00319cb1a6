"""What hosts say of what runs there, into the records of an import; the script looks at a process of ours."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as given_any
from hypothesis import settings
from hypothesis import strategies as st

from pdtui.clock import SystemClock
from pdtui.errors import UsageError
from pdtui.fleet.discovering import survey_script
from pdtui.fleet.discovering.hosts import hosts_of
from pdtui.fleet.discovering.observing import cluster_of, in_words, observed, platform_of
from pdtui.fleet.discovering.survey import (
    ContainerSeen,
    ProxySeen,
    Record,
    ServerSeen,
    Survey,
    proxy_words,
    survey,
)
from pdtui.fleet.discovering.variables import KEEP, LISTS, ROOTS, Seen, as_written, given, setup_of
from pdtui.remote.messages.commands import Command, Completed, Facts
from pdtui.remote.messages.processes import ProcessInfo
from pdtui.topology.importing.report import Kind
from pdtui.topology.model import SshOptions
from pdtui.topology.redact import SECRET_PATTERN

ARGV = ("vllm", "serve", "/models/m", "--host", "0.0.0.0", "--port", "7100", "--api-key", "hunter2", "--seed", "1")


# --- variables


def test_a_rank_was_given_what_a_login_does_not_have() -> None:
    login = Seen(
        {"OMP_NUM_THREADS": "4", "ATB_X": "1", "LD_LIBRARY_PATH": "/cann/lib64:/driver"}, ("HF_TOKEN",), 30
    )
    process = Seen(
        {
            "OMP_NUM_THREADS": "10",
            "ATB_X": "1",
            "ASCEND_HOME_PATH": "/cann",
            "LD_LIBRARY_PATH": "/mooncake:/cann/lib64:/cann/lib64:/driver",
        },
        ("HF_TOKEN", "VLLM_API_KEY"),
        31,
    )
    found = given(process, login)
    assert found.values == {"OMP_NUM_THREADS": "10"}
    assert found.prepended == {"LD_LIBRARY_PATH": "/mooncake"}
    assert found.secrets == ("VLLM_API_KEY",)
    assert found.left_out == 34
    unknown = given(process, None)
    assert unknown.values == {"OMP_NUM_THREADS": "10", "ATB_X": "1"}
    assert unknown.prepended == {}  # Nobody knows where the login's part begins.
    assert unknown.secrets == ("HF_TOKEN", "VLLM_API_KEY")


@pytest.mark.parametrize(
    ("value", "base", "front"),
    [
        ("/m:/a:/b", "/a:/b", "/m"),
        ("/m:/n:/a:/b", "/a:/b", "/m:/n"),
        ("/m", "", "/m"),
        ("/m:/a:/b:", "/a:/b:", "/m"),
        ("/a:/b", "/a:/b", ""),
        ("/m:/b:/x", "/a:/b", "/m"),  # A login of another kind: what comes after one of its own is not told apart.
        ("", "/a", ""),
    ],
)
def test_what_was_put_in_front_of_a_list(value: str, base: str, front: str) -> None:
    found = given(Seen({"LD_LIBRARY_PATH": value}), Seen({"LD_LIBRARY_PATH": base}))
    assert found.prepended.get("LD_LIBRARY_PATH", "") == front


def test_variables_of_a_record_are_as_they_were_written() -> None:
    values, prepended = as_written(
        {"LD_LIBRARY_PATH": "/m${LD_LIBRARY_PATH:+:${LD_LIBRARY_PATH}}", "A": "$HOME/x"}
    )
    assert (values, prepended) == ({"A": "$HOME/x"}, {"LD_LIBRARY_PATH": "/m"})


def test_set_up_scripts_are_looked_for_where_a_login_has_none() -> None:
    process = Seen({"ASCEND_TOOLKIT_HOME": "/cann/latest", "VIRTUAL_ENV": "/venv"})
    login = Seen({"ASCEND_TOOLKIT_HOME": "/cann/latest"})
    assert setup_of(process, login) == {"VIRTUAL_ENV": "/venv"}
    # A login has the place of the installation, and not what its script puts in front of a list.
    more = Seen({"ASCEND_TOOLKIT_HOME": "/cann/latest", "PYTHONPATH": "/mine:/cann/latest/python"})
    assert setup_of(more, login) == {"ASCEND_TOOLKIT_HOME": "/cann/latest"}


# --- the script


@pytest.fixture
def child(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    env = {
        "PATH": os.environ["PATH"],
        "VLLM_USE_MODELSCOPE": "True",
        "HF_TOKEN": "hunter2",
        "AWS_SECRET_ACCESS_KEY": "hunter3",
        "LD_LIBRARY_PATH": "/mooncake",
        "EDITOR": "vi",
    }
    program = "import time; print('up', flush=True); time.sleep(600)"
    with (tmp_path / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", program, "vllm"], env=env, stdout=log, stderr=log, cwd=tmp_path
        )
    try:
        while not (tmp_path / "serve.log").stat().st_size:
            assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.wait()


def ask(**wanted: Any) -> dict[str, Any]:
    """Run the script as a host does."""
    keep = {"keep": KEEP, "lists": [*LISTS, *ROOTS], "secret": SECRET_PATTERN}
    source = Path(survey_script.__file__).read_text()
    done = subprocess.run(
        [sys.executable, "-S", "-c", source, json.dumps({**keep, **wanted})],
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = (line for line in done.stdout.split("\n") if line.startswith("PDTUI-SURVEY "))
    assert "hunter" not in done.stdout
    return dict(json.loads(line.partition(" ")[2]))


def test_the_script_tells_what_matters_of_a_process_and_no_secret(
    child: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    said = ask(ask="processes", pids=[child.pid, 4194305])
    found = said["processes"][str(child.pid)]
    assert found["env"] == {"LD_LIBRARY_PATH": "/mooncake", "VLLM_USE_MODELSCOPE": "True"}
    assert found["secrets"] == ["AWS_SECRET_ACCESS_KEY", "HF_TOKEN"]
    assert found["left_out"] == 2
    assert (found["cwd"], found["argv"][-1]) == (str(tmp_path), "vllm")
    assert found["files"] == [str(tmp_path / "serve.log")]
    assert said["processes"]["4194305"]["error"] == "gone"
    assert ["lo", "127.0.0.1"] in said["addresses"]


def test_the_script_finds_the_set_up_scripts_of_an_installation(tmp_path: Path) -> None:
    cann = tmp_path / "ascend-toolkit"
    (cann / "latest").mkdir(parents=True)
    (cann / "set_env.sh").touch()
    said = ask(ask="login", roots={"ASCEND_HOME_PATH": str(cann / "latest"), "ATB_HOME_PATH": "/nowhere/at/all"})
    assert said["scripts"] == {"ASCEND_HOME_PATH": str(cann / "set_env.sh")}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("0::/system.slice/docker-%s.scope", True),
        ("4:memory:/docker/%s", True),
        ("0::/kubepods.slice/pod1.slice/cri-containerd-%s.scope", True),
        ("0::/machine.slice/libpod-%s.scope/container", True),
        ("0::/user.slice/user-0.slice/session-2.scope", False),
        ("0::/../../%s0", False),
    ],
)
def test_the_container_of_a_process_is_in_its_control_group(tmp_path: Path, line: str, found: bool) -> None:
    number = "0123456789abcdef" * 4
    (tmp_path / "cgroup").write_text(f"12:cpu:/\n{line % number if '%s' in line else line}\n")
    container_id: Any = survey_script.container_id
    assert container_id(str(tmp_path)) == (number if found else "")


# --- what it comes to


def process(pid: int = 4711, **values: Any) -> ProcessInfo:
    return ProcessInfo(pid, 1, pid, 0.0, ("python3", *ARGV), {}, "alice", **values)


def server(**values: Any) -> ServerSeen:
    return ServerSeen(**{"process": process(), "argv": ARGV, "seen": Seen({}), "login": Seen({}), **values})


SURVEY = Survey(
    "n1.example", "n1", (("lo", "127.0.0.1"), ("eth0", "192.0.2.1"), ("eth1", "198.51.100.1")), npus=16
)


def test_servers_become_commands_and_secrets_references() -> None:
    seen = Seen({"HCCL_IF_IP": "198.51.100.1", "HCCL_BUFFSIZE": "600"}, ("HF_TOKEN",), 12)
    survey = replace(SURVEY, servers=(server(seen=seen, container="vllm"),), platform="a3")
    found, notes = observed(
        [survey], nodes=hosts_of(["n1.example:2222"], SshOptions(user="root", sudo=True)).nodes
    )
    (command,) = found.commands
    assert (command.host, command.container, str(command.origin)) == ("n1.example", "vllm", "n1.example pid 4711")
    assert command.model is not None
    assert command.model.text == "/models/m"
    assert {name: said.text for name, said in command.flags.items()} == {
        "host": "0.0.0.0",
        "port": "7100",
        "seed": "1",
    }
    assert {name: said.text for name, said in command.env.items()} == {
        "HCCL_IF_IP": "198.51.100.1",
        "HCCL_BUFFSIZE": "600",
        "HF_TOKEN": "${HF_TOKEN}",
        "VLLM_API_KEY": "${VLLM_API_KEY}",
    }
    (host,) = found.hosts
    assert (host.name, host.address, host.nic, host.npus) == ("n1.example", "198.51.100.1", "eth1", 16)
    assert (host.ssh_user, host.ssh_port, host.ssh_jump, host.ssh_sudo) == ("root", 2222, "", True)
    words = "\n".join(one.message for one in notes)
    assert "hunter2" not in words + repr(found)
    assert "--api-key -> VLLM_API_KEY" in words
    assert "12 variables are left out" in words
    assert platform_of([survey]) == "a3"


def test_a_rank_of_pdtui_is_taken_from_its_record() -> None:
    record = Record(
        ("vllm", "serve", "~/m", "--seed", "2"),
        {"A": "$HOME/a", "LD_LIBRARY_PATH": "/m${LD_LIBRARY_PATH:+:${LD_LIBRARY_PATH}}"},
        ("HF_TOKEN",),
        ("/set_env.sh",),
        "/data/pdtui/4f/demo/d.0",
    )
    survey = replace(SURVEY, servers=(server(record=record, process=process(rank="demo:d/0")),))
    found, notes = observed([survey])
    (command,) = found.commands
    assert command.model is not None
    assert (command.model.text, command.flags["seed"].text) == ("~/m", "2")
    assert (command.env["A"].text, command.env["LD_LIBRARY_PATH"].prepended) == ("$HOME/a", True)
    assert [said.text for said in found.setup] == ["/set_env.sh"]
    assert found.state_dir is not None
    assert found.state_dir.text == "/data/pdtui"
    assert cluster_of([survey]) == "demo"
    other = replace(survey, servers=(server(record=record, process=process(rank="other:d/0")),))
    assert (cluster_of([survey, other]), cluster_of([SURVEY])) == ("", "")
    assert not any(one.kind is Kind.UNREAD for one in notes)
    assert list(in_words([survey])) == ["n1.example: 1 server, of pdtui d/0, 16 NPUs"]


def test_what_could_not_be_found_out_is_said() -> None:
    denied = server(seen=Seen({}, error="permission"), login=None, is_elsewhere=True)
    surveys = [
        Survey("n0", unreachable="n0: connection refused"),
        replace(SURVEY, servers=(denied,), problems=("docker: permission denied",)),
        Survey("n2"),
    ]
    found, notes = observed(surveys)
    assert [one.message for one in notes if one.kind is Kind.UNREAD] == [
        "n0 was not asked: n0: connection refused",
        "docker: permission denied",
        "its environment cannot be read: it belongs to alice; log in as alice or root, or use --sudo",
        "it runs in a container that no engine could be asked about: name it with --container",
    ]
    assert [host.name for host in found.hosts] == ["n1.example", "n2"]
    assert "no vLLM server runs on n2" in [one.message for one in notes]


def test_of_a_rank_of_pdtui_without_its_record_the_keeper_s_own_variable_is_left_out() -> None:
    seen = Seen({"ASCEND_PROCESS_LOG_PATH": "/state/run-1/plog", "HCCL_BUFFSIZE": "1"})
    found, _ = observed([replace(SURVEY, servers=(server(seen=seen, process=process(rank="demo:d/0")),))])
    assert list(found.commands[0].env) == ["HCCL_BUFFSIZE", "VLLM_API_KEY"]
    found, _ = observed([replace(SURVEY, servers=(server(seen=seen),))])
    assert "ASCEND_PROCESS_LOG_PATH" in found.commands[0].env


def test_notes_of_the_same_words_are_one_with_all_their_places() -> None:
    two = (server(seen=Seen({}, left_out=3)), server(process=process(4712), seen=Seen({}, left_out=3)))
    _, notes = observed([replace(SURVEY, servers=two)])
    (left,) = (one for one in notes if "left out" in one.message)
    assert [origin.pid for origin in left.origins] == [4711, 4712]


def test_versions_and_set_up_scripts_that_differ_are_contradictions() -> None:
    one = replace(SURVEY, servers=(server(setup=("/a.sh",)),), versions={"vllm-ascend": "0.22.1rc1"})
    two = replace(SURVEY, host="n2", servers=(server(setup=("/b.sh",)),), versions={"vllm-ascend": "0.18.0"})
    found, notes = observed([one, one, two])
    assert found.version is not None
    assert found.version.text == "0.22.1rc1"
    assert [said.text for said in found.setup] == ["/a.sh"]
    assert [one.message for one in notes if one.kind is Kind.CONTRADICTION] == [
        "vllm-ascend is not the same on all hosts: 0.22.1rc1 on n1.example, 0.22.1rc1 on n1.example, 0.18.0 on n2",
        "other set-up scripts: /b.sh, where most servers have /a.sh",
    ]


def test_a_container_is_what_its_engine_says() -> None:
    seen = ContainerSeen(
        "docker",
        "0123",
        "vllm",
        "quay.io/ascend/vllm-ascend:v0.22.1rc1-a3",
        "mnt:[1]",
        {
            "Binds": ["/a:/a:rw", "/b:/c:ro"],
            "NetworkMode": "bridge",
            "PidMode": "host",
            "Privileged": True,
            "ShmSize": 1 << 30,
            "Devices": [{"PathOnHost": "/dev/davinci0", "PathInContainer": "/dev/davinci0"}, "rubbish"],
            "CapAdd": ["SYS_PTRACE"],
            "Ulimits": [{"Name": "memlock", "Soft": -1, "Hard": -1}],
            "RestartPolicy": {"Name": "always"},
        },
        (),
    )
    other = replace(seen, name="other")
    survey = replace(SURVEY, servers=(server(container="vllm"),), containers=(seen, other))
    (found,) = observed([survey])[0].containers
    assert (found.name, found.shm_size, found.devices) == ("vllm", "1g", ("/dev/davinci0",))
    assert found.mounts == ("/a:/a", "/b:/c:ro")
    assert found.options == (
        *("--net=bridge", "--pid=host", "--privileged", "--cap-add=SYS_PTRACE", "--ulimit=memlock=-1:-1"),
        "--restart=always",
    )
    podman = replace(
        seen, host={"ShmSize": 65536}, mounts=({"Type": "bind", "Source": "/x", "Destination": "/y"},)
    )
    (found,) = observed([replace(survey, containers=(podman,))])[0].containers
    assert (found.mounts, found.shm_size) == (("/x:/y",), "64k")


def test_a_reference_proxy_has_its_lists_and_of_pdtui_s_own_it_is_said_that_it_runs() -> None:
    lists = "--prefiller-hosts 192.0.2.1 --prefiller-ports 7100 --decoder-hosts 192.0.2.2 --decoder-ports 7200"
    words = f"load_balance_proxy_server_example.py --host 0.0.0.0 --port 1999 {lists}"
    proxies = (ProxySeen(process(9), tuple(words.split())), ProxySeen(process(10), ("pdtui", "proxy", "a.yaml")))
    found, notes = observed([replace(SURVEY, proxies=proxies)])
    (proxy,) = found.proxies
    assert (proxy.host, str(proxy.origin), proxy.layerwise) == ("n1.example", "n1.example pid 9", False)
    assert proxy.port is not None
    assert proxy.port.text == "1999"
    assert [(one.host, one.port) for one in (*proxy.prefill, *proxy.decode)] == [
        ("192.0.2.1", 7100),
        ("192.0.2.2", 7200),
    ]
    assert any("pdtui's own proxy runs here (`pdtui proxy a.yaml`)" in one.message for one in notes)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["\x1b[31m", "192.0.2.1", "eth0"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "env",
                    "secrets",
                    "left_out",
                    "error",
                    "argv",
                    "space",
                    "container",
                    "files",
                    "record",
                    "setup",
                    "packages",
                    "found",
                    "problems",
                    "id",
                    "name",
                    "image",
                    "host",
                    "mounts",
                    "addresses",
                    "view",
                    "Binds",
                    "Devices",
                    "CapAdd",
                    "Ulimits",
                    "RestartPolicy",
                    "Name",
                    "NetworkMode",
                    "ShmSize",
                ]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=30,
)


class Rude:
    """A host that answers whatever it likes."""

    def __init__(self, said: Any) -> None:
        self.said = said
        self.facts = Facts(1, "3.9", "root", 0, "n1", "m", "b", 0.0, "/")

    async def processes(self, **_: object) -> list[ProcessInfo]:
        return [process()]

    async def run(self, command: Command) -> Completed:
        if command.argv[0] == "npu-smi":
            return Completed(command.argv, None, b"", b"", error="No such file or directory")
        said = {
            "processes": {"4711": self.said},
            "containers": self.said,
            "addresses": self.said,
            **_of(self.said),
        }
        return Completed(command.argv, 0, b"PDTUI-SURVEY " + json.dumps(said).encode(), b"")


def _of(said: Any) -> dict[str, Any]:
    return said if isinstance(said, dict) else {}


@given_any(JSON)
@settings(max_examples=60, deadline=None)
def test_whatever_a_host_says_is_read_without_an_error_and_clean(said: Any) -> None:
    agent: Any = Rude(said)
    found = asyncio.run(survey("n1", agent, agent, clock=SystemClock()))
    assert found.npus == 0
    seen, notes = observed([found])
    assert "\x1b" not in "\n".join([*(one.message for one in notes), *in_words([found])])
    assert "\x1b" not in str([*seen.containers, *seen.hosts])


# --- words


def test_hosts_are_written_as_for_ssh() -> None:
    hosts = hosts_of(["local", "bob@node1:2222", "[fe80::1]:22"], SshOptions(user="root", port=9))
    assert [(node.host, node.ssh.user, node.ssh.port) for node in hosts.nodes.values()] == [
        ("local", "root", 9),
        ("node1", "bob", 2222),
        ("fe80::1", "root", 22),
    ]
    inside = hosts_of(["n"], SshOptions(), container="vllm", prefix=("podman", "exec", "-i"))
    assert inside.runtime.exec_prefix == ("podman", "exec", "-i", "vllm")
    for words in (["a b"], ["n:0"], ["n:70000"], ["n", "m@n"], [""]):
        with pytest.raises(UsageError):
            hosts_of(words, SshOptions())


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (
            "python3 /x/load_balance_proxy_server_example.py --port 1",
            "load_balance_proxy_server_example.py --port 1",
        ),
        ("python /x/toy_proxy_server.py", "toy_proxy_server.py"),
        ("/venv/bin/python /venv/bin/pdtui proxy a.yaml", "pdtui proxy a.yaml"),
        ("vim load_balance_proxy_server_example.py", ""),
        ("python3 -m http.server", ""),
        ("pdtui status a.yaml", ""),
    ],
)
def test_proxies_are_known_by_their_command(argv: str, found: str) -> None:
    assert " ".join(proxy_words(argv.split())) == found
