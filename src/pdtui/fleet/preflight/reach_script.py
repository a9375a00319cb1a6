"""Which TCP ports of other nodes can be reached from here: prints one line with a JSON document.

Run by `checks/reach` as `python3 -S -c SOURCE PARAMETERS` where ranks run (Python 3.6 and newer, standard library
only). PARAMETERS: `{"hosts": {ADDRESS: [PORT...]}, "seconds": S}`, S for each connection. All are tried at once, a
few hundred at a time; what is open is closed again without a word. The answer:

    PDTUI-REACH {ADDRESS: {"from": OUR ADDRESS, "ports": {PORT: "open" | "refused" | "timeout" | WORDS}}, ...}
"""

# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs, no-check-untyped-defs
# mypy: disable-error-code=var-annotated

import errno
import json
import os
import resource
import select
import socket
import sys
import threading
import time

MARK = "PDTUI-REACH "
AT_ONCE = 400
SPARE = 40  # files that are open besides
WORDS = {
    0: "open",
    errno.ECONNREFUSED: "refused",
    errno.ETIMEDOUT: "timeout",
    errno.EHOSTUNREACH: "no route to the host, or a firewall says so",
    errno.ENETUNREACH: "no route to its network",
    errno.EPERM: "not permitted: a firewall here",
    errno.EACCES: "not permitted: a firewall here",
}


def words(code):
    return WORDS.get(code) or os.strerror(code)


def resolve(host, seconds):
    """Return (family, address) of a host; nothing when its name is not resolved in time."""
    found = []

    def look():
        try:
            found.extend(socket.getaddrinfo(host, 0, 0, socket.SOCK_STREAM))
        except (OSError, UnicodeError):
            pass

    thread = threading.Thread(target=look)
    thread.daemon = True
    thread.start()
    thread.join(seconds)
    return (found[0][0], found[0][4][0]) if found else None


def source(family, address):
    """Return the address that the kernel takes for connections to a host; nothing is sent."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as plain:
            plain.connect((address, 9))
            return plain.getsockname()[0]
    except OSError:
        return ""


def at_once():
    """Return how many connections may be out: a limit of open files must not look like a port out of reach."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return AT_ONCE if soft == resource.RLIM_INFINITY else min(AT_ONCE, max(8, soft - SPARE))


def try_all(targets, seconds):
    """Connect to all (key, family, address, port) and yield (key, port, word)."""
    waiting, out = list(reversed(targets)), {}
    poll, most = select.poll(), at_once()
    while waiting or out:
        while waiting and len(out) < most:
            key, family, address, port = waiting.pop()
            try:
                plain = socket.socket(family, socket.SOCK_STREAM)
                plain.setblocking(False)
                code = plain.connect_ex((address, port))
            except OSError as error:
                yield key, port, words(error.errno)
                continue
            if code in (errno.EINPROGRESS, errno.EAGAIN):
                out[plain.fileno()] = (plain, key, port, time.monotonic() + seconds)
                poll.register(plain, select.POLLOUT)
                continue
            plain.close()
            yield key, port, words(code)
        if not out:
            continue
        first = min(entry[3] for entry in out.values())
        for fd, _ in poll.poll(max(1, int((first - time.monotonic()) * 1000) + 1)):
            plain, key, port, _ = out.pop(fd)
            poll.unregister(fd)
            code = plain.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            plain.close()
            yield key, port, words(code)
        now = time.monotonic()
        for fd, (plain, key, port, until) in list(out.items()):
            if now >= until:
                del out[fd]
                poll.unregister(fd)
                plain.close()
                yield key, port, "timeout"


def reach(hosts, seconds):
    """Return what came of all hosts."""
    said, targets = {}, []
    for host, ports in hosts.items():
        there = resolve(host, seconds)
        if there is None:
            said[host] = {"from": "", "ports": {str(port): "its name is not resolved here" for port in ports}}
            continue
        said[host] = {"from": source(*there), "address": there[1], "ports": {}}
        targets += [(host, there[0], there[1], port) for port in ports]
    for host, port, word in try_all(targets, seconds):
        said[host]["ports"][str(port)] = word
    return said


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    sys.stdout.write("\n" + MARK + json.dumps(reach(asked["hosts"], asked["seconds"])) + "\n")
    sys.stdout.flush()
    os._exit(0)
