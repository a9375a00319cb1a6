"""The scripts for nodes, run for real on this machine: under Python 3.6 where it is here, else under ours."""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pdtui.clock import SystemClock
from pdtui.fleet.preflight.checks.reach import Way, read_reach
from pdtui.fleet.preflight.limits import Limits
from pdtui.fleet.preflight.place import ENGINE, place, program
from pdtui.fleet.preflight.probes import Asking
from pdtui.readings.answer import Answer, Failure, Reading
from pdtui.readings.rank_place import PARTS, read_place
from pdtui.remote.client import AgentClient
from pdtui.remote.transports.local import LocalTransport
from tests.preflight.placed import Placed

CLOCK = SystemClock()
OLD = next(Path("~/.pyenv/versions").expanduser().glob("3.6.*/bin/python3"), Path(sys.executable))


def run(script: str, parameters: Any, env: Mapping[str, str] | None = None, **words: Any) -> Answer:
    """Run a script as an agent does, in this environment or another."""
    argv = [str(OLD), "-S", "-c", program(script), json.dumps(parameters)]
    done = subprocess.run(argv, capture_output=True, timeout=60, env=env, **words)
    return Answer(script, done.stdout, done.stderr, done.returncode)


def ask(env: Mapping[str, str] | None = None, **parts: tuple[str, Any, float]) -> dict[str, Reading[Any]]:
    """Return what the script says of some parts."""
    answer = run("place_script", parts, env)
    return dict(read_place(answer, {key: (part, key) for key, (part, _, _) in parts.items()}))


def value(found: Mapping[Any, Reading[Any]], key: str) -> Any:
    """Return what was found; for a failure its words are in the assertion."""
    assert found[key].value is not None, found[key]
    return found[key].value


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of Python packages with vLLM, its plug-in, and a Mooncake that can be imported."""
    site = tmp_path / "site-packages"
    for name, version in (("vllm", "0.22.1+empty"), ("vllm_ascend", "0.22.1rc1")):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        )
        (site / name).mkdir()
        (site / name / "__init__.py").write_text("raise RuntimeError('importing vLLM takes a minute')\n")
    (site / "mooncake").mkdir()
    (site / "mooncake" / "__init__.py").touch()
    (site / "mooncake" / "engine.py").write_text("class TransferEngine: ...\n")
    return site


@pytest.fixture
def environ(tmp_path: Path, site: Path) -> dict[str, str]:
    """The environment of a rank, with a `vllm` of another Python than the one that runs the script."""
    folder = tmp_path / "bin"
    folder.mkdir()
    vllm = folder / "vllm"
    vllm.write_text(f"#!{sys.executable} -sE\nraise SystemExit('not to be run')\n")
    vllm.chmod(0o755)
    return {
        "PATH": f"{folder}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(site),
        "HF_TOKEN": "very-secret",
        "http_proxy": "http://me:very@secret@corp:3128",
        "NO_PROXY": "localhost",
        "VLLM_HOST_IP": "192.0.0.1",
    }


def test_every_part_answers_on_this_machine() -> None:
    parts: dict[str, tuple[str, Any, float]] = {name: (name, "/", 20.0) for name in PARTS}
    parts["ports"] = ("ports", [[1, 1]], 20.0)
    parts["packages"], parts["import"] = ("packages", ["pip"], 20.0), ("import", "import json", 20.0)
    found = ask(None, **parts)
    assert {name for name, reading in found.items() if reading.failure} <= {"cann"}
    assert value(found, "shm").total > 0
    assert value(found, "disk").mount == "/"
    assert value(found, "limits").nofile[1] == _limit(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    assert any(one.owns("127.0.0.1") and one.up for one in value(found, "addresses"))
    assert 0 < value(found, "ports").first < value(found, "ports").last


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def test_packages_are_those_of_the_python_that_vllm_runs_under(environ: dict[str, str], site: Path) -> None:
    names = ["vllm", "vllm-ascend", "mooncake"]
    found = ask(environ, p=("packages", names, 20.0), v=("variables", "", 30.0), i=("import", ENGINE, 20.0))
    packages = value(found, "p")
    assert packages.versions == {"vllm": "0.22.1+empty", "vllm-ascend": "0.22.1rc1"}
    assert packages.python == ".".join(map(str, sys.version_info[:3]))
    assert packages.modules["mooncake"].engine == str(site / "mooncake" / "engine.py")
    assert len(packages.modules["mooncake"].digest) == 16
    assert value(found, "i").statement == ENGINE
    assert not list(site.rglob("__pycache__")), "nothing is left behind"
    environment = value(found, "v")
    assert environment.variables == {"VLLM_HOST_IP": "192.0.0.1"}
    assert environment.proxies == {"http_proxy": "http://***@corp:3128", "NO_PROXY": "localhost"}
    assert environment.vllm.endswith("/bin/vllm")
    assert "secret" not in str(found)


def test_imports_that_fail_die_and_hang_each_say_so_and_leave_nothing(environ: dict[str, str], site: Path) -> None:
    mark = f"import time; time.sleep(1000)  # {site}"
    found = ask(
        environ,
        fails=("import", "from mooncake.engine import Nothing", 20.0),
        dies=("import", "import os; os.kill(os.getpid(), 11)", 20.0),
        hangs=("import", mark, 1.0),
        well=("shm", "", 30.0),
    )
    assert found["fails"].failure is Failure.ERROR
    assert found["fails"].raw.rpartition("\n")[2].startswith("ImportError: cannot import name 'Nothing'")
    assert (found["dies"].failure, found["dies"].raw) == (Failure.ERROR, "ended by signal 11")
    assert (found["hangs"].failure, found["hangs"].raw) == (Failure.TIMEOUT, "no answer within 1 s")
    assert value(found, "well")
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not any(mark.encode() in command for command in commands)


def test_the_model_is_looked_over_without_reading_weights(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "deepseek_v3"}')
    with (model / "model-00001-of-00003.safetensors").open("wb") as file:
        file.truncate(5 << 30)
    (model / "model-00002-of-00003.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:1"
    )
    names = {f"layer.{n}": f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)}
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (model / "tokenizer.json").symlink_to(tmp_path / "blobs" / "gone")
    (model / ".cache").mkdir()
    begin = time.monotonic()
    found = ask(m=("model", str(model), 20.0), none=("model", str(tmp_path / "no"), 30.0))
    assert time.monotonic() - begin < 60
    seen = value(found, "m")
    assert seen.weights == ("model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors")
    assert seen.files["model-00001-of-00003.safetensors"] == (5 << 30, "")
    assert seen.pointers == ("model-00002-of-00003.safetensors",)
    assert seen.broken == ("tokenizer.json",)
    assert (seen.indexes[0].shards, seen.indexes[0].missing) == (3, ("model-00003-of-00003.safetensors",))
    assert seen.config
    assert found["none"].failure is Failure.NOT_CONFIGURED


def test_cann_is_where_the_environment_says(tmp_path: Path) -> None:
    home = tmp_path / "cann"
    folder = home / f"{os.uname().machine}-linux"
    folder.mkdir(parents=True)
    (folder / "ascend_toolkit_install.info").write_text("package_name=Ascend-cann-toolkit\nversion=9.0.0\n")
    cann = value(ask({"PATH": "/usr/bin", "ASCEND_HOME_PATH": str(home)}, cann=("cann", "", 30.0)), "cann")
    assert (cann.version, cann.home, cann.is_set) == ("9.0.0", str(home), True)
    none = ask({"PATH": "/usr/bin", "ASCEND_HOME_PATH": "/nowhere"}, cann=("cann", "", 30.0))["cann"]
    assert (none.failure, none.raw) == (Failure.NOT_CONFIGURED, "no version of CANN below /nowhere")


def test_a_node_that_shares_a_machine_has_its_own_devices_and_ports(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    for name in ("davinci0", "davinci11", "davinci_manager", "davincix"):
        (tmp_path / "dev" / name).symlink_to("/dev/null")
    ports = tmp_path / "proc" / "sys" / "net" / "ipv4"
    ports.mkdir(parents=True)
    (ports / "ip_local_port_range").write_text("1024\t2048\n")
    (ports / "ip_local_reserved_ports").write_text("1100-1200\n")
    env = {"PATH": "/usr/bin", "PDTUI_ROOT_VIEW": str(tmp_path)}
    found = ask(env, d=("devices", "", 30.0), p=("ports", [], 30.0))
    assert value(found, "d").npus == (0, 11)
    assert value(found, "d").management == ("davinci_manager",)
    assert (value(found, "p").first, value(found, "p").reserved) == (1024, ((1100, 1200),))


def test_ports_that_connections_hold_are_told_from_those_that_are_listened_on() -> None:
    with closing(socket.socket()) as ear, closing(socket.socket()) as caller:
        ear.bind(("127.0.0.1", 0))
        ear.listen(5)
        caller.connect(ear.getsockname())
        there, here = ear.getsockname()[1], caller.getsockname()[1]
        found = value(ask(None, p=("ports", [[there, there], [here, here]], 30.0)), "p")
    assert found.taken == (here,)


# ---- the environment of ranks, by an agent


@pytest.fixture
async def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    local = LocalTransport(CLOCK)
    client = await AgentClient.connect(local, clock=CLOCK, state_dir=str(tmp_path / "state"))
    yield client
    await client.close()
    await local.close()


def asking(agent: AgentClient, **runtime: str) -> Asking:
    nodes = Placed(text={"    - /usr/local/Ascend/nnal/atb/set_env.sh\n": "", **runtime})
    node = nodes.topology.nodes["node3"]
    return Asking(node, nodes.topology, nodes.plan, agent, CLOCK, Limits())


async def gathered(asking: Asking) -> dict[Any, Reading[Any]]:
    return {item: reading async for item, reading in place(asking)}


async def test_the_environment_is_that_of_a_login_shell_then_setup_then_the_file(
    agent: AgentClient, tmp_path: Path
) -> None:
    home = tmp_path / "setup"
    home.mkdir()
    (home / "set_env.sh").write_text("echo noise\nexport ASCEND_HOME_PATH=/from/setup HCCL_IF_IP=1.1.1.1\n")
    (tmp_path / ".bashrc").write_text(
        "echo hello; export http_proxy=http://corp:1; export HF_TOKEN=very-secret; ulimit -n 512\n"
    )
    found = await gathered(asking(agent, **{"/usr/local/Ascend/ascend-toolkit/set_env.sh": f"{home}/set_env.sh"}))
    environment = value(found, "variables decode")
    assert environment.variables["ASCEND_HOME_PATH"] == "/from/setup"
    assert environment.variables["HCCL_IF_IP"] == "192.0.0.3"
    assert environment.proxies == {"http_proxy": "http://corp:1"}
    assert value(found, "limits").nofile[0] == 512
    assert value(found, "environment decode") is True
    assert value(found, "disk state_dir").path == str(tmp_path / "state" / agent.facts.machine_id)
    assert found["model"].failure is Failure.NOT_CONFIGURED
    assert "very-secret" not in str(found)


async def test_libraries_that_only_the_agent_knows_of_are_not_in_it(agent: AgentClient, tmp_path: Path) -> None:
    home = tmp_path / "setup"
    home.mkdir()
    (home / "set_env.sh").write_text(
        'export ASCEND_HOME_PATH="${LD_LIBRARY_PATH-unset}" ASCEND_TOOLKIT_HOME="${LC_ALL-unset}"\n'
    )
    found = await gathered(asking(agent, **{"/usr/local/Ascend/ascend-toolkit/set_env.sh": f"{home}/set_env.sh"}))
    variables = value(found, "variables decode").variables
    assert not variables["ASCEND_HOME_PATH"].count("/usr/local/Ascend/driver")
    assert variables["ASCEND_TOOLKIT_HOME"] == os.environ.get("LC_ALL", "unset")


async def test_a_setup_file_that_is_missing_is_why_there_is_no_environment(agent: AgentClient) -> None:
    found = await gathered(asking(agent))
    made = found["environment decode"]
    assert made.failure is Failure.ERROR
    assert "cannot read /usr/local/Ascend/ascend-toolkit/set_env.sh" in made.raw
    assert found["shm"].failure is Failure.ERROR


async def test_a_shell_that_ends_is_told_from_a_python_that_does_not_start(
    agent: AgentClient, tmp_path: Path
) -> None:
    (tmp_path / "set_env.sh").write_text("printf 'no newline'\n")
    setup = {"/usr/local/Ascend/ascend-toolkit/set_env.sh": f"{tmp_path}/set_env.sh"}
    (tmp_path / ".bashrc").write_text("case $- in *i*) exit ;; esac\n")
    found = await gathered(asking(agent, **setup))
    made = found["environment decode"]
    assert (made.failure, found["shm"].failure) == (Failure.ERROR, Failure.ERROR)
    assert made.raw.startswith("the shell ended with status 0, and without a word")
    (tmp_path / ".bashrc").write_text("python3() { exit 3; }; export PYTHONHOME=/gone\n")
    found = await gathered(asking(agent, **setup))
    assert value(found, "environment decode") is True
    python = found["python decode"]
    assert (python.failure, found["model"].failure) == (Failure.UNREADABLE, Failure.UNREADABLE)
    assert "PYTHONHOME" in python.raw
    assert "PDTUI-" not in python.raw


# ---- ways


@pytest.fixture
def full() -> Iterator[int]:
    """A port whose queue is full: the kernel drops what comes, as a firewall does."""
    with closing(socket.socket()) as ear:
        ear.bind(("127.0.0.1", 0))
        ear.listen(0)
        callers = [socket.socket() for _ in range(8)]
        for caller in callers:
            caller.setblocking(False)
            caller.connect_ex(ear.getsockname())
        yield ear.getsockname()[1]
        for caller in callers:
            caller.close()


def test_what_is_open_refused_and_silent_is_told_apart(full: int) -> None:
    with closing(socket.socket()) as ear, closing(socket.socket()) as nobody:
        ear.bind(("127.0.0.1", 0))
        ear.listen(5)
        nobody.bind(("127.0.0.1", 0))
        open_, closed = ear.getsockname()[1], nobody.getsockname()[1]
        hosts = {"127.0.0.1": [open_, closed, full], "no-such-host.invalid": [80], "255.255.255.255": [81]}
        answer = run("reach_script", {"hosts": hosts, "seconds": 4.0})
    here = Way("node1", "127.0.0.1", {open_: "API", closed: "KV", full: "RPC"})
    nowhere = Way("node1", "no-such-host.invalid", {80: "metaserver"})
    odd = Way("node1", "255.255.255.255", {81: "API"})
    first, second, third = read_reach(answer, [here, nowhere, odd])
    assert first.value is not None
    assert first.value.ports == {open_: "open", closed: "refused", full: "timeout"}
    assert first.value.source == "127.0.0.1"
    assert second.value is not None
    assert second.value.ports == {80: "its name is not resolved here"}
    assert third.value is not None
    assert third.value.ports[81] not in ("open", "refused", "timeout")


def test_thousands_of_ports_take_no_longer_than_one() -> None:
    begin = time.monotonic()
    answer = run(
        "reach_script", {"hosts": {f"127.0.0.{n}": list(range(1, 60)) for n in range(1, 41)}, "seconds": 3.5}
    )
    assert answer.status == 0
    assert time.monotonic() - begin < 60
    (found,) = read_reach(answer, [Way("x", "127.0.0.7", dict.fromkeys(range(40, 60), "KV"))])
    assert found.value is not None
    assert set(found.value.ports.values()) <= {"open", "refused"}


def test_a_low_limit_of_open_files_makes_no_port_look_out_of_reach() -> None:
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))  # noqa: E731 - for the child alone
    hosts = {"127.0.0.1": list(range(1, 200))}
    answer = run("reach_script", {"hosts": hosts, "seconds": 3.5}, preexec_fn=few)
    (found,) = read_reach(answer, [Way("x", "127.0.0.1", dict.fromkeys(range(1, 200), "KV"))])
    assert found.value is not None
    assert set(found.value.ports.values()) <= {"open", "refused"}


@pytest.mark.parametrize(
    "answer",
    [
        Answer("x", timed_out=True, error="no answer from python3 within 30 s"),
        Answer("x", b"PDTUI-REACH {"),
        Answer("x", b'PDTUI-REACH {"10.0.0.1": []}'),
        SimpleNamespace(stdout=b"", text="", at=0.0, timed_out=False, status=None, error="lost"),
    ],
)
def test_an_answer_without_ports_is_none(answer: Any) -> None:
    (found,) = read_reach(answer, [Way("x", "10.0.0.1", {80: "API"})])
    assert found.value is None
    assert found.failure is not None


def test_scripts_pass_through_an_argument() -> None:
    assert shutil.which("python3")
    for name in ("place_script", "reach_script"):
        assert len(program(name)) < 64_000
        assert "'" not in program(name)
