"""What happens to NPUs and to the tools that read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.bench import Bench
from tests.faults.rows_ranks import switched
from tests.faults.table import Event, Row, Shown


@contextmanager
def link_down(bench: Bench) -> Iterator[None]:
    bench.fault("link node1/0 down")
    yield
    bench.fault("link node1/0 up")


@contextmanager
def critical(bench: Bench) -> Iterator[None]:
    bench.fault("npu node1/6 Critical")
    yield
    bench.fault("npu node1/6 OK")


def put(path: Path, program: bytes) -> None:
    """Put a program in a place at once."""
    new = path.with_name(f".{path.name}.new")
    new.write_bytes(program)
    new.chmod(0o755)
    new.replace(path)


def replaced(node: str, tool: str, script: str) -> Event:
    """Put a script in a tool's place; an empty one removes the tool."""

    @contextmanager
    def event(bench: Bench) -> Iterator[None]:
        kept = {path: path.read_bytes() for path in bench.home(node).rglob(tool) if path.is_file()}
        for path in kept:
            if script:
                put(path, script.encode("latin-1"))
            else:
                path.unlink()
        try:
            yield
        finally:
            for path, program in kept.items():
                put(path, program)

    return event


GARBAGE = "#!/bin/sh\nprintf '\\033[2J\\377\\000\\001+--+ NPU? 99999999999999999999 | OK [red]\\n'\n"

NPUS = (
    Row(
        "npu-link-down",
        "the link of an NPU under a rank goes down",
        "hccn_tool -link says DOWN",
        link_down,
        (Shown("node1/0", "failed", ("link DOWN", "cable")),),
        45.0,
        aside=frozenset({"node1"}),
    ),
    Row(
        "npu-critical",
        "npu-smi reports an NPU as Critical",
        "its line in npu-smi's table",
        critical,
        (Shown("node1/6", "failed", ("Critical",)),),
        45.0,
        aside=frozenset({"node1"}),
    ),
    Row(
        "npu-gone",
        "an NPU drops off the bus",
        "npu-smi and hccn_tool do not know it any more",
        switched("gone", "node1/7"),
        (Shown("node1/7", "failed", ("not in npu-smi's table", "dmesg")),),
        45.0,
        aside=frozenset({"node1"}),
    ),
    Row(
        "hccn-tool-hangs",
        "hccn_tool hangs on one NPU",
        "the tool's process never ends and ignores TERM",
        switched("hang", "node4/5 hccn_tool"),
        (Shown("node4/5", "unknown", ("hangs on this NPU since",)),),
        100.0,
        aside=frozenset({"node4"}),
        late=True,
    ),
    Row(
        "npu-smi-hangs",
        "npu-smi hangs on a node",
        "the tool's process never ends and ignores TERM",
        switched("hang", "node4 npu-smi"),
        (Shown("node4/0", "unknown", ("npu-smi", "no answer in time")),),
        75.0,
        aside=frozenset({"node4"}),
        late=True,
    ),
    Row(
        "npu-smi-garbage",
        "npu-smi answers with garbage: escape sequences, NUL, huge numbers",
        "another program in the tool's place",
        replaced("node6", "npu-smi", GARBAGE),
        (Shown("node6/0", "unknown", ("npu-smi", "cannot be read")),),
        45.0,
        aside=frozenset({"node6"}),
    ),
    Row(
        "hccn-tool-missing",
        "hccn_tool is not installed (any more)",
        "the file is removed",
        replaced("node6", "hccn_tool", ""),
        (Shown("node6/3", "unknown", ("not there", "driver/tools")),),
        45.0,
        aside=frozenset({"node6"}),
    ),
)
