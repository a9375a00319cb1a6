"""Test requests and benchmark settings beside the scripts: which port and which model they are aimed at."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from pdtui.topology.importing.observed import Origin, Said, Target
from pdtui.topology.importing.report import Kind, Note, note

_CURL = re.compile(r"\bcurl\b.*?https?://([^\s/:\"']+):(\d{1,5})/v1/")
_BENCH_PORT = re.compile(r"^\s*host_port\s*=\s*(\d{1,5})\b")
_MODEL = re.compile(r"""^\s*(?:"model"\s*:|model\s*=)\s*["']([^"'$]+)["']""")


def targets(text: str, source: str) -> Iterator[Target]:
    """Yield what a text's test requests (curl) and AISBench configurations are aimed at."""
    for number, line in enumerate(text.split("\n"), 1):
        at = Origin(source, number)
        if (match := _CURL.search(line)) is not None:
            yield Target("port", Said(match[2], at))
        elif (match := _BENCH_PORT.match(line)) is not None:
            yield Target("port", Said(match[1], at))
        elif (match := _MODEL.match(line)) is not None:
            yield Target("model", Said(match[1], at))


def aimed_elsewhere(
    found: Sequence[Target], port: Said | None, ports: frozenset[int], served: Sequence[Said]
) -> Iterator[Note]:
    """Yield requests that go to a port of neither proxy nor rank, or name a model that nobody serves."""
    names = {said.text for said in served}
    for target in found:
        said = target.said
        if target.kind == "port" and port is not None and said.number not in {port.number, *ports}:
            message = f"a test request or benchmark goes to port {said.text}, the proxy listens on {port.text}"
            yield note(Kind.FINDING, message, said.origin, port.origin, rule="X12")
        elif target.kind == "model" and names and said.text not in names:
            message = (
                f"a test request or benchmark asks for the model {said.text}, it is served as {served[0].text}"
            )
            yield note(Kind.FINDING, message, said.origin, served[0].origin, rule="X12")
