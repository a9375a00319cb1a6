"""The container engine of a simulated node: begins, freezes and ends containers, each in namespaces of its own.

Run on the node by its `docker`, with standard library only: `engine VERB NAME`. A container has its own pid,
mount, UTS and IPC namespace, its own root folder and the node's network; pid 1 is `sleep infinity`, which neither
reaps orphans nor minds SIGTERM, as in containers that are started without `--init`.

Below NODE: `containers/NAME` is the root folder; `engine/NAME` holds `spec.json` (what it is made from), `image`
(the root folder as it was at first), `pid` (of its pid 1, as the node sees it; there while it runs), `paused`.
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

    # ---- verbs

    def create(self, *words: str) -> None:
        """Make it anew from its image and begin it; `no-state`: without the mount of the state folder."""
        if self.root.is_dir() and self.pid:
            raise Refused(f'Conflict. The container name "/{self.name}" is already in use')
        (self.home / "no-state").unlink(missing_ok=True)
        if "no-state" in words:
            (self.home / "no-state").touch()
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.home / "image", self.root, symlinks=True)
        self.start()

    def start(self) -> None:
        """Begin it; returns when processes can be started in it."""
        self._require()
        if self.pid:
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
            self._furnish()
            null = os.open("/dev/null", os.O_RDWR)
            for descriptor in range(3):
                os.dup2(null, descriptor)
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.closerange(3, mouth)
            os.closerange(mouth + 1, 256)
            os.set_inheritable(mouth, False)
            os.execvpe(COMMAND[0], COMMAND, {"PATH": PATH, "HOME": "/root"})  # noqa: S606
        except OSError as error:
            os.write(mouth, str(error).encode())
        os._exit(1)

    def stop(self, seconds: str = "") -> None:
        """SIGTERM to pid 1, SIGKILL after `seconds`; with pid 1 every process of the container goes."""
        self._require()
        pid = self.pid
        patience = float(seconds or PATIENCE)
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


def main(node: str) -> int:
    """Do what the command line says; returns its exit status."""
    verb, name, *words = sys.argv[1:]
    container = Container(Path(node), name)
    try:
        getattr(container, verb)(*words)
    except Refused as error:
        print(f"Error response from daemon: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0
