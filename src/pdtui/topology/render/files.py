"""All files of a rendered folder, from a checked topology."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from pdtui.errors import FileError
from pdtui.text import clean_line
from pdtui.topology.model import Flow, Topology
from pdtui.topology.plan import Plan, RankPlan
from pdtui.topology.planner import make_plan
from pdtui.topology.redact import redacted_text
from pdtui.topology.render.benchmark import aisbench_config
from pdtui.topology.render.container import container_argv, foreground_argv, is_mounted, mounts
from pdtui.topology.render.launch import launch
from pdtui.topology.render.proxy import proxy_script
from pdtui.topology.render.readme import Part, readme
from pdtui.topology.render.shell import LAUNCHER, TEMPLATE, flag_lines, head, script
from pdtui.topology.render.template import template

Kind = Literal["container", "template", "launch", "proxy", "benchmark", "readme"]


@dataclass(frozen=True, slots=True)
class RenderedFile:
    """One file: where it goes, and what is in it."""

    path: str
    """Relative to the folder, with slashes."""
    text: str
    kind: Kind
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Rendering:
    """The files of a cluster, and what they cannot say."""

    files: tuple[RenderedFile, ...]
    """In the order of the file's nodes and groups."""
    notes: tuple[str, ...]
    """What cannot be expressed, or has to be done by hand, each with its reason."""


def render(topology: Topology) -> Rendering:
    """Return the scripts that operators would write by hand. The same topology gives the same bytes."""
    plan = make_plan(topology)
    parts = _parts(topology, plan)
    files: list[RenderedFile] = []
    notes = _notes(topology, parts)
    for node in topology.nodes:
        here = [part for part in parts if part.node == node]
        with_proxy = topology.proxy is not None and topology.proxy.node == node
        if here or with_proxy:
            files += _container(topology, node, notes)
        for part in here:
            files.append(
                RenderedFile(f"{part.folder}/{TEMPLATE}", part.template.text, "template", executable=True)
            )
            files.append(RenderedFile(f"{part.folder}/launch.sh", part.launch.text, "launch", executable=True))
        if topology.proxy is not None and with_proxy and topology.proxy.kind != "external":
            text = proxy_script(topology, topology.proxy, plan)
            files.append(RenderedFile(f"{node}/proxy.sh", text, "proxy", executable=True))
    if topology.proxy is not None:
        text = aisbench_config(topology, topology.proxy)
        files.append(RenderedFile("benchmark/vllm_api_stream_chat.py", text, "benchmark"))
    said = tuple(dict.fromkeys(notes))
    return Rendering((RenderedFile("README.md", readme(topology, plan, parts, said), "readme"), *files), said)


def _parts(topology: Topology, plan: Plan) -> list[Part]:
    parts = []
    for (group_name, node), found in groupby(plan.ranks, lambda rank: (rank.group, rank.node)):
        ranks = list(found)
        group = topology.groups[group_name]
        text = template(topology, group, node, ranks)
        parts.append(
            Part(group, node, _numbers(ranks), text, launch(topology, group, node, ranks, text)),
        )
    return parts


def _numbers(ranks: Sequence[RankPlan]) -> str:
    first, last = ranks[0].dp_rank, ranks[-1].dp_rank
    return str(first) if first == last else f"{first}-{last}"


def _container(topology: Topology, node: str, notes: list[str]) -> Iterator[RenderedFile]:
    if not topology.runtime.container:
        return
    try:
        forms = (
            (
                "start_container.sh",
                container_argv(topology, node),
                f"Starts the container of {node} in the background.",
            ),
            (
                "container_shell.sh",
                foreground_argv(topology, node),
                f"A shell in a container of {node} that ends with the shell.",
            ),
        )
    except FileError as error:
        notes.append(f"There is no script that starts the containers: {clean_line(error.message)}.")
        return
    for name, argv, title in forms:
        words = list(_without_secrets(argv, notes))
        on = f"# on {topology.nodes[node].address}"
        text = script([*head(topology, title), on, _by_lines(words)])
        yield RenderedFile(f"{node}/{name}", text, "container", executable=True)


_ENV = re.compile(r"(?:(-e|--env)=)?([A-Za-z_][A-Za-z0-9_]*)=")


def _without_secrets(argv: Sequence[str], notes: list[str]) -> Iterator[str]:
    """Yield the words; a variable that looks like a secret is taken from where the script runs."""
    for word in argv:
        if redacted_text(word) == word:
            yield word
            continue
        match = _ENV.match(word)
        name = match[2] if match else ""
        what = name or clean_line(redacted_text(word))
        remedy = "set it where start_container.sh runs" if name else "put it in by hand"
        notes.append(f"The value of {what} in runtime.options is a secret and not written down: {remedy}.")
        yield f"{match[1] + '=' if match[1] else ''}{name}" if match else redacted_text(word).replace("\n", " ")


def _by_lines(words: Sequence[str]) -> str:
    """Return the command with one option a line, its value behind it."""
    raw = [f"--{word}" if word.startswith("-") and not word.startswith("--") else word for word in words]
    return flag_lines([shlex.quote(word) for word in words], raw)


def _notes(topology: Topology, parts: Sequence[Part]) -> list[str]:
    notes = list(_of_the_ranks(topology, parts))
    notes += _of_the_proxy(topology)
    runtime = topology.runtime
    path = topology.model.path
    node = next(iter(topology.nodes))
    if runtime.container and path.startswith("/") and not is_mounted(path, mounts(topology, node)):
        notes.append(
            f"No mount of the containers holds the model's path {clean_line(path)}: it has to be in the image, or "
            "`runtime.mounts` lacks a line."
        )
    return notes


def _of_the_ranks(topology: Topology, parts: Sequence[Part]) -> Iterator[str]:
    if topology.start.stagger and any(not part.launch.why for part in parts):
        yield (
            f"{LAUNCHER} starts all ranks of a server at once, where pdtui leaves {topology.start.stagger:g} s "
            "between two: ranks that look for free ports at the same moment can collide, and one of them fails."
        )
    for part in parts:
        for name in part.template.secrets:
            yield f"{name} is a secret: set it in the environment in which `{part.folder}/launch.sh` runs."


def _of_the_proxy(topology: Topology) -> Iterator[str]:
    proxy = topology.proxy
    if proxy is None:
        yield "The file has no `proxy`: there is none to start, and nothing that a benchmark could ask."
        return
    if topology.flow is Flow.LAYERWISE and proxy.listen not in {proxy.advertise, "0.0.0.0", "::"}:  # noqa: S104
        yield (
            f"The reference proxy listens where decode ranks call it back, {proxy.advertise}, and not at the "
            f"file's `listen` ({proxy.listen}): it has one option for both."
        )
    if topology.flow is Flow.LAYERWISE and ":" in proxy.advertise:
        yield "The layerwise reference proxy makes no valid URL of an IPv6 address: give it a host name instead."
