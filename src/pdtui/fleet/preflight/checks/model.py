"""Is the model there, whole, and the same on all nodes?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pdtui.fleet.preflight.check import NodeView, Survey, check
from pdtui.fleet.preflight.outcome import Result
from pdtui.fleet.preflight.place import groups_on, missing, size_words
from pdtui.readings.answer import Failure, Reading
from pdtui.readings.rank_place import ModelFiles

NAMED = 3
"""Files that are named in one message."""


@dataclass(frozen=True, slots=True)
class _Whole:
    """A node on which the model is complete."""

    view: NodeView
    reading: Reading[ModelFiles]
    files: ModelFiles


@check("model", "The model is there, whole, and equal on all nodes", needs=("place",), scope="cluster")
def model(survey: Survey) -> Iterable[Result]:
    """Where ranks run: the folder can be read, no file of an index is missing, names, sizes and small files equal.

    Weights are not read: their names and sizes stand for them. Different files on one rank are the first thing to
    exclude where the same prompt is answered in different ways (vllm-ascend issue 15203).
    """
    path = survey.topology.model.path
    views = [view for view in survey.views if groups_on(view)]
    if not path.startswith(("/", "~")):
        yield survey.not_applicable(f"{path} is no path: vLLM finds it by that name, in its cache or in a hub")
        return
    whole: list[_Whole] = []
    for view in views:
        reading: Reading[ModelFiles] = view.read("place", "model")
        if reading.value is None:
            yield _absent(view, reading, path)
            continue
        troubles = list(_troubles(view, reading, reading.value))
        yield from troubles
        if not troubles:
            whole.append(_Whole(view, reading, reading.value))
    yield from _compared(survey, whole)


def _absent(view: NodeView, reading: Reading[ModelFiles], path: str) -> Result:
    if reading.failure is Failure.NOT_CONFIGURED:
        container = view.topology.runtime.container
        mount = f", or mount it into {container}" if container else ""
        return view.failed(f"{path} is not there", reading, remedy=f"put it there{mount}, or mend model.path")
    if reading.failure is Failure.PERMISSION:
        remedy = "see the rights of the folder and of those above it: namei -l"
        return view.failed(f"{path} may not be read by this user", reading, remedy=remedy)
    return missing(
        view, reading, f"the model in {path}", hang="its disk does not answer: look at mount and dmesg there"
    )


def _troubles(view: NodeView, reading: Reading[ModelFiles], found: ModelFiles) -> Iterator[Result]:
    path = found.path
    if not found.config:
        yield view.failed(
            f"{path} has no config.json", reading, remedy="copy the model whole, or mend model.path in the file"
        )
        return
    again = "copy it again, then compare: rsync -n --size-only from a node where it is whole"
    if found.config_error:
        yield view.failed(f"{path}: {found.config_error}", reading, remedy=again)
    if not found.weights:
        yield view.failed(f"{path} has no weight files", reading, remedy=again)
    for index in found.indexes:
        if index.error:
            yield view.failed(f"{path}/{index.name} cannot be read: {index.error}", reading, remedy=again)
        elif index.absent:
            words = f"{index.absent} of {index.shards} weight files of {index.name} are missing"
            yield view.failed(f"{path}: {words}: {_names(index.missing, index.absent)}", reading, remedy=again)
    if found.pointers:
        words = f"{path}: Git LFS pointers in the place of {_names(found.pointers)}"
        yield view.failed(words, reading, remedy="git lfs pull, in the folder that it was cloned into")
    empty = [name for name in found.weights if name.endswith(".safetensors") and found.files[name][0] < 8]
    if empty:
        yield view.failed(f"{path}: empty weight files: {_names(empty)}", reading, remedy=again)
    if found.broken:
        yield view.failed(f"{path}: links that lead nowhere: {_names(found.broken)}", reading, remedy=again)
    if found.unreadable:
        remedy = f"chmod -R a+rX {path}"
        yield view.failed(f"{path}: may not be read: {_names(found.unreadable)}", reading, remedy=remedy)


def _names(names: Sequence[str], count: int | None = None) -> str:
    count = len(names) if count is None else count
    shown = ", ".join(names[:NAMED])
    return f"{shown} and {count - NAMED} more" if count > NAMED else shown


def _compared(survey: Survey, whole: Sequence[_Whole]) -> Iterator[Result]:
    """Yield that all are equal, or who differs from what most have, and in which files."""
    if not whole:
        return
    counts = Counter(_mark(one.files) for one in whole)
    mark, number = counts.most_common(1)[0]
    most = next(one for one in whole if _mark(one.files) == mark)
    size = f"{len(most.files.weights)} weight files, {size_words(most.files.size)}"
    if len(counts) == 1:
        where = f"equal on {len(whole)} nodes" if len(whole) > 1 else f"on {most.view.name}"
        yield survey.passed(f"{where}: {size}", most.reading)
        return
    # Without a majority the first is no better than the others: said so, since somebody has to be compared with.
    others = f"{number} of {len(whole)} nodes" if number > 1 else most.view.name
    for one in whole:
        if _mark(one.files) == mark:
            continue
        yield one.view.failed(
            f"{one.files.path} differs from that of {others}: {_difference(one.files, most.files)}",
            one.reading,
            most.reading,
            remedy=f"compare with {most.view.name}: rsync -n -c --itemize-changes; copy the right one",
        )


def _mark(files: ModelFiles) -> tuple[tuple[str, int, str], ...]:
    return tuple((name, size, digest) for name, (size, digest) in sorted(files.files.items()))


def _difference(mine: ModelFiles, theirs: ModelFiles) -> str:
    """Return which files differ, what against what: config.json first."""
    parts: list[str] = []
    lacking = [name for name in theirs.files if name not in mine.files]
    extra = [name for name in mine.files if name not in theirs.files]
    other = [name for name in mine.files if name in theirs.files and mine.files[name] != theirs.files[name]]
    first = sorted(other, key=lambda name: (name != "config.json", name))[:NAMED]
    parts += [f"{name} {_against(mine.files, theirs.files, name)}" for name in first]
    if len(other) > NAMED:
        parts.append(f"{len(other) - NAMED} more files differ")
    if lacking:
        parts.append(f"lacks {_names(lacking)}")
    if extra:
        parts.append(f"has {_names(extra)} beside")
    return "; ".join(parts)


def _against(mine: Mapping[str, tuple[int, str]], theirs: Mapping[str, tuple[int, str]], name: str) -> str:
    (size, _), (other, _) = mine[name], theirs[name]
    if size == other:
        return "has other text"
    exact = size_words(size) == size_words(other)
    words = (f"{size} bytes", f"{other} bytes") if exact else (size_words(size), size_words(other))
    return f"has {words[0]}, there {words[1]}"
