"""The first process of a simulated node: starts what it is told to, reaps everything, and takes all down with it.

Run as `python -m pdtui.sim.node_init FD MODE HOSTNAME NODE STATE [INTERFACE ADDRESS]`, standard library only,
started by `pdtui.sim.processes`. FD is a Unix SEQPACKET socket; each request is one JSON packet, `spawn` carries
stdin, stdout and stderr as descriptors. MODE `namespace` puts the node into its own user, pid, mount and UTS
namespace, so that its end is the end of every process in it; MODE `netns` adds a network of its own, whose
interface goes to the caller as the descriptor of a tap, and users as the machine has them, for a real sshd; MODE
`plain` collects orphans as a subreaper and ends them one by one. The end comes with the end of the socket, so it
also comes when the simulation is killed.

On the socket `run/pids` below NODE a process learns pids as the node sees them; in a container it cannot know its
own, and vendor tools list processes by that.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import struct
import sys
import termios
from typing import Any

from pdtui.sim.mounting import MS_BIND, MS_PRIVATE, MS_REC, mount, show_software
from pdtui.sim.tap import (
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUTS,
    call,
    enter_namespaces,
    loopback_up,
    open_tap,
    write,
)

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

CREDENTIALS = struct.Struct("3i")
"""pid, uid and gid, as SCM_CREDENTIALS carries them."""


def furnish(hostname: str, node: str, state: str) -> None:
    """Give the namespaces what tells one machine from another. Raises `OSError` when /proc cannot be had."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc", 0)
    name = hostname.encode()
    call("sethostname", name, len(name))
    # All nodes name the same folder in the topology file, and each has its own behind it.
    mount(f"{node}/state", state, None, MS_BIND)
    for source, target in (("boot_id", "/proc/sys/kernel/random/boot_id"), ("machine-id", "/etc/machine-id")):
        # Not there, or not allowed: the nodes then share the machine's.
        with contextlib.suppress(OSError):
            mount(f"{node}/etc/{source}", target, None, MS_BIND)


def furnish_as_machine(node: str) -> None:
    """Give a node with a network what its sshd needs: an account that leads to the node's home, and folders.

    Raises `OSError`.
    """
    # Of the node's network, where the kernel allows it; nothing of the simulator looks there.
    with contextlib.suppress(OSError):
        mount("sysfs", "/sys", "sysfs", 0)
    if not node.startswith("/run/"):
        mount("tmpfs", "/run", "tmpfs", 0)
        # sshd's, for the part of it that has no rights.
        os.mkdir("/run/sshd", 0o755)
    for name in ("etc/passwd", "etc/shadow", "etc/group", "etc/hosts", "var/log"):
        mount(f"{node}/{name}", f"/{name}", None, MS_BIND)
    # Whoever is not root there listens on port 22 all the same.
    write("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")


class Init:
    """Answers requests until the socket ends."""

    def __init__(self, control: socket.socket, pids: socket.socket, *, own_namespace: bool) -> None:
        self.control = control
        self.pids = pids
        self.own_namespace = own_namespace
        self.children: dict[int, int] = {}
        """Pid -> the caller's id for it."""
        self.files = 0
        """Soft limit of open files before a fault changed it."""

    def run(self, tap: int | None = None) -> None:
        """Serve, `tap` given away; returns when the simulation is gone and every process of the node with it."""
        wake, woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(ignored, signal.SIG_IGN)
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(wake, select.POLLIN)
        poll.register(self.pids, select.POLLIN)
        self.say({"ready": os.getpid()}, tap)
        if tap is not None:
            os.close(tap)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake, 4096)
                    self.reap()
                elif descriptor == self.pids.fileno():
                    self.translate()
                elif not self.serve():
                    self.end_all()
                    return

    def say(self, message: dict[str, Any], descriptor: int | None = None) -> None:
        """Send one packet; a simulation that is gone needs none."""
        with contextlib.suppress(OSError):
            descriptors = [] if descriptor is None else [descriptor]
            socket.send_fds(self.control, [json.dumps(message).encode()], descriptors)

    def translate(self) -> None:
        """Answer pids with what they are here: the kernel translates credentials on their way (unix(7))."""
        room = socket.CMSG_SPACE(CREDENTIALS.size)
        with contextlib.suppress(OSError):
            connection, _ = self.pids.accept()
            with connection:
                connection.settimeout(2.0)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
                while True:
                    word, attached, _, _ = connection.recvmsg(16, room)
                    if not word:
                        return
                    for _, kind, data in attached:
                        if kind == socket.SCM_CREDENTIALS:
                            connection.send(b"%d" % CREDENTIALS.unpack(data)[0])

    def serve(self) -> bool:
        """Handle one request; False at the end of the socket."""
        try:
            packet, descriptors, _, _ = socket.recv_fds(self.control, 1 << 20, 4)
        except ConnectionResetError:
            return False
        if not packet:
            return False
        request = json.loads(packet)
        try:
            if request["op"] == "spawn":
                pid = self.spawn(request, descriptors)
                self.children[pid] = request["id"]
                self.say({"id": request["id"], "pid": pid})
            elif request["op"] == "signal":
                for pid, number in self.children.items():
                    if number == request["of"]:
                        with contextlib.suppress(ProcessLookupError):
                            os.killpg(pid, request["signal"])
            elif request["op"] == "kill":
                for pid in request["pids"]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, request["signal"])
                self.say({"id": request["id"], "done": True})
            elif request["op"] == "limit":
                self.limit(request["files"])
                self.say({"id": request["id"], "done": True})
            elif request["op"] == "end_logins":
                for pid in neighbours():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                self.say({"id": request["id"], "done": True})
            elif request["op"] == "kill_named":
                for pid in named(request["name"]):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, request["signal"])
                self.say({"id": request["id"], "done": True})
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def spawn(self, request: dict[str, Any], descriptors: list[int]) -> int:
        """Fork and execute, in a session of its own, with a controlling terminal if asked for."""
        pid = os.fork()
        if pid:
            return pid
        try:
            os.setsid()
            for target, descriptor in enumerate(descriptors[:3]):
                os.dup2(descriptor, target)
            if request.get("tty"):
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            os.chdir(request["cwd"])
            # Descriptors that the simulation passed are not close-on-exec.
            os.closerange(3, 256)
            os.execve(request["file"], request["argv"], request["env"])
        except OSError as error:
            os.write(2, f"{request['file']}: {error.strerror}\n".encode())
        os._exit(127)

    def limit(self, files: int) -> None:
        """Set how many files a process may have open, for all that run here and will; 0: as it was."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.files = self.files or soft
        wanted = (files or self.files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, wanted)
        pids = filter(str.isdigit, os.listdir("/proc")) if self.own_namespace else descendants(os.getpid())
        for pid in pids:
            with contextlib.suppress(OSError, ValueError):
                resource.prlimit(int(pid), resource.RLIMIT_NOFILE, wanted)

    def reap(self) -> None:
        """Collect every ended child, ours or adopted, and report ours."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self.children.pop(pid, None)
            if number is not None:
                self.say({"exit_of": number, "exit": os.waitstatus_to_exitcode(status)})

    def end_all(self) -> None:
        """Kill what is left: all processes of the namespace, or all descendants."""
        while True:
            try:
                if self.own_namespace:
                    os.kill(-1, signal.SIGKILL)
                else:
                    for pid in descendants(os.getpid()):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                os.waitpid(-1, 0)
            except (ChildProcessError, ProcessLookupError):
                return


def neighbours() -> list[int]:
    """Return the pids of this pid namespace without our own and without those of containers."""
    ours = os.readlink("/proc/self/ns/pid")
    found: list[int] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if int(pid) != os.getpid() and os.readlink(f"/proc/{pid}/ns/pid") == ours:
                found.append(int(pid))
    return found


def named(name: str) -> list[int]:
    """Return the pids that run a program of this name."""
    found: list[int] = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            if file.read().rstrip("\n") == name:
                found.append(int(pid))
    return found


def descendants(root: int) -> list[int]:
    """Return the pids below `root`, from /proc."""
    parents: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    found: list[int] = []
    for pid in parents:
        above = parents.get(pid, 0)
        while above not in (0, 1, root):
            above = parents.get(above, 0)
        if above == root:
            found.append(pid)
    return found


def listen_for_pids(node: str) -> socket.socket:
    """Listen on `run/pids` of the node, however long the path of the node is."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    folder = os.open(f"{node}/run", os.O_RDONLY)
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink("pids", dir_fd=folder)
        listener.bind(f"/proc/self/fd/{folder}/pids")
        listener.listen(64)
        listener.setblocking(False)
    finally:
        os.close(folder)
    return listener


FILES = 65536
"""Files that a process of a well-kept server may have open."""


def raise_limit() -> None:
    """Let processes have as many files open as on a server, where this user may."""
    for hard in (FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(FILES, hard), hard))
            return


def main() -> int:
    """Set the node up and serve."""
    raise_limit()
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    mode, hostname, node, state = sys.argv[2:6]
    call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if mode == "plain":
        call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # Its end has to be an orderly one: nobody else would end the descendants.
        call("prctl", PR_SET_PDEATHSIG, 0, 0, 0, 0)
        Init(control, listen_for_pids(node), own_namespace=False).run()
        return 0
    networked = mode == "netns"
    flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | (CLONE_NEWNET if networked else 0)
    try:
        enter_namespaces(flags, identity=networked)
    except OSError as error:
        control.send(json.dumps({"refused": str(error)}).encode())
        return 1
    pid = os.fork()
    if pid == 0:
        call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        tap = None
        try:
            furnish(hostname, node, state)
            if networked:
                loopback_up()
                furnish_as_machine(node)
                tap = open_tap(sys.argv[6], sys.argv[7])
            show_software(node)
            pids = listen_for_pids(node)
        except OSError as error:
            control.send(json.dumps({"refused": str(error)}).encode())
            os._exit(1)
        Init(control, pids, own_namespace=True).run(tap)
        os._exit(0)
    control.close()
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    while True:
        try:
            _, status = os.waitpid(pid, 0)
        except OSError as error:
            return 0 if error.errno == errno.ECHILD else 1
        return os.waitstatus_to_exitcode(status) & 0xFF


if __name__ == "__main__":
    sys.exit(main())
