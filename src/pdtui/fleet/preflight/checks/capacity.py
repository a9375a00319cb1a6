"""Room on disks and limits of the system, before ranks find their ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pdtui.fleet.preflight.check import NodeView, check
from pdtui.fleet.preflight.outcome import Result
from pdtui.fleet.preflight.place import is_silent, missing, size_words
from pdtui.readings.answer import Reading
from pdtui.readings.rank_place import Disk, Limits

STATE_LEAST = 1 << 30
"""Bytes below which logs stop before long: a rank's is rotated at 64 MB, five pieces of five runs are kept."""

STATE_OF_RANK = 5 * (64 << 20)
"""Bytes that the log of one run of one rank may take."""

OTHER_LEAST = 1 << 30
"""Bytes for what vLLM and CANN write beside it (compiled graphs, kernels, plog); our estimate."""

FULL, NEARLY = 0.01, 0.05
"""Parts of all files of a file system (inodes) that are left."""

NOFILE = 65536
"""Open files: vLLM itself wants 65535 (`set_ulimit`, raised by it up to the hard limit), the proxy one for each
connection of a client and two of its own (rule R70)."""

TASKS_OF_NPU = 512
"""Processes and threads that a rank takes for each NPU (API server, engine, workers, each with OMP, gRPC and HCCL
threads); our estimate. podman gives a container 2048 in all unless told otherwise."""

NETWORK = ("nfs", "nfs4", "cifs", "lustre", "ceph", "fuse.ceph", "9p", "fuse.sshfs")
"""File systems on which locks may not work (README, disks)."""


@check("disk", "There is room on the disks", needs=("place",))
def disk(view: NodeView) -> Iterable[Result]:
    """Room and free files where records, logs, sockets and caches are written; each file system once."""
    seen: dict[int, str] = {}
    fine: list[str] = []
    shown: list[Reading[Disk]] = []
    troubles: list[Result] = []
    if is_silent(view):
        yield missing(view, view.read("place", "disk state_dir"), "the disks")
        return
    for item, reading in view.facts.items("place").items():
        if not str(item).startswith("disk "):
            continue
        name = str(item).removeprefix("disk ").partition(" ")[0]
        found: Disk | None = reading.value
        if found is None:
            troubles.append(missing(view, reading, f"the disk of {name}"))
            continue
        shown.append(reading)
        wrong = list(_disk(view, name, found, reading))
        troubles += wrong if found.device not in seen or name == "state_dir" else []
        if not wrong and found.device not in seen:
            fine.append(f"{size_words(found.free)} free for {name} ({found.path})")
        seen.setdefault(found.device, name)
    yield from troubles
    if fine and not troubles:
        yield view.passed("; ".join(fine), *shown)
    if not (troubles or seen):
        yield missing(view, view.read("place", "disk state_dir"), "the disks")


def _disk(view: NodeView, name: str, found: Disk, reading: Reading[Disk]) -> Iterator[Result]:
    ranks = len(view.plan.on_node(view.name))
    room = f"{size_words(found.free)} of {size_words(found.total)} free on {found.mount} ({name}, {found.path})"
    free = f"free space there: du -xh --max-depth=2 {found.mount} | sort -h | tail"
    state = name == "state_dir"
    if state and not found.writable:
        yield view.failed(
            f"{found.path} may not be written by this user", reading, remedy="mend its rights, or state_dir"
        )
    wanted = ranks * STATE_OF_RANK if state else OTHER_LEAST
    if state and found.free < STATE_LEAST:
        yield view.failed(f"{room}: logs of {ranks} ranks fill it", reading, remedy=free)
    elif found.free < wanted:
        yield view.warned(f"{room}; {size_words(wanted)} may be needed", reading, remedy=free)
    if found.files and found.files_free < FULL * found.files:
        words = f"{found.files_free} of {found.files} files (inodes) left on {found.mount} ({name})"
        yield view.failed(words, reading, remedy="find what has many small files: du --inodes -x")
    elif found.files and found.files_free < NEARLY * found.files:
        words = f"{found.files_free} of {found.files} files (inodes) left on {found.mount} ({name})"
        yield view.warned(words, reading, remedy="find what has many small files: du --inodes -x")
    if state and found.kind in NETWORK:
        yield view.warned(
            f"{found.path} is on {found.kind}: without locks nothing is started, and a dead server holds ranks up",
            reading,
            remedy="set runtime.state_dir to a local disk",
        )


@check("ulimit", "Limits of the system are high enough", needs=("place",))
def ulimit(view: NodeView) -> Iterable[Result]:
    """Open files, processes and threads that ranks may have; locked memory and core files are only told.

    The guides' containers have docker's locked memory (8 MB and less) and work: the driver pins by itself.
    """
    reading: Reading[Limits] = view.read("place", "limits")
    found = reading.value
    if found is None:
        yield missing(view, reading, "limits")
        return
    wrong = list(_limits(view, found, reading))
    yield from wrong
    if not wrong:
        core = "" if found.core[0] == 0 else f", core files up to {_words(found.core[0], size=True)}"
        pids = "" if found.pids is None else f", {found.pids} in the control group"
        locked = _words(found.memlock[0], size=True)
        files, tasks = _words(found.nofile[1]), _words(found.nproc[0])
        yield view.passed(f"open files {files}, processes {tasks}{pids}, locked memory {locked}{core}", reading)


def _words(value: int | None, *, size: bool = False) -> str:
    return "unlimited" if value is None else size_words(value) if size else str(value)


def _limits(view: NodeView, found: Limits, reading: Reading[Limits]) -> Iterator[Result]:
    name = view.topology.runtime.container
    soft, hard = found.nofile
    if hard is not None and hard < NOFILE - 1:
        how = f"create {name} anew with --ulimit nofile={NOFILE}:{NOFILE}" if name else _LIMITS_CONF
        yield view.warned(
            f"open files {soft}, at most {hard}: vLLM wants {NOFILE - 1}; fewer end in «Too many open files»",
            reading,
            remedy=how.format(item="nofile", value=NOFILE),
        )
    npus = sum(max(1, len(rank.devices)) for rank in view.plan.on_node(view.name))
    wanted = npus * TASKS_OF_NPU
    if found.uid != 0 and found.nproc[0] is not None and found.nproc[0] < wanted:
        yield view.warned(
            f"processes and threads {found.nproc[0]}; {npus} NPUs need about {wanted}",
            reading,
            remedy=_LIMITS_CONF.format(item="nproc", value=wanted * 2),
        )
    if found.pids is not None and found.pids < wanted:
        more = (
            f"create {name} anew with --pids-limit {wanted * 2}"
            if name
            else "raise TasksMax= of its unit or slice"
        )
        yield view.warned(
            f"the control group allows {found.pids} processes and threads; {npus} NPUs need about {wanted}: "
            "«Resource temporarily unavailable» then",
            reading,
            remedy=more,
        )


_LIMITS_CONF = "echo '* - {item} {value}' > /etc/security/limits.d/90-pdtui.conf as root, then log in again"
