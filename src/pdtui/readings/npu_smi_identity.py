"""What a chip is and how it is joined: `npu-smi info -t health`, `board`, `product`, `spod-info` and `hccs`.

Formats: recorded answers of A1, A2, A3, A5 and 300I Duo servers and the tool's published source (hicann/driver).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pdtui.readings.answer import Answer, Reading, is_whole, reading, stdout_lines
from pdtui.readings.npu_smi_blocks import Block, Card, pair_of, read_block, read_blocks, whole_number


@dataclass(frozen=True, slots=True)
class ChipHealth:
    """How a chip says it is (`-t health`)."""

    chip: int | None
    word: str
    """OK, Warning (minor), Alarm (major), Critical or UNKNOWN (absent or not started)."""
    codes: tuple[str, ...] = ()
    """Error codes in hex; only asked with `-c`."""
    information: tuple[str, ...] = ()
    """What the codes mean, in the tool's words."""


_CODE = re.compile(r"(?:0x)?[0-9A-Fa-f]{4,16}$")
_WORD = re.compile(r"[A-Za-z]+$")


def read_health(answer: Answer) -> Reading[Card[ChipHealth]]:
    """Read `-t health`, of one chip with its error codes or of a card without them."""
    if any((pair_of(line) or ("", ""))[0] == "Health Status" for line in stdout_lines(answer)):
        health = _chip_health(stdout_lines(answer)) if is_whole(answer) else None
        return reading(answer, Card(None, (health,)) if health else None)
    blocks = read_blocks(answer)
    chips = [_card_health(block) for block in blocks.chips] if blocks else []
    found = tuple(chip for chip in chips if chip is not None)
    if blocks is None or not found or len(found) < len(chips):
        return reading(answer, None)
    return reading(answer, Card(blocks.npu, found, _card_health(blocks.mcu) if blocks.mcu else None))


def _card_health(block: Block) -> ChipHealth | None:
    word = block.values.get("Health", "")
    return ChipHealth(block.chip, word) if _WORD.match(word) else None


def _chip_health(lines: list[str]) -> ChipHealth | None:
    """Read the three keys; further information stands on lines whose key is empty."""
    values: dict[str, str] = {}
    information: list[str] = []
    for line in lines:
        key, value = pair_of(line) or ("", line.strip())
        if key in ("Health Status", "Error Code") and key not in values:
            values[key] = value
        elif (key == "Error Information" and not information) or (not key and information):
            information.append(value)
        elif key not in ("NPU ID", "Chip ID"):
            return None
    word, codes = values.get("Health Status", ""), values.get("Error Code", "")
    words = () if codes in ("", "NA") else tuple(codes.split())
    if not _WORD.match(word) or not all(map(_CODE.match, words)):
        return None
    return ChipHealth(None, word, words, tuple(text for text in information if text not in ("", "NA")))


@dataclass(frozen=True, slots=True)
class Board:
    """A card (`-t board -i N`) or one of its chips (`-c` too); empty where the tool says NA or nothing."""

    npu: int | None
    chip: int | None
    product: str
    model: str
    serial: str
    driver: str
    """`Software Version`."""
    firmware: str
    compatible: bool | None
    """Whether driver and firmware go together, by the tool."""
    board_id: str
    pci_device: str
    """0xD801 A1, 0xD802 A2, 0xD803 A3, 0xD806 A5, 0xD500 Atlas 300I: the only sure sign of the generation."""
    bus: str
    slot: str
    chip_name: str
    chip_version: str
    chip_count: int | None
    faulty_chips: int | None

    @property
    def generation(self) -> str:
        """The platform by the PCI device: `a1`, `a2`, `a3`, `a5`, `300i`; empty when it is not known."""
        return _GENERATIONS.get(self.pci_device.lower(), "")


_GENERATIONS = {"0xd801": "a1", "0xd802": "a2", "0xd803": "a3", "0xd806": "a5", "0xd500": "300i"}
_OF_BOARD = ("Board ID", "PCI Device ID", "PCIe Bus Info", "Firmware Version")


def read_board(answer: Answer) -> Reading[Board]:
    """Read `-t board`, of a card or of a chip."""
    block = read_block(answer)
    if block is None or not any(block.text(key) for key in _OF_BOARD):
        return reading(answer, None)
    compatibility = block.text("Compatibility")
    board = Board(
        npu=block.integer("NPU ID"),
        chip=block.chip,
        product=block.text("Product Name"),
        model=block.text("Model"),
        serial=block.text("Serial Number"),
        driver=block.text("Software Version"),
        firmware=block.text("Firmware Version"),
        compatible=compatibility == "OK" if compatibility else None,
        board_id=block.text("Board ID"),
        pci_device=block.text("PCI Device ID"),
        bus=block.text("PCIe Bus Info"),
        slot=block.text("Slot ID"),
        chip_name=block.text("Chip Name"),
        chip_version=block.text("Chip Version"),
        chip_count=block.integer("Chip Count"),
        faulty_chips=block.integer("Chip Fault", "Faulty Chip Count"),
    )
    return reading(answer, board)


@dataclass(frozen=True, slots=True)
class Product:
    """The name under which a card is sold (`-t product`); servers do not support it."""

    chip: int | None
    name: str


def read_product(answer: Answer) -> Reading[Card[Product]]:
    """Read `-t product`."""
    blocks = read_blocks(answer)
    names = [(block.chip, block.text("Product Type")) for block in blocks.chips] if blocks else []
    if blocks is None or not all(name for _, name in names):
        return reading(answer, None)
    return reading(answer, Card(blocks.npu, tuple(Product(chip, name) for chip, name in names)))


@dataclass(frozen=True, slots=True)
class Spod:
    """The place of a chip in its super pod (`-t spod-info`); 0 is a valid id."""

    sdid: int
    size: int
    """Chips of the super pod."""
    pod: int
    server: int | None
    """Server index; None on A5, which names the chassis."""
    chassis: int | None = None

    @property
    def sdid_server(self) -> int:
        """The server index that the SDID holds: server << 22 | NPU << 18 | chip << 16 | physical id."""
        return self.sdid >> 22

    @property
    def sdid_npu(self) -> int:
        """The NPU ID that the SDID holds."""
        return self.sdid >> 18 & 0xF

    @property
    def sdid_chip(self) -> int:
        """The chip that the SDID holds."""
        return self.sdid >> 16 & 0x3

    @property
    def sdid_device(self) -> int:
        """The physical id that the SDID holds."""
        return self.sdid & 0xFFFF

    @property
    def vnic_address(self) -> str:
        """The address of its vnic in a super pod: 192.<server>.<2 + chip>.<199 - physical id>."""
        device = self.sdid_device
        return f"192.{self.sdid_server}.{2 + device % 2}.{199 - device}"


def read_spod(answer: Answer) -> Reading[Spod]:
    """Read `-t spod-info -i X -c Y`."""
    block = read_block(answer)
    if block is None:
        return reading(answer, None)
    sdid, size, pod = block.integer("SDID"), block.integer("Super Pod Size"), block.integer("Super Pod ID")
    server, chassis = block.integer("Server Index"), block.integer("Chassis ID")
    if sdid is None or size is None or pod is None or (server is None) == (chassis is None) or sdid < 0:
        return reading(answer, None)
    return reading(answer, Spod(sdid, size, pod, server, chassis))


@dataclass(frozen=True, slots=True)
class Hccs:
    """The HCCS links of a chip (`-t hccs`); one item a link, in the tool's order, empty when it is not printed."""

    healthy: bool
    lane_mode: tuple[int, ...] = ()
    """Lanes that a link should have."""
    lanes: tuple[str, ...] = ()
    """1 for each lane that is up: `1111`."""
    speed: tuple[int, ...] = ()
    """Gbit/s of a lane, as the tool counts it."""
    tx_packets: tuple[int, ...] = ()
    tx_bytes: tuple[int, ...] = ()
    rx_packets: tuple[int, ...] = ()
    rx_bytes: tuple[int, ...] = ()
    retries: tuple[int, ...] = ()
    errors: tuple[int, ...] = ()
    first_error_lane: tuple[int, ...] = ()


_ARRAY = re.compile(r"\[(.*)\]$")


def _numbers(block: Block, key: str) -> tuple[int, ...] | None:
    """Return an array of whole numbers, empty when it is not printed, None when it cannot be read."""
    text = block.values.get(key)
    if text is None:
        return ()
    match = _ARRAY.match(text)
    words = (match[1] if match else text).split()
    numbers = [whole_number(word) for word in words]
    known = tuple(number for number in numbers if number is not None)
    return known if len(known) == len(numbers) and (match or len(words) == 1) else None


def read_hccs(answer: Answer) -> Reading[Hccs]:
    """Read `-t hccs -i X -c Y`."""
    block = read_block(answer)
    health = block.values.get("hccs health status") if block else None
    if block is None or health not in ("OK", "NOK"):
        return reading(answer, None)
    names = (
        "lane mode",
        "link speed",
        "tx packets",
        "tx bytes",
        "rx packets",
        "rx bytes",
        "retry count",
        "error count",
    )
    arrays = [_numbers(block, f"hccs {name}") for name in names]
    match = _ARRAY.match(block.values.get("hccs link lane list", "[]"))
    found = [array for array in arrays if array is not None]
    lanes = tuple(match[1].split()) if match else None
    if len(found) < len(arrays) or lanes is None or not all(set(lane) <= {"0", "1"} for lane in lanes):
        return reading(answer, None)
    mode, speed, tx, tx_bytes, rx, rx_bytes, retries, errors = found
    first = _numbers(block, "hccs first error lane") or ()
    return reading(
        answer, Hccs(health == "OK", mode, lanes, speed, tx, tx_bytes, rx, rx_bytes, retries, errors, first)
    )
