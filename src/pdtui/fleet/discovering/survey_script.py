"""What a host says of processes, their environment and containers: run there, prints a line with a JSON document.

Run by `survey` as `python3 -S -c SOURCE PARAMETERS` (Python 3.6 and newer, standard library only); nothing is
written. Values of variables whose names say that they are secrets never leave the host: only the names do.

    PDTUI-SURVEY {"processes": {"4711": {"env": {...}, "secrets": [...], "left_out": 31, ...}}, "addresses": ...}
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs, no-check-untyped-defs
# mypy: disable-error-code=var-annotated

import errno
import glob
import json
import os
import re
import shlex
import socket
import struct
import subprocess
import sys

MARK = "PDTUI-SURVEY "
ROOT = os.environ.get("PDTUI_ROOT_VIEW", "")
"""Set where several hosts share a machine's files: what is below it is the host's own."""

VIEW = os.environ.get("PDTUI_ADDRESS_VIEW", "")
"""Set where several hosts share a machine's network: the one address of it that is the host's."""

ENGINES = ("docker", "podman", "nerdctl")
ENGINE_SECONDS = 8
LIMIT = 4 << 20
FILES = 12
RECORD = re.compile(r"/run-\d+/log$")
REFERENCE = re.compile(r"\$(?:\w+|\{\w+\}|\(<[^\n]*\))\Z")
CONTAINER_ID = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope|/|$)")
HOST_KEYS = (
    "Binds NetworkMode IpcMode PidMode Privileged ShmSize Devices CapAdd SecurityOpt RestartPolicy Ulimits"
    " GroupAdd Init Runtime"
).split()


def at(path):
    """Return where a path of the host is."""
    return ROOT + path if ROOT and os.path.exists(ROOT + path) else path


def read(path, limit=LIMIT):
    """Return the bytes of a file."""
    with open(path, "rb") as file:
        return file.read(limit)


def text_of(data):
    """Return bytes as text, whatever they are."""
    return data.decode("utf-8", "replace")


def link(path):
    """Return where a link leads; empty when that cannot be read."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def reason(error):
    """Return why something could not be read, in a word that the console knows, or the system's."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return "permission"
    return "gone" if error.errno in (errno.ENOENT, errno.ESRCH) else os.strerror(error.errno or 0)


# --------------------------------------------------------------------------------------------- the environment


class Names(object):
    """Which variables are of interest, and which are secrets."""

    def __init__(self, keep, lists, secret):
        self.keep, self.secret = re.compile(keep), re.compile(secret, re.IGNORECASE)
        self.lists = set(lists)

    def sort(self, values):
        """Return what may leave the host: values that matter, names of secrets, how many others there are."""
        env, secrets, others = {}, [], 0
        for name, value in sorted(values.items()):
            if self.secret.search(name):
                if value:
                    secrets.append(name)
            elif name in self.lists or self.keep.match(name):
                env[name] = value
            else:
                others += 1
        return {"env": env, "secrets": secrets, "left_out": others}


def environment(data):
    """Return variables as /proc has them."""
    values = {}
    for entry in data.split(b"\0"):
        name, mark, value = entry.partition(b"=")
        if mark and name:
            values[text_of(name)] = text_of(value)
    return values


# ------------------------------------------------------------------------------------------------- processes


def process(pid, names):
    """Return what is known of one process besides its command line."""
    base = "/proc/%d" % pid
    found = {
        "argv": words(base),
        "cwd": link(base + "/cwd"),
        "exe": link(base + "/exe"),
        "space": link(base + "/ns/mnt"),
        "container": container_id(base),
        "files": files(base),
    }
    try:
        found.update(names.sort(environment(read(base + "/environ"))))
    except OSError as error:
        found["error"] = reason(error)
    root = base + "/root" if found["space"] and found["space"] != link("/proc/self/ns/mnt") else ""
    log = link(base + "/fd/1")
    if RECORD.search(log):
        found["record"] = record(root, os.path.dirname(log), names)
    found["packages"] = packages(pid, root, found["exe"])
    return found


def words(base):
    """Return the whole command line of a process."""
    try:
        data = read(base + "/cmdline").rstrip(b"\0")
    except OSError:
        return []
    return [text_of(word) for word in data.split(b"\0")] if data else []


def container_id(base):
    """Return the id of the container that a process is in, by its control group; empty when none is named."""
    try:
        groups = text_of(read(base + "/cgroup", 65536))
    except OSError:
        return ""
    for line in groups.split("\n"):
        match = CONTAINER_ID.search(line)
        if match:
            return match.group(1)
    return ""


def files(base):
    """Return the files that a process writes: its output first, then logs."""
    found = []
    try:
        numbers = sorted(map(int, os.listdir(base + "/fd")))
    except (OSError, ValueError):
        return found
    for number in numbers:
        path = link("%s/fd/%d" % (base, number))
        is_log = number in (1, 2) or "log" in path.rsplit("/", 2)[-1] or "/plog/" in path
        if path.startswith("/") and not path.startswith("/dev/") and is_log and path not in found:
            found.append(path)
    return found[:FILES]


def record(root, folder, names):
    """Return what pdtui's keeper was asked to start: command, variables as they were written, set-up scripts."""
    try:
        start = json.loads(text_of(read(root + folder + "/start.json")))
        script = text_of(read(root + folder + "/script"))
    except (OSError, ValueError):
        return {}
    if not isinstance(start, dict) or not isinstance(start.get("env"), dict):
        return {}
    values = {str(name): str(value) for name, value in start["env"].items()}
    secrets = sorted(
        name for name in values if names.secret.search(name) and values[name] and not REFERENCE.match(values[name])
    )
    setup = []
    for line in script.split("\n"):
        if line.startswith(". "):
            try:
                setup.extend(shlex.split(line[2:]))
            except ValueError:
                pass
    return {
        "argv": [str(word) for word in start.get("argv") or ()],
        "env": {name: value for name, value in values.items() if name not in secrets},
        "secrets": secrets,
        "setup": setup,
        "folder": os.path.dirname(folder),
    }


def packages(pid, root, exe):
    """Return versions of vllm and vllm-ascend beside a server's interpreter, by what pip has written down."""
    named = [word for word in words("/proc/%d" % pid)[:4] if word.startswith("/")]
    programs = named + ([exe] if exe.startswith("/") else [])
    found = {}
    for prefix in sorted(set(os.path.dirname(os.path.dirname(path)) for path in programs), reverse=True):
        for site in ("site-packages", "dist-packages"):
            for name in ("vllm_ascend", "vllm"):
                pattern = "%s%s/lib*/python3*/%s/%s-*.dist-info" % (root, prefix, site, name)
                for path in glob.glob(pattern):
                    version = os.path.basename(path)[len(name) + 1 : -len(".dist-info")]
                    found.setdefault(name.replace("_", "-"), version)
    return found


# ------------------------------------------------------------------------------------------------ containers


def ask(argv):
    """Return what a program prints; None when there is none, and why it says nothing."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=ENGINE_SECONDS,
            check=False,
        )
    except OSError as error:
        return None, "" if error.errno == errno.ENOENT else reason(error)
    except subprocess.TimeoutExpired:
        return None, "%s gives no answer within %d s" % (argv[0], ENGINE_SECONDS)
    if done.returncode:
        return None, text_of(done.stderr).strip()[:500]
    return text_of(done.stdout), ""


def containers(wanted):
    """Return the containers that run, or those named in `wanted`, and why they could not all be asked."""
    found, problems = [], []
    for engine in ENGINES:
        names = wanted
        if not names:
            listed, problem = ask([engine, "ps", "--format", "{{.Names}}"])
            if listed is None:
                problems += [problem] if problem else []
                continue
            # A table instead of the names alone: some engines know no format.
            names = [line.split()[-1] for line in listed.split("\n") if line.split()]
            names = [name for name in names if name != "NAMES"]
        for name in names[:50]:
            said, problem = ask([engine, "inspect", name])
            try:
                one = json.loads(said) if said is not None else []
            except ValueError:
                problem, one = "%s inspect %s: no JSON" % (engine, name), []
            one = one[0] if isinstance(one, list) and one else one
            if isinstance(one, dict):
                found.append(essence(engine, one))
            elif problem:
                problems.append(problem)
        if found:
            break
    return {"found": found, "problems": problems}


def essence(engine, one):
    """Return what matters of a container's description; its variables hold secrets."""
    host, config, state = (part if isinstance(part, dict) else {} for part in map(one.get, PARTS))
    pid = state.get("Pid")
    return {
        "engine": engine,
        "id": str(one.get("Id", "")),
        "name": str(one.get("Name", "")).lstrip("/"),
        "image": str(config.get("Image") or one.get("ImageName") or ""),
        "space": link("/proc/%d/ns/mnt" % pid) if isinstance(pid, int) and pid > 0 else "",
        "host": {key: host[key] for key in HOST_KEYS if key in host},
        "mounts": [mount for mount in one.get("Mounts") or () if isinstance(mount, dict)],
        "user": str(config.get("User") or ""),
        "workdir": str(config.get("WorkingDir") or ""),
    }


PARTS = ("HostConfig", "Config", "State")

# --------------------------------------------------------------------------------------------------- the host


def addresses():
    """Return [interface, address] of all IPv4 and IPv6 addresses (rtnetlink(7), RTM_GETADDR)."""
    found = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.settimeout(3.0)
        netlink.bind((0, 0))
        netlink.send(struct.pack("=IHHII", 20, 22, 0x301, 1, 0) + struct.pack("=BBBB", 0, 0, 0, 0))
        while True:
            packet, offset = netlink.recv(1 << 16), 0
            while offset + 16 <= len(packet):
                length, kind = struct.unpack_from("=IH", packet, offset)
                if kind == 3:
                    return found
                if kind == 2 or length < 16:
                    return found
                if kind == 20:
                    found += one_address(packet[offset + 16 : offset + length])
                offset += (length + 3) & ~3


def one_address(message):
    """Return [interface, address] of one message (struct ifaddrmsg and its attributes), or nothing."""
    family, _, _, _, index = struct.unpack_from("=BBBBI", message)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return []
    offset, values = 8, {}
    while offset + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, offset)
        if length < 4:
            break
        values[kind] = message[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    raw = values.get(2, values.get(1))  # IFA_LOCAL, else IFA_ADDRESS
    if raw is None or len(raw) not in (4, 16):
        return []
    try:
        return [[socket.if_indextoname(index), socket.inet_ntop(family, raw)]]
    except (OSError, ValueError):
        return []


def scripts(variables):
    """Return variable -> the set-up script of the installation that it points into."""
    found = {}
    for name, value in variables.items():
        path = value
        for _ in range(5):
            if path in ("", "/"):
                break
            script = path + ("/bin/activate" if name == "VIRTUAL_ENV" else "/set_env.sh")
            if os.path.isfile(at(script)):
                found[name] = script
                break
            path = os.path.dirname(path)
    return found


def main(wanted):
    """Answer one question: processes and host, or this shell's own environment."""
    names = Names(wanted["keep"], wanted["lists"], wanted["secret"])
    if wanted["ask"] == "login":
        said = names.sort(dict(os.environ))
        said["scripts"] = scripts(wanted.get("roots") or {})
    else:
        said = {"processes": {str(pid): process(pid, names) for pid in wanted["pids"]}}
        own = link("/proc/self/ns/mnt")
        inside = any(one["container"] or one["space"] not in ("", own) for one in said["processes"].values())
        asked = wanted.get("containers") or []
        said["containers"] = containers(asked) if inside or asked else {"found": [], "problems": []}
        said["space"], said["view"] = own, VIEW
        try:
            said["addresses"] = addresses()
        except OSError as error:
            said["addresses"], said["no_addresses"] = [], reason(error)
    sys.stdout.write("\n" + MARK + json.dumps(said) + "\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
