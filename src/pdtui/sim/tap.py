"""Namespaces and their network interfaces by the kernel's own calls, for programs with the standard library only.

Every address of the simulated network is a neighbour (one default route, no gateway), and an interface's hardware
address follows from its IPv4 address, so that the switch knows where everything is.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_SIOCADDRT = 0x890B
_SIOCSIFFLAGS = 0x8914
_SIOCSIFADDR = 0x8916
_SIOCSIFNETMASK = 0x891C
_SIOCSIFHWADDR = 0x8924
_ARPHRD_ETHER = 1
_RTF_UP = 1

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *args: object) -> None:
    """Call a function of the C library. Raises `OSError`."""
    if getattr(libc, name)(*args) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")


def write(path: str, text: str) -> None:
    """Write a small kernel file. Raises `OSError`."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def enter_namespaces(flags: int, *, identity: bool) -> None:
    """Leave the machine's user namespace and those of `flags` (pid: for children). Raises `OSError`.

    With `identity` users keep their numbers: all of them where this process may map them (root may), else its own
    alone. Without it this process becomes root of the namespace and nobody else exists.
    """
    uid, gid = os.getuid(), os.getgid()
    go, ready = os.pipe()
    mapped, done = os.pipe()
    helper = os.fork() if identity and uid == 0 else -1
    if helper == 0:
        os.read(go, 1)
        try:
            _map_everybody(os.getppid())
            os.write(done, b"y")
        finally:
            os._exit(0)
    call("unshare", CLONE_NEWUSER | flags)
    whole = False
    if helper > 0:
        os.close(done)
        os.write(ready, b"g")
        whole = os.read(mapped, 1) == b"y"
        os.waitpid(helper, 0)
    else:
        os.close(done)
    for descriptor in (go, ready, mapped):
        os.close(descriptor)
    if not whole:
        write("/proc/self/setgroups", "deny")
        write("/proc/self/uid_map", f"{uid if identity else 0} {uid} 1")
        write("/proc/self/gid_map", f"{gid if identity else 0} {gid} 1")


def _map_everybody(pid: int) -> None:
    """Give the user namespace of a process every user and group that is known here, each as itself."""
    for name in ("uid_map", "gid_map"):
        with open(f"/proc/self/{name}", encoding="ascii") as file:
            extents = [line.split() for line in file]
        write(f"/proc/{pid}/{name}", "".join(f"{inside} {inside} {count}\n" for inside, _, count in extents))


def hardware_address(address: str) -> bytes:
    """Return the six bytes that go with an IPv4 address."""
    return b"\x02\x00" + socket.inet_aton(address)


def open_tap(name: str, address: str) -> int:
    """Make an interface with an address, up; its frames are at the descriptor returned. Raises `OSError`."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            hardware = struct.pack("H", _ARPHRD_ETHER) + hardware_address(address)
            _set(control, _SIOCSIFHWADDR, name, hardware)
            _set(control, _SIOCSIFADDR, name, _internet(address))
            _set(control, _SIOCSIFNETMASK, name, _internet("255.255.255.0"))
            _set(control, _SIOCSIFFLAGS, name, struct.pack("H", _IFF_UP | _IFF_RUNNING))
            _route_everything(control, name)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def loopback_up() -> None:
    """Bring `lo` up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        _set(control, _SIOCSIFFLAGS, "lo", struct.pack("H", _IFF_UP | _IFF_RUNNING))


def _set(control: socket.socket, request: int, name: str, value: bytes) -> None:
    fcntl.ioctl(control, request, struct.pack("16s24s", name.encode(), value))


def _internet(address: str) -> bytes:
    return struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))


class _Route(ctypes.Structure):
    """`struct rtentry` of the kernel's route.h."""

    _fields_ = (
        ("pad1", ctypes.c_ulong),
        ("destination", ctypes.c_char * 16),
        ("gateway", ctypes.c_char * 16),
        ("mask", ctypes.c_char * 16),
        ("flags", ctypes.c_ushort),
        ("pad2", ctypes.c_short),
        ("pad3", ctypes.c_ulong),
        ("pad4", ctypes.c_void_p),
        ("metric", ctypes.c_short),
        ("device", ctypes.c_char_p),
        ("mtu", ctypes.c_ulong),
        ("window", ctypes.c_ulong),
        ("rtt", ctypes.c_ushort),
    )


def _route_everything(control: socket.socket, name: str) -> None:
    """Add the route `default dev NAME`: whoever has an address answers for it."""
    anywhere = _internet("0.0.0.0")
    route = _Route(flags=_RTF_UP, device=name.encode())
    for field in ("destination", "gateway", "mask"):
        ctypes.memmove(ctypes.addressof(route) + getattr(_Route, field).offset, anywhere, 16)
    call("ioctl", control.fileno(), ctypes.c_ulong(_SIOCADDRT), ctypes.byref(route))
