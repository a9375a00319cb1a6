"""The container engine of a simulated node: begins, freezes and ends containers, each in namespaces of its own.

Run on the node by its `docker`, with standard library only: `engine VERB NAME`. A container has its own pid,
mount, UTS and IPC namespace, its own root folder and the node's network; pid 1 is what it was run with, at first
`sleep infinity`, which neither reaps orphans nor minds SIGTERM, as in containers that are begun without `--init`.
Where the kernel gives no namespaces (`engine/plain`), a container is its root folder, and its processes are those
that know it by PDTUI_ROOT_VIEW.

Below NODE: `containers/NAME` is the root folder; `engine/NAME` holds `spec.json` (what it is made from),
`made.json` (what it was asked for), `pid` (of its pid 1, as the node sees it; there while it runs), `paused`,
`ended` (without namespaces: it does not run). `engine/base.json` is what every container is given, `engine/images`
lists the images.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pdtui.sim.engine_words import BadWords, described, image_id, read_run
from pdtui.sim.mounting import MS_BIND, MS_PRIVATE, MS_REC, mount
from pdtui.sim.tap import CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUTS, call

CLONE_NEWIPC = 0x08000000
MS_RDONLY = 0x1
MS_REMOUNT = 0x20
MNT_DETACH = 2
PATIENCE = 10.0
"""Seconds between SIGTERM and SIGKILL of a stop, as docker's default."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
COMMAND = ["sleep", "infinity"]
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SYSTEM_ETC = ("alternatives", "ld.so.cache", "ssl", "localtime")


class Refused(Exception):
    """The engine says no; the text is what docker would say."""

    def __init__(self, words: str, status: int = 1) -> None:
        super().__init__(words)
        self.status = status


class Container:
    """One container of a node."""

    def __init__(self, node: Path, name: str) -> None:
        self.node = node
        self.name = name
        self.root = node / "containers" / name
        self.home = node / "engine" / name

    @property
    def spec(self) -> dict[str, Any]:
        """What it is made from."""
        return dict(json.loads((self.home / "spec.json").read_text(encoding="utf-8")))

    @property
    def pid(self) -> int:
        """Its pid 1 as the node sees it; 0 when it does not run."""
        with contextlib.suppress(OSError, ValueError):
            pid = int((self.home / "pid").read_text(encoding="ascii"))
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
            if stat.rpartition(")")[2].split()[0] not in {"Z", "X"}:
                return pid
        return 0

    @property
    def base(self) -> dict[str, Any]:
        """What every container of the node is given."""
        return dict(json.loads((self.node / "engine" / "base.json").read_text(encoding="utf-8")))

    @property
    def plain(self) -> bool:
        """Whether there are no namespaces."""
        return (self.node / "engine" / "plain").exists()

    # ---- verbs

    def run(self, made: dict[str, Any]) -> None:
        """Make and start it as asked for."""
        base = self.base
        binds = list(base["binds"])
        stateless = True
        for source, target, mode in made["mounts"]:
            if target == base["state"]:
                stateless = False
            else:
                binds.append((str(self._on_host(source)), target, mode == "ro"))
        spec = {
            "hostname": base["hostname"],
            "state": base["state"],
            "binds": binds,
            "devices": [inside.removeprefix("/dev/") for _, inside in made["devices"]],
            "shm": made["shm"],
            "command": made["command"],
            "stop_timeout": made["stop_timeout"],
        }
        self.home.mkdir(exist_ok=True)
        for name in ("closed", "hidden", "network", "shm", "pid", "paused", "ended"):
            (self.home / name).unlink(missing_ok=True)
        (self.home / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
        (self.home / "made.json").write_text(json.dumps(made), encoding="utf-8")
        text = described(made, hostname=base["hostname"])
        (self.home / "inspect.json").write_text(text, encoding="utf-8")
        self.create(*(["no-state"] if stateless else []))
        if self.plain:
            self._link(binds)

    def _on_host(self, source: str) -> Path:
        """Return what a path of the host is: the node's own, the machine's, else a new folder."""
        ours = self.node / source.lstrip("/")
        if not ours.exists() and Path(source).exists():
            return Path(source)
        if not ours.exists():
            ours.mkdir(parents=True)
        return ours

    def _link(self, binds: list[Any]) -> None:
        """Put what is mounted below the root folder: there it is seen by PDTUI_ROOT_VIEW."""
        for source, target, _ in binds:
            place = Path(f"{self.root}{target}")
            if source.startswith(f"{self.node}/") and not os.path.lexists(place):
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(source)

    def _plain_members(self) -> list[int]:
        view = f"PDTUI_ROOT_VIEW={self.root}".encode()
        found = []
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdigit() and view in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
        return [pid for pid in found if pid != os.getpid()]

    def create(self, *words: str) -> None:
        """Make it anew from its image and begin it; `no-state`: without the mount of the state folder."""
        if self.root.is_dir() and self.pid:
            raise Refused(f'Conflict. The container name "/{self.name}" is already in use')
        (self.home / "no-state").unlink(missing_ok=True)
        if "no-state" in words:
            (self.home / "no-state").touch()
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.node / "engine" / "image", self.root, symlinks=True)
        self.start()

    def start(self) -> None:
        """Begin it; returns when processes can be started in it."""
        self._require()
        (self.home / "ended").unlink(missing_ok=True)
        if self.pid or self.plain:
            return
        (self.home / "paused").unlink(missing_ok=True)
        ear, mouth = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(ear)
            self._become(mouth)
        os.close(mouth)
        os.waitpid(child, 0)
        with os.fdopen(ear, "rb") as word:
            problem = word.read().decode()
        if problem:
            raise Refused(f"failed to create task for container: {problem}")

    def _become(self, mouth: int) -> None:
        """Leave the node's namespaces and leave a process behind as pid 1. Never returns."""
        problem = ""
        try:
            os.setsid()
            call("unshare", CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWPID)
            gate, opener = os.pipe()
            pid = os.fork()
            if pid == 0:
                os.close(opener)
                os.read(gate, 1)
                self._run(mouth)
            (self.home / "pid.new").write_text(f"{pid}\n", encoding="ascii")
            (self.home / "pid.new").replace(self.home / "pid")
        except OSError as error:
            problem = str(error)
        os.write(mouth, problem.encode())
        os._exit(1 if problem else 0)

    def _run(self, mouth: int) -> None:
        """Turn into pid 1 of the container. Never returns."""
        try:
            command = [str(word) for word in self.spec.get("command") or COMMAND]
            self._furnish()
            null = os.open("/dev/null", os.O_RDWR)
            for descriptor in range(3):
                os.dup2(null, descriptor)
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.closerange(3, mouth)
            os.closerange(mouth + 1, 256)
            os.set_inheritable(mouth, False)
            os.execvpe(command[0], command, {"PATH": PATH, "HOME": "/root"})  # noqa: S606
        except OSError as error:
            os.write(mouth, str(error).encode())
        os._exit(1)

    def stop(self, seconds: str = "") -> None:
        """SIGTERM to pid 1, SIGKILL after `seconds`; with pid 1 every process of the container goes."""
        self._require()
        if self.plain:
            (self.home / "ended").touch()
            for found in self._plain_members():
                self._signal(signal.SIGKILL, found)
            return
        pid = self.pid
        patience = float(seconds or self.spec.get("stop_timeout") or PATIENCE)
        if pid and patience > 0:
            self._signal(signal.SIGTERM, pid)
            self._wait(pid, patience)
        if self.pid:
            self._signal(signal.SIGKILL, pid)
            self._wait(pid, PATIENCE)
        for name in ("pid", "paused"):
            (self.home / name).unlink(missing_ok=True)

    def restart(self, seconds: str = "") -> None:
        """Stop and begin again: the root folder stays, the processes do not."""
        self.stop(seconds)
        self.start()

    def kill(self) -> None:
        """End it at once."""
        self._require_running()
        self.stop("0")

    def remove(self) -> None:
        """End it at once and remove its root folder."""
        self.stop("0")
        shutil.rmtree(self.root, ignore_errors=True)

    def rename(self, tool: str, name: str) -> None:
        """Give it another name; what runs in it does not notice."""
        other = Container(self.node, name)
        if other.root.is_dir() or is_taken(self.node, name):
            raise name_conflict(name, tool)
        shutil.rmtree(other.home, ignore_errors=True)  # What is known of one that was removed.
        self.home.rename(other.home)
        self.root.rename(other.root)

    def pause(self) -> None:
        """Freeze every process in it."""
        self._require_running()
        (self.home / "paused").touch()
        for pid in self._members():
            self._signal(signal.SIGSTOP, pid)

    def unpause(self) -> None:
        """Let them go on."""
        self._require()
        (self.home / "paused").unlink(missing_ok=True)
        for pid in self._members():
            self._signal(signal.SIGCONT, pid)

    # ---- parts

    def _require(self) -> None:
        if not self.root.is_dir():
            raise Refused(f"No such container: {self.name}")

    def _require_running(self) -> None:
        self._require()
        if not self.pid:
            raise Refused(f"container {self.name} is not running")

    def _members(self) -> list[int]:
        """Return the pids of its processes as the node sees them, pid 1 last: it must be there to the end."""
        init = self.pid
        with contextlib.suppress(OSError):
            space = Path(f"/proc/{init}/ns/pid").readlink()
            found: list[int] = []
            for process in Path("/proc").iterdir():
                with contextlib.suppress(OSError):
                    name = process.name
                    if name.isdigit() and int(name) != init and (process / "ns" / "pid").readlink() == space:
                        found.append(int(name))
            return [*found, init]
        return []

    @staticmethod
    def _signal(number: int, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def _wait(self, pid: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self.pid == pid and time.monotonic() < until:
            time.sleep(0.01)

    def _furnish(self) -> None:
        """Make the root folder what the container sees. Raises `OSError`."""
        spec = self.spec
        mount("none", "/", None, MS_REC | MS_PRIVATE)
        mount(str(self.root), str(self.root), None, MS_BIND | MS_REC)
        self._system()
        hidden = self._words("hidden")
        binds = [(source, target, ro) for source, target, ro in spec["binds"] if target not in hidden]
        if not (self.home / "no-state").exists():
            binds.append((spec["state"], spec["state"], False))
        for source, target, read_only in binds:
            self._bind(Path(source), target, read_only=read_only)
        os.chdir(self.root)
        call("pivot_root", b".", b".")
        call("umount2", b".", MNT_DETACH)
        os.chdir("/")
        name = str(spec["hostname"]).encode()
        call("sethostname", name, len(name))

    def _words(self, name: str) -> list[str]:
        """Return the lines of a file that faults write: `hidden` mounts, `closed` devices, `shm`."""
        with contextlib.suppress(FileNotFoundError):
            return (self.home / name).read_text(encoding="utf-8").split()
        return []

    def _system(self) -> None:
        """Lend the machine's programs and libraries, and make the rest."""
        for name in ("bin", "sbin", "lib", "lib32", "lib64"):
            real, ours = Path("/", name), self.root / name
            if real.is_symlink() and not ours.is_symlink():
                ours.symlink_to(real.readlink())
            elif real.is_dir() and not real.is_symlink():
                self._bind(real, str(real), read_only=True)
        for part in Path("/usr").iterdir():
            if part.is_dir() and not part.is_symlink() and part.name not in {"local", "src", "games"}:
                self._bind(part, str(part), read_only=True)
        for name in ("dev", "etc", "mnt", "opt", "proc", "run", "sys", "tmp", "var/lib", "var/tmp"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        for name in SYSTEM_ETC:
            if Path("/etc", name).exists():
                self._bind(Path("/etc", name), f"/etc/{name}", read_only=True)
        mount("proc", str(self.root / "proc"), "proc", 0)
        for name in DEVICES:
            self._bind(Path("/dev", name), f"/dev/{name}")
        for name, target in (("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
            with contextlib.suppress(FileExistsError):
                (self.root / "dev" / name).symlink_to(target)
        if Path("/dev/pts").is_dir():
            self._bind(Path("/dev/pts"), "/dev/pts")
        self._devices()

    def _devices(self) -> None:
        """Hand in the NPUs, and make the shared memory that the engine was told."""
        spec = self.spec
        closed = self._words("closed")
        for name in spec["devices"]:
            place = self.root / "dev" / name
            place.unlink(missing_ok=True)
            if name not in closed:
                self._bind(Path("/dev/null"), f"/dev/{name}")
        shm = self.root / "dev" / "shm"
        shm.mkdir(exist_ok=True)
        (size,) = self._words("shm") or [spec["shm"]]
        mount("shm", str(shm), "tmpfs", 0, f"mode=1777,size={size}")

    def _bind(self, source: Path, target: str, *, read_only: bool = False) -> None:
        place = Path(f"{self.root}{target}")
        if source.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.exists():  # What is lent already, like the machine's Python, is never written to.
                place.touch()
        mount(str(source), str(place), None, MS_BIND | MS_REC)
        if read_only:
            # A mount with flags that a user namespace has locked keeps them, and refuses this.
            with contextlib.suppress(OSError):
                mount("none", str(place), None, MS_BIND | MS_REMOUNT | MS_RDONLY)


class Images:
    """The images of a node, and what is said where one is missing."""

    def __init__(self, node: Path, tool: str) -> None:
        self.list = node / "engine" / "images"
        self.tool = tool

    def has(self, image: str) -> bool:
        """Whether the node has it."""
        return image in self.list.read_text(encoding="utf-8").split()

    def require(self, image: str, *, running: bool) -> None:
        """Refuse where it is missing; `running`: docker would fetch it, and has no way out."""
        if self.has(image):
            return
        if self.tool == "podman":
            raise Refused(f"Error: {image}: image not known", status=125)
        if self.tool == "nerdctl":
            raise Refused(f"FATA[0000] no such image: {image}")
        if running:
            host = image.partition("/")[0]
            raise Refused(
                f"Unable to find image '{image}' locally\ndocker: Error response from daemon: Get"
                f" \"https://{host}/v2/\": dial tcp: lookup {host}: no such host.\nSee 'docker run --help'.",
                status=125,
            )
        raise Refused(f"Error response from daemon: No such image: {image}")

    def add(self, image: str) -> None:
        """Fetch it."""
        if not self.has(image):
            with self.list.open("a", encoding="utf-8") as file:
                file.write(f"{image}\n")


def run(node: Path, tool: str, words: list[str]) -> str:
    """Do `run WORDS`; returns what it prints."""
    made = read_run(words)
    name = made["name"]
    if (node / "containers" / name).is_dir() or is_taken(node, name):
        raise name_conflict(name, tool)
    Images(node, tool).require(made["image"], running=True)
    require_sources(node, tool, made)
    if (node / "engine" / "full").exists():
        raise Refused(
            "docker: Error response from daemon: mkdir /var/lib/docker/overlay2/2f: no space left on device.",
            status=125,
        )
    Container(node, name).run(made)
    return ID


def require_sources(node: Path, tool: str, made: dict[str, Any]) -> None:
    """Refuse mounts of what is not there; of `-v` docker and nerdctl make a folder, podman does not."""
    asked = [source for source, _, _ in made["mounts"]] if tool == "podman" else made["must_exist"]
    for source in asked:
        if not (node / source.lstrip("/")).exists() and not Path(source).exists():
            words = {
                "podman": f"Error: statfs {source}: no such file or directory",
                "nerdctl": f'FATA[0000] failed to stat "{source}": stat {source}: no such file or directory',
            }
            docker = (
                'docker: Error response from daemon: invalid mount config for type "bind": bind source path does'
                f" not exist: {source}.\nSee 'docker run --help'."
            )
            raise Refused(words.get(tool, docker), status=1 if tool == "nerdctl" else 125)


def is_taken(node: Path, name: str) -> bool:
    """Whether a container that this user does not see has the name."""
    path = node / "engine" / "taken"
    return path.exists() and name in path.read_text(encoding="utf-8").split()


def name_conflict(name: str, tool: str) -> Refused:
    """Return what is said of a name that another container has."""
    words = {
        "podman": f'Error: creating container storage: the container name "{name}" is already in use by'
        f" {ID}. You have to remove that container to be able to reuse that name: that name is already in use",
        "nerdctl": f'FATA[0000] name "{name}" is already used by ID "{ID}"',
    }
    docker = (
        f'docker: Error response from daemon: Conflict. The container name "/{name}" is already in use by'
        f' container "{ID}". You have to remove (or rename) that container to be able to reuse that name.'
    )
    return Refused(words.get(tool, docker), status=1 if tool == "nerdctl" else 125)


ID = "5d1b2b7a1c6fd14a5f0c8f8d2c6f8d1b7f3f2a9f0e7b1c2d3e4f5a6b7c8d9e0f"


def answer(node: Path, verb: str, tool: str, words: list[str]) -> str:
    """Do what is no verb of one container; returns what it prints."""
    images = Images(node, tool)
    if verb == "run":
        return run(node, tool, words)
    if verb == "image" and words[:1] == ["inspect"] and len(words) == 2:
        images.require(words[1], running=False)
        return json.dumps([{"Id": f"sha256:{image_id(words[1])}", "RepoTags": [words[1]]}])
    if verb == "pull" and len(words) == 1:
        images.add(words[0])
        return words[0]
    if verb == "logs":
        log = node / "engine" / words[-1] / "log"
        return log.read_text(encoding="utf-8") if log.exists() else ""
    raise Refused(f"{tool}: '{verb} {' '.join(words)}' is not known here")


def main(node: str) -> int:
    """Do what the command line says; returns its exit status."""
    verb, name, *words = sys.argv[1:]
    try:
        if verb in {"run", "image", "pull", "logs"}:
            print(answer(Path(node), verb, words[0], words[1:]))  # noqa: T201
        else:
            getattr(Container(Path(node), name), verb)(*words)
    except BadWords as error:
        tool = words[0]
        before = {"podman": "Error: ", "nerdctl": "FATA[0000] "}.get(tool, "")
        print(f"{before}{error}\nSee '{tool} run --help'.", file=sys.stderr)  # noqa: T201
        return 1 if tool == "nerdctl" else 125
    except Refused as error:
        own = str(error).startswith(("docker:", "Error", "FATA", "Unable"))
        print(error if own else f"Error response from daemon: {error}", file=sys.stderr)  # noqa: T201
        return error.status
    return 0
