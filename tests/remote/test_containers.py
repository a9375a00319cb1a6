"""Containers, sudo and logins as an agent meets them: who it is, what is whose, and why it is not let in."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdtui.clock import SystemClock
from pdtui.errors import ConnectError
from pdtui.fleet.conditions import conditions
from pdtui.remote.channel import ExitInfo
from pdtui.remote.client import AgentClient
from pdtui.remote.failures import bootstrap_failure
from pdtui.remote.loader import bootstrap
from pdtui.remote.messages.commands import Command, Facts
from pdtui.remote.transports.local import LocalTransport
from pdtui.topology.model import Runtime
from tests.support.required import skip_unless
from tests.support.waiting import eventually

agent: Any = importlib.import_module("pdtui.remote.agent")
"""Untyped, as a program for Python 3.6 is."""

DOCKER = ("docker", "exec", "-i", "vllm")
PODMAN = ("podman", "exec", "-i", "vllm")
CTR = ("ctr", "-n", "k8s.io", "tasks", "exec", "--exec-id", "{id}", "vllm")
SUDO = ("sudo", "-n")
FACTS = Facts(1, "3.9.2", "root", 0, "node1", "machine", "boot", 0.0, "/var/lib/pdtui/machine")
OCI = (
    'OCI runtime exec failed: exec failed: unable to start container process: exec: "python3":'
    " executable file not found in $PATH: unknown"
)
DENIED = (
    "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: Get"
    ' "http://%2Fvar%2Frun%2Fdocker.sock/v1.45/containers/json": dial unix: connect: permission denied'
)


@pytest.mark.parametrize(
    ("prefix", "status", "says", "kind", "message", "remedy"),
    [
        (
            DOCKER,
            1,
            "Error response from daemon: No such container: vllm",
            "no_container",
            "no container vllm",
            "docker ps -a",
        ),
        (
            DOCKER,
            1,
            "Error response from daemon: container 0123abcd is not running",
            "no_container",
            "is not running",
            "docker start vllm",
        ),
        (
            DOCKER,
            1,
            "Error response from daemon: Container vllm is paused, unpause the container before exec",
            "no_container",
            "is paused",
            "docker unpause vllm",
        ),
        (
            DOCKER,
            1,
            "Error response from daemon: Container vllm is restarting, wait until the container is running",
            "no_container",
            "again and again",
            "docker logs",
        ),
        (
            DOCKER,
            1,
            "OCI runtime exec failed: exec failed: cannot exec a container that has stopped: unknown",
            "no_container",
            "is not running",
            "docker start",
        ),
        (
            DOCKER,
            1,
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            "no_container",
            "does not answer",
            "systemctl start docker",
        ),
        (
            DOCKER,
            1,
            "failed to connect to the docker API at unix:///var/run/docker.sock; check if the path is correct",
            "no_container",
            "does not answer",
            "systemctl start docker",
        ),
        (DOCKER, 1, DENIED, "no_container", "ops may not use docker", "usermod -aG docker ops"),
        (
            DOCKER,
            127,
            "bash: line 1: exec: docker: not found",
            "no_container",
            "no docker on the node",
            "runtime.exec",
        ),
        (
            DOCKER,
            127,
            "bash: 第 1 行: exec: docker: 未找到",
            "no_container",
            "no docker on the node",
            "runtime.exec",
        ),
        (
            (*SUDO, *DOCKER),
            1,
            "sudo: docker: command not found",
            "no_container",
            "no docker on the node",
            "runtime.exec",
        ),
        (DOCKER, 127, OCI, "no_python", "container vllm has no python3", "Python 3.6"),
        (
            DOCKER,
            1,
            "pdtui needs Python 3.6 or newer, this is 3.5.2",
            "no_python",
            "container vllm has Python 3.5.2",
            "Python 3.6",
        ),
        (
            PODMAN,
            125,
            'Error: no container with name or ID "vllm" found: no such container',
            "no_container",
            "no container vllm",
            "podman ps -a",
        ),
        (
            PODMAN,
            255,
            "Error: can only create exec sessions on running containers: container state improper",
            "no_container",
            "is not running",
            "podman start vllm",
        ),
        (
            CTR,
            1,
            "ctr: no running task found: task vllm not found: not found",
            "no_container",
            "vllm",
            "ctr -n k8s.io tasks start -d vllm",
        ),
        (
            CTR,
            1,
            'ctr: failed to dial "/run/containerd/containerd.sock": connection refused',
            "no_container",
            "does not answer",
            "systemctl start containerd",
        ),
        (
            CTR,
            1,
            "ctr: OCI runtime exec failed: cannot exec in a paused container",
            "no_container",
            "is paused",
            "ctr -n k8s.io tasks resume vllm",
        ),
        (SUDO, 1, "sudo: a password is required", "auth", "password of ops", "ops ALL=(root) NOPASSWD: ALL"),
        (SUDO, 1, "sudo: 需要密码", "auth", "需要密码", "ops ALL=(root) NOPASSWD: ALL"),
        (SUDO, 1, "sudo: sorry, you must have a tty to run sudo", "auth", "terminal", "Defaults:ops !requiretty"),
        (SUDO, 1, "ops is not in the sudoers file.", "auth", "ops may not use sudo", "NOPASSWD"),
        (SUDO, 127, "bash: line 1: exec: sudo: not found", "auth", "no sudo", "leave ssh.sudo out"),
        (SUDO, 1, "sudo: python3: command not found", "no_python", "the node has no python3", "Python 3.6"),
        (
            SUDO,
            127,
            "sudo: unable to resolve host node1: Name or service not known\nsh: python3: not found",
            "no_python",
            "no python3",
            "Python 3.6",
        ),
    ],
)
def test_what_keeps_an_agent_out(
    prefix: tuple[str, ...], status: int, says: str, kind: str, message: str, remedy: str
) -> None:
    error = bootstrap_failure(ExitInfo(status, stderr=f"Welcome to node1\n{says}\n"), prefix, "ops")
    assert error.kind == kind
    assert message in error.message
    assert remedy in error.remedy


def test_each_start_has_its_own_exec_id() -> None:
    """Ctr refuses an id that is in use, and the agent of a lost connection may still hold its own."""
    first, second = (bootstrap(prefix=CTR).argv for _ in range(2))
    assert first[:6] == CTR[:6]
    assert first[6] != second[6]
    assert "{" not in first[6]


@pytest.fixture
def orphans() -> Iterator[int]:
    """The number of a session whose leader is gone and whose member lives."""
    shell = subprocess.Popen(["sh", "-c", "sleep 1000 & exit"], start_new_session=True, stdout=subprocess.DEVNULL)
    shell.wait()
    yield shell.pid
    subprocess.run(["pkill", "-s", str(shell.pid)], check=True)


async def test_pids_mean_nothing_after_a_restart_of_the_container(orphans: int) -> None:
    """Numbers begin anew in a new container: a session that has a dead rank's number is somebody else's."""
    boot = "this-boot"
    record = {"pid": orphans, "start": 1, "boot_id": boot, "init_start": agent.LIFE}

    def found(record: dict[str, object]) -> set[int]:
        return set(agent.Table(fresh=True).of_rank("c:decode/0", record, boot))

    (member,) = await eventually(lambda: found(record))
    assert os.getsid(member) == orphans
    # Written before this was kept: its boot has to do.
    assert found({name: record[name] for name in ("pid", "start", "boot_id")}) == {member}
    assert found({**record, "init_start": agent.LIFE + 7}) == set()
    assert found({**record, "boot_id": "another"}) == set()


@pytest.mark.parametrize(
    ("cgroup", "files", "user"),
    [
        ("session", {}, ""),
        ("session", {"etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n"}, "nobody"),
        ("session", {"etc/systemd/logind.conf": "[Login]\n#KillUserProcesses=yes\n"}, ""),
        ("session", {"etc/systemd/logind.conf": "[Other]\nKillUserProcesses=yes\n"}, ""),
        # A drop-in counts for more, the last one most, whichever folder it is in; one in /etc hides its namesake.
        (
            "session",
            {
                "etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n",
                "usr/lib/systemd/logind.conf.d/90-x.conf": "[Login]\nKillUserProcesses = no\n",
            },
            "",
        ),
        (
            "session",
            {
                "usr/lib/systemd/logind.conf.d/50-x.conf": "[Login]\nKillUserProcesses=no\n",
                "etc/systemd/logind.conf.d/50-x.conf": "[Login]\nKillUserProcesses=1\n",
            },
            "nobody",
        ),
        (
            "session",
            {"etc/systemd/logind.conf.d/a.conf": "[Login]\nKillUserProcesses=yes\nKillExcludeUsers=root nobody\n"},
            "",
        ),
        (
            "session",
            {"etc/systemd/logind.conf.d/a.conf": "[Login]\nKillUserProcesses=yes\nKillOnlyUsers=guest\n"},
            "",
        ),
        # Not in the scope of a session: a service, a container, a user's own manager.
        ("service", {"etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n"}, ""),
        ("manager", {"etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n"}, ""),
        # cgroup v1 says it once for each hierarchy.
        ("v1", {"etc/systemd/logind.conf": "[Login]\nKillUserProcesses=yes\n"}, "nobody"),
    ],
)
def test_who_dies_with_the_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, files: dict[str, str], user: str
) -> None:
    uid = next(
        line.split(":")[2] for line in Path("/etc/passwd").read_text().splitlines() if line.startswith("nobody:")
    )
    groups = {
        "session": f"0::/user.slice/user-{uid}.slice/session-12.scope\n",
        "service": "0::/system.slice/sshd.service\n",
        "manager": f"0::/user.slice/user-{uid}.slice/user@{uid}.service/app.slice/run-1.scope\n",
        "v1": f"11:memory:/\n1:name=systemd:/user.slice/user-{uid}.slice/session-c4.scope\n0::/\n",
    }
    for name, text in {"proc/self/cgroup": groups[cgroup], **files}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setattr(agent, "ROOT", str(tmp_path))
    found = agent.killed_at_logout()
    assert found.get("user", "") == user
    assert found.get("source", "") in {"", *(f"/{name}" for name in files)}


def test_where_records_lie(tmp_path: Path) -> None:
    assert agent.mount_of("/proc/self")[:2] == ("/proc", "proc")
    # What a machine is called on the host holds in its container, whose image may have no id or everybody's.
    folder, problem = agent.choose_state_dir(str(tmp_path), "0123abc")
    assert (folder, problem) == (f"{tmp_path}/0123abc", "")
    # Records of before that stay where they are.
    old = tmp_path / "other" / agent.machine_id()
    old.mkdir(parents=True, mode=0o700)
    assert agent.choose_state_dir(str(old.parent), "0123abc")[0] == str(old)
    # No way out of the folder.
    assert agent.choose_state_dir(str(tmp_path), "../0123abc")[0] == f"{tmp_path}/{agent.machine_id()}"


def test_records_of_two_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's console and one without rights keep theirs apart: both say so."""
    shared, own = tmp_path / "shared", tmp_path / "own"
    monkeypatch.setattr(agent, "SHARED_STATE", str(shared))
    assert agent.records_of_others(str(own / "m")) == {}
    shared.mkdir()
    assert agent.records_of_others(str(shared / "m")) == {}
    monkeypatch.setattr(agent.os, "getuid", lambda: shared.stat().st_uid + 1)
    found = agent.records_of_others(str(own / "m"))
    assert found == {"user": agent.user_name(shared.stat().st_uid), "folder": str(shared)}
    alice = replace(FACTS, user="alice", state_dir=str(own / "m"), other_user="root", other_folder=str(shared))
    (condition,) = conditions(alice, alice, Runtime())
    assert condition.message.startswith(f"root's records lie in {shared}, those of alice in {own}/m")
    assert "same ssh.user" in condition.remedy
    # Where the file names the folder there is no other place.
    assert conditions(alice, alice, Runtime(state_dir=str(own))) == ()


RULES = {
    "no rule": "root ALL=(ALL) ALL\n",
    "a password": "nobody ALL=(root) ALL\n",
    "a terminal": "Defaults requiretty\nnobody ALL=(root) NOPASSWD: ALL\n",
    "allowed": (
        "Defaults env_reset\nDefaults use_pty\n"
        'Defaults secure_path="/usr/sbin:/usr/bin:/sbin:/bin"\nnobody ALL=(root) NOPASSWD: ALL\n'
    ),
}
AS_NOBODY = (
    "unshare",
    "--mount",
    "sh",
    "-c",
    'mount --bind "$0" /etc/sudoers && exec setpriv --reuid=nobody --clear-groups "$@"',
)


@pytest.mark.parametrize(
    ("rule", "message", "remedy"),
    [
        ("no rule", "password of nobody", "nobody ALL=(root) NOPASSWD: ALL"),
        ("a password", "password of nobody", "nobody ALL=(root) NOPASSWD: ALL"),
        ("a terminal", "wants a terminal", "Defaults:nobody !requiretty"),
        ("allowed", "", ""),
    ],
)
async def test_real_sudo(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch, rule: str, message: str, remedy: str
) -> None:
    """Debian's sudo, as a user without rights, with sudoers of its own in a mount namespace."""
    skip_unless(os.getuid() == 0, "needs root, to become somebody else")
    skip_unless(shutil.which("sudo") is not None, "needs sudo")
    skip_unless(Path("/usr/bin/python3").exists(), "needs the system's own Python")
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("XDG_STATE_HOME", "/nonexistent")
    sudoers = tmp_path / "sudoers"
    sudoers.write_text(RULES[rule])
    sudoers.chmod(0o440)
    clock = SystemClock()
    transport = LocalTransport(clock)
    try:
        connecting = AgentClient.connect(
            transport,
            clock=clock,
            prefix=(*AS_NOBODY, str(sudoers), "sudo", "-n"),
            state_dir=str(state),
            user="nobody",
            python="/usr/bin/python3",
        )
        if not message:
            client = await connecting
            assert client.facts.user == "root"
            assert client.facts.state_dir.startswith(str(state))
            home = await client.run(Command(("sh", "-c", "echo $HOME:$XDG_STATE_HOME")))
            assert home.stdout == b"/root:\n"
            await client.close()
            return
        with pytest.raises(ConnectError) as caught:
            await connecting
        assert caught.value.kind == "auth"
        assert message in caught.value.message
        assert remedy in caught.value.remedy
    finally:
        await transport.close()


@pytest.mark.parametrize(
    ("root", "kind"),
    [("/", "tmpfs"), ("/pdtui", "bind")],
    ids=["memory of its own", "folder of the host's memory"],
)
def test_a_mount_of_the_host_is_told_from_memory_of_the_container(
    monkeypatch: pytest.MonkeyPatch, root: str, kind: str
) -> None:
    table = f"21 1 0:20 / / rw - overlay overlay rw\n22 21 0:21 {root} /var/lib/pd\\040tui rw - tmpfs tmpfs rw\n"
    monkeypatch.setattr(agent, "read_text", lambda _: table)
    assert agent.mount_of("/var/lib/pd tui/state") == ("/var/lib/pd tui", kind)
    assert agent.mount_of("/opt") == ("/", "overlay")
