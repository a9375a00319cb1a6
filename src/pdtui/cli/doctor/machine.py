"""What this machine is: system, Python, pdtui and what it is built on, locale, limits, programs."""

from __future__ import annotations

import importlib
import locale
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

import pdtui
from pdtui.cli.doctor.items import Item, Section, fail, ok, warn
from pdtui.text import clean_line

PROGRAMS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "ssh": (("-V",), "the console's `s` opens a shell on a node with it"),
    "bash": (("--version",), "pdtui demo, and nodes with host: local, start ranks with it"),
    "tmux": (("-V",), "a console in it survives the end of your connection"),
}
"""Programs beside pdtui -> what makes them say their version, and what for they are."""

FEWEST_FILES = 256
"""Open files that a console of some dozen nodes stays below."""

_MODULES: Mapping[str, str] = {"pyyaml": "yaml"}
"""Where a package's module is not called as the package."""

_REQUIREMENT = re.compile(r"^\s*([A-Za-z0-9._-]+)\s*((?:[<>=!~]=?[^;,]+,?)*)\s*(;.*)?$")
_BOUND = re.compile(r"(>=|<=|==|!=|~=|<|>)\s*([0-9][^\s,;]*)")
_PROGRAM_TIMEOUT = 5.0


def section(environ: Mapping[str, str]) -> Section:
    """Look at the machine; `environ` is the environment as it was before Python changed it."""
    return Section(
        "machine",
        (
            _pdtui(),
            ok("python", f"{platform.python_version()}, {sys.executable}{_venv()}"),
            ok("system", _system()),
            *_packages(),
            _locale(environ),
            _files(),
            ok("clock", time.strftime("%Y-%m-%d %H:%M:%S %Z (UTC%z)")),
            *(_program(name) for name in PROGRAMS),
        ),
    )


def _pdtui() -> Item:
    here = Path(pdtui.__file__).parent
    first = shutil.which("pdtui")
    text = f"{pdtui.__version__}, {here}"
    if first is None:
        return ok("pdtui", f"{text}; no pdtui in PATH")
    return ok("pdtui", f"{text}; in PATH: {first}")


def _venv() -> str:
    return ", a virtual environment" if sys.prefix != sys.base_prefix else ""


def _system() -> str:
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        name = ""
    uname = platform.uname()
    parts = [
        name,
        f"{uname.system} {uname.release} {uname.machine}",
        f"{os.cpu_count() or 0} processors",
        _memory(),
    ]
    return ", ".join(part for part in parts if part)


def _memory() -> str:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return f"{int(found[1]) / 1048576:.1f} GiB of memory free" if found else ""


def _packages() -> Iterator[Item]:
    """Say the versions of what pdtui is built on, on one line, and what is wrong with one on a line each."""
    try:
        wanted = [line for line in metadata.requires("pdtui") or () if "extra ==" not in line]
    except metadata.PackageNotFoundError:
        yield warn("packages", "pdtui is not installed by pip: which versions it needs is not known")
        return
    found: list[str] = []
    problems: list[Item] = []
    for line in wanted:
        parts = _REQUIREMENT.match(line)
        if parts is None:
            continue
        name, bounds = parts[1], _BOUND.findall(parts[2])
        version, problem = _package(name, bounds)
        found.append(f"{name} {version}".rstrip())
        if problem is not None:
            problems.append(problem)
    yield ok("packages", ", ".join(found))
    yield from problems


def _package(name: str, bounds: list[tuple[str, str]]) -> tuple[str, Item | None]:
    """Return the version of a package, and what is wrong with it."""
    remedy = f"{sys.executable} -m pip install '{name}{','.join(sign + bound for sign, bound in bounds)}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing", fail(name, "is not installed", remedy)
    for sign, bound in bounds:
        if _is_below(version, bound) and sign in (">=", "==", "~=", ">"):
            return version, fail(name, f"{version} is too old: pdtui needs {sign}{bound}", remedy)
        if _is_below(bound, version) and sign in ("==", "<=", "<"):
            return version, warn(name, f"{version} is newer than the {bound} that pdtui was made for", remedy)
    if (why := _import_problem(_MODULES.get(name.lower(), name.replace("-", "_")))) != "":
        return version, fail(name, f"{version} cannot be imported: {why}", remedy)
    return version, None


def _import_problem(module: str) -> str:
    """Return why a module cannot be imported."""
    try:
        importlib.import_module(module)
    except Exception as error:  # Whatever a damaged installation of somebody else's raises is what is asked for.
        return clean_line(f"{type(error).__name__}: {error}")
    return ""


def _is_below(version: str, bound: str) -> bool:
    """Compare two versions by their leading numbers."""
    one, other = _numbers(version), _numbers(bound)
    length = max(len(one), len(other))
    return (one + (0,) * length)[:length] < (other + (0,) * length)[:length]


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _locale(environ: Mapping[str, str]) -> Item:
    name = next((key for key in ("LC_ALL", "LC_CTYPE", "LANG") if environ.get(key)), "")
    said = f"{name}={environ[name]}" if name else "LC_ALL, LC_CTYPE and LANG are not set"
    remedy = "export LC_ALL=C.UTF-8 here, and in tmux begin anew (tmux -u)"
    if "utf" not in environ.get(name, "").lower():
        return warn("locale", f"{said}: no UTF-8, so signs are drawn in ASCII", remedy)
    try:
        locale.setlocale(locale.LC_CTYPE, "")
    except locale.Error:
        return warn("locale", f"{said}: this machine does not have it", "locale -a lists those that it has")
    return ok("locale", said)


def _files() -> Item:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = "no limit" if hard == resource.RLIM_INFINITY else f"up to {hard}"
    text = f"{'any number of' if soft == resource.RLIM_INFINITY else soft} open files at once (ulimit -n; {most})"
    if soft != resource.RLIM_INFINITY and soft < FEWEST_FILES:
        return warn("limits", f"{text}: too few for many nodes", f"ulimit -n {FEWEST_FILES * 4}")
    return ok("limits", text)


def _program(name: str) -> Item:
    options, use = PROGRAMS[name]
    path = shutil.which(name)
    if path is None:
        return warn(name, f"is not installed: {use}", f"Debian: apt install {_DEBIAN.get(name, name)}")
    return ok(name, f"{version_of(path, *options) or 'version unknown'}, {path}")


_DEBIAN: Mapping[str, str] = {"ssh": "openssh-client"}


def version_of(*argv: str) -> str:
    """Return the first line that a program says of itself; empty when it says nothing in time."""
    said = answer(*argv).splitlines()
    return clean_line(said[0])[:100] if said else ""


def answer(*argv: str) -> str:
    """Return what a program prints, stderr too; empty when it fails or takes too long."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_PROGRAM_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
