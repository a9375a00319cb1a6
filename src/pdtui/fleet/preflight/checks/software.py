"""What is installed where ranks run: versions, equal on all nodes and to the file's, and Mooncake's module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pdtui.fleet.preflight.check import WITH_NPUS, NodeView, Survey, check
from pdtui.fleet.preflight.outcome import Evidence, Outcome, Result
from pdtui.fleet.preflight.place import ENGINE, groups_on, last_line, missing, size_words, uses_mooncake
from pdtui.readings.answer import Failure, Reading
from pdtui.readings.rank_place import Cann, Environment, Imported, Packages
from pdtui.topology.versions import (
    LATEST,
    Release,
    cann_of,
    dotted,
    known_release,
    mooncake_of,
    release_of,
    vllm_of,
)

MOONCAKE = "mooncake"
"""How the names of Mooncake's distributions begin: `mooncake-transfer-engine`, with `-npu`, and others."""

NAMED = 4
"""Nodes that are named in one message."""


@dataclass(frozen=True, slots=True)
class _Installed:
    """What one node (in one of its groups, where they differ) has."""

    view: NodeView
    label: str
    """`node3`, or `node3 (decode)`."""
    version: str
    reading: Reading[object]


def _readings(survey: Survey, part: str) -> Iterator[tuple[NodeView, str, Reading[object]]]:
    for view in survey.views:
        groups = groups_on(view)
        for group in groups:
            label = f"{view.name} ({group.name})" if len(groups) > 1 else view.name
            yield view, label, view.read("place", f"{part} {group.name}")


def _collect(
    survey: Survey, part: str, what: str, version: Callable[[NodeView, Reading[object]], str | Result]
) -> tuple[list[_Installed], list[Result]]:
    """Return what is installed where, and what is said of places where that is not known, or nothing is."""
    found: list[_Installed] = []
    said: list[Result] = []
    seen: set[tuple[str, str]] = set()
    for view, label, reading in _readings(survey, part):
        if reading.value is None and reading.failure is not Failure.NOT_CONFIGURED:
            result: str | Result = missing(
                view, reading, what, hang="its Python, or the disk that it is on, hangs"
            )
        else:
            result = version(view, reading)
        if isinstance(result, Result):
            if result not in said:
                said.append(result)
        elif (view.name, result) not in seen:
            seen.add((view.name, result))
            found.append(_Installed(view, label, result, reading))
    # A node whose groups have the same is named as a node.
    several = Counter(one.view.name for one in found)
    return [one if several[one.view.name] > 1 else _plain(one) for one in found], said


def _plain(one: _Installed) -> _Installed:
    return _Installed(one.view, one.view.name, one.version, one.reading)


def _names(ones: Sequence[_Installed]) -> str:
    labels = [one.label for one in ones]
    return (
        ", ".join(labels)
        if len(labels) <= NAMED
        else f"{', '.join(labels[: NAMED - 1])} and {len(labels) - 3} more"
    )


def _have(ones: Sequence[_Installed]) -> str:
    return f"{ones[0].label} has" if len(ones) == 1 else f"{_names(ones)} have"


def _compare(
    survey: Survey, what: str, found: Sequence[_Installed], remedy: str, outcome: Outcome = Outcome.FAIL
) -> Iterator[Result]:
    """Yield that all have the same, or who has not what most have."""
    if not found:
        return
    by_version: dict[str, list[_Installed]] = {}
    for one in found:
        by_version.setdefault(one.version, []).append(one)
    say = survey.failed if outcome is Outcome.FAIL else survey.warned
    ranked = sorted(by_version.values(), key=len, reverse=True)
    if len(ranked) == 1:
        yield survey.passed(f"{what} {ranked[0][0].version}{_everywhere(found)}", found[0].reading)
        return
    if len(ranked[0]) == len(ranked[1]):  # Nobody is the odd one.
        words = "; ".join(f"{_have(ones)} {ones[0].version}" for ones in ranked)
        yield say(f"{what}: {words}", *(ones[0].reading for ones in ranked), remedy=remedy)
        return
    most = ranked[0]
    for ones in ranked[1:]:
        for one in ones:
            words = f"{what} {one.version}; {len(most)} of {len(found)} nodes have {most[0].version}"
            yield say(words, one.reading, most[0].reading, on=one.view.name, remedy=remedy)


def _everywhere(found: Sequence[_Installed]) -> str:
    return f" on {len(found)} nodes" if len(found) > 1 else ""


def _as_the_file_says(
    survey: Survey, what: str, found: Sequence[_Installed], wanted: str, key: str
) -> Iterator[Result]:
    """Yield who has not the version of the file, by which ports, flags and rules are reckoned."""
    others = [one for one in found if _normal(one.version) != _normal(wanted)]
    for version in dict.fromkeys(one.version for one in others):
        ones = [one for one in others if one.version == version]
        on = ones[0].view.name if len(ones) == 1 else "cluster"
        all_of = len(ones) == len(found) and len(found) > 1
        who = f"all {len(found)} nodes have" if all_of else _have(ones)
        same = release_of(version) == release_of(wanted)
        tells = "the same release, another build" if same else "ports, flags and rules are reckoned by that"
        say = survey.warned if same else survey.failed
        yield say(
            f"{who} {what} {version}; the file says {wanted}: {tells}",
            ones[0].reading,
            on=on,
            remedy=f'set {key}: "{version}" in the file, or install {wanted} (another image)',
        )
    if found and not others:
        yield survey.passed(f"{what} {wanted}{_everywhere(found)}, as the file says", found[0].reading)


def _normal(version: str) -> str:
    return version.removeprefix("v").partition("+")[0]


def _package(name: str, module: str) -> Callable[[NodeView, Reading[object]], str | Result]:
    """Return what finds the version of a distribution, else of the package's own file."""

    def version(view: NodeView, reading: Reading[object]) -> str | Result:
        found = reading.value
        if not isinstance(found, Packages):
            return view.failed(f"no Python of vLLM: {last_line(reading.raw)}", reading, remedy=_NO_VLLM)
        own = found.modules.get(module)
        said = found.versions.get(name) or (own.version if own is not None else "")
        if said:
            return said
        if own is not None or name in found.versions:
            return _unsaid(view, reading, name, found.where.get(name) or (own.where if own is not None else ""))
        where = f"{found.executable} ({found.python})"
        return view.failed(f"{name} is not installed for {where}", reading, remedy=_NO_VLLM)

    return version


def _unsaid(view: NodeView, reading: Reading[object], name: str, where: str) -> Result:
    """Return that something is there, in a version that it does not say."""
    evidence = (Evidence(reading.command, reading.raw, reading.at),)
    words = f"{name} is there, but its version cannot be read in {where}"
    return Result(view.check.id, view.name, Outcome.UNKNOWN, words, "install it again, whole", evidence)


_NO_VLLM = "use the image of vllm-ascend, or install it; runtime.setup can switch a virtual environment on"
_SAME = "use the same image on all nodes; docker inspect NAME shows which one a container was made from"


@check("vllm", "vLLM is there, and the same on all nodes", needs=("place",), scope="cluster")
def vllm(survey: Survey) -> Iterable[Result]:
    """The environment of ranks can be made, `vllm` is found in it, with one version on all nodes.

    On NPUs it goes with the vllm-ascend of its number; without NPUs it is what the file says.
    """
    unusable = list(_environments(survey))
    yield from unusable
    found, said = _collect(survey, "packages", "the version of vLLM", _package("vllm", "vllm"))
    broken = {one.subject for one in unusable}
    yield from [one for one in said if one.subject not in broken]
    if not survey.topology.has_npus:
        wanted = survey.topology.vllm
        if wanted and wanted not in LATEST:
            yield from _as_the_file_says(survey, "vLLM", found, wanted, "vllm")
        else:
            yield from _compare(survey, "vLLM", found, _SAME)
        return
    yield from _compare(survey, "vLLM", found, _SAME)
    for one in found:
        own = one.reading.value.versions.get("vllm-ascend", "") if isinstance(one.reading.value, Packages) else ""
        mine, theirs = release_of(one.version), release_of(own)
        if mine is not None and theirs is not None and mine != vllm_of(theirs):
            yield survey.warned(
                f"vLLM {one.version} with vllm-ascend {own}, which goes with vLLM {dotted(vllm_of(theirs))}",
                one.reading,
                on=one.view.name,
                remedy=_SAME,
            )


def _environments(survey: Survey) -> Iterator[Result]:
    """Yield where ranks cannot start at all: their environment is not made, or has no `vllm`."""
    for view in survey.views:
        for group in groups_on(view):
            made: Reading[bool] = view.read("place", f"environment {group.name}")
            if made.failure is Failure.ERROR:
                yield view.failed(
                    f"the environment that {group.name} starts from cannot be made: {last_line(made.raw)}",
                    made,
                    remedy="see what its shell says there: bash -ic true; and runtime.setup in the file",
                )
            reading: Reading[Environment] = view.read("place", f"variables {group.name}")
            if reading.value is not None and not reading.value.vllm:
                yield view.failed(
                    f"vllm is not found where {group.name} starts; PATH is {reading.value.path or 'empty'}",
                    reading,
                    remedy=_NO_VLLM,
                )


@check("vllm-ascend", "vllm-ascend is what the file says", needs=("place",), scope="cluster", platforms=WITH_NPUS)
def vllm_ascend(survey: Survey) -> Iterable[Result]:
    """One version on all nodes, the one of the file: P and D of different ones do not understand each other."""
    found, said = _collect(
        survey, "packages", "the version of vllm-ascend", _package("vllm-ascend", "vllm_ascend")
    )
    yield from said
    wanted = survey.topology.vllm_ascend
    if wanted in LATEST:
        yield from _compare(survey, "vllm-ascend", found, _SAME)
    else:
        yield from _as_the_file_says(survey, "vllm-ascend", found, wanted, "vllm_ascend")


@check("cann", "CANN is the same on all nodes", needs=("place",), scope="cluster", platforms=WITH_NPUS)
def cann(survey: Survey) -> Iterable[Result]:
    """The toolkit that the environment of ranks points to: one version, that of vllm-ascend's image."""
    found, said = _collect(survey, "cann", "the version of CANN", _cann_version)
    yield from said
    yield from _compare(survey, "CANN", found, _SAME, Outcome.WARN)
    release = known_release(survey.topology.vllm_ascend)
    image = cann_of(release)
    for version in dict.fromkeys(one.version for one in found):
        own = _leading(version)
        if image is not None and own is not None and own[:2] < image[:2]:
            ones = [one for one in found if one.version == version]
            yield survey.warned(
                f"{_have(ones)} CANN {version}; vllm-ascend {dotted(release)} is built with {dotted(image)}",
                ones[0].reading,
                on=ones[0].view.name if len(ones) == 1 else "cluster",
                remedy=_SAME,
            )


def _cann_version(view: NodeView, reading: Reading[object]) -> str | Result:
    found = reading.value
    if not isinstance(found, Cann):
        return view.failed(
            f"no CANN where ranks start: {last_line(reading.raw)}",
            reading,
            remedy="name its set_env.sh in runtime.setup, or use an image whose ~/.bashrc sources it",
        )
    if not found.is_set:
        return view.failed(
            f"CANN {found.version} is in {found.home}, but ASCEND_HOME_PATH is not set where ranks start",
            reading,
            remedy=f"runtime: {{setup: [{_set_env(found.home)}]}} in the file",
        )
    return found.version


def _set_env(home: str) -> str:
    return f"{home.removesuffix('/latest')}/set_env.sh"


def _leading(version: str) -> Release | None:
    """Return the first three numbers of a version of CANN: `8.3.RC2` -> (8, 3, 0)."""
    numbers: list[int] = []
    for word in version.split("."):
        if not word.isdigit():
            break
        numbers.append(int(word))
    return (numbers[0], numbers[1], [*numbers, 0][2]) if len(numbers) >= 2 else None


@check("mooncake", "Mooncake is the same on all nodes", needs=("place",), scope="cluster", platforms=WITH_NPUS)
def mooncake(survey: Survey) -> Iterable[Result]:
    """A wheel by its version, a module that was built by its contents: one on all nodes.

    The transfer engine takes 1000 ports for each NPU up to 0.3.7 and 100 later: another age than the one of the
    plan moves the range that the KV ports must keep clear of (rules R14, R15).
    """
    found, said = _collect(survey, "packages", "the version of Mooncake", _mooncake_version)
    yield from said
    yield from _compare(survey, "Mooncake", found, "build and install the same everywhere, or use the same image")
    planned = mooncake_of(known_release(survey.topology.vllm_ascend))
    for version in dict.fromkeys(one.version for one in found):
        own = release_of(version)
        if own is not None and (own <= (0, 3, 7)) != (planned <= (0, 3, 7)):
            ones = [one for one in found if one.version == version]
            wide, ours = (1000, 100) if own <= (0, 3, 7) else (100, 1000)
            yield survey.warned(
                f"{_have(ones)} Mooncake {version}, which picks from {wide} ports for each NPU; "
                f"the plan reckons with {ours} (vllm-ascend {survey.topology.vllm_ascend})",
                ones[0].reading,
                on=ones[0].view.name if len(ones) == 1 else "cluster",
                remedy=f"keep kv_port out of 20000-{20000 + wide * survey.topology.npus_per_node - 1}, "
                f"or use Mooncake {dotted(planned)}",
            )


def _mooncake_version(view: NodeView, reading: Reading[object]) -> str | Result:
    found = reading.value
    if not isinstance(found, Packages):
        return view.failed(f"no Python of vLLM: {last_line(reading.raw)}", reading, remedy=_NO_VLLM)
    names = [name for name in found.versions if name.startswith(MOONCAKE)]
    if len(names) > 1:  # Each brings the same module, and the last one wins.
        return " and ".join(f"{name} {found.versions[name]}" for name in sorted(names))
    for name in names:
        return found.versions[name] or _unsaid(view, reading, name, found.where[name])
    own = found.modules.get("mooncake")
    if own is not None and own.engine:
        return f"built, {own.digest[:8]} ({size_words(own.size)})"
    lacks = f"{own.where} has no engine module" if own is not None else f"no mooncake for {found.executable}"
    return view.failed(lacks, reading, remedy=_NO_MOONCAKE)


_NO_MOONCAKE = "install Mooncake for this Python (the images have it), or put its folder on PYTHONPATH by env"


@check("mooncake-import", "The connector can import Mooncake", needs=("place",), platforms=WITH_NPUS)
def mooncake_import(view: NodeView) -> Iterable[Result]:
    """What the connector imports is imported once, by the Python of vLLM, in the environment of each group."""
    groups = [group for group in groups_on(view) if uses_mooncake(group)]
    if not groups:
        yield view.not_applicable("no rank here uses it")
        return
    for group in groups:
        name = group.name if len(groups) > 1 else ""
        prefix = f"{name}: " if name else ""
        reading: Reading[Imported] = view.read("place", f"import {group.name}")
        if reading.value is not None:
            yield view.passed(f"{prefix}imported in {reading.value.seconds:.1f} s", reading)
        elif reading.failure is Failure.ERROR and not _is_unmade(view, group.name):
            words = last_line(reading.raw)
            yield view.failed(f"{prefix}{ENGINE}: {words}", reading, remedy=_import_remedy(words))
        else:
            yield missing(view, reading, "the import of Mooncake", hang=_IMPORT_HANGS, group=name)


_IMPORT_HANGS = f"see where it waits: python3 -X faulthandler -c '{ENGINE}' where ranks run, then kill -ABRT"


def _is_unmade(view: NodeView, group: str) -> bool:
    return view.read("place", f"environment {group}").failure is not None


def _import_remedy(words: str) -> str:
    if "No module named 'mooncake" in words:
        return _NO_MOONCAKE
    if "cannot open shared object file" in words:
        return (
            "find the library and put its folder into LD_LIBRARY_PATH by env: {prepend: FOLDER}; Mooncake's own "
            "are in site-packages/mooncake, CANN's come with its set_env.sh, the driver's by a mount of lib64"
        )
    if "undefined symbol" in words or "GLIBC" in words or "version `" in words:
        return "it was built for another CANN, libc or Python: build it in this image, or take the image's own"
    if "ended by signal" in words:
        return "see dmesg, and ldd of mooncake/engine*.so for libraries of another build"
    return "run it by hand where ranks run: pdtui exec FILE RANK -- python3 -c '...'"
