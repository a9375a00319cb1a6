"""Version files of the driver, the firmware and CANN: plain files, no device is asked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pdtui.readings.answer import Answer, Reading, reading
from pdtui.readings.files import no_file
from pdtui.text import decode

DRIVER_FILE = "/usr/local/Ascend/driver/version.info"
FIRMWARE_FILE = "/usr/local/Ascend/firmware/version.info"
CANN_FILES = (
    "/usr/local/Ascend/ascend-toolkit/latest/version.cfg",
    "/usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info",
    "/usr/local/Ascend/ascend-toolkit/latest/x86_64-linux/ascend_toolkit_install.info",
    "/usr/local/Ascend/cann/aarch64-linux/ascend_toolkit_install.info",
    "/usr/local/Ascend/cann/x86_64-linux/ascend_toolkit_install.info",
)
"""Where CANN says which version it is: the first that is there counts. The last two since CANN 8.5."""


@dataclass(frozen=True, slots=True)
class VersionFile:
    """What a version file says."""

    version: str
    package: str
    """Version of the package that brought it, empty when the file does not say."""
    fields: Mapping[str, str]


_LINE = re.compile(r"([A-Za-z][A-Za-z0-9_.-]*)\s*=\s*(.*?)\s*$")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")
_RUNNING = re.compile(r"\[(?:[^:\]]*:)?([^:\]]+)\]$")


def _fields(answer: Answer) -> dict[str, str] | None:
    """Return the pairs of a file; None for a line that is none or a key with two values."""
    found: dict[str, str] = {}
    for line in decode(answer.stdout).split("\n"):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.match(line)
        if match is None or found.setdefault(match[1], match[2]) != match[2]:
            return None
    return found


def _file(answer: Answer, version: str, package: str, fields: Mapping[str, str]) -> Reading[VersionFile]:
    return reading(answer, VersionFile(version, package, fields) if _VERSION.match(version) else None)


def read_version_file(answer: Answer) -> Reading[VersionFile]:
    """Read the version.info of the driver or of the firmware."""
    if (missing := no_file(answer)) is not None:
        return missing
    fields = None if answer.truncated else _fields(answer)
    if not fields:
        return reading(answer, None)
    return _file(answer, fields.get("Version", ""), fields.get("package_version", ""), fields)


def read_cann_version(answer: Answer) -> Reading[VersionFile]:
    """Read CANN's version.cfg (`toolkit_running_version=[7.6.0.1.220:8.0.0]`) or ascend_toolkit_install.info."""
    if (missing := no_file(answer)) is not None:
        return missing
    fields = None if answer.truncated else _fields(answer)
    if not fields:
        return reading(answer, None)
    if "version" in fields:
        return _file(answer, fields["version"], fields.get("innerversion", ""), fields)
    running = next(
        (fields[key] for key in ("toolkit_running_version", "runtime_running_version") if key in fields), ""
    )
    match = _RUNNING.match(running)
    return _file(answer, match[1] if match else "", "", fields)
