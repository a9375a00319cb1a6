"""Each recorded answer of npu-smi against the values that a person reads in it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pdtui.readings.answer import Answer, Failure, Reading
from pdtui.readings.npu_smi_blocks import Card
from pdtui.readings.npu_smi_identity import (
    Board,
    ChipHealth,
    Hccs,
    Product,
    Spod,
    read_board,
    read_hccs,
    read_health,
    read_product,
    read_spod,
)
from pdtui.readings.npu_smi_kinds import NPU_SMI
from pdtui.readings.npu_smi_lists import (
    CardList,
    ChipIds,
    DeviceMap,
    ListedCard,
    Topology,
    TopologyRow,
    read_list,
    read_map,
    read_topo,
)
from pdtui.readings.npu_smi_values import (
    BitErrors,
    ChipProcess,
    ChipProcesses,
    Common,
    Ecc,
    Memory,
    Power,
    Temperature,
    Usage,
    read_common,
    read_ecc,
    read_memory,
    read_power,
    read_proc_mem,
    read_temp,
    read_usages,
)
from tests.readings.samples import DATA, answered
from tests.readings.test_npu_smi import CHIPS as TABLES

Reader = Callable[[Answer], Reading[object]]

HCCS7 = ("HCCS",) * 7


def around(place: int) -> tuple[str, ...]:
    """Return a row of a matrix of eight chips that reach each other over HCCS."""
    return (*HCCS7[:place], "X", *HCCS7[place:])


def board(
    npu: int | None = None,
    *,
    chip: int | None = None,
    product: str = "",
    model: str = "",
    serial: str = "",
    driver: str = "",
    firmware: str = "",
    compatible: bool | None = True,
    board_id: str = "",
    pci_device: str = "",
    bus: str = "",
    slot: str = "",
    chip_name: str = "",
    chip_version: str = "",
    chip_count: int | None = 1,
    faulty_chips: int | None = None,
) -> Board:
    return Board(
        npu,
        chip,
        product,
        model,
        serial,
        driver,
        firmware,
        compatible,
        board_id,
        pci_device,
        bus,
        slot,
        chip_name,
        chip_version,
        chip_count,
        faulty_chips,
    )


GUNICORNS = (
    ChipProcesses(
        0,
        (
            ChipProcess(1976358, "gunicorn", 1336),
            ChipProcess(1673754, "gunicorn", 460),
            ChipProcess(577293, "gunicorn", 1972),
        ),
    ),
    ChipProcesses(1, (ChipProcess(1654605, "gunicorn", 1851), ChipProcess(716574, "gunicorn", 248))),
)

ALARM = (
    "ascend_monitor adda heart beat lost error",
    "node type=process-manager, sensor type=General Software, "
    "event state=The process start failed or exit abnormally",
    "node type=adda, sensor type=Heartbeat Sensor, event state=Heartbeat Lost.",
)

SAMPLES: dict[str, tuple[Reader, object]] = {
    "npu_smi_board.300iduo.txt": (
        read_board,
        board(
            2944,
            product="IT21PD2G10",
            serial="0000000000ZERC000001",
            driver="25.5.1",
            firmware="7.8.0.6.201",
            board_id="0xb1",
            pci_device="0xD500",
            bus="0000:0C:00.0",
            chip_count=2,
            faulty_chips=0,
        ),
    ),
    "npu_smi_board.a2.txt": (
        read_board,
        board(
            0,
            product="IT21HMDC_Bin5",
            serial="000000000001",
            driver="25.5.1",
            firmware="7.8.0.6.201",
            board_id="0x60",
            pci_device="0xD802",
            bus="0000:C1:00.0",
            slot="0",
        ),
    ),
    "npu_smi_board.a5.doc.txt": (
        read_board,
        board(
            0,
            product="xxx",
            model="xxx",
            serial="xxx",
            driver="xxx",
            firmware="xxx",
            board_id="0x1b",
            pci_device="0xD806",
            bus="0000:F1:00.0",
            slot="0",
            chip_name="xxx",
            chip_version="xxx",
        ),
    ),
    "npu_smi_board.a5.txt": (
        read_board,
        board(
            0,
            product="A310-50-C00MM304A1",
            model="A310-50-C00MM304A1",
            serial="00000L000003",
            driver="25.7.rc1.6",
            firmware="9.0.0.105.229",
            board_id="0x1a",
            pci_device="0xD806",
            bus="0000:61:00.0",
            chip_name="Ascend950PR",
            chip_version="V100",
        ),
    ),
    "npu_smi_board_card.a1.txt": (
        read_board,
        board(
            0,
            driver="23.0.5",
            firmware="7.1.0.7.220",
            board_id="0x02",
            pci_device="0xD801",
            bus="0000:61:00.0",
            slot="0",
        ),
    ),
    "npu_smi_board_chip.a1.txt": (
        read_board,
        board(
            0,
            chip=0,
            firmware="7.1.0.7.220",
            compatible=None,
            board_id="0x02",
            bus="0000:61:00.0",
            chip_name="910A",
            chip_version="V1",
            chip_count=None,
        ),
    ),
    "npu_smi_board_partial.a3.txt": (
        read_board,
        board(product="IT22HMDA_2_S", compatible=None, board_id="0x71", pci_device="0xD803", chip_count=2),
    ),
    "npu_smi_common.300iduo.txt": (
        read_common,
        Card(
            2944,
            (
                Common(0, memory_percent=2, aicore_percent=0, temperature_c=45),
                Common(1, memory_percent=3, aicore_percent=0, temperature_c=47),
            ),
            Common(None, temperature_c=48, power_w=42.8),
        ),
    ),
    "npu_smi_common_hbm_full_idle.a2.txt": (
        read_common,
        Card(1, (Common(0, 0, 91, 6, 1800, 1800, 20, 46, 130.4),), Common(None, temperature_c=40)),
    ),
    "npu_smi_common_idle.a2.txt": (
        read_common,
        Card(1, (Common(0, 0, 4, 0, 1800, 800, 24, 46, 93.4),), Common(None, temperature_c=38)),
    ),
    "npu_smi_ecc.a1.doc.txt": (
        read_ecc,
        Card(1, (Ecc(0, hbm=BitErrors(0, 0, 0, 0, 0, 0), ddr=BitErrors(0, 0, 0, 0, 0, 0)),)),
    ),
    "npu_smi_ecc.a5.doc.txt": (read_ecc, Card(0, (Ecc(None, hbm=BitErrors(0, 0, 0, 0, 0, 0, 0, 0)),))),
    "npu_smi_hccs_3links.a3.txt": (
        read_hccs,
        Hccs(
            healthy=True,
            tx_packets=(1993002168, 1434439505, 1588783520),
            tx_bytes=(39860043360, 28688790100, 31775670400),
            rx_packets=(2091328898, 760745014, 4126456722),
            rx_bytes=(41826577960, 15214900280, 82529134440),
            retries=(0, 0, 0),
            errors=(0, 0, 0),
        ),
    ),
    "npu_smi_health_alarm.a1.txt": (
        read_health,
        Card(None, (ChipHealth(None, "Alarm", ("A4025021", "8C03A000", "8C084E00"), ALARM),)),
    ),
    "npu_smi_health_card.300iduo.txt": (
        read_health,
        Card(2944, (ChipHealth(0, "OK"), ChipHealth(1, "OK")), ChipHealth(None, "OK")),
    ),
    "npu_smi_health_ok.a1.txt": (read_health, Card(None, (ChipHealth(None, "OK"),))),
    "npu_smi_l.a2.txt": (read_list, CardList(8, tuple(ListedCard(npu, 1) for npu in range(8)))),
    "npu_smi_l.a5card.doc.txt": (
        read_list,
        CardList(1, (ListedCard(0, None, "A5 PCIe Card", "IT00XXXX0000FAA"),)),
    ),
    "npu_smi_l_card.300i.txt": (
        read_list,
        CardList(1, (ListedCard(8, 1, "IT21PDDA01", "000XXX00XX000001"),)),
    ),
    "npu_smi_l_cardcount.310.doc.txt": (
        read_list,
        CardList(1, (ListedCard(8, 4, "IT21DMPB01", "000XXX00XX000002"),)),
    ),
    "npu_smi_l_elided.a3.txt": (read_list, CardList(8, (ListedCard(0, 2),))),
    "npu_smi_m.a3.txt": (
        read_map,
        DeviceMap(
            (
                ChipIds(0, 0, 0, 0, "Ascend910"),
                ChipIds(0, 1, 1, 1, "Ascend910"),
                ChipIds(0, 2, None, None, "Mcu"),
                ChipIds(1, 0, 2, 2, "Ascend910"),
            )
        ),
    ),
    "npu_smi_m.a5.doc.txt": (read_map, DeviceMap((ChipIds(0, 0, None, 0, "xxx", slot=0),))),
    "npu_smi_memory.300iduo.txt": (
        read_memory,
        Card(2944, (Memory(0, 49152, 44278, 451), Memory(1, 49152, 43693, 451))),
    ),
    "npu_smi_memory.a2.txt": (read_memory, Card(1, (Memory(0, None, 0, 0, 32768, 1600, 35, "0x57"),))),
    "npu_smi_power.a2.txt": (read_power, Card(0, (Power(0, 103.5),))),
    "npu_smi_power.a5.doc.txt": (read_power, Card(0, (Power(None, 296.5),))),
    "npu_smi_proc_mem.300iduo.fixture.txt": (read_proc_mem, Card(32768, GUNICORNS)),
    "npu_smi_proc_mem.a2.txt": (
        read_proc_mem,
        Card(0, (ChipProcesses(0, (ChipProcess(1654497, "python", 177),)),)),
    ),
    "npu_smi_proc_mem.a3.txt": (
        read_proc_mem,
        Card(None, (ChipProcesses(0, ()), ChipProcesses(1, (ChipProcess(3229095, "", 48208),)))),
    ),
    "npu_smi_proc_mem.a5.doc.txt": (
        read_proc_mem,
        Card(0, (ChipProcesses(None, (ChipProcess(395864, "power_test", 5118),)),)),
    ),
    "npu_smi_product.300iduo.txt": (
        read_product,
        Card(2944, (Product(0, "Atlas 300I Duo"), Product(1, "Atlas 300I Duo"))),
    ),
    "npu_smi_spod_info_dev0.a3.txt": (read_spod, Spod(167772160, 384, 0, 40)),
    "npu_smi_spod_info_dev1.a3.txt": (read_spod, Spod(167837697, 384, 0, 40)),
    "npu_smi_spod_info_dev10.a3.txt": (read_spod, Spod(169082890, 384, 0, 40)),
    "npu_smi_temp.a2.txt": (
        read_temp,
        Card(0, (Temperature(0, 39),), Temperature(None, None, (("LM75A_TE", 36), ("LM75B_TE", 36)))),
    ),
    "npu_smi_temp.a5.doc.txt": (read_temp, Card(0, (Temperature(None, 53),))),
    "npu_smi_topo.a2.txt": (
        read_topo,
        Topology(
            tuple(f"NPU{npu}" for npu in range(8)),
            (
                TopologyRow("NPU0", around(0), "144-167"),
                TopologyRow("NPU1", around(1), "0-23"),
                TopologyRow("NPU2", around(2), "144-167"),
                TopologyRow("NPU3", around(3), "0-23"),
                TopologyRow("NPU4", around(4), "96-119"),
                TopologyRow("NPU5", around(5), "48-71"),
                TopologyRow("NPU6", around(6), "96-119"),
                TopologyRow("NPU7", around(7), "48-71"),
            ),
        ),
    ),
    "npu_smi_topo_slice.a3.txt": (
        read_topo,
        Topology(
            ("Phy-ID2", "Phy-ID3", "Phy-ID12", "Phy-ID13"),
            (
                TopologyRow("Phy-ID2", ("X", "SIO", "HCCS_SW", "HCCS_SW")),
                TopologyRow("Phy-ID3", ("SIO", "X", "HCCS_SW", "HCCS_SW")),
            ),
        ),
    ),
    "npu_smi_usages.300iduo.txt": (
        read_usages,
        Card(
            2944,
            (
                Usage(0, ddr_capacity_mb=44278, ddr_percent=2, aicore_percent=0),
                Usage(1, ddr_capacity_mb=43693, ddr_percent=3, aicore_percent=0),
            ),
        ),
    ),
    "npu_smi_usages.a1.txt": (
        read_usages,
        Card(0, (Usage(0, 13553, 6, 0, 0, 31129, 0, 0, None, 0, 0, 0, 0),)),
    ),
    "npu_smi_usages.a2.txt": (read_usages, Card(0, (Usage(0, 0, 0, 0, 0, 65536, 4, 0, 0, 0, 0, 0, 0),))),
    "npu_smi_usages.a5.doc.txt": (
        read_usages,
        Card(0, (Usage(None, 0, 0, 0, 0, 131072, 3, 0, 0, 0, 40, 0, 3, 0, 0),)),
    ),
    "npu_smi_usages_new.a2.txt": (
        read_usages,
        Card(0, (Usage(0, 0, 0, 0, 0, 65536, 5, 0, 0, 0, 6, 0, 0, 0, 0),)),
    ),
}

FAILED: dict[str, Failure] = {
    "npu_smi_bad_type.a5.txt": Failure.UNSUPPORTED,
    "npu_smi_fail_8005_after_upgrade.doc.txt": Failure.DRIVER,
    "npu_smi_fail_8005_nonroot.txt": Failure.DRIVER,
    "npu_smi_fail_8020_occupied.txt": Failure.DRIVER,
    "npu_smi_fail_loader_libc_sec.txt": Failure.ENVIRONMENT,
    "npu_smi_fail_loader_libdrvdsmi.txt": Failure.ENVIRONMENT,
    "npu_smi_fail_not_found.txt": Failure.ENVIRONMENT,
    "npu_smi_unsupported_product.a2a3.txt": Failure.UNSUPPORTED,
    "npu_smi_unsupported_spod_info.a5.doc.txt": Failure.UNSUPPORTED,
    "npu_smi_unsupported_template_info.310b.txt": Failure.UNSUPPORTED,
}
"""The tool, the loader or the shell says why there is no answer."""

NOT_ASKED = (
    "npu_smi_info_help.a2.txt",
    "npu_smi_info_help.a5.doc.txt",
    "npu_smi_watch.a2.txt",
    "npu_smi_watch.a5.doc.txt",
)
"""Help, and `info watch`, which never ends: no reader may take them for its own."""

MEASURES: set[Reader] = {read_usages, read_common, read_memory, read_temp, read_power}
"""Some of what they read has the same key and the same meaning."""

READERS = [kind.read for kind in NPU_SMI.values()]


def test_every_recorded_answer_has_its_row() -> None:
    there = {path.name for path in (DATA / "hccn").glob("npu_smi_*")}
    assert there == {*SAMPLES, *FAILED, *NOT_ASKED, *TABLES}
    assert len(there) == len(SAMPLES) + len(FAILED) + len(NOT_ASKED) + len(TABLES)


@pytest.mark.parametrize("name", SAMPLES)
def test_values_are_those_that_a_person_reads(name: str) -> None:
    read, expected = SAMPLES[name]
    reading = read(answered(name))
    assert reading.failure is None
    assert reading.value == expected


@pytest.mark.parametrize("name", SAMPLES)
def test_no_other_reader_takes_it_for_its_own(name: str) -> None:
    own, _ = SAMPLES[name]
    for read in READERS:
        if read is not own and not {read, own} <= MEASURES:
            assert read(answered(name)).value is None, read


@pytest.mark.parametrize("name", FAILED)
def test_a_failure_is_the_same_to_every_reader(name: str) -> None:
    for read in READERS:
        assert read(answered(name)).failure is FAILED[name]


@pytest.mark.parametrize("name", NOT_ASKED)
def test_what_is_never_asked_is_unreadable_to_every_reader(name: str) -> None:
    for read in READERS:
        assert read(answered(name)).failure is Failure.UNREADABLE


@pytest.mark.parametrize(
    ("name", "generation"),
    [
        ("npu_smi_board_card.a1.txt", "a1"),
        ("npu_smi_board.a2.txt", "a2"),
        ("npu_smi_board_partial.a3.txt", "a3"),
        ("npu_smi_board.a5.txt", "a5"),
        ("npu_smi_board.300iduo.txt", "300i"),
        ("npu_smi_board_chip.a1.txt", ""),
    ],
)
def test_the_pci_device_tells_the_generation(name: str, generation: str) -> None:
    value = read_board(answered(name)).value
    assert value is not None
    assert value.generation == generation


@pytest.mark.parametrize(("name", "device"), [("dev0", 0), ("dev1", 1), ("dev10", 10)])
def test_an_sdid_holds_server_npu_chip_and_device(name: str, device: int) -> None:
    spod = read_spod(answered(f"npu_smi_spod_info_{name}.a3.txt")).value
    assert spod is not None
    assert (spod.sdid_server, spod.sdid_npu, spod.sdid_chip) == (40, device // 2, device % 2)
    assert spod.sdid_device == device
    assert spod.vnic_address == f"192.40.{2 + device % 2}.{199 - device}"


def test_lists_say_whether_they_are_whole() -> None:
    whole, cut = (
        read_list(answered("npu_smi_l.a2.txt")).value,
        read_list(answered("npu_smi_l_elided.a3.txt")).value,
    )
    assert whole is not None
    assert cut is not None
    assert (whole.complete, cut.complete) == (True, False)
    matrix = read_topo(answered("npu_smi_topo_slice.a3.txt")).value
    assert matrix is not None
    assert not matrix.complete
    assert (matrix.between("Phy-ID2", "Phy-ID13"), matrix.between("Phy-ID13", "Phy-ID2")) == ("HCCS_SW", "")


def test_ids_are_mapped_without_the_microcontroller() -> None:
    ids = read_map(answered("npu_smi_m.a3.txt")).value
    assert ids is not None
    assert ids.devices == {0: (0, 0), 1: (0, 1), 2: (1, 0)}
    assert [row.npu for row in ids.rows if row.is_mcu] == [0]


def test_on_a2_the_logic_id_is_the_physical_one() -> None:
    rows = (("NPU ID", "Chip ID", "Chip Logic ID", "Chip Name"), (7, 0, 7, "Ascend 910B3"), (7, 1, "-", "Mcu"))
    text = "".join("\t" + "".join(f"{cell:<31}" for cell in row) + "\n" for row in rows)
    ids = read_map(Answer("npu-smi info -m", text.encode())).value
    assert ids is not None
    assert ids.devices == {7: (7, 0)}
    assert ids.rows[0].name == "Ascend 910B3"


def test_a_card_gives_the_chip_that_is_asked_for() -> None:
    card = read_common(answered("npu_smi_common.300iduo.txt")).value
    assert card is not None
    second = card.of(1)
    assert second is not None
    assert second.temperature_c == 47
    assert card.of(2) is None
    only = read_temp(
        answered("npu_smi_temp.a5.doc.txt")
    ).value  # The answer names no chip: it is the one asked for.
    assert only is not None
    assert only.of(5) == Temperature(None, 53)
