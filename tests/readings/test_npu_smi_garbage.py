"""No bytes make a reader of npu-smi raise, and none that are cut, mixed or damaged become a value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtui.readings.answer import Answer, Reading
from pdtui.readings.kinds import Kind
from pdtui.readings.npu_smi import Table
from pdtui.readings.npu_smi_kinds import NPU_SMI
from tests.readings.samples import DATA, sample
from tests.readings.test_npu_smi import CHIPS as TABLES
from tests.readings.test_npu_smi_samples import SAMPLES

LINES = sorted({line for path in (DATA / "hccn").glob("npu_smi_*") for line in path.read_bytes().splitlines()})
KINDS = list(NPU_SMI.values())
OF_SAMPLE: dict[str, Kind] = {
    name: next(kind for kind in KINDS if kind.read is read) for name, (read, _) in SAMPLES.items()
}

damage = st.sampled_from(
    (b"\x00", b"\xff\xfe", b"\x1b[31m", b":", b"|", b" : ", b"999999999999999999999999", b"\r")
)
piece = st.one_of(st.sampled_from(LINES), st.binary(max_size=40), damage)
text = st.one_of(st.binary(max_size=200), st.lists(piece, max_size=14).map(b"\n".join))


@given(text, st.binary(max_size=60), st.one_of(st.none(), st.integers(-64, 255)), st.booleans(), st.booleans())
def test_no_bytes_raise_and_there_is_a_value_or_a_failure_never_both(
    stdout: bytes, stderr: bytes, status: int | None, late: bool, ended: bool
) -> None:
    answer = Answer(
        "npu-smi", stdout + b"\n" * ended, stderr, status, timed_out=late, error="x" * (status is None)
    )
    for kind in KINDS:
        reading = kind.read(answer)
        assert (reading.value is None) != (reading.failure is None)
        if status != 0 or late:
            assert reading.failure is not None


def of_device(value: Any) -> list[Any]:
    """Return what a value says of each chip, whatever kind it is."""
    for name in ("chips", "cards", "rows"):
        if hasattr(value, name):
            return list(getattr(value, name))
    return [value]


@pytest.mark.parametrize("name", [*SAMPLES])
def test_a_cut_answer_says_nothing_that_the_whole_does_not(name: str) -> None:
    whole, kind = sample(name), OF_SAMPLE[name]
    full = of_device(kind.read(Answer("npu-smi", whole)).value)
    for cut in range(0, len(whole) - 1, 1 if len(whole) < 500 else 5):
        value = kind.read(Answer("npu-smi", whole[:cut])).value
        if value is None:
            continue
        assert whole[:cut].endswith(b"\n")  # Whole lines came; they may be fewer.
        assert len(of_device(value)) <= len(full)


@pytest.mark.parametrize("name", [*TABLES])
def test_a_cut_table_lists_no_chip_and_no_process_that_the_whole_does_not(name: str) -> None:
    whole = sample(name)
    read = NPU_SMI[""].read
    full = read(Answer("npu-smi", whole)).value
    assert isinstance(full, Table)
    for cut in range(0, len(whole) - 2, 11):
        value = read(Answer("npu-smi", whole[:cut])).value
        if isinstance(value, Table):
            assert all(chip in full.chips for chip in value.chips)
            assert all(process in full.processes for process in value.processes)
            assert not value.complete or value.chips == full.chips


@pytest.mark.parametrize("name", [*TABLES])
@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_a_table_that_lost_a_line_pairs_no_rows_of_different_chips(name: str, lost: int) -> None:
    lines = sample(name).splitlines(keepends=True)
    read = NPU_SMI[""].read
    full = read(Answer("npu-smi", b"".join(lines))).value
    assert isinstance(full, Table)
    for at in range(lost, len(lines), 4):
        value = read(Answer("npu-smi", b"".join((*lines[:at], *lines[at + 1 :])))).value
        if isinstance(value, Table) and not lines[at].startswith(b"+"):
            assert all(chip in full.chips or b"Bus-Id" in lines[at] for chip in value.chips), lines[at]
            if len(value.chips) < len(full.chips):
                assert not value.complete


def twice(name: str, kind: Kind) -> Reading[object]:
    return kind.read(Answer("npu-smi", sample(name) * 2))


@pytest.mark.parametrize("name", [name for name in SAMPLES if "topo" not in name])
def test_two_answers_in_one_are_no_value(name: str) -> None:
    assert twice(name, OF_SAMPLE[name]).value is None


def test_two_matrices_in_one_are_no_value() -> None:
    assert twice("npu_smi_topo.a2.txt", NPU_SMI["topo"]).value is None


@pytest.mark.parametrize("name", [name for name in TABLES if "tail" not in name])
def test_two_tables_in_one_are_no_value(name: str) -> None:
    assert twice(name, NPU_SMI[""]).value is None
