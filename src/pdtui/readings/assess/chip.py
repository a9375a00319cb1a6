"""What the answers of npu-smi say, each alone."""

from __future__ import annotations

from dataclasses import replace

from pdtui.readings.assess.base import ANYWHERE, Assessment, Place, finding, good, nothing_to_say, worst
from pdtui.readings.npu_smi import Chip, Table
from pdtui.readings.npu_smi_blocks import Card
from pdtui.readings.npu_smi_identity import Board, ChipHealth, Hccs, Spod
from pdtui.readings.npu_smi_values import BitErrors, Ecc
from pdtui.readings.verdict import SEVERITY, Verdict
from pdtui.topology.model import Platform


def assess_word(word: str, place: Place, raw: str = "") -> Assessment:
    """Assess the health word of a chip, as the table and `-t health` print it."""
    if word == "OK":
        return good("npu-smi health OK")
    if word == "Warning":
        return finding("npu-health-warning", "npu-smi health Warning (minor fault)", place, raw=raw)
    if word in ("Alarm", "Critical"):
        return finding("npu-health", f"npu-smi health {word}", place, raw=raw)
    summary = f"npu-smi health {word}" if word else "npu-smi health is blank"
    return finding("npu-health-unknown", summary, place, raw=raw)


def assess_chip(chip: Chip, platform: Platform, place: Place | None = None) -> Assessment:
    """Assess one chip in npu-smi's table."""
    return assess_word(chip.health, place_of_chip(chip), chip.rows)


def place_of_chip(chip: Chip) -> Place:
    """Return how the tools call a chip, as its table says it."""
    return Place(str(chip.device), str(chip.npu), str(chip.chip))


def assess_table(table: Table, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess the whole table: the worst of its chips; what is missing from it one table cannot know."""
    told = [(chip, assess_chip(chip, platform)) for chip in table.chips]
    bad = [(chip, one) for chip, one in told if one.verdict is not Verdict.HEALTHY]
    if bad:
        chip, first = max(bad, key=lambda pair: SEVERITY[pair[1].verdict])
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        return replace(first, summary=f"NPU {chip.device}: {first.summary}{more}")
    if not table.complete:
        return finding("npu-unseen", f"{len(told)} NPUs OK, but the table is cut")
    return good(f"{len(told)} NPUs OK")


def assess_health(health: ChipHealth, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess `-t health`, with its error codes."""
    told = assess_word(health.word, place)
    if told.verdict is Verdict.HEALTHY or not health.codes:
        return told
    words = " ".join(filter(None, (" ".join(health.codes), *health.information[:2])))
    return replace(told, summary=f"{told.summary}, error code {words}")


def assess_errors(name: str, errors: BitErrors | None, place: Place) -> Assessment:
    """Assess the bit errors of one memory."""
    if errors is None:
        return nothing_to_say()
    if errors.double:
        return finding("ecc", f"{name}: {errors.double} double-bit errors since the device started", place)
    return good(f"{name}: no double-bit errors, {errors.single or 0} corrected")


def assess_ecc(ecc: Ecc, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess `-t ecc`; whether corrected errors grow one answer cannot tell."""
    return worst([assess_errors("HBM", ecc.hbm, place), assess_errors("DDR", ecc.ddr, place)])


def lanes_down(hccs: Hccs) -> tuple[int, ...]:
    """Return the HCCS links that lack a lane; a link whose lane mode is 0 is not used."""
    modes = hccs.lane_mode or (1,) * len(hccs.lanes)
    return tuple(
        i for i, (lanes, mode) in enumerate(zip(hccs.lanes, modes, strict=False)) if mode and "0" in lanes
    )


def assess_hccs(hccs: Hccs, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess `-t hccs`; whether retries and errors grow one answer cannot tell."""
    down = lanes_down(hccs)
    if down:
        links = ", ".join(f"link {i}: {hccs.lanes[i]}" for i in down)
        return finding("hccs", f"HCCS lanes down ({links})", place)
    if not hccs.healthy:
        return finding("hccs", "HCCS health NOK", place)
    return good("HCCS OK")


def assess_spod(spod: Spod, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess `-t spod-info`: the SDID holds the server index and the device again."""
    if platform != "a3":
        return nothing_to_say()
    if spod.server is not None and spod.sdid_server != spod.server:
        words = f"SDID {spod.sdid} is of server {spod.sdid_server}, the server index is {spod.server}"
        return finding("spod", words, place)
    own = place.npu, place.chip, place.device
    if place.device.isdecimal() and (str(spod.sdid_npu), str(spod.sdid_chip), str(spod.sdid_device)) != own:
        words = (
            f"SDID {spod.sdid} is of NPU {spod.sdid_npu} chip {spod.sdid_chip} (id {spod.sdid_device}), "
            f"this one is {place.npu}/{place.chip} (id {place.device})"
        )
        return finding("spod", words, place)
    return good(f"super pod {spod.pod}, server {spod.server}")


def assess_board(board: Board, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess `-t board`: driver and firmware fit, no chip of the card is faulty."""
    if board.faulty_chips:
        return finding("npu-health", f"the board reports {board.faulty_chips} faulty chips", place)
    if board.compatible is False:
        return finding("incompatible", f"driver {board.driver} and firmware {board.firmware} do not fit", place)
    return good(f"driver {board.driver}, firmware {board.firmware}")


def assess_card(card: Card[ChipHealth] | Card[Ecc], platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess an answer about the chips of a card: the chip that was asked for, or else the worst."""
    chip = card.of(int(place.chip)) if place.chip.isdecimal() else None
    told = []
    for one in (chip,) if chip is not None else card.chips:
        if isinstance(one, ChipHealth):
            told.append(assess_health(one, platform, place))
        elif isinstance(one, Ecc):
            told.append(assess_ecc(one, platform, place))
    return worst(told) if told else nothing_to_say()
