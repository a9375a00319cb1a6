"""The program on a node: answers the console's requests over its stdin and stdout.

Never installed: the console sends it (`loader`) and the node's own Python runs it (3.6 and newer, standard
library only).
Newline-framed JSON, frames up to 64 KiB. A request is

    {"id": 7, "op": "run", "args": {...}}
    {"id": 7, "data": ["args", BASE64]}... {"id": 7, "op": "run"}      when it is larger than a frame

and its answers are any number of items and blobs, then one `ok` or `error`:

    {"id": 7, "data": ["3.stdout", BASE64]}    a piece of blob `stdout` of item 3 (of the result itself: "stdout")
    {"id": 7, "n": 3, "item": {...}}           an item that is complete
    {"id": 7, "ok": {...}}  |  {"id": 7, "error": {"code": "...", "message": "..."}}

A JSON value that does not fit a frame comes as the blob `json`. Small answers overtake bulk in the send queue.
An agent that hears nothing for 30 s ends with the commands that it runs, and so does one that is killed; ranks
stay, they belong to their keepers. A request that hangs in the kernel (a dead disk) is told after its patience
(`patience` among its arguments, in seconds) and delays no other.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs, no-check-untyped-defs
# mypy: disable-error-code=var-annotated

import base64
import binascii
import collections
import errno
import fcntl
import hashlib
import json
import os
import select
import signal
import socket
import stat as stat_module
import struct
import subprocess
import sys
import termios
import threading
import time
import zlib

PROTOCOL = 1
RECORD_FORMAT = 1
LEASE_FORMAT = 1
ACK_FORMAT = 1
MAGIC = "PDTUI-AGENT"
FRAME = 65536
RAW_PIECE = 45000  # raw bytes of a blob in one frame: 60,000 in base64
REQUEST_LIMIT = 16 << 20
SILENCE = 30.0  # seconds without a word from the console
CREDIT = 262144  # bytes sent and not acknowledged over all follows
FOLLOW_PIECE = 32768
BULK_LIMIT = 4 << 20  # bytes that wait to be sent before producers wait
CONTROL_LIMIT = 4 << 20  # the same for small answers; then no more requests are read either
THREADS = 128
BACKLOG = 512  # requests that wait for a thread
STUCK = 8  # threads of one kind of request that may hang in the kernel
PATIENCE = {"read": 10.0, "ranks": 20.0, "ports": 20.0, "processes": 20.0, "start": 90.0}
PATIENCE.update(dict.fromkeys(("journal", "journal_tail", "lease", "unlease", "leases", "check"), 10.0))
PATIENCE.update(acknowledge=10.0, acknowledged=10.0)
PATIENCE["evidence"] = 20.0
FOLLOW_PATIENCE = 10.0
LOCK_PATIENCE = 30.0
KEEPER_PATIENCE = 20
RUNS_KEPT = 5
EVIDENCE_KEPT = 3  # of one run
EVIDENCE_FREE = 256 << 20  # bytes that must stay free on the disk
EVIDENCE_LOG = 1 << 20  # bytes of the end of a log
EVIDENCE_PLOG = 262144  # of each of the vendor's newest logs
EVIDENCE_PLOGS = 8
ROOM_FOR_START = 262144
ROTATE_BYTES = 64 << 20
PIECES_KEPT = 4
JOURNAL_BYTES = 4 << 20
LEASE_LONGEST = 600.0  # seconds; nothing that claims more is a lease
LEASE_REMEMBERED = 3600.0  # seconds that a holder who was away can learn that its lease has ended
ACK_LONGEST = 90 * 86400.0  # seconds; none is longer, and each is remembered so long: no older one comes back
ACK_SAME = 2.0  # seconds within which clocks do not say which acknowledgement is newer
ACK_AHEAD = 60.0  # seconds: one that follows another at once is dated after it
ACKS_KEPT = 500
ACK_WORDS = 500  # characters
VENDOR_PATH = ("/usr/local/Ascend/driver/tools", "/usr/local/sbin", "/usr/local/bin")
VENDOR_LIBRARIES = (
    "/usr/local/Ascend/driver/lib64/driver",
    "/usr/local/Ascend/driver/lib64/common",
    "/usr/local/Ascend/driver/lib64",
)
ERROR_CODES = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "not_found",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
    errno.EROFS: "read_only",
    errno.EISDIR: "not_a_file",
    errno.ENOLCK: "no_locks",
    errno.EOPNOTSUPP: "no_locks",
    errno.ENOSYS: "no_locks",
}


class Failure(Exception):
    """A request that cannot be fulfilled; `code` is one word for programs."""

    def __init__(self, code, message):
        Exception.__init__(self, message)
        self.code = code


def code_of(error):
    """Return the word for a system error."""
    return ERROR_CODES.get(error.errno, "system")


def describe(error):
    """Return a system error with its path, in the system's words."""
    text = error.strerror or str(error)
    return "%s: %s" % (error.filename, text) if error.filename else text


def read_bytes(path, limit=1 << 20):
    """Return a file's first bytes, or nothing when it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(limit)
    except OSError:
        return b""


def read_text(path):
    """Return a file's text; nothing when it cannot be read."""
    return read_bytes(path, 4 << 20).decode("utf-8", "replace")


def read_line(path):
    """Return a small file's text without its newline."""
    return read_bytes(path, 4096).decode("utf-8", "replace").strip()


def load_json(path):
    """Return the object in a file; an empty one for a file that is missing, cut or garbage."""
    try:
        value = json.loads(read_bytes(path, 4 << 20).decode("utf-8", "replace"))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def write_atomically(path, data, mode=0o600):
    """Write a file so that readers see all of it or none."""
    temporary = "%s.%d.%d.tmp" % (path, os.getpid(), threading.get_ident())
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
        os.rename(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def fill_in(path, text):
    """Overwrite a file that the keeper made large enough at the start: works on a full disk."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        data = text.encode().ljust(255) + b"\n"
        os.pwrite(fd, data, 0)
        os.ftruncate(fd, len(data))
    finally:
        os.close(fd)


def make_private(path):
    """Make a folder and what lacks above it, for this user alone (os.makedirs: the last one only)."""
    if os.path.isdir(path):
        return
    make_private(os.path.dirname(path))
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def number(value):
    """Return an integer from a record, or None for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# ------------------------------------------------------------------------------------------------ processes


Stat = collections.namedtuple("Stat", "pid state ppid session start")  # noqa: PYI024


def read_stat(pid):
    """Return what proc(5) `stat` says of a process, or None when there is none."""
    data = read_bytes("/proc/%s/stat" % pid, 4096)
    try:
        fields = data.rsplit(b")", 1)[1].split()
        state = fields[0].decode()
        if state == "Z" and int(fields[17]) > 1:
            state = "S"  # its first thread has ended, others have not
        return Stat(int(pid), state, int(fields[1]), int(fields[3]), int(fields[19]))
    except (IndexError, ValueError):
        return None


def ticks_now():
    """Return the time in clock ticks since boot, as the start times of processes are told."""
    return int(time.clock_gettime(7) * os.sysconf("SC_CLK_TCK"))  # 7: CLOCK_BOOTTIME, named since Python 3.7


LIFE = getattr(read_stat(1), "start", None)
"""When the processes that this agent sees began to be numbered, in clock ticks since boot: in a container with the
container, so that its pids mean nothing after a restart. None where /proc hides it."""


def same_life(record, boot):
    """Say whether a record's pids mean processes of today; an older one has no more than its boot."""
    began = record.get("init_start")
    return record.get("boot_id") == boot and (began is None or LIFE is None or began == LIFE)


def is_alive(stat, start):
    """Say whether `stat` is the process that started at `start`, and no zombie."""
    return stat is not None and stat.start == start and stat.state not in "ZX"


def signal_process(pid, start, signum):
    """Signal a process if it still is the one that began at `start` (pidfd_open(2) where this Python has it)."""
    opener, sender = getattr(os, "pidfd_open", None), getattr(signal, "pidfd_send_signal", None)
    fd = None
    try:
        if opener is not None and sender is not None:
            try:
                fd = opener(pid)
            except OSError as error:
                if error.errno == errno.ESRCH:
                    return
        if is_alive(read_stat(pid), start):
            if fd is not None:
                sender(fd, signum)
            else:
                os.kill(pid, signum)
    except OSError:
        pass
    finally:
        if fd is not None:
            os.close(fd)


def ignores(pid, signum):
    """Say whether a process ignores a signal now (proc(5), status SigIgn)."""
    for line in read_bytes("/proc/%d/status" % pid, 8192).split(b"\n"):
        if line.startswith(b"SigIgn:"):
            return bool(int(line.split()[1], 16) >> (signum - 1) & 1)
    return False


def environment(pid):
    """Return a process's environment as it was at exec."""
    values = {}
    for entry in read_bytes("/proc/%d/environ" % pid, 4 << 20).split(b"\0"):
        name, mark, value = entry.partition(b"=")
        if mark:
            values[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return values


def api_key(pids):
    """Return the key that a server wants from its clients, as vLLM finds it; empty when it has none."""
    for pid in sorted(pids):
        words = argv_of(pid)
        given = [word[len("--api-key=") :] for word in words if word.startswith(("--api-key=", "--api_key="))]
        given += [words[at + 1] for at, word in enumerate(words[:-1]) if word in ("--api-key", "--api_key")]
        given.append(environment(pid).get("VLLM_API_KEY", ""))
        for key in given:
            if key and all(" " <= letter <= "~" for letter in key):
                return key
    return ""


MACHINE = os.environ.get("PDTUI_MACHINE_VIEW", "")
"""Set where several nodes share this kernel's process table: this node's id, which its ranks carry too."""


class Markers(object):
    """PDTUI_RANK of processes, remembered by pid and start time.

    A process without it can only get it by an exec, which our ranks do right after their start: an answer «none»
    is final for a process that has been seen for ten seconds.
    """

    def __init__(self):
        self.known = {}
        self.blank = set()
        self.lock = threading.Lock()

    def of(self, stat, fresh=False):
        key = (stat.pid, stat.start)
        now = time.monotonic()
        with self.lock:
            marker, first = self.known.get(key, (None, now))
        if marker or (marker == "" and not fresh and now - first > 10):
            return marker
        if stat.state == "D" and not fresh:
            return marker or ""  # stuck in a driver perhaps: then looking at its memory would hang as well
        marker = ""
        entries = read_bytes("/proc/%d/environ" % stat.pid, 4 << 20).split(b"\0")
        (self.blank.discard if entries[0] else self.blank.add)(key)
        if not MACHINE or b"PDTUI_MACHINE_VIEW=" + MACHINE.encode() in entries:
            for entry in entries:
                if entry.startswith(b"PDTUI_RANK="):
                    marker = entry[11:].decode("utf-8", "replace")
        with self.lock:
            self.known[key] = (marker, first)
        return marker

    @staticmethod
    def elsewhere(stat):
        """Say whether a process belongs to another node on this kernel: it says so, or is in other namespaces."""
        try:
            if os.readlink("/proc/%d/ns/pid" % stat.pid) != os.readlink("/proc/self/ns/pid"):
                return True
        except OSError:
            pass  # another user's, or ended
        entries = read_bytes("/proc/%d/environ" % stat.pid, 4 << 20).split(b"\0")
        return any(e.startswith(b"PDTUI_MACHINE_VIEW=") and e[19:] != MACHINE.encode() for e in entries)

    def is_blank(self, stat):
        """Say whether a process, no kernel thread, had no variables at the last look."""
        return stat.ppid != 2 and stat.session != 0 and (stat.pid, stat.start) in self.blank

    def forget(self, table):
        """Drop what is known of processes that are gone."""
        with self.lock:
            gone = [key for key in self.known if key[0] not in table or table[key[0]].start != key[1]]
            for key in gone:
                del self.known[key]
                self.blank.discard(key)


MARKERS = Markers()


class Entries(object):
    """The entries of /proc, kept between two looks: polling a node with thousands of processes costs little.

    The number of an entry's inode changes with the process behind a pid. What else may change: its parent, when
    that ends; its session and state, looked at again while it is young and else in turn.
    """

    TURNS = 16
    YOUNG = 10.0

    def __init__(self):
        self.lock = threading.Lock()
        self.known = {}
        self.turn = 0

    def look(self, fresh):
        """Return the living processes by pid; `fresh` reads all of them."""
        now, found = time.monotonic(), {}
        with self.lock:
            self.turn += 1
            with os.scandir("/proc") as entries:
                present = [(int(entry.name), entry.inode()) for entry in entries if entry.name.isdigit()]
            numbers = dict(present)
            gone = set(pid for pid, known in self.known.items() if numbers.get(pid) != known[0])
            for pid, inode in present:
                known = None if pid in gone else self.known.get(pid)
                if (
                    fresh
                    or known is None
                    or now - known[1] < self.YOUNG
                    or known[2].ppid in gone
                    or (pid + self.turn) % self.TURNS == 0
                ):
                    stat = read_stat(pid)
                    if stat is None or stat.state in "ZX":
                        continue
                    first = known[1] if known is not None and known[2].start == stat.start else now
                    known = (inode, first, stat)
                found[pid] = known
            self.known = found
        return {pid: known[2] for pid, known in found.items()}


ENTRIES = Entries()


class Table(object):
    """All processes at one moment; without `fresh` as they were a moment ago, but for those that are asked for."""

    def __init__(self, fresh=False):
        self.fresh = fresh
        self.stats = ENTRIES.look(fresh)
        MARKERS.forget(self.stats)
        self.children = {}
        self.sessions = {}
        self.marked = {}
        markers = {stat: MARKERS.of(stat, fresh) for stat in self.stats.values()}
        blank = [stat for stat in markers if fresh and MARKERS.is_blank(stat)]
        if blank:  # in the instant of its exec a process shows no variables at all: look again
            time.sleep(0.005)
            markers.update((stat, MARKERS.of(stat, True)) for stat in blank)
        for stat, marker in markers.items():
            self.children.setdefault(stat.ppid, []).append(stat.pid)
            self.sessions.setdefault(stat.session, []).append(stat.pid)
            if marker and stat.pid not in OWN:
                self.marked.setdefault(marker, []).append(stat.pid)

    def alive(self, pid, start):
        """Say whether a recorded process still runs."""
        return is_alive(self.stats.get(pid), start) and (self.fresh or is_alive(read_stat(pid), start))

    def living(self, pids):
        """Return those of the table's pids that are still who they were."""
        if self.fresh:
            return pids
        return set(pid for pid in pids if is_alive(read_stat(pid), self.stats[pid].start))

    def shows(self, record, boot):
        """Say whether a rank's server was alive."""
        return same_life(record, boot) and self.alive(record.get("pid"), record.get("start"))

    def lacks(self, record, boot):
        """Say whether a recorded process lives that this table does not know: the record is younger."""
        if not same_life(record, boot):
            return False
        pairs = [(record.get("pid"), record.get("start")), (record.get("keeper"), record.get("keeper_start"))]
        return any(
            number(pid) and not self.alive(pid, start) and is_alive(read_stat(pid), start) for pid, start in pairs
        )

    def below(self, pid):
        """Return the descendants of a process."""
        found, todo = [], list(self.children.get(pid, ()))
        while todo:
            pid = todo.pop()
            found.append(pid)
            todo.extend(self.children.get(pid, ()))
        return found

    def of_rank(self, marker, record, boot):
        """Return the pids that belong to a rank: by descent, by session or by their variable. Never its keeper.

        After its end (`empty`) its numbers are anybody's: a session may have got one whose leader has ended too.
        """
        pids = set(self.marked.get(marker, ()))
        pid, start, keeper = (number(record.get(name)) for name in ("pid", "start", "keeper"))
        living = same_life(record, boot)
        if keeper and living and self.alive(keeper, record.get("keeper_start")):
            pids.update(self.below(keeper))
            pids.discard(keeper)
        if pid and living:
            leader = self.stats.get(pid)
            if self.alive(pid, start):
                pids.add(pid)
                pids.update(self.below(pid))
            if (leader is None and not record.get("empty")) or (leader is not None and leader.start == start):
                pids.update(self.sessions.get(pid, ()))
        return self.living(pids - OWN)


def boot_time():
    """Return the node's boot as seconds since the epoch (proc(5), /proc/stat btime)."""
    for line in read_bytes("/proc/stat").split(b"\n"):
        if line.startswith(b"btime "):
            return float(line.split()[1])
    return 0.0


def user_of(pid):
    """Return the name, else the number, of a process's owner."""
    try:
        return user_name(os.stat("/proc/%d" % pid).st_uid)
    except OSError:
        return ""


def user_name(uid):
    """Return a user's name, else the number."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def inner_pid(pid):
    """Return what a process is numbered in its own pid namespace, so in its container (proc(5), NSpid)."""
    for line in read_bytes("/proc/%d/status" % pid, 65536).split(b"\n"):
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return pid


def argv_of(pid, limit=16384):
    """Return a process's command line as words."""
    data = read_bytes("/proc/%d/cmdline" % pid, limit).rstrip(b"\0")
    return [word.decode("utf-8", "replace") for word in data.split(b"\0")] if data else []


def output_of(pid):
    """Return where a process's stdout goes: of what kind it is, the path to follow, what tells files apart."""
    link = "/proc/%d/fd/1" % pid
    try:
        target, info = os.readlink(link), os.stat(link)
    except OSError:
        return {"kind": "unreadable", "path": "", "name": "", "id": ""}
    kind, path = "other", ""
    if stat_module.S_ISREG(info.st_mode):
        try:
            there = os.stat(target)
            kept = (there.st_dev, there.st_ino) == (info.st_dev, info.st_ino)
        except OSError:
            kept = False
        kind, path = ("file", target) if kept else ("deleted", link)
    elif stat_module.S_ISFIFO(info.st_mode):
        kind = "pipe"
    elif stat_module.S_ISSOCK(info.st_mode):
        kind = "socket"
    elif stat_module.S_ISCHR(info.st_mode):
        kind = "null" if target == "/dev/null" else "tty"
    return {"kind": kind, "path": path, "name": target, "id": "%d:%d" % (info.st_dev, info.st_ino)}


SHELLS = ("sh", "bash", "dash", "zsh", "ksh")


class Census(object):
    """Processes that look like servers, and those that are asked for; of all others command lines are read once.

    What a process is called changes with an exec: young ones and shells are looked at again each time, the others
    in turn. In the instant of its exec it shows no command line at all: then what it showed before holds.
    """

    def __init__(self):
        self.known = {}
        self.match = ()
        self.told = {}
        self.lock = threading.Lock()
        self.turn = 0

    def matches(self, stat, match, now):
        """Say whether one of a process's words contains one of `match`."""
        key = (stat.pid, stat.start)
        first, settled, found = self.known.get(key, (now, False, ()))
        if not settled or now - first < Entries.YOUNG or (stat.pid + self.turn) % Entries.TURNS == 0:
            argv = argv_of(stat.pid)
            if argv:
                found = tuple(part for part in match if any(part in word for word in argv))
            settled = not argv or os.path.basename(argv[0]).lstrip("-") not in SHELLS
            self.known[key] = (first, settled, found)
        return any(part in found for part in match)

    def list(self, args):
        """Return the processes; of those that the console knows under their command line only the rest."""
        match, names, skip = tuple(args["match"]), args["env"], args.get("skip", "")
        asked = set(args.get("pids", ()))
        told = set((pid, start) for pid, start in args.get("known", ()))
        ticks, boot, now = float(os.sysconf("SC_CLK_TCK")), boot_time(), time.monotonic()
        table = Table()
        found = []
        with self.lock:
            self.turn += 1
            keys = set((stat.pid, stat.start) for stat in table.stats.values())
            if match and match != self.match:
                self.match, self.known = match, {}
            self.known = {key: value for key, value in self.known.items() if key in keys}
            self.told = {key: value for key, value in self.told.items() if key in keys}
            chosen = [
                stat
                for stat in table.stats.values()
                if stat.pid not in OWN and (stat.pid in asked or (match and self.matches(stat, match, now)))
            ]
        for stat in chosen:
            marker = MARKERS.of(stat)
            hidden = MACHINE and MARKERS.elsewhere(stat)
            if hidden or (skip and marker.startswith(skip) and stat.pid not in asked):
                continue
            key, today = (stat.pid, stat.start), read_stat(stat.pid)
            if not is_alive(today, stat.start):
                continue
            before = self.told.get(key, [])
            argv = before
            if not before or today.state != "D":  # stuck in a driver perhaps: then its memory hangs too
                argv = argv_of(stat.pid) or before
            if not argv and stat.pid not in asked:
                continue  # between two programs, or at its end: the next look tells
            view = {
                "pid": stat.pid,
                "start": stat.start,
                "ppid": stat.ppid,
                "tree": sorted(table.living(set(table.below(stat.pid)))),
                "output": output_of(stat.pid),
            }
            if key not in told or argv != before:
                values = environment(stat.pid) if names else {}
                view.update(
                    session=stat.session,
                    started=boot + stat.start / ticks,
                    argv=argv,
                    env={name: values[name] for name in names if name in values} if values else None,
                    user=user_of(stat.pid),
                    rank=marker,
                    inner=inner_pid(stat.pid),
                    apart=namespace("mnt", str(stat.pid)) not in ("", namespace("mnt")),
                )
                with self.lock:
                    self.told[key] = argv
            found.append(view)
        return found


CENSUS = Census()


class Ports(object):
    """Listening TCP ports and who owns them; owners are remembered by socket number."""

    def __init__(self, view):
        self.view = view
        self.owners = {}
        self.unknown_until = {}
        self.lock = threading.Lock()

    def listeners(self):
        """Return [(address, port, inode)] from /proc/net/tcp and tcp6 (proc(5); state 0A is LISTEN)."""
        found = []
        for path, family in (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6)):
            for line in read_bytes(path, 64 << 20).split(b"\n")[1:]:
                fields = line.split()
                if len(fields) < 10 or fields[3] != b"0A":
                    continue
                address, port = fields[1].split(b":")
                raw = binascii.unhexlify(address)
                if sys.byteorder == "little":
                    raw = b"".join(raw[i : i + 4][::-1] for i in range(0, len(raw), 4))
                text = socket.inet_ntop(family, raw)
                if text.startswith("::ffff:"):
                    text = text[7:]
                if not self.view or text in (self.view, "0.0.0.0", "::"):
                    found.append((text, int(port, 16), int(fields[9])))
        return found

    def find_owners(self, wanted):
        """Walk all descriptors for sockets whose owner is not known."""
        for name in os.listdir("/proc"):
            if not wanted:
                return
            if not name.isdigit():
                continue
            try:
                descriptors = os.listdir("/proc/%s/fd" % name)
            except OSError:
                continue
            for descriptor in descriptors:
                try:
                    target = os.readlink("/proc/%s/fd/%s" % (name, descriptor))
                except OSError:
                    continue
                if target.startswith("socket:[") and int(target[8:-1]) in wanted:
                    stat = read_stat(name)
                    if stat is not None:
                        self.owners[int(target[8:-1])] = (stat.pid, stat.start)
                        wanted.discard(int(target[8:-1]))

    def list(self):
        """Return the listeners with pid, command and rank of their owners."""
        now = time.monotonic()
        with self.lock:
            listeners = self.listeners()
            inodes = set(entry[2] for entry in listeners)
            self.owners = {
                inode: owner
                for inode, owner in self.owners.items()
                if inode in inodes and is_alive(read_stat(owner[0]), owner[1])
            }
            self.unknown_until = {i: t for i, t in self.unknown_until.items() if i in inodes and t > now}
            wanted = inodes - set(self.owners) - set(self.unknown_until)
            self.find_owners(wanted)
            for inode in wanted:  # other users' sockets: do not walk again for each request
                self.unknown_until[inode] = now + 15
            owners = dict(self.owners)
        result = []
        for address, port, inode in listeners:
            pid, start = owners.get(inode, (None, 0))
            rank = MARKERS.of(Stat(pid, "", 0, 0, start)) if pid else ""
            command = " ".join(argv_of(pid, 4096)) if pid else ""
            result.append({"address": address, "port": port, "pid": pid, "command": command, "rank": rank})
        return result


# ------------------------------------------------------------------------------------------------- commands


AGENT_VARIABLE = "PDTUI_AGENT"
AGENT = "%d.%d" % (os.getpid(), ticks_now())
"""What the commands of this agent carry."""


def command_environment(extra):
    """Return the environment of commands: vendor folders at the end of PATH, vendor libraries, English."""
    environ = dict(os.environ)
    path = [part for part in environ.get("PATH", "/usr/bin:/bin").split(":") if part]
    environ["PATH"] = ":".join(path + [part for part in VENDOR_PATH if part not in path])
    libraries = [part for part in environ.get("LD_LIBRARY_PATH", "").split(":") if part]
    environ["LD_LIBRARY_PATH"] = ":".join(libraries + [part for part in VENDOR_LIBRARIES if part not in libraries])
    environ["LC_ALL"] = "C"
    environ[AGENT_VARIABLE] = AGENT
    environ.update(extra)
    return environ


def kill_group(pid):
    """Kill a process group; nothing happens when it is gone."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        pass


class Reaper(object):
    """A process that kills the agent's commands when the agent is gone, whatever killed it.

    It hears of each process group through a pipe, and of the agent's end by the end of that pipe. What was being
    started just then has told its number to nobody: it is found by its variable.
    """

    def __init__(self):
        ear, self.mouth = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self.serve(ear)
        os.close(ear)

    def serve(self, ear):
        """In the child: wait for the end of the agent. Does not return."""
        try:
            os.setsid()
            for name in ("SIGHUP", "SIGINT", "SIGTERM"):
                signal.signal(getattr(signal, name), signal.SIG_IGN)
            null = os.open("/dev/null", os.O_RDWR)
            os.dup2(ear, 3)
            for fd in (0, 1, 2):  # the agent's channel must end with the agent
                os.dup2(null, fd)
            os.closerange(4, 1024)
            groups, births, rest = set(), [], b""
            while True:
                piece = os.read(3, 65536)
                if not piece:
                    break
                lines = (rest + piece).split(b"\n")
                rest = lines.pop()
                for line in lines:
                    told = {43: groups.add, 45: groups.discard, 63: births.append, 33: births.remove}
                    told[line[0]](int(line[1:]))
            for group in groups:
                kill_group(group)
            until = time.monotonic() + 2.0
            while births and time.monotonic() < until:
                del births[: self.find(min(births))]
                time.sleep(0.05)
        finally:
            os._exit(0)

    @staticmethod
    def find(ticks):
        """Kill what leads a session, carries our variable and is no older than `ticks`; return how many."""
        mark, found = AGENT_VARIABLE + "=" + AGENT, 0
        for name in os.listdir("/proc"):
            stat = read_stat(name) if name.isdigit() else None
            if stat is not None and stat.session == stat.pid and stat.start >= ticks:
                if mark.encode() in read_bytes("/proc/%s/environ" % name, 4 << 20).split(b"\0"):
                    kill_group(stat.pid)
                    found += 1
        return found

    def tell(self, sign, number):
        """Say that a group is to end with the agent (+) or not (-), that a start begins (?) or ends (!)."""
        try:
            os.write(self.mouth, ("%s%d\n" % (sign, number)).encode())
        except OSError:
            pass  # it was killed: the agent itself still ends its commands

    def leave(self):
        """Let it end, and wait for that a little."""
        os.close(self.mouth)
        until = time.monotonic() + 1.0
        try:
            while time.monotonic() < until and not os.waitpid(self.pid, os.WNOHANG)[0]:
                time.sleep(0.002)
        except OSError:
            pass


REAPERS = []
"""This process's reaper; none where the agent is a thread of another program."""
OWN = {os.getpid()}
"""This agent's processes: no part of a rank, whoever started the console."""


class Job(object):
    """What a request can be told while it runs: to stop."""

    def __init__(self):
        self.cancelled = False
        self.abandoned = False
        self.op = ""
        self.begun = 0.0
        self.deadline = None
        self.births = 0
        self.lock = threading.RLock()  # the signal handler may interrupt its holder
        self.groups = set()

    def expect(self, change, ticks):
        """Count (1) a command whose start began at a moment in clock ticks since boot; or no longer (-1)."""
        with self.lock:
            self.births += change
            for reaper in REAPERS:
                reaper.tell("?" if change > 0 else "!", ticks)

    def cancel(self):
        """Kill the commands of the request and keep it from starting more."""
        with self.lock:
            self.cancelled = True
            for group in self.groups:
                kill_group(group)

    def adopt(self, group):
        """Kill this process group when the request is cancelled."""
        with self.lock:
            self.groups.add(group)
            for reaper in REAPERS:
                reaper.tell("+", group)
            if self.cancelled:
                kill_group(group)

    def release(self, group):
        """Forget a process group before its number can be used again."""
        with self.lock:
            self.groups.discard(group)
            for reaper in REAPERS:
                reaper.tell("-", group)


UNREAPED = []


def has_ended(pid):
    """Say whether a child has ended, without reaping it: its number stays ours until the group is killed."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except OSError:
        return True


class Capture(object):
    """Reads a child's two pipes up to a limit each."""

    def __init__(self, process, limit):
        self.limit = limit
        self.truncated = False
        self.data = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
        self.files = [process.stdout.fileno(), process.stderr.fileno()]
        self.open = set(self.files)
        self.poll = select.poll()
        for fd in self.files:
            os.set_blocking(fd, False)
            self.poll.register(fd, select.POLLIN)

    def step(self, seconds):
        """Read what comes within `seconds`; say whether a pipe is still open."""
        for fd, _ in self.poll.poll(max(0, int(seconds * 1000))):
            try:
                piece = os.read(fd, 65536)
            except BlockingIOError:
                continue
            if not piece:
                self.poll.unregister(fd)
                self.open.discard(fd)
                continue
            room = self.limit - len(self.data[fd])
            self.truncated = self.truncated or len(piece) > room
            self.data[fd] += piece[: max(0, room)]
        return bool(self.open)


def wait_for_command(process, capture, deadline):
    """Read until the command and its pipes have ended; say whether its time ran out."""
    ended, pause = None, 0.002
    while True:
        now = time.monotonic()
        if ended is None and has_ended(process.pid):
            ended = now
        if ended is not None and (not capture.open or now - ended > 0.2):
            return False  # what still holds the pipes after its parent's end goes with the group
        if now >= deadline:
            return ended is None
        if capture.open:
            capture.step(min(0.05 if ended is not None else 0.25, deadline - now))
        else:  # most commands end right after they close their pipes
            time.sleep(min(pause, deadline - now))
            pause = min(0.1, pause * 2)


def drain(process, capture):
    """After the kill: read what is in the pipes and give the process a second to die."""
    until, pause = time.monotonic() + 1.0, 0.001
    while time.monotonic() < until:
        ended = has_ended(process.pid)
        if ended and not (capture.open and capture.poll.poll(20)):
            return  # a daemon that left the group may hold the pipes for ever
        if capture.open:
            capture.step(0.02)
        else:
            time.sleep(pause)
            pause = min(0.05, pause * 2)


def run_command(job, argv, timeout, env, limit):
    """Run one command; returns (result, blobs). The time-out, and a cancelled job, kill its process group."""
    UNREAPED[:] = [process for process in UNREAPED if process.poll() is None]
    result = {
        "status": None,
        "timed_out": False,
        "truncated": False,
        "error": "",
        "started": time.time(),
        "seconds": 0.0,
    }
    begin = time.monotonic()
    ticks = ticks_now()
    job.expect(1, ticks)
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=command_environment(env),
            start_new_session=True,
        )
        job.adopt(process.pid)
    except (OSError, ValueError) as error:
        result["error"] = describe(error) if isinstance(error, OSError) else str(error)
        return result, {}
    finally:
        job.expect(-1, ticks)
    capture = Capture(process, limit)
    try:
        result["timed_out"] = wait_for_command(process, capture, begin + timeout)
    finally:
        kill_group(process.pid)
        drain(process, capture)
        job.release(process.pid)
        if has_ended(process.pid):
            result["status"] = process.wait()
        else:
            UNREAPED.append(process)  # stuck in the kernel (a wedged driver): reaped when it comes back
        process.stdout.close()
        process.stderr.close()
    result["truncated"] = capture.truncated
    result["seconds"] = time.monotonic() - begin
    return result, {
        "stdout": bytes(capture.data[capture.files[0]]),
        "stderr": bytes(capture.data[capture.files[1]]),
    }


class FileLock(object):
    """An flock that the kernel releases when its holder dies; waits politely."""

    def __init__(self, path, patience, job, what):
        self.path, self.patience, self.job, self.what = path, patience, job, what
        self.fd = None

    def __enter__(self):
        try:
            self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            if error.errno != errno.EROFS or not os.path.exists(self.path):
                raise
            self.fd = os.open(self.path, os.O_RDONLY)
        until = time.monotonic() + self.patience
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return self
            except OSError as error:
                if error.errno not in (errno.EWOULDBLOCK, errno.EACCES, errno.EINTR):
                    self.release()
                    raise OSError(error.errno, "no lock can be had there (%s)" % error.strerror, self.path)
            if self.job.cancelled or time.monotonic() > until:
                self.release()
                raise Failure("locked", "%s is in use by another console" % self.what)
            time.sleep(0.02)

    def release(self):
        """Close the lock's descriptor; the lock itself stays while an heir holds it."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def __exit__(self, *_):
        self.release()


def lock_folder(path):
    """Make a folder for device locks and shared readings. Raises OSError unless it is this user's alone."""
    make_private(path)
    info = os.lstat(path)
    if info.st_uid != os.getuid() or os.path.islink(path) or info.st_mode & 0o022:
        raise OSError(errno.EPERM, "belongs to somebody else, or others can write there", path)
    return path


def lock_device(job, state, name, patience):
    """Return (folder, lock held): beside the ranks, else in /tmp, since a full disk must not hide the NPUs."""
    spare = hashlib.sha256(state.encode()).hexdigest()[:12] if state else "none"
    folders = [os.path.join(state, "devices")] if state else []
    folders.append("%s/pdtui-%d-%s" % (os.environ.get("TMPDIR", "/tmp"), os.getuid(), spare))
    problem = None
    for path in folders:
        try:
            lock = FileLock(os.path.join(lock_folder(path), name + ".lock"), patience, job, name)
            lock.__enter__()
            return path, lock
        except OSError as error:
            problem = error
    raise Failure(code_of(problem), describe(problem))


BOOT = read_line("/proc/sys/kernel/random/boot_id")


def shared_reading(path, max_age):
    """Return a reading of another console that is not older than `max_age` seconds, or None."""
    kept = load_json(path)
    try:
        age = time.monotonic() - kept["at"]
        if kept["boot_id"] != BOOT or not 0 <= age <= max_age:
            return None
        blobs = {name: base64.b64decode(text) for name, text in kept["blobs"].items()}
        return dict(kept["result"], age=age), blobs
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def share_reading(path, result, blobs):
    """Leave a reading for other consoles; a full disk only means that they ask themselves."""
    text = {name: base64.b64encode(data).decode() for name, data in blobs.items()}
    try:
        kept = {"boot_id": BOOT, "at": time.monotonic(), "result": result, "blobs": text}
        write_atomically(path, json.dumps(kept).encode())
    except OSError:
        pass


def run_for_device(job, state, command):
    """Run a command, alone on its device if it names one, or take a shared reading of it."""
    argv = [str(word) for word in command["argv"]]
    timeout, age = float(command.get("timeout", 10.0)), float(command.get("max_age", 0.0))
    arguments = (job, argv, timeout, command.get("env", {}), int(command.get("limit", 1 << 20)))
    device = command.get("device")
    if device is None and not age:
        return run_command(*arguments)
    digest = hashlib.sha256("\0".join(argv).encode("utf-8", "surrogateescape")).hexdigest()[:24]
    name = "device-%d" % device if device is not None else "command-" + digest
    folder, lock = lock_device(job, state, name, timeout + 15)
    try:
        reading = os.path.join(folder, "reading-%s.json" % digest)
        kept = shared_reading(reading, age) if age else None
        if kept is not None:
            return kept
        result, blobs = run_command(*arguments)
        if age and not job.cancelled:
            share_reading(reading, result, blobs)
        return result, blobs
    finally:
        lock.release()


# -------------------------------------------------------------------------------------------- rank directory


def name_is_safe(name):
    """Say whether a name of the topology can be part of a path."""
    return bool(name) and all(c.isalnum() or c in "-_." for c in name) and not name.startswith(".")


class LockIfPossible(object):
    """A rank's lock for its stop: a disk that cannot be written must not keep a rank alive."""

    def __init__(self, rank, job):
        self.rank, self.held = rank, rank.lock(job)

    def __enter__(self):
        try:
            make_private(self.rank.path)
            self.held.__enter__()
        except OSError:
            pass
        return self

    def __exit__(self, *_):
        self.held.release()


class RankDir(object):
    """One rank on disk, format 1:

    lock                flock: held while a start or the beginning of a stop goes on
    evidence            path of the newest evidence
    run-N/              one start: five are kept
      start.json        what was asked for
      record.json       the same with pid, start time, keeper (written by the keeper before the rank runs)
      exit.json         how and when it ended: blank while it runs; `empty` when nothing of it was left
      stop.json         who asked for its end: blank if nobody did
      rotation          why the log cannot be rotated
      evidence/TIME/    what explains its end, saved before a restart
      warm-up           the completion that was sent before it took requests, and its result
      script, env       what runs, and the variables on top
      log, log.OFFSET   stdout and stderr; pieces that were rotated away, by their offset
      login.log         what the interactive shell said before the script
      plog/             the vendor's own logs
    """

    def __init__(self, state, cluster, rank):
        group, _, index = rank.partition("/")
        if not (name_is_safe(cluster) and name_is_safe(group) and index.isdigit()):
            raise Failure("bad_request", "no valid name of a rank: %s %s" % (cluster, rank))
        self.cluster, self.rank = cluster, rank
        self.marker = "%s:%s" % (cluster, rank)
        self.path = os.path.join(state, cluster, "%s.%s" % (group, index))

    def lock(self, job):
        """Return the rank's lock."""
        return FileLock(os.path.join(self.path, "lock"), LOCK_PATIENCE, job, "rank " + self.rank)

    def runs(self):
        """Return the numbers of the starts that are kept, ascending. Raises OSError when that cannot be read."""
        try:
            names = os.listdir(self.path)
        except FileNotFoundError:
            return []
        return sorted(int(name[4:]) for name in names if name.startswith("run-") and name[4:].isdigit())

    def folder(self, run):
        """Return the folder of a start."""
        return os.path.join(self.path, "run-%d" % run)

    def newest(self):
        """Return (number, record) of the newest start that got as far as a record; (0, {}) without one."""
        for run in reversed(self.runs()):
            if os.path.exists(self.folder(run) + "/record.json"):
                return run, load_json(self.folder(run) + "/record.json")
        return 0, {}

    def known(self, table, boot):
        """Return (number, record) of the newest start; a damaged record is pieced together from what is left."""
        run, record = self.newest()
        if not run:
            return run, record
        folder = self.folder(run)
        if number(record.get("pid")) is None:
            record = dict(load_json(folder + "/start.json"), **record)
            for pid, stat in table.stats.items():
                if argv_of(pid, 4096)[1:5:3] == ["-I", folder]:  # python -I -S keeper.py FOLDER
                    record.update(keeper=pid, keeper_start=stat.start, boot_id=boot, init_start=LIFE)
        written = load_json(folder + "/exit.json")
        if is_unknown(written) and same_life(record, boot) and table.alive(record.get("pid"), record.get("start")):
            written = {}  # noted by an agent that did not see its processes (in another container)
        ended = written or told_by_keeper(record, table, boot)
        return run, dict(
            record, ended=ended, empty=bool(ended.get("empty")), unwritten=bool(ended and not written)
        )

    def view(self, table, boot):
        """Return the record as the console gets it: what the disk and the process table say together."""
        run, record = self.known(table, boot)
        folder = self.folder(run)
        if run and (table.lacks(record, boot) or (record["ended"] and table.shows(record, boot))):
            table = Table(table.fresh)  # the record is the newer of the two
        pids = table.of_rank(self.marker, record, boot)
        if not run and not pids:
            return {"cluster": self.cluster, "rank": self.rank, "state": "none"}
        ended = record["ended"] if run else {}
        living = same_life(record, boot)
        kept = living and table.alive(record.get("keeper"), record.get("keeper_start"))
        if ended or not (pids or kept):
            state = "exited"
        elif living and not kept and number(record.get("pid")) and not table.shows(record, boot):
            state = "exited"  # unseen by its keeper, which had gone before; what lives is what the server left
        else:
            state = "running" if kept else "unkept"
        if run and living and not (ended or pids or kept):
            note_unknown_end(folder)
        asked = load_json(folder + "/stop.json") if run else {}
        last = asked or (load_json(self.folder(run - 1) + "/stop.json") if run > 1 else {})
        wanted = "pid keeper started by digest argv env api_port address ports devices hbm_before".split()
        view = {key: record[key] for key in wanted if key in record}
        view.update(
            cluster=self.cluster,
            rank=self.rank,
            state=state,
            run=run,
            exit_status=ended.get("status"),
            exit_signal=ended.get("signal"),
            ended=ended.get("ended"),
            gone_with="",
            stop_requested=bool(asked) if run else False,
            stopped_by=last.get("by"),
            stopped_at=last.get("at"),
            log=folder + "/log" if run else "",
            log_note=read_line(folder + "/rotation") if run else "",
            warm_up=warm_up_of(folder + "/warm-up") if run else {},
            evidence=read_line(self.path + "/evidence"),
            processes=sorted(pids),
        )
        if state == "exited" and (not ended or is_unknown(ended)):  # nobody was left to write it down
            same_boot = record.get("boot_id") == boot
            view["gone_with"] = "keeper" if living or ended else "container" if same_boot else "machine"
            view["ended"] = modified(folder + "/log") or None
        if run:
            view["format"] = format_of(record)
        if run and state == "unkept":
            view["log_note"] = view["log_note"] or "its keeper is gone"
        if state != "exited" and table.alive(record.get("pid"), record.get("start")):
            view["started"] = on_this_clock(record["start"], record.get("started"))
        return view

    def refuse_newer(self, record):
        """Fail for a record that a newer pdtui has written: what it means is not known here."""
        major = format_of(record)
        if major > RECORD_FORMAT:
            text = "rank %s was started by a newer pdtui (its record has format %d, this pdtui knows %d)"
            raise Failure("newer_format", text % (self.rank, major, RECORD_FORMAT))

    def prepare(self, run, spec, boot):
        """Make the folder of a new start."""
        folder = self.folder(run)
        os.mkdir(folder, 0o700)
        os.mkdir(folder + "/plog", 0o700)
        env = dict(PDTUI_RANK=self.marker, SPT_NOENV="1", ASCEND_PROCESS_LOG_PATH=folder + "/plog")
        text = "".join("%s=%s\0" % item for item in env.items())
        write_atomically(folder + "/env", text.encode("utf-8", "surrogateescape"))
        write_atomically(folder + "/script", spec["script"].encode("utf-8", "surrogateescape"), 0o700)
        names = "argv env digest address api_port ports devices by hbm_before".split()
        start = {name: spec[name] for name in names if name in spec}
        start.update(format=RECORD_FORMAT, cluster=self.cluster, rank=self.rank, run=run, boot_id=boot)
        if LIFE is not None:
            start["init_start"] = LIFE
        write_atomically(folder + "/start.json", json.dumps(start).encode())

    def prune(self):
        """Remove all but the newest starts."""
        for run in self.runs()[:-RUNS_KEPT]:
            remove_tree(self.folder(run))


def format_of(record):
    """Return the (major) number of a record's format; today's for one that does not say."""
    try:
        return int(float(record.get("format", RECORD_FORMAT)))
    except (TypeError, ValueError, OverflowError):
        return RECORD_FORMAT


def told_by_keeper(record, table, boot):
    """Return an end that a keeper could not write yet: its name says it (keeper, `words_of`)."""
    keeper, start = number(record.get("keeper")), record.get("keeper_start")
    if not keeper or not same_life(record, boot) or not table.alive(keeper, start):
        return {}
    words = read_line("/proc/%d/comm" % keeper).split()
    if len(words) != 2 or words[0][:1] not in ("X", "S") or not (words[0][1:] + words[1]).isdigit():
        return {}
    value, is_exit = int(words[0][1:]), words[0][0] == "X"
    return {"status": value if is_exit else None, "signal": None if is_exit else value, "ended": float(words[1])}


def is_unknown(ended):
    """Say whether an end was noted that nobody saw."""
    return bool(ended) and ended.get("status") is None and ended.get("signal") is None


def note_unknown_end(folder):
    """Record that a rank without a keeper is gone: how and when it ended, nobody saw."""
    try:
        fill_in(folder + "/exit.json", '{"status": null, "signal": null, "ended": null, "empty": true}')
    except OSError:
        pass  # then the next look finds the same


def on_this_clock(ticks, recorded):
    """Return when a process started by the wall clock of today, which may have been set since it was recorded."""
    started = time.time() - (ticks_now() - ticks) / float(os.sysconf("SC_CLK_TCK"))
    return recorded if isinstance(recorded, float) and abs(started - recorded) < 2.0 else started


def read_end(path, size):
    """Return the last bytes of a file; of one that is gone, nothing."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read(size)
    except OSError:
        return b""


def keep_evidence(folder, name, data, errors):
    """Write one file of evidence, for this user alone."""
    if not data:
        return
    try:
        write_atomically(folder + "/" + name, data)
    except OSError as error:
        errors.append("%s: %s" % (name, describe(error)))


def evidence_of(folder):
    """Return what a run leaves behind that explains its end: name, path, bytes of its end. No environment."""
    wanted = [(name, folder + "/" + name, EVIDENCE_LOG) for name in ("log", "login.log", "exit.json", "stop.json")]
    plogs = []
    for above, _, names in os.walk(folder + "/plog"):
        plogs += [(modified(above + "/" + name), above + "/" + name) for name in names]
    for number, (_, path) in enumerate(sorted(plogs, reverse=True)[:EVIDENCE_PLOGS]):
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in os.path.basename(path))[-100:]
        wanted.append(("plog-%d-%s" % (number, safe), path, EVIDENCE_PLOG))
    return wanted


def warm_up_of(path):
    """Return what is known of a warm-up; one that nobody ended in time is as if it had never begun."""
    note = load_json(path)
    begun, patience = note.get("at"), note.get("timeout")
    timed = isinstance(begun, (int, float)) and isinstance(patience, (int, float))
    if note.get("state") == "running" and not (timed and 0 <= time.time() - begun <= patience + 10):
        return {}
    return note


def remove_tree(path):
    """Remove a folder of ours; what cannot be removed stays."""
    for folder, folders, files in os.walk(path, topdown=False):
        for name in files:
            try_remove(os.unlink, os.path.join(folder, name))
        for name in folders:
            inner = os.path.join(folder, name)
            try_remove(os.unlink if os.path.islink(inner) else os.rmdir, inner)
    try_remove(os.rmdir, path)


def modified(path):
    """Return when a file was last written, seconds since the epoch; 0 when it is gone."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def try_remove(remove, path):
    """Call `remove`; a file that is gone or not ours is no reason to stop."""
    try:
        remove(path)
    except OSError:
        pass


def send_signal(pid, start, signum):
    """Signal a process while it is who it was; where the kernel can, without a moment for its number to change."""
    descriptor, opener = None, getattr(os, "pidfd_open", None)
    try:
        if opener is not None:
            try:
                descriptor = opener(pid)
            except OSError as error:
                if error.errno == errno.ESRCH:
                    return
        if is_alive(read_stat(pid), start):
            if descriptor is not None:
                getattr(signal, "pidfd_send_signal")(descriptor, signum)  # noqa: B009 - not in Python 3.6
            else:
                os.kill(pid, signum)
    except OSError:
        pass
    finally:
        if descriptor is not None:
            os.close(descriptor)


class Tree(object):
    """A process that was not started here, with all that descends from it.

    Never its process group: a launcher's children share one. What was below it once stays of it, whoever its
    parent is then; its session only where it leads that itself, so that all in it descends from it.
    """

    def __init__(self, pid, start):
        self.pid, self.start = pid, start
        self.members = {}
        self.told = set()
        self.leads = False

    def look(self):
        """Find the members that live; returns {pid: start}."""
        table = Table(fresh=True)
        if not self.members:
            if not table.alive(self.pid, self.start):
                return {}
            self.members[self.pid] = self.start
            self.leads = table.stats[self.pid].session == self.pid
        found = set(pid for pid, start in self.members.items() if table.alive(pid, start))
        if found and self.leads:  # while one of it lives, the session's number cannot be another's
            found.update(table.sessions.get(self.pid, ()))
        for pid in list(found):
            found.update(table.below(pid))
        found.difference_update(*table.marked.values())  # what a keeper of ours started is never part of it
        found -= OWN
        self.members.update((pid, table.stats[pid].start) for pid in found)
        return {pid: self.members[pid] for pid in found}

    def tell(self, signum):
        """Signal each member once, and those that were begun meanwhile; returns who lives."""
        while True:
            left = self.look()
            new = [(pid, start) for pid, start in left.items() if (pid, start, signum) not in self.told]
            if not new:
                return left
            for pid, start in new:
                self.told.add((pid, start, signum))
                send_signal(pid, start, signum)


class Ranks(object):
    """Starts, stops and lists the ranks of this machine."""

    def __init__(self, state, state_error, keeper_source):
        self.state, self.state_error, self.keeper_source = state, state_error, keeper_source
        self.boot = BOOT
        self.leases = Leases(self.boot)
        self.acks = Acks()

    def require_state(self):
        """Fail when there is no folder for records."""
        if not self.state:
            raise Failure("no_state_dir", self.state_error)

    def keeper_path(self):
        """Write the keeper's program beside the ranks, once per version."""
        digest = hashlib.sha256(self.keeper_source).hexdigest()
        path = os.path.join(self.state, "keeper-%s.py" % digest[:12])
        if hashlib.sha256(read_bytes(path)).hexdigest() != digest:
            write_atomically(path, self.keeper_source)
        return path

    def start(self, job, args):
        """Start a rank unless any of its processes lives."""
        self.require_state()
        spec = args["spec"]
        rank = RankDir(self.state, spec["cluster"], spec["rank"])
        make_private(rank.path)
        with rank.lock(job) as lock:
            self.leases.check(self.folder(spec["cluster"]), spec.get("lease"))
            rank.refuse_newer(rank.newest()[1])
            view = rank.view(Table(fresh=True), self.boot)
            if view.get("processes"):
                return {"outcome": "already_running", "record": view}
            if job.cancelled:
                raise Failure("cancelled", "the start was cancelled")
            run = max(rank.runs() or [0]) + 1
            try:
                rank.prepare(run, spec, self.boot)
                self.launch(rank, run, lock.fd, args)
            except (Failure, OSError) as error:
                late = getattr(error, "code", "") == "timeout"  # the keeper may go on yet, and needs its folder
                if not late and not os.path.exists(rank.folder(run) + "/record.json"):
                    remove_tree(rank.folder(run))
                raise
            rank.prune()
            return {"outcome": "started", "record": rank.view(Table(fresh=True), self.boot)}

    def launch(self, rank, run, lock, args):
        """Start a keeper and wait until it has recorded the rank. Raises Failure."""
        folder = rank.folder(run)
        # An interactive shell, because images keep CANN's variables in ~/.bashrc; what it says without a terminal,
        # and what that file prints, is kept out of the rank's log (descriptor 3).
        rank_argv = ["bash", "-ic", 'exec bash "$0" >&3 2>&3 3>&-', folder + "/script"]
        rotation = [
            str(args.get("rotate", ROTATE_BYTES)),
            str(args.get("pieces", PIECES_KEPT)),
            str(args.get("interval", 5)),
        ]
        ear, mouth = os.pipe()
        try:
            keeper = [sys.executable or "python3", "-I", "-S", self.keeper_path(), folder, str(lock), str(mouth)]
            process = subprocess.Popen(
                keeper + rotation + rank_argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(lock, mouth),
                start_new_session=True,
            )
            os.close(mouth)
            mouth = None
            process.wait()
            answer = b""
            while True:
                if not select.select([ear], [], [], KEEPER_PATIENCE)[0]:
                    raise Failure("timeout", "no word from the keeper within %d s" % KEEPER_PATIENCE)
                piece = os.read(ear, 4096)
                answer += piece
                if not piece or answer == b"ok":
                    break
        finally:
            os.close(ear)
            if mouth is not None:
                os.close(mouth)
        if answer == b"ok":
            return
        words = answer.decode("utf-8", "replace").split(" ", 2)
        if words[0] == "error" and len(words) == 3:
            raise Failure(ERROR_CODES.get(int(words[1]), "system"), "%s: %s" % (folder, words[2]))
        raise Failure("keeper", "the keeper did not start the rank")

    def stop(self, job, args):
        """TERM to every process of a rank, KILL after the grace period; returns when they are gone."""
        self.require_state()
        rank = RankDir(self.state, args["cluster"], args["rank"])
        told = set()
        with LockIfPossible(rank, job):
            self.leases.check(self.folder(args["cluster"]), args.get("lease"))
            rank.refuse_newer(rank.newest()[1])
            table = Table(fresh=True)
            run, record = rank.known(table, self.boot)
            pids = table.of_rank(rank.marker, record, self.boot)
            if not pids:
                view = rank.view(table, self.boot)
                return {"outcome": "not_running", "killed": False, "survivors": [], "record": view}
            if run:
                self.note_stop(rank.folder(run), args)
            self.tell(table, pids, signal.SIGTERM, told)
        killed, survivors = self.wait_until_gone(job, rank, run, float(args.get("grace", 30.0)), told)
        view = rank.view(Table(fresh=True), self.boot)
        outcome = "still_running" if survivors else "stopped"
        return {"outcome": outcome, "killed": killed, "survivors": survivors, "record": view}

    @staticmethod
    def note_stop(folder, args):
        """Record that the end was asked for; an unwritable disk must not keep a rank alive."""
        try:
            by = str(args.get("by", ""))
            while len(json.dumps(by)) > 200:  # the file has room for 255 bytes, and Chinese takes six a sign
                by = by[: len(by) * 3 // 4]
            fill_in(folder + "/stop.json", json.dumps({"by": by, "at": round(time.time(), 3)}))
        except OSError:
            pass

    @staticmethod
    def tell(table, pids, signum, told):
        """Signal processes once each, and only while they are who they were.

        Who ignores the signal gets it again: a login shell ignores TERM, and turns into the rank in a moment.
        """
        for pid in pids:
            stat = table.stats.get(pid)
            if stat is None or (pid, stat.start, signum) in told:
                continue
            if not ignores(pid, signum):
                told.add((pid, stat.start, signum))
            signal_process(pid, stat.start, signum)

    def wait_until_gone(self, job, rank, run, grace, told):
        """Look until nothing of the rank is left; returns (had to kill, survivors)."""
        begin, pause, killed = time.monotonic(), 0.02, False
        while not job.cancelled:
            time.sleep(pause)
            pause = min(0.25, pause * 1.5)
            table = Table(fresh=True)
            now, record = rank.known(table, self.boot)
            if now != run:  # somebody has started it again: ours is gone, and what runs is not ours to stop
                return killed, []
            pids = table.of_rank(rank.marker, record, self.boot)
            if not pids:
                keeper = record.get("keeper")
                waiting = same_life(record, self.boot) and table.alive(keeper, record.get("keeper_start"))
                if not waiting or record.get("unwritten"):
                    return killed, []
            late = time.monotonic() - begin - grace
            if late > 15:
                return killed, sorted(pids)
            if late > 0 and pids:
                killed = True
                self.tell(table, pids, signal.SIGKILL, told)
            else:
                self.tell(table, pids, signal.SIGTERM, told)
        raise Failure("cancelled", "the stop was cancelled")

    def warm_up(self, args):
        """Send a rank a completion that somebody waits for; the result stays with its run, for every console.

        A server that asks for a key gets the one that its own process was given; it does not leave the node. What
        the server refuses to take (another key, another API) says nothing about its engine: skipped.
        """
        self.require_state()
        rank = RankDir(self.state, args["cluster"], args["rank"])
        run = int(args["run"])
        path, timeout, begin = rank.folder(run) + "/warm-up", float(args["timeout"]), time.time()
        note = {"state": "running", "at": begin, "timeout": timeout, "by": str(args.get("by", ""))[:150]}
        if rank.newest()[0] != run:
            raise Failure("conflict", "it was started again meanwhile")
        self.note(path, note)
        query = {"host": args["host"], "port": args["port"], "path": "/v1/completions"}
        query.update(timeout=timeout, limit=65536)
        posted = json.dumps(args["body"]).encode()
        reply, blobs = http_get(query, posted)
        key = ""
        if reply["status"] in (401, 403):
            table = Table(fresh=True)
            _, record = rank.known(table, self.boot)
            key = api_key(table.of_rank(rank.marker, record, self.boot))
            if key:
                reply, blobs = http_get(query, posted, key)
        status, error, tokens = reply["status"], reply["error"], 0
        if status == 200:
            try:
                tokens = int(json.loads(str(blobs["body"], "utf-8", "replace"))["usage"]["prompt_tokens"])
                state = "ok"
            except (ValueError, KeyError, TypeError):
                state, error = "failed", "its answer is no completion"
        elif status in (401, 403):
            state = "skipped"
            error = "it asks for an API key, and %s (HTTP %d)" % (
                "refuses its own" if key else "its process was given none that pdtui finds",
                status,
            )
        elif status is not None:
            state = "skipped" if 400 <= status < 500 or status == 501 else "failed"
            error = "HTTP %d %s" % (status, str(blobs["body"][:300], "utf-8", "replace"))
        else:
            state = "failed"
        note.update(state=state, error=error.strip(), tokens=tokens, seconds=round(time.time() - begin, 3))
        self.note(path, note)
        return note

    def evidence(self, args):
        """Keep what explains the end of a rank's newest run beside it: given texts, and the ends of its logs.

        What cannot be written is told and left out; a disk that is nearly full gets nothing.
        """
        self.require_state()
        rank, stamp = RankDir(self.state, args["cluster"], args["rank"]), args["stamp"]
        run = rank.newest()[0]
        if not run:
            raise Failure("not_found", "%s was never started here" % rank.rank)
        names = list(args["files"]) + [stamp]
        if not all(name_is_safe(name) for name in names):
            raise Failure("bad_request", "no valid names of files")
        room = os.statvfs(rank.folder(run))
        if room.f_bavail * room.f_frsize < EVIDENCE_FREE:
            raise Failure("no_space", "less than %d MiB are free" % (EVIDENCE_FREE >> 20))
        home = rank.folder(run) + "/evidence"
        folder, errors = home + "/" + stamp, []
        make_private(folder)
        for name, text in args["files"].items():
            keep_evidence(folder, name, str(text).encode("utf-8", "replace"), errors)
        if args.get("collect"):
            for name, path, size in evidence_of(rank.folder(run)):
                keep_evidence(folder, name, read_end(path, size), errors)
        for old in sorted(os.listdir(home))[:-EVIDENCE_KEPT]:
            remove_tree(home + "/" + old)
        try:
            write_atomically(rank.path + "/evidence", folder.encode())
        except OSError as error:
            errors.append(describe(error))
        return {"folder": folder, "errors": errors[:5]}

    @staticmethod
    def note(path, value):
        """Keep a result with a run; an unwritable disk must not be in the way of what is done."""
        try:
            write_atomically(path, json.dumps(value).encode())
        except OSError:
            pass

    def stop_tree(self, job, args):
        """TERM to a process and all below it, KILL after the grace period; returns when they are gone."""
        if args.get("lease"):
            self.leases.check(self.folder(args["cluster"]), args["lease"])
        tree, none = Tree(int(args["pid"]), int(args["start"])), {"state": "none"}
        if args.get("boot", self.boot) != self.boot or not tree.look():
            return {"outcome": "not_running", "killed": False, "survivors": [], "record": none}
        for pid in tree.members:
            try:
                os.kill(pid, 0)
            except PermissionError:
                names = (pid, user_of(pid), user_of(os.getpid()))
                raise Failure("permission", "pid %d belongs to %s, and %s may not end it" % names)
            except OSError:
                pass
        begin, pause, grace, killed = time.monotonic(), 0.02, float(args.get("grace", 30.0)), False
        left = tree.tell(signal.SIGTERM)
        while left and not job.cancelled:
            late = time.monotonic() - begin - grace
            if late > 15:
                return {"outcome": "still_running", "killed": killed, "survivors": sorted(left), "record": none}
            if late > 0:
                killed = True
                tree.tell(signal.SIGSTOP)  # so that none of them begins another between the look and the end
                left = tree.tell(signal.SIGKILL)
            else:
                left = tree.tell(signal.SIGTERM)
            if left:
                time.sleep(pause)
                pause = min(0.25, pause * 1.5)
        if left:
            raise Failure("cancelled", "the stop was cancelled")
        return {"outcome": "stopped", "killed": killed, "survivors": [], "record": none}

    def list(self, cluster):
        """Return the records of all ranks of a cluster."""
        try:
            names = os.listdir(self.folder(cluster))
        except FileNotFoundError:
            names = []
        table, ranks = Table(), set()
        for name in names:
            group, _, index = name.rpartition(".")
            if name_is_safe(group) and index.isdigit():
                ranks.add("%s/%s" % (group, index))
        for marker in table.marked:  # the folder may be gone, the processes are not
            owner, _, rank = marker.partition(":")
            if owner == cluster and rank.partition("/")[2].isdigit():
                ranks.add(rank)
        views = [self.look(RankDir(self.state, cluster, rank), table) for rank in sorted(ranks)]
        return [view for view in views if view["state"] != "none"]

    def look(self, rank, table):
        """Return the record of a rank; one that cannot be read hides no other, and is not free to start."""
        try:
            return rank.view(table, self.boot)
        except OSError as error:
            pids = sorted(table.of_rank(rank.marker, {}, self.boot))
            note = "its record cannot be read: %s" % describe(error)
            return dict(cluster=rank.cluster, rank=rank.rank, state="unkept", processes=pids, log_note=note)

    def check(self):
        """Fail unless a rank could be started as far as the folder for records goes: room, writing, locks."""
        self.require_state()
        path = os.path.join(self.state, "check")
        try:
            with FileLock(path, 5.0, Job(), "the folder for records"):
                fd = os.open(path, os.O_WRONLY)
                try:
                    write_all(fd, bytearray(ROOM_FOR_START))
                finally:
                    os.ftruncate(fd, 0)
                    os.close(fd)
        except OSError as error:
            raise Failure(code_of(error), describe(OSError(error.errno, error.strerror, self.state)))

    def folder(self, cluster):
        """Return the folder of a cluster; it may not be there yet."""
        self.require_state()
        if not name_is_safe(cluster):
            raise Failure("bad_request", "no valid name of a cluster: %s" % cluster)
        return os.path.join(self.state, cluster)

    def journal(self, cluster, entry):
        """Append one line to the cluster's journal on this node, with the time at which it came."""
        folder = self.folder(cluster)
        make_private(folder)
        append_line(folder + "/journal.jsonl", json.dumps(dict(entry, received=round(time.time(), 3))).encode())

    def journal_tail(self, cluster, limit):
        """Return the last bytes of the cluster's journal on this node."""
        path = self.folder(cluster) + "/journal.jsonl"
        data = b""
        for name in (path, path + ".1"):
            if len(data) < limit:
                data = tail_of(name, limit - len(data)) + data
        return data


def append_line(path, line):
    """Append a line to a file that is rotated by size, whoever else does; half a line before it stays alone."""
    rotate(path, JOURNAL_BYTES)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(fd).st_size
        cut = size and os.pread(fd, 1, size - 1) != b"\n"
        data = (b"\n" if cut else b"") + line + b"\n"
        if os.write(fd, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
    finally:
        os.close(fd)


def rotate(path, limit):
    """Put a file that is longer than `limit` aside, in place of the one that was put aside before."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        info, now = os.fstat(fd), os.stat(path)
        if info.st_size > limit and (info.st_dev, info.st_ino) == (now.st_dev, now.st_ino):
            os.rename(path, path + ".1")
    except OSError:
        pass  # another console does it just now, or it stays long for once
    finally:
        os.close(fd)


def tail_of(path, limit):
    """Return a file's last bytes; nothing when there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
            return file.read(limit)
    except OSError as error:
        if error.errno == errno.ENOENT:
            return b""
        raise


# ---------------------------------------------------------------------------------------------------- leases


class Leases(object):
    """Who works on which ranks of a cluster now: one file a lease in the cluster's folder, format 1.

    lease.lock          flock: held while a lease is taken
    lease-ID.json       holder (a console), by, from, verb, what, ranks, since (wall clock), boot_id,
                        taken and until (monotonic seconds of that boot: a jump of the wall clock does nothing),
                        broken {by, from, reason, at, expired}: it has ended, and its holder may not know yet

    A file that cannot be read, or is of another boot, is no lease; one without a list of ranks covers all.
    """

    def __init__(self, boot):
        self.boot = boot

    def read(self, folder):
        """Return the leases of a folder by id, ended ones too."""
        leases, now = {}, time.monotonic()
        try:
            names = os.listdir(folder)
        except OSError:
            return leases
        for name in names:
            if not (name.startswith("lease-") and name.endswith(".json")):
                continue
            lease = load_json(os.path.join(folder, name))
            until = lease.get("until")
            known = isinstance(until, (int, float)) and lease.get("boot_id") == self.boot
            if known and now - LEASE_REMEMBERED < until <= now + LEASE_LONGEST:
                leases[name[6:-5]] = lease
            elif known or modified(os.path.join(folder, name)) < time.time() - LEASE_REMEMBERED:
                try_remove(os.unlink, os.path.join(folder, name))
        return leases

    @staticmethod
    def view(name, lease):
        """Return a lease as the console gets it: durations instead of this node's times."""
        now = time.monotonic()
        view = {key: lease.get(key) for key in ("holder", "by", "from", "verb", "what", "ranks", "broken")}
        taken = lease.get("taken")
        age = now - taken if isinstance(taken, (int, float)) else 0.0
        view.update(id=name, age=max(0.0, age), left=max(0.0, lease["until"] - now))
        return view

    @staticmethod
    def is_held(lease):
        """Say whether a lease counts now."""
        return not lease.get("broken") and lease["until"] > time.monotonic()

    def list(self, folder):
        """Return the leases that are held."""
        found = sorted(self.read(folder).items())
        return [self.view(name, lease) for name, lease in found if self.is_held(lease)]

    def write(self, folder, name, lease):
        """Put a lease on disk."""
        write_atomically(os.path.join(folder, "lease-%s.json" % name), json.dumps(lease).encode())

    def take(self, job, folder, args):
        """Take or renew a lease: `held`, `refused` with what is in the way, or `broken` by somebody else."""
        name, wanted = str(args["id"]), args["lease"]
        ttl = min(float(args["ttl"]), LEASE_LONGEST)
        if not name_is_safe(name):
            raise Failure("bad_request", "no valid name of a lease: %s" % name)
        make_private(folder)
        with FileLock(os.path.join(folder, "lease.lock"), 5.0, job, "the list of leases"):
            leases = self.read(folder)
            mine = leases.pop(name, {})
            if mine.get("broken"):
                return {"state": "broken", "leases": [self.view(name, mine)]}
            rivals = {key: lease for key, lease in leases.items() if self.collide(lease, wanted)}
            held = {key: lease for key, lease in rivals.items() if self.is_held(lease)}
            if not set(held) <= set(args.get("breaks", ())):
                return {"state": "refused", "leases": [self.view(*pair) for pair in sorted(held.items())]}
            now = time.monotonic()
            lease = {key: wanted[key] for key in ("holder", "by", "from", "verb", "what", "ranks")}
            lease.update(
                format=LEASE_FORMAT,
                boot_id=self.boot,
                since=mine.get("since", time.time()),
                taken=mine.get("taken", now),
                until=now + ttl,
            )
            self.write(folder, name, lease)
            for key, rival in rivals.items():
                end = {"by": wanted["by"], "from": wanted["from"], "reason": str(args.get("reason", ""))}
                end.update(at=time.time(), expired=key not in held)
                self.write(folder, key, dict(rival, broken=end))
            return {"state": "held", "leases": [self.view(*pair) for pair in sorted(held.items())]}

    @staticmethod
    def collide(lease, wanted):
        """Say whether two consoles want the same ranks."""
        if lease.get("broken") or lease.get("holder") == wanted["holder"]:
            return False
        ranks = lease.get("ranks")
        return not isinstance(ranks, list) or bool(set(wanted["ranks"]).intersection(map(str, ranks)))

    def release(self, folder, name):
        """Give a lease back; one that is gone already is no error."""
        if not name_is_safe(name):
            raise Failure("bad_request", "no valid name of a lease: %s" % name)
        try_remove(os.unlink, os.path.join(folder, "lease-%s.json" % name))

    def check(self, folder, name):
        """Fail when an operation's lease was taken from it. The rank's own lock and record are checked as well."""
        if not name:
            return
        end = self.read(folder).get(str(name), {}).get("broken")
        if end:
            raise Failure("lease_lost", "%s has taken over" % (end.get("by") or "another console"))


# ------------------------------------------------------------------------------------------- acknowledgements


class Acks(object):
    """Which troubles of a cluster its operators know of: one file in the cluster's folder, format 1.

    acks.lock   flock: held while the file is changed
    acks.json   {"format": 1, "acks": {KEY: {id, reason, by, from, at, expires, removed}}}: of each trouble the
                newest acknowledgement (times: wall clock of this node, they outlive a reboot), also when it has
                ended or was taken back: a node that was away may bring an older one

    A file or entry that cannot be read is none; fields that are not known here are kept.
    """

    @staticmethod
    def read(folder):
        """Return (the file's object, its entries by key)."""
        path, now = os.path.join(folder, "acks.json"), time.time()
        value = load_json(path) if os.path.isfile(path) else {}
        acks = value.get("acks")
        known = {}
        for key, ack in acks.items() if isinstance(acks, dict) else ():
            times = [ack.get(name) for name in ("at", "expires")] if isinstance(ack, dict) else [None]
            if all(isinstance(at, (int, float)) and not isinstance(at, bool) for at in times):
                if isinstance(ack.get("id"), str) and times[0] > now - ACK_LONGEST and times[1] < now + 1e9:
                    known[key] = ack
        return value, known

    @staticmethod
    def view(key, ack):
        """Return an acknowledgement as the console gets it: durations instead of this node's times."""
        now = time.time()
        view = {name: ack.get(name) for name in ("id", "reason", "by", "from", "removed")}
        view.update(
            key=key, age=max(-ACK_AHEAD, now - ack["at"]), left=min(ACK_LONGEST, max(0.0, ack["expires"] - now))
        )
        return view

    def list(self, folder, unless):
        """Return the entries, and what they are known by; nothing but that when it is `unless`."""
        try:
            known = self.read(folder)[1]
        except OSError as error:
            raise Failure(code_of(error), describe(error))
        digest = hashlib.sha256(repr(sorted((key, ack["id"]) for key, ack in known.items())).encode()).hexdigest()
        if digest == unless:
            return {"digest": digest}
        return {"digest": digest, "acks": [self.view(*pair) for pair in sorted(known.items())]}

    @staticmethod
    def is_newer(new, old):
        """Say whether one acknowledgement of a trouble stands instead of another."""
        apart = new["at"] - min(old["at"], time.time())
        return new["id"] != old["id"] and (apart >= ACK_SAME or (apart > -ACK_SAME and new["id"] > old["id"]))

    def put(self, job, folder, entries):
        """Take over what is newer than what is here."""
        make_private(folder)
        with FileLock(os.path.join(folder, "acks.lock"), 5.0, job, "the list of acknowledgements"):
            value, known = self.read(folder)
            changed, now = False, time.time()
            for entry in entries[:ACKS_KEPT]:
                age = min(ACK_LONGEST, max(-ACK_AHEAD, float(entry["age"])))
                left = min(ACK_LONGEST, max(0.0, float(entry["left"])))
                ack = {name: str(entry.get(name, ""))[:ACK_WORDS] for name in ("id", "reason", "by", "from")}
                ack.update(at=now - age, expires=now + left, removed=bool(entry.get("removed")))
                key = str(entry["key"])[:ACK_WORDS]
                if key not in known or self.is_newer(ack, known[key]):
                    known[key], changed = ack, True
            if changed:
                newest = sorted(known, key=lambda key: known[key]["at"], reverse=True)[:ACKS_KEPT]
                value.update(acks={key: known[key] for key in newest})
                value["format"] = max(number(value.get("format")) or 0, ACK_FORMAT)
                write_atomically(os.path.join(folder, "acks.json"), json.dumps(value).encode())
        return self.list(folder, None)


# ----------------------------------------------------------------------------------------------------- HTTP


class HttpReader(object):
    """Just enough HTTP/1.1 for a request to a port on this machine (RFC 9112)."""

    def __init__(self, host, port, deadline, limit):
        self.deadline, self.limit = deadline, limit
        self.buffer = b""
        self.socket = socket.create_connection((host, port), self.left())

    def left(self):
        """Return the seconds that are left. Raises socket.timeout."""
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise socket.timeout("timed out")
        return seconds

    def more(self):
        """Read on; says whether anything came."""
        self.socket.settimeout(self.left())
        piece = self.socket.recv(65536)
        self.buffer += piece
        return bool(piece)

    def until(self, mark):
        """Return what comes before `mark`. Raises ValueError."""
        while mark not in self.buffer:
            if len(self.buffer) > 262144 or not self.more():
                raise ValueError("no valid HTTP answer")
        head, _, self.buffer = self.buffer.partition(mark)
        return head

    def exactly(self, count):
        """Return `count` bytes, fewer at the end of the connection."""
        while len(self.buffer) < count and self.more():
            pass
        data, self.buffer = self.buffer[:count], self.buffer[count:]
        return data

    def chunked(self):
        """Return a chunked body, up to the limit."""
        body = b""
        while len(body) < self.limit:
            size = int(self.until(b"\r\n").split(b";")[0], 16)
            if not size:
                break
            body += self.exactly(min(size, self.limit))
            self.exactly(2)
        return body[: self.limit]

    def get(self, host, path, posted=None, key=""):
        """Return (status, body); `posted` is JSON to send, `key` the server's."""
        name = "[%s]" % host if ":" in host else host
        head = "%s %s HTTP/1.1\r\nHost: %s\r\nAccept: */*\r\nConnection: close\r\n"
        request = head % ("GET" if posted is None else "POST", path, name)
        if posted is not None:
            request += "Content-Type: application/json\r\nContent-Length: %d\r\n" % len(posted)
        if key:
            request += "Authorization: Bearer %s\r\n" % key
        self.socket.settimeout(self.left())
        self.socket.sendall(request.encode("latin-1") + b"\r\n" + (posted or b""))
        lines = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        words = lines[0].split(None, 2)
        if len(words) < 2 or not words[0].startswith("HTTP/"):
            raise ValueError("no valid HTTP answer")
        headers = {}
        for line in lines[1:]:
            key, _, value = line.partition(":")
            headers[key.strip().lower()] = value.strip().lower()
        if "chunked" in headers.get("transfer-encoding", ""):
            return int(words[1]), self.chunked()
        length = headers.get("content-length", "")
        return int(words[1]), self.exactly(min(int(length), self.limit) if length.isdigit() else self.limit)


def keep_metrics(body, names):
    """Return the samples of Prometheus text whose metric name is one of `names` (or begins with `name*`)."""
    exact = set(name.encode() for name in names if not name.endswith("*"))
    begin = tuple(name[:-1].encode() for name in names if name.endswith("*"))
    kept = []
    for line in body.split(b"\n"):
        name = line.partition(b"{")[0].partition(b" ")[0]
        if name in exact or (begin and name.startswith(begin)):
            kept.append(line)
    return b"\n".join(kept) + b"\n" if kept else b""


def http_get(args, posted=None, key=""):
    """GET from a port, or POST, with a key; returns (result, blobs). No answer is a result, not a failure."""
    begin = time.monotonic()
    status, body, error, reader = None, b"", "", None
    try:
        reader = HttpReader(args["host"], int(args["port"]), begin + float(args["timeout"]), int(args["limit"]))
        status, body = reader.get(args["host"], args["path"], posted, key)
    except socket.timeout:
        error = "timeout"
    except ConnectionRefusedError:
        error = "refused"
    except OSError as problem:
        error = problem.strerror or str(problem)
    except ValueError as problem:
        error = str(problem)
    finally:
        if reader is not None:
            reader.socket.close()
    if args.get("keep") and status == 200:
        body = keep_metrics(body, args["keep"])
    return {"status": status, "error": error, "seconds": time.monotonic() - begin}, {"body": body}


# --------------------------------------------------------------------------------------------------- follow


class Follow(object):
    """One file that the console follows. Used by the follower's thread only."""

    def __init__(self, request, path, offset, tail, patience, mark):
        self.request, self.path = request, path
        self.offset, self.tail, self.patience = offset, tail, patience
        self.mark = mark  # it is still to be said when all that there was has been sent
        self.fd = None
        self.inode = None
        self.gap = False
        self.unacknowledged = 0

    def close(self):
        """Close the file."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None

    def open(self):
        """Open the file that has the path's name now; says whether there is one. Raises OSError."""
        try:
            self.fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
                return False  # waited for; what is there and cannot be read is told
            raise
        info = os.fstat(self.fd)
        if self.path.startswith("/proc/") and not stat_module.S_ISREG(info.st_mode):
            self.close()  # the number is another process's now, and its pipe not ours to read
            return False
        self.inode = (info.st_dev, info.st_ino)
        if self.offset is None:
            self.offset = self.line_start(max(0, info.st_size - self.tail))
        elif self.offset > info.st_size:
            self.offset, self.gap = 0, True
        return True

    def line_start(self, offset):
        """Return where the first whole line after `offset` begins, so that a tail does not start in the middle."""
        if offset == 0:
            return 0
        data = os.pread(self.fd, 65536, offset - 1)
        at = data.find(b"\n")
        return offset + at if 0 <= at < len(data) - 1 else offset

    def switch(self):
        """Go to the file that has taken the name (rotation by rename), or to the start of a cut one."""
        size = os.fstat(self.fd).st_size
        if size < self.offset:
            self.offset, self.gap = 0, True
            return True
        try:
            info = os.stat(self.path)
        except OSError:
            return False
        if (info.st_dev, info.st_ino) == self.inode or size > self.offset:
            return False
        self.close()
        self.offset = 0
        return self.open()

    def hole_end(self):
        """Return where the data after the hole at the offset begins; None when there is no hole."""
        try:
            data_at = os.lseek(self.fd, self.offset, os.SEEK_DATA)
        except OSError:
            return None
        return data_at if data_at != self.offset else None

    def pieces(self):
        """Return the offsets of the rotated pieces, ascending (twenty digits: not logrotate's `.1`)."""
        folder, base = os.path.split(self.path)
        starts = [name[len(base) + 1 :] for name in os.listdir(folder or ".") if name.startswith(base + ".")]
        return sorted(int(start) for start in starts if len(start) == 20 and start.isdigit())

    def skip_hole(self, data_at):
        """Return bytes of a hole from its rotated piece; jump over what is gone for good."""
        starts = self.pieces()
        before = [start for start in starts if start <= self.offset]
        if before:
            try:
                with open("%s.%020d" % (self.path, before[-1]), "rb") as piece:
                    piece.seek(self.offset - before[-1])
                    data = piece.read(min(FOLLOW_PIECE, data_at - self.offset))
            except FileNotFoundError:  # removed just now
                data = b""
            if data:
                return data
        self.offset = min([start for start in starts if self.offset < start < data_at] + [data_at])
        self.gap = True
        return None

    def read(self, limit):
        """Return (offset, bytes, gap) or None when there is nothing new."""
        if self.fd is None and not self.open():
            return None
        data_at = self.hole_end()
        data = self.skip_hole(data_at) if data_at is not None else None
        if data is None:
            data = os.pread(self.fd, limit, self.offset)
            if b"\0" in data and self.hole_end() is not None:
                return None  # punched between the look and the read: what came may be no data
        if not data:
            if not self.switch():
                return None
            data = os.pread(self.fd, limit, self.offset)
            if not data:
                return None
        data = data[:limit]
        offset, gap = self.offset, self.gap
        self.offset += len(data)
        self.gap = False
        return offset, data, gap


class Follower(object):
    """Follows all files in one thread, within one credit.

    No lock is held while a file is read: a read that hangs in the kernel costs its follow and this thread, and
    another thread goes on with the others.
    """

    def __init__(self, agent):
        self.agent = agent
        self.follows = {}
        self.unacknowledged = 0
        self.wake = threading.Condition()
        self.turn = 0
        self.reading = None
        self.since = 0.0
        self.stuck = 0

    def add(self, request, args):
        """Begin to follow. Raises TypeError or ValueError for arguments that are none."""
        path, offset = args["path"], args.get("offset")
        if not isinstance(path, str) or "\0" in path:
            raise ValueError("no path")
        offset = None if offset is None else min(max(0, int(offset)), 1 << 62)
        patience = float(args.get("patience", FOLLOW_PATIENCE))
        tail, mark = int(args.get("tail", 65536)), args.get("mark") is True
        follow = Follow(request, path, offset, tail, patience, mark)
        with self.wake:
            if self.stuck >= STUCK:
                raise Failure("timeout", "%d reads hang: a disk does not answer" % self.stuck)
            self.follows[request] = follow
            if self.turn == 0:
                self.begin()
            self.wake.notify_all()

    def begin(self):
        """Start the thread whose turn it is now."""
        self.turn += 1
        thread = threading.Thread(target=self.loop, args=(self.turn,))
        thread.daemon = True
        thread.start()

    def drop(self, follow):
        """Forget a follow; what was sent counts as acknowledged. Its reader closes the file if it is at it."""
        del self.follows[follow.request]
        self.unacknowledged -= follow.unacknowledged
        if self.reading is not follow:
            follow.close()

    def remove(self, request):
        """Stop following. Says whether it was followed."""
        with self.wake:
            follow = self.follows.get(request)
            if follow is not None:
                self.drop(follow)
                self.wake.notify_all()
        return follow is not None

    def acknowledge(self, request, count):
        """The console has taken `count` bytes."""
        with self.wake:
            follow = self.follows.get(request)
            if follow is not None:
                count = max(0, min(count, follow.unacknowledged))
                follow.unacknowledged -= count
                self.unacknowledged -= count
                self.wake.notify_all()

    def check(self):
        """Give up a read that hangs. Also wakes the thread: before Python 3.11 its pauses go by the wall clock."""
        with self.wake:
            self.wake.notify_all()
            follow = self.reading
            if follow is None or time.monotonic() - self.since <= follow.patience:
                return
            self.stuck += 1
            if follow.request in self.follows:
                self.drop(follow)
                text = "%s: no answer from the disk for %.0f s" % (follow.path, follow.patience)
                self.agent.fail(follow.request, Failure("timeout", text))
            self.reading = None
            self.begin()

    def room(self, follow):
        """Return how many bytes of a follow may be sent now."""
        share = min(CREDIT // 4, max(8192, CREDIT // max(1, len(self.follows))))
        return min(share - follow.unacknowledged, CREDIT - self.unacknowledged, FOLLOW_PIECE)

    def step(self, follow, turn):
        """Send one piece of one file; says whether there was one."""
        with self.wake:
            room = self.room(follow)
            if turn != self.turn or follow.request not in self.follows or room <= 0:
                return False
            self.reading, self.since = follow, time.monotonic()
        piece = problem = None
        try:
            piece = follow.read(room)
        except OSError as error:
            problem = Failure(code_of(error), describe(error))
        with self.wake:
            if turn != self.turn:  # the read hung, and was given up
                self.stuck -= 1
                follow.close()
                return False
            self.reading = None
            if follow.request not in self.follows:
                follow.close()
                return False
            if problem is not None:
                self.drop(follow)
                self.agent.fail(follow.request, problem)
            if piece is None:
                if not follow.mark or problem is not None:
                    return False
                follow.mark, piece = False, (follow.offset or 0, b"", False)
            offset, data, gap = piece
            follow.unacknowledged += len(data)
            self.unacknowledged += len(data)
            item = {"offset": offset, "gap": gap, "at": time.time(), "b64": base64.b64encode(data).decode()}
            self.agent.send(follow.request, {"item": item}, bulk=True, patient=False)
        return True

    def loop(self, turn):
        """Go round: short pauses while there is something, half a second while all is quiet."""
        pause = 0.1
        while turn == self.turn:
            with self.wake:
                follows = list(self.follows.values())
            busy = [follow for follow in follows if self.step(follow, turn)]
            pause = 0.05 if busy else min(0.5, pause * 1.3)
            with self.wake:
                if turn == self.turn and not busy:
                    self.wake.wait(pause if self.follows else None)


# ------------------------------------------------------------------------------------------------------ exec

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGKILL)
LAST_WORDS = 0.2  # seconds for what a command has written before its end, while others hold its pipes

# A session leader without a terminal that opens one gets it for its own (tty_ioctl(4)).
ON_TERMINAL = ["sh", "-c", 'exec "$@" 0<>"$0" 1>&0 2>&0']


def exec_environment(extra):
    """Return the environment of an operator's command: this agent's, vendor folders at the end of PATH."""
    environ = command_environment({})
    for name in ("LC_ALL", "LD_LIBRARY_PATH"):
        environ.pop(name, None)
        if name in os.environ:
            environ[name] = os.environ[name]
    environ.update(extra)
    return environ


class Execution(object):
    """A command whose streams go to the console and come from there; a cancelled request kills its group."""

    def __init__(self, agent, request, job, args):
        self.agent, self.request, self.job = agent, request, job
        self.unacknowledged = 0
        self.buffer = bytearray()
        self.input_ends = self.interrupted = False
        self.changed = threading.Condition()
        self.wake, self.bell = os.pipe()
        for fd in (self.wake, self.bell):
            os.set_blocking(fd, False)
        self.slave = self.input = None
        self.streams = {}
        ticks = ticks_now()
        job.expect(1, ticks)
        try:
            self.process = self.start([str(word) for word in args["argv"]], args)
            job.adopt(self.process.pid)
        except (OSError, ValueError) as error:
            self.close()
            if isinstance(error, OSError):
                raise Failure(code_of(error), describe(error))
            raise Failure("bad_request", str(error))
        finally:
            job.expect(-1, ticks)
        self.group = self.process.pid

    def start(self, argv, args):
        """Start the command, on a terminal of its own if one is wanted."""
        env, size = exec_environment(args.get("env", {})), args.get("tty")
        if not size:
            pipe = subprocess.PIPE
            process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=pipe, env=env, start_new_session=True)
            self.input = os.dup(process.stdin.fileno())
            self.streams = {os.dup(process.stdout.fileno()): "out", os.dup(process.stderr.fileno()): "err"}
            for stream in (process.stdin, process.stdout, process.stderr):
                stream.close()
        else:
            master, self.slave = os.openpty()
            self.input = os.dup(master)
            self.streams = {master: "out"}
            self.resize(size)
            null = subprocess.DEVNULL
            argv = ON_TERMINAL + [os.ttyname(self.slave)] + argv
            process = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, env=env, start_new_session=True)
        for fd in [self.input] + list(self.streams):
            os.set_blocking(fd, False)
        return process

    def resize(self, size):
        """Set the terminal's rows and columns (tty_ioctl(4), TIOCSWINSZ)."""
        with self.changed:
            if self.slave is None:
                return
            fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", int(size[0]), int(size[1]), 0, 0))

    def ring(self):
        """Wake the loop, if there still is one."""
        with self.changed:
            if self.bell is None:
                return
            try:
                os.write(self.bell, b".")
            except BlockingIOError:
                pass  # the pipe is full: it wakes anyway

    def acknowledge(self, count):
        """The console has taken `count` bytes."""
        with self.changed:
            self.unacknowledged = max(0, self.unacknowledged - count)
        self.ring()

    def tell(self, job, args):
        """Take input, a size or a signal; returns when there is room for more input."""
        if args.get("size"):
            self.resize(args["size"])
        if args.get("signal") in SIGNALS:
            with self.job.lock:
                if self.group in self.job.groups:
                    self.interrupted = True
                    try:
                        os.killpg(self.group, args["signal"])
                    except OSError:
                        pass
        with self.changed:
            if self.input is not None:
                self.buffer += base64.b64decode(args.get("b64", ""))
                self.input_ends = self.input_ends or bool(args.get("end"))
                self.ring()
            while (
                self.input is not None and len(self.buffer) > CREDIT and not (job.cancelled or self.job.cancelled)
            ):
                self.changed.wait(0.25)

    def feed(self):
        """Write what waits to the command; close its stdin when that was all."""
        with self.changed:
            if self.input is None:
                return
            try:
                if self.buffer:
                    del self.buffer[: os.write(self.input, self.buffer[:FOLLOW_PIECE])]
            except BlockingIOError:
                pass
            except OSError:  # it reads no more
                self.buffer, self.input_ends = bytearray(), True
            if self.input_ends and not self.buffer:
                self.end_input()
            self.changed.notify_all()

    def end_input(self):
        """Close the command's stdin; on a terminal type Ctrl-D, the only end that one has."""
        if self.slave is not None:
            try:
                os.write(self.input, b"\4")
            except OSError:
                pass
        os.close(self.input)
        self.input = None

    def read(self, fd):
        """Send one piece of a stream; closes one that has ended."""
        try:
            piece = os.read(fd, FOLLOW_PIECE)
        except BlockingIOError:
            return
        except OSError:  # EIO: nobody has the terminal open any more
            piece = b""
        if not piece:
            del self.streams[fd]
            os.close(fd)
            return
        with self.changed:
            self.unacknowledged += len(piece)
        item = {"stream": self.streams[fd], "b64": base64.b64encode(piece).decode()}
        self.agent.send(self.request, {"item": item}, bulk=True, patient=False)

    def step(self, pause):
        """Wait for something to do and do it; says whether anything came."""
        poll = select.poll()
        poll.register(self.wake, select.POLLIN)
        with self.changed:
            room = self.unacknowledged < CREDIT
            if self.input is not None and (self.buffer or self.input_ends):
                poll.register(self.input, select.POLLOUT)
        for fd in self.streams if room else ():
            poll.register(fd, select.POLLIN)
        busy = False
        for fd, _ in poll.poll(int(pause * 1000)):
            if fd == self.wake:
                os.read(self.wake, 4096)
            elif fd in self.streams:
                self.read(fd)
                busy = True
            else:
                self.feed()
        return busy or not room

    def run(self):
        """Carry bytes until the command has ended and its streams are empty; returns its status."""
        quiet = None
        self.agent.send(self.request, {"item": {"stream": "out", "b64": ""}}, bulk=True, patient=False)
        try:
            while True:
                ended = has_ended(self.process.pid)
                if ended:
                    self.close_terminal()
                busy = self.step(0.02 if ended else 0.1 if not self.streams else 0.25)
                now = time.monotonic()
                quiet = now if busy or quiet is None or not ended else quiet
                if ended and (not self.streams or now - quiet > LAST_WORDS or self.job.cancelled):
                    break
        finally:
            # What was left in the background goes on, as with ssh; not after a Ctrl-C.
            if self.job.cancelled or self.interrupted or not has_ended(self.process.pid):
                kill_group(self.group)
            self.job.release(self.group)
            self.close()
        return {"status": self.process.wait()}

    def close_terminal(self):
        """Let go of the terminal, so that its end shows when the command's side is closed too."""
        with self.changed:
            if self.slave is not None:
                os.close(self.slave)
                self.slave = None

    def close(self):
        """Close every descriptor."""
        with self.changed:
            fds = [self.wake, self.bell, self.slave, self.input] + list(self.streams)
            self.wake = self.bell = self.slave = self.input = None
            self.streams = {}
        for fd in fds:
            if fd is not None:
                os.close(fd)


# ------------------------------------------------------------------------------------------------------ RPC


class Sender(object):
    """Writes frames in one thread: control before bulk, and producers wait while much of their kind is queued."""

    def __init__(self, write):
        self.write = write
        self.control = collections.deque()
        self.bulk = collections.deque()
        self.waiting = {True: 0, False: 0}  # bytes: of bulk, of control
        self.ready = threading.Condition()
        self.ended = False
        self.thread = threading.Thread(target=self.loop)
        self.thread.daemon = True
        self.thread.start()

    def is_full(self, bulk):
        """Say whether a patient producer has to wait: the console does not read."""
        return self.waiting[bulk] > (BULK_LIMIT if bulk else CONTROL_LIMIT) and not self.ended

    def wait_for_room(self):
        """Wait until small answers have room again."""
        with self.ready:
            while self.is_full(False):
                self.ready.wait()

    def put(self, frame, bulk, patient=True):
        """Queue one frame; a patient producer waits while much is queued."""
        with self.ready:
            while patient and self.is_full(bulk):
                self.ready.wait()
            (self.bulk if bulk else self.control).append(frame)
            self.waiting[bulk] += len(frame)
            self.ready.notify_all()

    def loop(self):
        """Write until the pipe breaks."""
        while True:
            with self.ready:
                while not (self.control or self.bulk or self.ended):
                    self.ready.wait()
                if self.ended:
                    return
                bulk = not self.control
                frame = (self.bulk if bulk else self.control).popleft()
                self.waiting[bulk] -= len(frame)
                self.ready.notify_all()
            try:
                self.write(frame)
            except (OSError, ValueError):
                self.end()

    def end(self):
        """Drop what waits and let producers go on."""
        with self.ready:
            self.ended = True
            self.ready.notify_all()


class Agent(object):
    """Reads requests and answers them, each in a thread of its own."""

    def __init__(self, reader, write, params):
        self.reader = reader
        self.sender = Sender(write)
        self.state, self.state_error = choose_state_dir(params.get("state_dir"), params.get("machine"))
        keeper = zlib.decompress(base64.b64decode(params["keeper"]))
        self.ranks = Ranks(self.state, self.state_error, keeper)
        self.ports = Ports(os.environ.get("PDTUI_ADDRESS_VIEW", ""))
        self.follower = Follower(self)
        self.silence = float(params.get("silence", SILENCE))
        self.heard = time.monotonic()
        self.lock = threading.RLock()  # the signal handler may interrupt its holder
        self.leave = None  # what ends the process; none where the agent is a thread of another program
        self.jobs = {}
        self.bulky = set()
        self.silenced = set()
        self.pieces = {}
        self.executions = {}
        self.active = 0
        self.stuck = collections.Counter()
        self.backlog = collections.deque()

    # ---- answers

    def send(self, request, message, bulk=False, patient=True):
        """Queue one frame; a request that has sent bulk keeps its order."""
        message["id"] = request
        last = "ok" in message or "error" in message
        with self.lock:
            if request in self.silenced:
                return
            bulk = bulk or request in self.bulky
            if last:
                self.bulky.discard(request)
            elif bulk:
                self.bulky.add(request)
        self.sender.put(json.dumps(message, separators=(",", ":")).encode() + b"\n", bulk, patient)

    def answer(self, request, kind, value, blobs, n=None):
        """Send a result or an item with its blobs, in as many frames as it takes."""
        blobs = dict(blobs)
        text = json.dumps(value, separators=(",", ":"))
        if len(text) > RAW_PIECE:
            blobs["json"], value = text.encode(), {}
        prefix = "%d." % n if n is not None else ""
        for name, data in blobs.items():
            for at in range(0, len(data), RAW_PIECE):
                piece = base64.b64encode(data[at : at + RAW_PIECE]).decode()
                self.send(request, {"data": [prefix + name, piece]}, bulk=True)
        message = {kind: value}
        if n is not None:
            message["n"] = n
        self.send(request, message)

    def fail(self, request, error):
        """Send an error."""
        self.send(request, {"error": {"code": error.code, "message": str(error)[:4000]}}, patient=False)

    # ---- requests

    def do_run(self, request, job, args):
        """Run one command."""
        result, blobs = run_for_device(job, self.state, args)
        self.answer(request, "ok", result, blobs)

    def do_batch(self, request, job, args):
        """Run many commands, one after the other per device, a few devices at once."""
        queues = collections.OrderedDict()
        for n, command in enumerate(args["commands"]):
            device = command.get("device")
            queues.setdefault(("device", device) if device is not None else ("free", n), []).append((n, command))
        work = collections.deque(queues.values())

        def worker():
            while work and not job.cancelled:
                try:
                    queue = work.popleft()
                except IndexError:
                    return
                for n, command in queue:
                    if not job.cancelled:
                        self.batch_item(request, job, n, command)

        threads = []
        for _ in range(min(len(queues), max(1, int(args["parallel"])), 16) - 1):
            thread = threading.Thread(target=worker)
            thread.daemon = True
            try:
                thread.start()
            except RuntimeError:  # no more threads here: fewer do it too
                break
            threads.append(thread)
        worker()
        for thread in threads:
            thread.join()
        self.answer(request, "ok", {}, {})

    def batch_item(self, request, job, n, command):
        """Run one command of a batch; a failure is that command's result."""
        try:
            result, blobs = run_for_device(job, self.state, command)
        except (Failure, OSError, KeyError, ValueError, TypeError) as error:
            text = describe(error) if isinstance(error, OSError) else str(error)
            result, blobs = {"status": None, "error": text, "started": time.time()}, {}
        self.answer(request, "item", result, blobs, n)

    def do_start(self, request, job, args):
        """Start a rank."""
        self.answer(request, "ok", self.ranks.start(job, args), {})

    def do_stop(self, request, job, args):
        """Stop a rank."""
        self.answer(request, "ok", self.ranks.stop(job, args), {})

    def do_ranks(self, request, job, args):
        """List the ranks of a cluster."""
        self.answer(request, "ok", {"ranks": self.ranks.list(args["cluster"])}, {})

    def do_check(self, request, job, args):
        """Say whether records can be written."""
        self.ranks.check()
        self.answer(request, "ok", {}, {})

    def do_ports(self, request, job, args):
        """List listening ports."""
        self.answer(request, "ok", {"ports": self.ports.list()}, {})

    def do_processes(self, request, job, args):
        """List processes."""
        self.answer(request, "ok", {"processes": CENSUS.list(args)}, {})

    def do_stop_tree(self, request, job, args):
        """Stop a process that no keeper of ours started, with all that it has begun."""
        self.answer(request, "ok", self.ranks.stop_tree(job, args), {})

    def do_http(self, request, job, args):
        """GET from a local port."""
        result, blobs = http_get(args)
        self.answer(request, "ok", result, blobs)

    def do_read(self, request, job, args):
        """Read a file."""
        limit = int(args["limit"])
        path = args["path"]
        if ROOT and os.path.lexists(ROOT + path):
            path = ROOT + path
        with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
            data = file.read(limit) or b""
        self.answer(request, "ok", {}, {"data": data})

    def do_warm_up(self, request, job, args):
        """Send a rank a short completion, and keep the result with its run."""
        self.answer(request, "ok", self.ranks.warm_up(args), {})

    def do_evidence(self, request, job, args):
        """Keep what explains the end of a rank."""
        self.answer(request, "ok", self.ranks.evidence(args), {})

    def do_journal(self, request, job, args):
        """Append to the journal."""
        self.ranks.journal(args["cluster"], args["entry"])
        self.answer(request, "ok", {}, {})

    def do_journal_tail(self, request, job, args):
        """Read the end of the journal."""
        data = self.ranks.journal_tail(args["cluster"], int(args["limit"]))
        self.answer(request, "ok", {}, {"data": data})

    def do_lease(self, request, job, args):
        """Take or renew a lease."""
        ranks = self.ranks
        self.answer(request, "ok", ranks.leases.take(job, ranks.folder(args["cluster"]), args), {})

    def do_unlease(self, request, job, args):
        """Give a lease back."""
        self.ranks.leases.release(self.ranks.folder(args["cluster"]), str(args["id"]))
        self.answer(request, "ok", {}, {})

    def do_leases(self, request, job, args):
        """List the leases that are held."""
        leases = self.ranks.leases.list(self.ranks.folder(args["cluster"]))
        self.answer(request, "ok", {"leases": leases}, {})

    def do_acknowledged(self, request, job, args):
        """List the acknowledgements."""
        folder = self.ranks.folder(args["cluster"])
        self.answer(request, "ok", self.ranks.acks.list(folder, args.get("unless")), {})

    def do_acknowledge(self, request, job, args):
        """Keep acknowledgements that are newer than what is known here."""
        folder = self.ranks.folder(args["cluster"])
        self.answer(request, "ok", self.ranks.acks.put(job, folder, args["acks"]), {})

    def do_exec(self, request, job, args):
        """Run a command with its streams."""
        running = Execution(self, request, job, args)
        with self.lock:
            self.executions[request] = running
        try:
            result = running.run()
        finally:
            with self.lock:
                del self.executions[request]
        self.answer(request, "ok", result, {})

    def do_input(self, request, job, args):
        """Give a running command something to read, its window's size, or a signal."""
        with self.lock:
            running = self.executions.get(args["target"])
        if running is not None:
            running.tell(job, args)
        self.answer(request, "ok", {}, {})

    def perform(self, request, job, op, args):
        """Answer one request, whatever happens."""
        patience = args.get("patience", PATIENCE.get(op))
        if patience is not None:
            job.op, job.begun = op, time.monotonic()
            job.deadline = job.begun + float(patience)
        try:
            getattr(self, "do_" + op)(request, job, args)
        except Failure as error:
            self.fail(request, error)
        except OSError as error:
            self.fail(request, Failure(code_of(error), describe(error)))
        except Exception as error:  # the boundary: a bug in one request must not end the others
            self.fail(request, Failure("internal", "%s: %s" % (type(error).__name__, error)))
        finally:
            with self.lock:
                if self.jobs.get(request) is job:
                    del self.jobs[request]

    def work(self, *task):
        """Do a request, then what had to wait for a free thread."""
        while task:
            self.perform(*task)
            with self.lock:
                if task[1].abandoned:  # it hung, was given up, and came back: nobody counts on this thread
                    self.stuck[task[2]] -= 1
                    self.silenced.discard(task[0])
                    return
                if self.backlog:
                    task = self.backlog.popleft()
                else:
                    self.active -= 1
                    task = None

    def spawn(self, task):
        """Do a request in a thread of its own."""
        thread = threading.Thread(target=self.work, args=task)
        thread.daemon = True
        try:
            thread.start()
        except RuntimeError:
            with self.lock:
                self.active -= 1
                self.jobs.pop(task[0], None)
            self.fail(task[0], Failure("busy", "no more threads can be started here (limit of processes?)"))

    def begin(self, request, op, args):
        """Take a request on, or say why not."""
        job = Job()
        task = (request, job, op, args)
        with self.lock:
            if request in self.jobs or request in self.silenced:
                raise ValueError("the id of a request that is not answered yet")
            if self.stuck[op] >= STUCK:
                raise Failure("timeout", "%d such requests hang already: a disk does not answer" % STUCK)
            if self.active >= THREADS and len(self.backlog) >= BACKLOG:
                raise Failure("busy", "too many requests at once")
            self.jobs[request] = job
            if self.active >= THREADS:
                self.backlog.append(task)
                return
            self.active += 1
        self.spawn(task)

    def give_up(self):
        """Tell of requests that hang in the kernel, and let others have their threads."""
        now, tasks = time.monotonic(), []
        with self.lock:
            late = [(r, job) for r, job in self.jobs.items() if job.deadline is not None and now > job.deadline]
            for request, job in late:
                text = "no answer within %.0f s: a disk or a process hangs on the node"
                self.fail(request, Failure("timeout", text % (now - job.begun)))
                del self.jobs[request]
                self.silenced.add(request)
                job.abandoned = True
                job.cancel()
                self.stuck[job.op] += 1
                if self.backlog:
                    tasks.append(self.backlog.popleft())
                else:
                    self.active -= 1
        for task in tasks:
            self.spawn(task)

    def dispatch(self, request, op, args):
        """Begin a request. Those that take no time are done here, so that they overtake the others."""
        if op == "ping":
            self.send(request, {"ok": {"wall": time.time()}}, patient=False)
        elif op == "cancel":
            self.cancel(args["target"])
        elif op == "ack":
            self.acknowledge(args["target"], int(args["bytes"]))
        elif op == "follow":
            self.follower.add(request, args)
        elif not hasattr(self, "do_" + op):
            self.fail(request, Failure("unknown_request", "this agent does not know %s" % op))
        else:
            self.begin(request, op, args)

    def acknowledge(self, request, count):
        """The console has taken bytes of a stream."""
        with self.lock:
            running = self.executions.get(request)
        if running is not None:
            running.acknowledge(count)
        else:
            self.follower.acknowledge(request, count)

    def cancel(self, request):
        """End a request early."""
        with self.lock:
            job = self.jobs.get(request)
        if job is not None:
            job.cancel()
        if self.follower.remove(request):
            self.send(request, {"ok": {}}, patient=False)

    def collect(self, request, piece):
        """Keep a piece of a request that is larger than a frame; of one that is too large, only that."""
        held = self.pieces.setdefault(request, bytearray())
        if held is not None:
            held += piece
            if sum(len(other) for other in self.pieces.values() if other) > REQUEST_LIMIT:
                self.pieces[request] = None

    def receive(self, line):
        """Take one frame."""
        request = 0
        try:
            frame = json.loads(line.decode("utf-8"))
            request = frame["id"]
            if "data" in frame:
                self.collect(request, base64.b64decode(frame["data"][1]))
                return
            args = frame.get("args", {})
            if request in self.pieces:
                pieces = self.pieces.pop(request)
                if pieces is None:
                    raise Failure("too_large", "a request of more than %d MiB" % (REQUEST_LIMIT >> 20))
                args = json.loads(bytes(pieces).decode("utf-8"))
            if not isinstance(args, dict):
                raise TypeError("the arguments are no object")
            self.dispatch(request, str(frame["op"]), args)
        except Failure as error:
            self.fail(request, error)
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            text = "%s: %s" % (type(error).__name__, error)
            self.fail(request if isinstance(request, int) else 0, Failure("bad_request", text))

    # ---- life

    def hello(self, nonce):
        """Return the line that ends the banners."""
        facts = {
            "protocol": PROTOCOL,
            "python": "%d.%d.%d" % sys.version_info[:3],
            "user": user_of(os.getpid()),
            "uid": os.getuid(),
            "hostname": socket.gethostname(),
            "machine_id": machine_id(),
            "boot_id": self.ranks.boot,
            "wall": time.time(),
            "state_dir": self.state,
            "state_dir_error": self.state_error,
            "in_container": is_container(),
            "mount_namespace": namespace("mnt"),
            "killed_at_logout": killed_at_logout(),
            "other_records": records_of_others(self.state),
        }
        facts["state_mount"], facts["state_mount_type"] = mount_of(self.state) if self.state else ("", "")
        return ("\n%s %s %s\n" % (MAGIC, nonce, json.dumps(facts))).encode()

    def watch(self):
        """Look every second for what hangs; end when nothing was heard for too long (a half-open connection)."""
        while not self.sender.ended:
            left = self.heard + self.silence - time.monotonic()
            if self.leave is not None and left <= 0:
                break
            self.give_up()
            self.follower.check()
            time.sleep(max(0.0, min(left, 1.0)) if self.leave is not None else 1.0)
        if self.leave is not None:
            self.leave()

    def end(self):
        """Kill the commands; ranks stay."""
        with self.lock:
            jobs = list(self.jobs.values())
            self.backlog.clear()
        for job in jobs:
            job.cancel()
        until = time.monotonic() + 0.5
        while any(job.births for job in jobs) and time.monotonic() < until:
            time.sleep(0.002)  # what is being started is killed as soon as it has a number
        for request in list(self.follower.follows):
            self.follower.remove(request)
        self.sender.end()

    def serve(self, nonce):
        """Answer until end of file."""
        thread = threading.Thread(target=self.watch)
        thread.daemon = True
        thread.start()
        self.sender.put(self.hello(nonce), False)
        while not self.sender.ended:
            try:
                line = self.reader.readline(FRAME + 1)
            except OSError:
                break
            self.heard = time.monotonic()
            if not line.endswith(b"\n"):  # the end, in the middle of a frame perhaps
                if len(line) > FRAME:
                    sys.stderr.write("pdtui: a frame of more than 64 KiB came\n")
                break
            self.receive(line)
            self.sender.wait_for_room()
        self.end()


def machine_id():
    """Return what tells this machine from others that share a file system with it."""
    return MACHINE or read_line("/etc/machine-id") or read_line("/var/lib/dbus/machine-id") or socket.gethostname()


def is_container():
    """Say whether this is the inside of a container, by the marks that engines leave."""
    return any(os.path.exists(path) for path in ("/.dockerenv", "/run/.containerenv")) or (
        b"container=" in read_bytes("/proc/1/environ")
    )


def namespace(kind, pid="self"):
    """Return what tells a process's namespace of a kind from others on the machine (namespaces(7)); else empty."""
    try:
        return os.readlink("/proc/%s/ns/%s" % (pid, kind))
    except OSError:
        return ""


def mount_of(path):
    """Return (mount point, type of file system) of a file, from /proc/self/mountinfo (proc(5)).

    A folder of a file system that is mounted here, as a container's mounts of the host are, is of type `bind`.
    """
    path, best = os.path.realpath(path), ("", "")
    for line in read_text("/proc/self/mountinfo").split("\n"):
        left, _, right = line.partition(" - ")
        if not right:
            continue
        root, point = left.split(" ")[3:5]
        for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
            point = point.replace(code, char)
        if len(point) >= len(best[0]) and (path + "/").startswith(point.rstrip("/") + "/"):
            best = (point, right.split(" ")[0] if root == "/" else "bind")
    return best


ROOT = os.environ.get("PDTUI_ROOT_VIEW", "")
"""Set where several nodes share this machine's files: what is below it is the node's own."""


def logind_settings():
    """Return {key: (value, file)} of systemd-logind's [Login] section: later files win (logind.conf(5))."""
    places = ["/usr/lib/systemd", "/usr/local/lib/systemd", "/run/systemd", "/etc/systemd"]
    main = [
        path + "/logind.conf" for path in places[:2] + places[3:] if os.path.exists(ROOT + path + "/logind.conf")
    ]
    drop_ins = {}
    for place in places:
        try:
            names = os.listdir(ROOT + place + "/logind.conf.d")
        except OSError:
            continue
        drop_ins.update((name, place + "/logind.conf.d/" + name) for name in names if name.endswith(".conf"))
    settings = {}
    for path in main[-1:] + [drop_ins[name] for name in sorted(drop_ins)]:
        section = ""
        for line in read_text(ROOT + path).split("\n"):
            key, mark, value = line.strip().partition("=")
            if line.startswith("["):
                section = line.strip()
            elif mark and section == "[Login]" and not key.startswith(("#", ";")):
                settings[key.strip()] = (value.strip(), path)
    return settings


def logind_says(name):
    """Return a property of systemd-logind as busctl(1) prints it; nothing without an answer."""
    where = ["org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager"]
    result, blobs = run_command(Job(), ["busctl", "get-property"] + where + [name], 2.0, {}, 4096)
    said = blobs.get("stdout", b"")
    return said.decode("utf-8", "replace").strip() if result["status"] == 0 else ""


def killed_at_logout():
    """Return {user, source} when systemd-logind ends what is started here with the login's last session, else {}.

    It ends everything in the session's scope (KillUserProcesses=), whatever session or user a process made itself;
    sudo changes nothing, and lingering neither: that keeps the user's own services.
    """
    cgroup = read_text(ROOT + "/proc/self/cgroup")
    found = [part.split("/") for part in cgroup.split("\n") if "/session-" in part and ".scope" in part]
    slices = (
        [word[5:-6] for word in found[0] if word.startswith("user-") and word.endswith(".slice")] if found else []
    )
    if not slices or not slices[0].isdigit():
        return {}
    user = user_name(int(slices[0]))
    settings = logind_settings()
    kill, source = settings.get("KillUserProcesses", ("", ""))
    if not kill and not ROOT and logind_says("KillUserProcesses") == "b true":
        kill, source = "yes", "systemd-logind"  # as it was built
    only, excluded = settings.get("KillOnlyUsers", ("", ""))[0], settings.get("KillExcludeUsers", ("root", ""))[0]
    spared = user in excluded.split() or (only and user not in only.split())
    if kill.lower() not in ("1", "yes", "y", "true", "t", "on") or spared:
        return {}
    return {"user": user, "source": source}


def usable(base, name):
    """Return the machine's folder below `base`, made if need be, or raise OSError.

    One that is there and ours is taken even when it cannot be written now: its ranks must be seen.
    """
    path = os.path.join(base, name)
    if not os.path.isabs(path):
        raise OSError(errno.EINVAL, "is no absolute path", base)
    make_private(path)
    info = os.stat(path)
    if info.st_uid != os.getuid() or info.st_mode & 0o022:
        owner = user_name(info.st_uid)
        raise OSError(errno.EPERM, "belongs to %s, or others can write there" % owner, path)
    return path


SHARED_STATE = "/var/lib/pdtui"


def records_of_others(state):
    """Return {user, folder} when another user's agents keep records where ours would have gone, else {}."""
    try:
        owner = os.stat(SHARED_STATE).st_uid
    except OSError:
        return {}
    if owner == os.getuid() or not state or os.path.dirname(state) == SHARED_STATE:
        return {}
    return {"user": user_name(owner), "folder": SHARED_STATE}


def choose_state_dir(wanted, host=None):
    """Return (folder, why there is none): the topology's, else /var/lib/pdtui, else ~/.local/state/pdtui.

    `host`: what the machine around this container is called. Images bring ids of their own, the same everywhere,
    or none; but what an earlier agent has put below such a name stays there.
    """
    candidates = [wanted] if wanted else [SHARED_STATE, "~/.local/state/pdtui"]
    errors = []
    for base in candidates:
        try:
            base = os.path.expanduser(base)
            old = os.path.join(base, machine_id())
            known = bool(host) and name_is_safe(host) and not os.path.isdir(old)
            return usable(base, host if known else machine_id()), ""
        except OSError as error:
            errors.append(describe(error))
    return "", "; ".join(errors)


def write_all(fd, data):
    """Write all of `data` to a descriptor, which somebody else may have made non-blocking."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [], 1.0)


def main(reader):
    """Serve stdin and stdout until the console goes or is silent; never returns."""
    params = json.loads(reader.readline().decode("utf-8"))
    os.environ.pop("PDTUI_RANK", None)  # a console in a rank's shell: its commands are no part of the rank
    os.set_blocking(0, True)
    out = os.dup(1)
    os.dup2(2, 1)  # nothing but frames may come from this process's stdout
    reaper = Reaper()  # first of all: a fork must find no other thread
    REAPERS.append(reaper)
    OWN.add(reaper.pid)
    agent = Agent(reader, lambda frame: write_all(out, frame), params)
    leaving = threading.Lock()

    def leave(*_):
        if leaving.acquire(False):
            agent.end()
            reaper.leave()
            os._exit(0)

    for name in ("SIGTERM", "SIGHUP", "SIGINT"):
        signal.signal(getattr(signal, name), leave)
    agent.leave = leave
    agent.serve(params["nonce"])
    leave()
    threading.Event().wait()  # another thread is leaving
