"""The NPUs of a simulated node as the files that its vendor tools read.

One folder for each NPU (physical id); formats of the tools' answers are in the tools, formulas of addresses in
the sources named at each function. State is changed by replacing whole files, so that a tool that runs at the
same time sees the old or the new value.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

SimPlatform = Literal["a2", "a3", "cpu"]


@dataclass(frozen=True, slots=True)
class Hardware:
    """What one server of a platform holds."""

    cards: int
    chips: int
    """Chips of one card, each with a physical id."""
    name: str
    hbm_mb: int
    version: str

    @property
    def count(self) -> int:
        """Physical ids of one server."""
        return self.cards * self.chips


HARDWARE: dict[SimPlatform, Hardware] = {
    "a2": Hardware(cards=8, chips=1, name="910B3", hbm_mb=65536, version="25.5.1"),
    "a3": Hardware(cards=8, chips=2, name="Ascend910", hbm_mb=65536, version="25.5.1"),
    "cpu": Hardware(cards=0, chips=1, name="", hbm_mb=0, version=""),
}

MAX_SERVER_INDEX = 47
"""The vnic address holds the index in one octet, and the tools take 0 to 47 (driver source, hccs_ping)."""


@dataclass(frozen=True, slots=True)
class Smi:
    """One NPU's line of what npu-smi shows."""

    health: str
    temperature: int
    power: str
    bus: str
    hbm_idle_mb: int
    aicore: int = 0

    def text(self) -> str:
        """Return the line as the tool reads it."""
        return f"{self.health} {self.temperature} {self.power} {self.bus} {self.hbm_idle_mb} {self.aicore}\n"


def write_file(path: Path, text: str) -> None:
    """Replace a small file at once."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


class Npus:
    """All NPUs of one node."""

    def __init__(self, folder: Path, platform: SimPlatform, server_index: int) -> None:
        self.folder = folder
        self.platform = platform
        self.hardware = HARDWARE[platform]
        self.server_index = server_index % (MAX_SERVER_INDEX + 1)
        self._smi: dict[int, Smi] = {}

    def create(self) -> None:
        """Write a healthy server."""
        for phy in range(self.hardware.count):
            home = self.folder / str(phy)
            (home / "hbm").mkdir(parents=True)
            self._smi[phy] = self._fresh(phy)
            for name, value in self._healthy(phy).items():
                write_file(home / name, f"{value}\n")
            booted = time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(time.time() - 86400))
            write_file(home / "link_stat", f"{booted}    LINK UP\n")
            write_file(home / "smi", self._smi[phy].text())

    def _fresh(self, phy: int) -> Smi:
        card, chip = divmod(phy, self.hardware.chips)
        if self.platform == "a3":
            bus = f"0000:{0x9D - 4 * card + 2 * chip:02X}:00.0"
            return Smi("OK", 44 + card % 5, f"{160 + (card * 37) % 20}.{card}", bus, 3103 - 217 * chip - card)
        bus = f"0000:{(0xC1, 0x01, 0xC2, 0x02, 0x81, 0x41, 0x82, 0x42)[card]:02X}:00.0"
        return Smi("OK", 36 + card % 4, f"{88 + card}.{card}", bus, 3451 - card)

    def _healthy(self, phy: int) -> dict[str, str]:
        subnet = f"10.{20 + phy % self.hardware.chips}.{self.server_index // 4}"
        host = self.server_index % 4 * 32 + phy + 2
        values = {
            "link": "UP",
            "net_health": "Success",
            "ip": f"{subnet}.{host}",
            "netmask": "255.255.255.0",
            "gateway": f"{subnet}.1",
            "netdetect": f"{subnet}.1",
            "tls": "0",
            "lldp": f"400GE1/1/{phy + 1}:{self.server_index % 2 + 1}",
        }
        if self.platform == "a3":
            # Super-pod address of driver source: 192.<server>.<2 + die>.<199 - phy>.
            values["vnic"] = "UP"
            values["vnic_ip"] = f"192.{self.server_index}.{2 + phy % 2}.{199 - phy}"
        return values

    def set(self, phy: int, name: str, value: str) -> None:
        """Change one answer of hccn_tool."""
        write_file(self.folder / str(phy) / name, f"{value}\n")

    def set_link(self, phy: int, *, up: bool) -> None:
        """Change the link with what follows from it: the health probe and the record of changes."""
        home = self.folder / str(phy)
        self.set(phy, "link", "UP" if up else "DOWN")
        self.set(phy, "net_health", "Success" if up else "Fault")
        stamp = time.strftime("%a %b %e %H:%M:%S %Y")
        records = (home / "link_stat").read_text(encoding="utf-8").splitlines()[-9:]
        records.append(f"{stamp}    LINK {'UP' if up else 'DOWN'}")
        write_file(home / "link_stat", "\n".join(records) + "\n")

    def set_smi(
        self,
        phy: int,
        *,
        health: str | None = None,
        temperature: int | None = None,
        hbm_idle_mb: int | None = None,
    ) -> None:
        """Change what npu-smi shows of one NPU; None leaves a value."""
        old = self._smi[phy]
        new = replace(
            old,
            health=health if health is not None else old.health,
            temperature=temperature if temperature is not None else old.temperature,
            hbm_idle_mb=hbm_idle_mb if hbm_idle_mb is not None else old.hbm_idle_mb,
        )
        self._smi[phy] = new
        write_file(self.folder / str(phy) / "smi", new.text())

    def heal(self, phy: int) -> None:
        """Make one NPU healthy again."""
        home = self.folder / str(phy)
        (home / "gone").unlink(missing_ok=True)
        was_down = (home / "link").read_text(encoding="utf-8").strip() != "UP"
        for name, value in self._healthy(phy).items():
            self.set(phy, name, value)
        if was_down:
            self.set_link(phy, up=True)
        self._smi[phy] = self._fresh(phy)
        write_file(home / "smi", self._smi[phy].text())
