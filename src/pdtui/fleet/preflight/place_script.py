"""What a rank would find where it starts: run there, prints one line with a JSON document.

Run by `place` as `python3 -S -c SOURCE PARAMETERS` in the environment that a rank starts from (Python 3.6 and
newer, standard library only); nothing is written and nothing is left behind. Every part is a process of its own
under a limit, so that a dead network disk hides nothing but what lies on it:

    PDTUI-PLACE {"shm": {"ok": ...}, "model": {"hangs": 8.0}, "cann": {"error": "...", "kind": "missing"}, ...}

Of the environment only the variables below go back, and passwords in proxy addresses do not.
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs, no-check-untyped-defs
# mypy: disable-error-code=var-annotated

import errno
import fcntl
import hashlib
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import stat
import struct
import sys
import time

MARK = "PDTUI-PLACE "
ROOT = os.environ.get("PDTUI_ROOT_VIEW", "")
"""Set where several nodes share a machine's files: what is below it is the node's own."""

VIEW = os.environ.get("PDTUI_ADDRESS_VIEW", "")
"""Set where several nodes share a machine's network: the one address of it that is the node's."""

VARIABLES = (
    "VLLM_HOST_IP",
    "HCCL_IF_IP",
    "HCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "TP_SOCKET_IFNAME",
    "ASCEND_HOME_PATH",
    "ASCEND_TOOLKIT_HOME",
    "ASCEND_PROCESS_LOG_PATH",
)
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
HASHED = 1 << 20  # bytes up to which a text file of the model is read
INDEX = 64 << 20
FILES = 4000
WEIGHTS = (".safetensors", ".bin", ".pt", ".gguf")
TEXTS = (".json", ".jinja", ".py", ".txt", ".model", ".tiktoken")


def at(path):
    """Return where a path of the node is."""
    return ROOT + path if ROOT and os.path.exists(ROOT + path) else path


def read(path, limit=65536):
    """Return the text of a small file."""
    with open(path, "rb") as file:
        return file.read(limit).decode("utf-8", "replace")


def read_if(path):
    """Return the text of a file; nothing without one."""
    try:
        return read(path).strip()
    except OSError:
        return ""


# ------------------------------------------------------------------------------------------------ the machine


def shm(_):
    """Size and room of /dev/shm in bytes, and the type of its file system."""
    room = os.statvfs("/dev/shm")
    return {
        "total": room.f_frsize * room.f_blocks,
        "free": room.f_frsize * room.f_bavail,
        "type": mount_of("/dev/shm")[1],
    }


def mount_of(path):
    """Return the mount point and the file system's type of a path, by /proc/self/mounts (fstab(5))."""
    best = ("", "")
    for line in read("/proc/self/mounts", 1 << 20).split("\n"):
        words = line.split()
        if len(words) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), words[1])
        if len(point) >= len(best[0]) and (path + "/").startswith(point.rstrip("/") + "/"):
            best = (point, words[2])
    return best


def devices(_):
    """Ids of the NPUs' device files, those that this user may not open, and the management devices."""
    folder = at("/dev") if not ROOT or os.path.isdir(ROOT + "/dev") else "/dev"
    names = os.listdir(folder)
    found = sorted(int(name[7:]) for name in names if re.match(r"davinci\d+\Z", name))
    closed = [n for n in found if not os.access("%s/davinci%d" % (folder, n), os.R_OK | os.W_OK)]
    others = [name for name in ("davinci_manager", "devmm_svm", "hisi_hdc") if name in names]
    return {"npus": found, "closed": closed, "management": others, "driver": driver()}


def driver():
    """Return where the driver's library is that everything else is built on; empty: nowhere."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    base = re.search(r"^Driver_Install_Path_Param=(\S+)", read_if(at("/etc/ascend_install.info")), re.M)
    for root in ([base.group(1)] if base else []) + ["/usr/local/Ascend"]:
        folders += [root + "/driver/lib64/driver", root + "/driver/lib64"]
    for folder in folders:
        if folder and os.path.exists(at(folder + "/libascend_hal.so")):
            return folder + "/libascend_hal.so"
    return ""


def limits(_):
    """Soft and hard limits (-1: none), the most processes of the control group, and the user."""
    names = {
        "nofile": resource.RLIMIT_NOFILE,
        "memlock": resource.RLIMIT_MEMLOCK,
        "nproc": resource.RLIMIT_NPROC,
        "core": resource.RLIMIT_CORE,
    }
    found = {}
    for name, number in names.items():
        found[name] = [-1 if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(number)]
    found["uid"] = os.getuid()
    found["pids"] = pids_max()
    return found


def pids_max():
    """Return how many processes and threads the control group of this process may have; -1: no limit is seen."""
    lowest = -1
    for line in read("/proc/self/cgroup").split("\n"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "pids" not in controllers.split(","):
            continue
        base = "/sys/fs/cgroup/pids" if controllers else "/sys/fs/cgroup"
        while True:
            word = read_if(base + path.rstrip("/") + "/pids.max")
            if word.isdigit() and (lowest < 0 or int(word) < lowest):
                lowest = int(word)
            if path in ("", "/"):
                break
            path = os.path.dirname(path)
    return lowest


def ports(planned):
    """From which ports outgoing connections are given theirs, which are kept from that, and which they have now.

    `planned`: [first, last] of each range of ports that is looked at.
    """
    base = "/proc/sys/net/ipv4/"
    return {
        "range": [int(word) for word in read(at(base + "ip_local_port_range")).split()[:2]],
        "reserved": read_if(at(base + "ip_local_reserved_ports")),
        "taken": taken(planned),
    }


def taken(planned):
    """Return the ports that connections from here hold; what was accepted on a listening port is not from here."""
    listening, connected = set(), set()
    own = "%08X" % struct.unpack("=I", socket.inet_aton(VIEW)) if VIEW else ""
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read(path, 64 << 20).split("\n")[1:]:
            words = line.split()
            if len(words) < 4 or words[3] in ("06", "07"):  # TIME_WAIT, CLOSE
                continue
            address, _, number = words[1].rpartition(":")
            port = int(number, 16)
            if own and address != own:
                continue
            if any(first <= port <= last for first, last in planned):
                (listening if words[3] == "0A" else connected).add(port)
    return sorted(connected - listening)


def addresses(_):
    """Return the network interfaces: [name, up, [address/prefix...]]."""
    found = {}
    for index, family, address, prefix in netlink_addresses():
        try:
            name = socket.if_indextoname(index)
        except OSError:
            continue
        found.setdefault(name, []).append("%s/%d" % (socket.inet_ntop(family, address), prefix))
    return [[name, is_up(name), found.get(name, [])] for name in if_names(found)]


def if_names(found):
    """Return all interfaces, also those without an address."""
    names = [name for _, name in socket.if_nameindex()]
    return names + [name for name in found if name not in names]


def is_up(name):
    """Return whether an interface is up and has a carrier (netdevice(7): IFF_UP, IFF_RUNNING)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        try:
            answer = fcntl.ioctl(plain, 0x8913, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return False
    flags = struct.unpack_from("H", answer, 16)[0]
    return bool(flags & 0x1) and bool(flags & 0x40)


def netlink_addresses():
    """Yield (interface's index, family, address, prefix length) of all addresses (rtnetlink(7), RTM_GETADDR)."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
        link.settimeout(3.0)
        link.bind((0, 0))
        link.send(struct.pack("=IHHII", 20, 22, 0x301, 1, 0) + struct.pack("=BBBB", 0, 0, 0, 0))
        while True:
            packet = link.recv(1 << 16)
            offset = 0
            while offset + 16 <= len(packet):
                length, kind = struct.unpack_from("=IH", packet, offset)
                if kind == 3:
                    return
                if kind == 2 or length < 16:
                    raise OSError(errno.EIO, "the kernel refuses to list addresses")
                if kind == 20:
                    for entry in one_address(packet[offset + 16 : offset + length]):
                        yield entry
                offset += (length + 3) & ~3


def one_address(message):
    family, prefix, _, _, index = struct.unpack_from("=BBBBI", message, 0)
    size = {socket.AF_INET: 4, socket.AF_INET6: 16}.get(family, 0)
    offset, found = 8, {}
    while offset + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, offset)
        if length < 4:
            break
        found[kind] = message[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    address = found.get(2, found.get(1, b""))  # IFA_LOCAL, IFA_ADDRESS
    if size and len(address) == size:
        yield index, family, address, prefix


def disk(path):
    """Room and files of the file system that a path is, or would be, on."""
    there = os.path.expanduser(path)
    while not os.path.exists(there) and there not in ("", "/"):
        there = os.path.dirname(there)
    room = os.statvfs(there or "/")
    point, kind = mount_of(os.path.realpath(there or "/"))
    return {
        "path": os.path.expanduser(path),
        "device": os.stat(there or "/").st_dev,
        "mount": point,
        "type": kind,
        "total": room.f_frsize * room.f_blocks,
        "free": room.f_frsize * room.f_bavail,
        "files": room.f_files,
        "files_free": room.f_favail,
        "writable": os.access(there or "/", os.W_OK),
    }


# ---------------------------------------------------------------------------------------------- the environment


def variables(_):
    """The variables that checks look at, proxies without passwords, the address that vLLM takes without any."""
    environ = os.environ
    proxies = {}
    for name in PROXIES:
        for spelling in (name, name.upper()):
            if environ.get(spelling):
                secret = r"^(\w+://)?.*@" if name != "no_proxy" else r"(?!)()"
                proxies[spelling] = re.sub(secret, r"\1***@", environ[spelling], flags=re.S)[:2000]
    return {
        "variables": {name: environ[name][:2000] for name in VARIABLES if name in environ},
        "proxies": proxies,
        "default_ip": default_ip(),
        "vllm": shutil.which("vllm") or "",
        "path": environ.get("PATH", "")[:4000],
    }


def default_ip():
    """Return the source address of the default route, as vLLM looks for it; nothing is sent."""
    for family, far in ((socket.AF_INET, "8.8.8.8"), (socket.AF_INET6, "2001:4860:4860::8888")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as plain:
                plain.connect((far, 80))
                return plain.getsockname()[0]
        except OSError:
            continue
    return ""


def cann(_):
    """Version of the CANN toolkit that the environment points to, and where it says so."""
    homes = [os.environ.get(name, "") for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")]
    named, silent = [home for home in homes if home], []
    for home in named or ["/usr/local/Ascend/ascend-toolkit/latest", "/usr/local/Ascend/cann"]:
        for folder in ("/%s-linux" % os.uname().machine, "/aarch64-linux", "/x86_64-linux", ""):
            for name in ("/ascend_toolkit_install.info", "/version.cfg", "/version.info"):
                path = home.rstrip("/") + folder + name
                try:
                    text = read(at(path))
                except OSError:
                    continue
                version = re.search(r"^[Vv]ersion=\s*(\S+)", text, re.M)
                version = version or re.search(r"^toolkit_\w*version=\[[^\]:]*:([^\]]+)\]", text, re.M)
                if version:
                    return {"version": version.group(1), "file": path, "home": home, "set": bool(named)}
                silent.append(path)
    if silent:
        raise Unreadable("%s says no version" % silent[0])
    if named:
        raise Missing("no version of CANN below %s" % named[0])
    raise Missing("neither ASCEND_HOME_PATH nor ASCEND_TOOLKIT_HOME is set")


class Missing(Exception):
    """It is not there; the text says what and where."""


class Unreadable(Exception):
    """It is there and makes no sense; the text says what."""


def interpreter():
    """Return the Python that `vllm` runs under, by the first lines of that program; ours if they do not say."""
    program = shutil.which("vllm")
    if not program:
        return sys.executable
    with open(program, "rb") as file:
        lines = file.read(1024).decode("utf-8", "replace").split("\n")
    words = lines[0][2:].split() if lines[0].startswith("#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    if (
        words and os.path.basename(words[0]) in ("sh", "bash") and len(lines) > 1
    ):  # A path too long for the kernel.
        words = re.findall(r"""exec' ['"]?([^'"\s]+)""", lines[1])
    name = words[0] if words else ""
    return name if name.startswith("/") else (name and shutil.which(name)) or sys.executable


# Run by the interpreter of vLLM, with its own module path but without the working directory, where a checkout lies
# as often as not.
ASIDE = "import json, sys\nif sys.path and sys.path[0] == '':\n    del sys.path[0]\n"

PACKAGES = (
    ASIDE
    + r"""
import hashlib, importlib.util, os, re
names = json.loads(sys.argv[1])
found = {}
for folder in sys.path:
    try:
        entries = os.listdir(folder or ".")
    except OSError:
        continue
    for entry in sorted(entries):
        match = re.match(r"(.+?)-[^-]+(?:-py[\d.]+.*)?\.(?:dist|egg)-info\Z", entry) or re.match(
            r"(.+)\.egg-info\Z", entry)
        name = re.sub(r"[-_.]+", "-", match.group(1)).lower() if match else ""
        if (name not in names and not name.startswith("mooncake-transfer-engine")) or name in found:
            continue
        path = os.path.join(folder, entry)
        for file in ("METADATA", "PKG-INFO", ""):
            try:
                text = open(os.path.join(path, file) if file else path, "rb").read(65536)
                text = text.decode("utf-8", "replace")
            except OSError:
                continue
            version = re.search(r"^Version:\s*([\w.+!-]+)", text, re.M)
            found[name] = {"version": version.group(1) if version else "", "where": path}
            break
modules = {}
for name in ("vllm", "vllm_ascend", "mooncake"):
    try:
        spec = importlib.util.find_spec(name)
    except Exception:
        spec = None
    places = list(spec.submodule_search_locations or []) if spec else []
    if not places:
        continue
    modules[name] = {"where": places[0]}
    for file in ("_version.py", "version.py"):
        try:
            text = open(os.path.join(places[0], file), "rb").read(65536).decode("utf-8", "replace")
        except OSError:
            continue
        version = re.search(r"^(?:__version__|version)\b[^\n]*?=\s*['\"]([^'\"]+)", text, re.M)
        if version:
            modules[name]["version"] = version.group(1)
            break
    if name == "mooncake":
        for place in places:
            for entry in sorted(os.listdir(place)):
                if re.match(r"engine\.(?:.*\.)?(?:so|py)\Z", entry):
                    path = os.path.join(place, entry)
                    digest = hashlib.sha256()
                    with open(path, "rb") as file:
                        for piece in iter(lambda: file.read(1 << 20), b""):
                            digest.update(piece)
                    modules[name].update(engine=path, size=os.path.getsize(path), digest=digest.hexdigest()[:16])
sys.stdout.write("\nPDTUI-OK " + json.dumps({
    "python": "%d.%d.%d" % sys.version_info[:3], "executable": sys.executable, "packages": found,
    "modules": modules}) + "\n")
"""
)

IMPORT = (
    ASIDE
    + r"""
import time
begin = time.time()
scope = {}
exec(sys.argv[1], scope)
sys.stdout.write("\nPDTUI-OK " + json.dumps({"statement": sys.argv[1], "seconds": time.time() - begin}) + "\n")
"""
)


def packages(names):
    """Become the Python of vLLM, which lists packages without importing them."""
    become(PACKAGES, json.dumps(names))


def importing(statement):
    """Become the Python of vLLM, which imports what the connector imports."""
    become(IMPORT, statement)


def become(code, word):
    """Run a program with the interpreter of vLLM in place of this process; both its streams go to the pipe."""
    program = interpreter()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        os.execv(program, [program, "-B", "-c", code, word])
    except OSError as error:
        raise Missing("%s: %s" % (program, os.strerror(error.errno)))


# --------------------------------------------------------------------------------------------------- the model


def model(path):
    """Names, sizes and hashes of the model's files; weights are not read beyond what a pointer file would hold."""
    real = os.path.expanduser(path)
    found = {"path": real, "files": [], "broken": [], "unreadable": [], "pointers": [], "config": "", "more": 0}
    names = sorted(os.listdir(real))
    for name in names:
        if name.startswith(".") or not name.endswith(WEIGHTS + TEXTS):
            continue
        if len(found["files"]) >= FILES:
            found["more"] += 1
            continue
        try:
            look_at(found, real, name)
        except OSError as error:
            kind = "broken" if error.errno in (errno.ENOENT, errno.ELOOP) else "unreadable"
            found[kind].append(name)
    found["indexes"] = [index_of(real, name, names) for name in names if name.endswith(".index.json")]
    return found


def look_at(found, folder, name):
    """Note one file. Raises OSError when it cannot be read."""
    path = folder + "/" + name
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        return
    if not os.access(path, os.R_OK):
        raise OSError(errno.EACCES, "not readable")
    text = b""
    if status.st_size <= (HASHED if name.endswith(TEXTS) else 1024):
        with open(path, "rb") as file:
            text = file.read(HASHED + 1)
    digest = hashlib.sha256(text).hexdigest()[:16] if text and name.endswith(TEXTS) else ""
    if text.startswith(b"version https://git-lfs"):
        found["pointers"].append(name)
    if name == "config.json":
        found["config"] = digest
        try:
            json.loads(text.decode("utf-8"))
        except ValueError:
            found["config_error"] = "config.json is no JSON"
    found["files"].append([name, status.st_size, digest])


def index_of(folder, name, names):
    """Return which weight files an index names, and which of them are not there."""
    try:
        with open(folder + "/" + name, "rb") as file:
            shards = set(json.loads(file.read(INDEX).decode("utf-8"))["weight_map"].values())
        missing = sorted(shard for shard in shards if shard not in names)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return {"name": name, "error": "%s: %s" % (type(error).__name__, error)}
    return {"name": name, "shards": len(shards), "missing": missing[:100], "absent": len(missing)}


# --------------------------------------------------------------------------------------------------- the parts

PARTS = {
    "shm": shm,
    "devices": devices,
    "limits": limits,
    "ports": ports,
    "addresses": addresses,
    "variables": variables,
    "cann": cann,
    "packages": packages,
    "import": importing,
    "model": model,
    "disk": disk,
}


def begin(name, argument):
    """Start a part in a process of its own; returns its pid and the pipe that its answer comes from."""
    ear, mouth = os.pipe()
    pid = os.fork()
    if pid:
        os.close(mouth)
        return pid, ear
    try:
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (mouth, 1), (mouth, 2)):
            os.dup2(source, target)
        os.closerange(3, 256)
        said = {"ok": PARTS[name](argument)}
    except Missing as error:
        said = {"error": str(error), "kind": "missing"}
    except (Unreadable, ValueError) as error:
        said = {"error": str(error), "kind": "unreadable"}
    except OSError as error:
        kinds = {errno.EACCES: "permission", errno.EPERM: "permission", errno.ENOENT: "missing"}
        words = "%s: %s" % (error.filename, os.strerror(error.errno)) if error.filename else str(error)
        said = {"error": words, "kind": kinds.get(error.errno, "error")}
    except BaseException as error:
        said = {"error": "%s: %s" % (type(error).__name__, error), "kind": "error"}
    line = ("\nPDTUI-OK " if "ok" in said else "\nPDTUI-NO ") + json.dumps(said.get("ok", said)) + "\n"
    data = line.encode()
    try:
        while data:
            data = data[os.write(1, data) :]
    finally:  # Also when nobody listens any more: what runs on from here would start parts of its own.
        os._exit(0)


def answer(text, status):
    """Return what a part has said; what its interpreter printed besides is passed over."""
    for line in reversed(text.decode("utf-8", "replace").split("\n")):
        if line.startswith(("PDTUI-OK ", "PDTUI-NO ")):
            try:
                said = json.loads(line[9:])
            except ValueError:
                continue
            return {"ok": said} if line.startswith("PDTUI-OK ") else said
    words = text[-3000:].decode("utf-8", "replace").strip()
    if os.WIFSIGNALED(status):
        words = (words + "\n" if words else "") + "ended by signal %d" % os.WTERMSIG(status)
    return {"error": words or "it ended with status %d and without a word" % (status >> 8), "kind": "failed"}


def gather(wanted):
    """Run parts at the same time and return what each has said. `wanted`: {key: [part, argument, seconds]}."""
    start = time.monotonic()
    out, said, killed = {}, {}, []
    for key, (name, argument, seconds) in sorted(wanted.items()):
        try:
            pid, ear = begin(name, argument)
        except OSError as error:
            said[key] = {"error": "no process could be started: %s" % os.strerror(error.errno), "kind": "error"}
            continue
        out[ear] = [key, pid, start + seconds, seconds, b""]
    while out:
        now = time.monotonic()
        first = min(entry[2] for entry in out.values())
        for ear in select.select(list(out), [], [], max(0.0, min(first - now, 1.0)))[0]:
            piece = os.read(ear, 65536)
            out[ear][4] = (out[ear][4] + piece)[-(8 << 20) :]
            if not piece:
                key, pid, _, _, text = out.pop(ear)
                os.close(ear)
                said[key] = answer(text, os.waitpid(pid, 0)[1])
        for ear, (key, pid, until, seconds, _) in list(out.items()):
            if time.monotonic() >= until:
                os.kill(pid, signal.SIGKILL)
                os.close(ear)
                del out[ear]
                killed.append(pid)
                said[key] = {"hangs": seconds}
    bury(killed)
    return said


def bury(pids):
    """Collect killed processes; not for long, since what hangs in the kernel does not die either."""
    until = time.monotonic() + 0.5
    while pids and time.monotonic() < until:
        pids = [pid for pid in pids if os.waitpid(pid, os.WNOHANG)[0] == 0]
        time.sleep(0.01)


if __name__ == "__main__":
    sys.stdout.write("\n" + MARK + json.dumps(gather(json.loads(sys.argv[1]))) + "\n")
    sys.stdout.flush()
    os._exit(0)
