from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pdtui.readings.npu_smi import Chip, Table, read_table
from tests.readings.npu_smi_tables import ROWS, VERSIONS
from tests.readings.samples import DATA, answered, said, sample

TABLES = sorted(path.name for path in (DATA / "hccn").glob("npu_smi_info*.txt") if "help" not in path.name)

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
    assert set(TABLES) == set(CHIPS) == set(ROWS) == set(VERSIONS)


def number(value: float | None, digits: int = 0) -> str:
    return "none" if value is None else f"{value:.{digits}f}"


def used(pair: tuple[int, int] | None) -> str:
    return "" if pair is None else f" {pair[0]}/{pair[1]}"


def in_rows(chip: Chip, like: str) -> str:
    """Write a chip as the tool does; `like` tells whether it prints chip and physical ids, and numbers."""
    a5 = "|| | |" in like
    alone = like.partition("|| ")[2].partition(" |")[0].count(" ") == 0
    name = f"{chip.npu} {'| ' if a5 else ''}{chip.name}"
    ids = "| " if a5 else f"{chip.chip}" if alone else f"{chip.chip} {chip.device}"
    state = f"{chip.health} | {number(chip.power_w, 1)} {number(chip.temperature_c)}{used(chip.hugepages)}"
    memory = f"{number(chip.utilization)}{used(chip.memory_mb)}{used(chip.hbm_mb)}"
    return f"{name} | {state} || {ids}{'' if a5 else ' '}| {chip.bus} | {memory}"


@pytest.mark.parametrize("name", TABLES)
def test_every_table_gives_what_a_person_reads(name: str) -> None:
    read = table(name)
    assert [chip.device for chip in read.chips] == CHIPS[name]
    for chip, row in zip(read.chips, ROWS[name], strict=True):
        printed = re.sub(r"\| (?:-|NA) (\d)", r"| none \1", row)
        assert in_rows(chip, row) == printed
    assert (read.tool_version, read.driver_version, read.complete) == VERSIONS[name]


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


def test_an_answer_that_was_capped_is_not_whole() -> None:
    reading = read_table(replace(answered("npu_smi_info_16chips_idle.a3.txt"), truncated=True))
    assert reading.value is not None
    assert not reading.value.complete


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
