"""Driver and firmware: the same on all nodes, by their version files, which ask no device."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from pdtui.fleet.preflight.check import WITH_NPUS, Survey, check
from pdtui.fleet.preflight.outcome import Result
from pdtui.fleet.preflight.probes import Asking, Gathered, probe
from pdtui.readings.answer import Answer, Failure, Reading
from pdtui.readings.versions import DRIVER_FILE, FIRMWARE_FILE, VersionFile, read_version_file
from pdtui.text import decode

DRIVER = "driver-file"
FIRMWARE = "firmware-file"

INSTALL_INFO = "/etc/ascend_install.info"
"""Says where the driver was installed when it was not put in its usual place."""

_PATH = re.compile(r"^Driver_Install_Path_Param=(/\S+)$", re.MULTILINE)


@probe(DRIVER, limit=15.0)
async def driver_file(asking: Asking) -> AsyncIterator[Gathered]:
    """Read the driver's version file."""
    yield None, await _version(asking, DRIVER_FILE)


@probe(FIRMWARE, limit=15.0)
async def firmware_file(asking: Asking) -> AsyncIterator[Gathered]:
    """Read the firmware's version file."""
    yield None, await _version(asking, FIRMWARE_FILE)


async def _version(asking: Asking, path: str) -> Reading[VersionFile]:
    """Read a version file in its usual place, else where the driver says that it was installed."""
    found = read_version_file(await asking.file(path))
    if found.failure is not Failure.MISSING:
        return found
    folder = _install_folder(await asking.file(INSTALL_INFO))
    own = str(PurePosixPath(folder, *PurePosixPath(path).parts[-2:])) if folder else path
    return found if own == path else read_version_file(await asking.file(own))


def _install_folder(answer: Answer) -> str:
    match = _PATH.search(decode(answer.stdout)) if answer.status == 0 else None
    return match[1] if match else ""


_SAME = "install one version on all nodes and reboot them: HCCL between different ones fails or hangs in odd ways"

_ELSEWHERE = f"install it, or find where it was put: {INSTALL_INFO} on the node names the driver's folder"


@check("driver", "One driver on all nodes", needs=(DRIVER,), scope="cluster", platforms=WITH_NPUS)
def driver(survey: Survey) -> Iterable[Result]:
    """The version of the driver is the same everywhere."""
    return _same(survey, DRIVER, "driver", lambda value: value.version)


@check("firmware", "One firmware on all nodes", needs=(FIRMWARE,), scope="cluster", platforms=WITH_NPUS)
def firmware(survey: Survey) -> Iterable[Result]:
    """The version of the firmware is the same everywhere."""
    return _same(survey, FIRMWARE, "firmware", lambda value: value.version)


def _same(survey: Survey, need: str, what: str, version: Callable[[VersionFile], str]) -> Iterator[Result]:
    found = {view.name: view.read(need) for view in survey.views}
    for name, reading in found.items():
        if isinstance(reading.value, VersionFile):
            continue
        told = survey.unknown(reading, what=f"the {what}'s version.info", on=name)
        yield replace(told, remedy=_ELSEWHERE) if reading.failure is Failure.MISSING else told
    values = {
        name: (version(reading.value), reading)
        for name, reading in found.items()
        if isinstance(reading.value, VersionFile)
    }
    yield from survey.same(what, values, remedy=_SAME)
