from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtui.readings.answer import Answer, Failure
from pdtui.readings.npu_smi import Table, read_table
from tests.readings.samples import DATA, answered, said, sample

TABLES = sorted(path.name for path in (DATA / "hccn").glob("npu_smi_info*.txt"))

CHIPS = {
    "npu_smi_info.a5.doc.txt": [0],
    "npu_smi_info_16chips_idle.a3.txt": list(range(16)),
    "npu_smi_info_2npu_process.a3.txt": [0, 1, 2, 3],
    "npu_smi_info_4cards_alldash.300iduo.txt": list(range(8)),
    "npu_smi_info_4cards_tail.300iduo.txt": [2, 3, 4, 5, 6, 7],
    "npu_smi_info_8cards.a1.txt": list(range(8)),
    "npu_smi_info_910b2c_process.a2.txt": [0, 1],
    "npu_smi_info_alarm.310b.txt": [0],
    "npu_smi_info_alarm_edited.a2.txt": [0, 1, 7],
    "npu_smi_info_alarm_process.a5.txt": [0, 1, 2],
    "npu_smi_info_container_one_npu.a3.txt": [8, 9],
    "npu_smi_info_elided_23rc2.a2.txt": [0, 1, 7],
    "npu_smi_info_id24.300i.txt": [0],
    "npu_smi_info_idle.a5.txt": [0, 1, 2],
    "npu_smi_info_narrow_one_card.a1.txt": [2],
    "npu_smi_info_one.310b.txt": [0],
    "npu_smi_info_one_card.a5.txt": [0],
    "npu_smi_info_wide.a5.fixture.txt": [0, 1, 7],
    "npu_smi_info_wide_busy.a3.txt": [0, 1, 10, 11],
    "npu_smi_info_wide_one_card.a2.txt": [0],
}


def table(name: str) -> Table:
    reading = read_table(answered(name))
    assert reading.failure is None
    assert reading.value is not None
    return reading.value


def test_every_sample_is_in_the_table_of_expectations() -> None:
    assert set(TABLES) == set(CHIPS)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_gives_its_devices(name: str) -> None:
    chips = table(name).chips
    assert [chip.device for chip in chips] == CHIPS[name]
    for chip in chips:
        assert chip.health in ("OK", "Alarm", "Warning")
        assert chip.temperature_c is not None
        assert 20 <= chip.temperature_c <= 100
        assert chip.utilization is not None
        memory = chip.hbm_mb or chip.memory_mb
        assert memory is not None
        assert 0 <= memory[0] <= memory[1]


def test_values_of_a_busy_a3() -> None:
    read = table("npu_smi_info_wide_busy.a3.txt")
    assert (read.tool_version, read.driver_version) == ("26.0.rc1", "26.0.rc1")
    first, second = read.of(0), read.of(1)
    assert first is not None
    assert second is not None
    assert (first.npu, first.chip, first.name, first.bus) == (0, 0, "Ascend910", "0000:9D:00.0")
    assert (first.hbm_mb, first.memory_mb, first.hugepages) == ((59807, 65536), (0, 0), (0, 0))
    assert (first.power_w, first.temperature_c, first.utilization) == (204.0, 43.0, 100)
    assert (second.chip, second.power_w, second.temperature_c, second.utilization) == (1, None, 40.0, 60)
    assert [(p.device, p.pid, p.name, p.memory_mb) for p in read.processes] == [
        (0, 1774110, "VLLMWorker_PP", 56684),
        (1, 1777209, "VLLMWorker_PP", 56684),
    ]
    assert read.complete


def test_a_process_on_the_second_chip_belongs_to_its_device() -> None:
    read = table("npu_smi_info_2npu_process.a3.txt")
    assert [(p.device, p.pid, p.name, p.memory_mb) for p in read.processes] == [(3, 990711, "python", 7746)]
    assert read.complete


def test_a5_has_no_chip_id() -> None:
    read = table("npu_smi_info_alarm_process.a5.txt")
    assert [chip.health for chip in read.chips] == ["Alarm", "Alarm", "OK"]
    assert [(p.device, p.pid) for p in read.processes] == [(0, 1530715), (0, 1655234)]


def test_without_a_process_section_a_table_is_not_taken_for_whole() -> None:
    assert not table("npu_smi_info_elided_23rc2.a2.txt").complete
    assert not table("npu_smi_info_4cards_tail.300iduo.txt").complete


@pytest.mark.parametrize("name", ["npu_smi_info_16chips_idle.a3.txt", "npu_smi_info_wide_busy.a3.txt"])
def test_a_table_cut_anywhere_never_claims_to_be_whole_and_lists_only_what_came(name: str) -> None:
    whole = sample(name)
    full = table(name)
    chips_end = whole.index(b"Process id")
    for cut in range(chips_end):
        reading = read_table(Answer("npu-smi info", whole[:cut]))
        if reading.value is None:
            assert reading.failure is not None
            continue
        assert not reading.value.complete
        assert len(reading.value.chips) <= len(full.chips)


def test_an_answer_that_was_capped_is_not_whole() -> None:
    reading = read_table(replace(answered("npu_smi_info_16chips_idle.a3.txt"), truncated=True))
    assert reading.value is not None
    assert not reading.value.complete


@pytest.mark.parametrize(
    ("name", "status", "failure"),
    [
        ("npu_smi_fail_8005_after_upgrade.doc.txt", 187, Failure.DRIVER),
        ("npu_smi_fail_8005_nonroot.txt", 187, Failure.DRIVER),
        ("npu_smi_fail_8020_occupied.txt", 172, Failure.DRIVER),
        ("npu_smi_fail_loader_libc_sec.txt", 127, Failure.ENVIRONMENT),
        ("npu_smi_fail_loader_libdrvdsmi.txt", 127, Failure.ENVIRONMENT),
        ("npu_smi_fail_not_found.txt", 127, Failure.ENVIRONMENT),
        ("npu_smi_unsupported_product.a2a3.txt", 0, Failure.UNSUPPORTED),
        ("npu_smi_bad_type.a5.txt", 1, Failure.UNSUPPORTED),
    ],
)
def test_failures_are_told_apart(name: str, status: int, failure: Failure) -> None:
    for answer in (Answer("x", sample(name), b"", status), Answer("x", b"", sample(name), status)):
        assert read_table(answer).failure is failure


def test_a_table_with_the_driver_preamble_and_a_warning_after_it_is_read() -> None:
    text = sample("npu_smi_info_idle.a5.txt").decode()
    warned = (
        "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n"
        + text
        + "\n[WARNING]The driver package may not be completely installed, some functions are not supported\n"
    )
    reading = read_table(said(warned))
    assert reading.value is not None
    assert len(reading.value.chips) == 3


def test_a_process_name_cannot_turn_a_good_table_bad() -> None:
    text = sample("npu_smi_info_wide_busy.a3.txt").decode()
    reading = read_table(said(text.replace("VLLMWorker_PP     ", "permission denied ")))
    assert reading.failure is None
    assert reading.value is not None
    assert reading.value.processes[0].name == "permission denied"


def test_escape_sequences_in_a_name_do_not_come_through() -> None:
    text = sample("npu_smi_info_wide_busy.a3.txt").decode().replace("VLLMWorker_PP", "\x1b[31mVLLM\x1b[0m\u202e")
    reading = read_table(said(text))
    assert reading.value is not None
    assert reading.value.processes[0].name == "VLLM"
    assert "\x1b" not in reading.raw


LINES = [line for name in TABLES for line in sample(name).splitlines()]


@given(
    st.one_of(
        st.binary(max_size=400),
        st.lists(st.one_of(st.sampled_from(LINES), st.binary(max_size=60)), max_size=12).map(b"\n".join),
    ),
    st.binary(max_size=80),
    st.one_of(st.none(), st.integers(-64, 255)),
    st.booleans(),
)
def test_no_bytes_raise_and_there_is_a_value_or_a_failure_never_both(
    stdout: bytes, stderr: bytes, status: int | None, late: bool
) -> None:
    reading = read_table(
        Answer("npu-smi info", stdout, stderr, status, timed_out=late, error="x" * (status is None))
    )
    assert (reading.value is None) != (reading.failure is None)
    if status != 0 or late:
        assert reading.failure is not None
