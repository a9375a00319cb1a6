"""What depends on the version of vllm-ascend (its versioning policy, release notes and Dockerfiles)."""

from __future__ import annotations

import re

Release = tuple[int, int, int]

NEWEST: Release = (0, 27, 1)
"""The newest vllm-ascend whose port formulas are known here."""

VLLM_KNOWN: Release = (0, 32, 0)
"""The vLLM whose ports and flags are known here, on a platform without NPUs."""

LATEST = frozenset({"main", "latest"})
"""What may stand for the newest version."""

_VERSION = re.compile(r"v?(\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?(?:\.?(?:rc|a|b|dev|post)\d*)*(?:\+\S*)?\Z")

_CANN: dict[Release, Release] = {
    (0, 9, 1): (8, 2, 0),
    (0, 11, 0): (8, 3, 0),
    (0, 13, 0): (8, 5, 0),
    (0, 18, 0): (8, 5, 1),
    (0, 22, 1): (9, 0, 0),
    (0, 23, 0): (9, 1, 0),
}
"""CANN in the image of these releases of vllm-ascend; of others it is not known here."""

_VLLM: dict[Release, Release] = {(0, 14, 0): (0, 14, 1)}
"""Releases of vllm-ascend that do not go with the vLLM of the same number."""

_MOONCAKE: tuple[tuple[Release, Release], ...] = (
    ((0, 0, 0), (0, 3, 7)),
    ((0, 18, 0), (0, 3, 9)),
    ((0, 20, 2), (0, 3, 8)),
    ((0, 22, 1), (0, 3, 9)),
    ((0, 23, 0), (0, 3, 11)),
)
"""From this vllm-ascend on -> Mooncake in its image."""


def release_of(text: str, newest: Release = NEWEST) -> Release | None:
    """Return the release number of a version such as `0.22.1rc1`; None if it is none. `main` is `newest`."""
    if text in LATEST:
        return newest
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def dotted(release: Release) -> str:
    """Return a release as text: `0.22.1`."""
    return ".".join(map(str, release))


def known_release(text: str) -> Release:
    """Return the release whose tables apply: the newest for versions that are newer or not understood."""
    release = release_of(text)
    return min(release, NEWEST) if release is not None else NEWEST


def mooncake_of(release: Release) -> Release:
    """Return the Mooncake version in the image of a vllm-ascend release."""
    return next(mooncake for since, mooncake in reversed(_MOONCAKE) if release >= since)


def cann_of(release: Release) -> Release | None:
    """Return the CANN version in the image of a vllm-ascend release; None where it is not known here."""
    return _CANN.get(release)


def vllm_of(release: Release) -> Release:
    """Return the vLLM that a vllm-ascend release goes with."""
    return _VLLM.get(release, release)
