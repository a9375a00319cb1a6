"""The NPUs of a simulated node as the files that its vendor tools read.

One folder for each NPU (physical id); formats of the tools' answers are in the tools, formulas of addresses in
the sources named at each function. State is changed by replacing whole files, so that a tool that runs at the
same time sees the old or the new value. The folders of all nodes lie on one plane with an index by address: a ping
looks at the NPU that it is meant for.
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
    """Of the driver."""
    firmware: str

    @property
    def count(self) -> int:
        """Physical ids of one server."""
        return self.cards * self.chips


HARDWARE: dict[SimPlatform, Hardware] = {
    "a2": Hardware(cards=8, chips=1, name="910B3", hbm_mb=65536, version="25.5.1", firmware="7.8.0.6.201"),
    "a3": Hardware(cards=8, chips=2, name="Ascend910", hbm_mb=65536, version="25.5.1", firmware="7.8.0.6.201"),
    "cpu": Hardware(cards=0, chips=1, name="", hbm_mb=0, version="", firmware=""),
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


FAULTY = (
    "certs",
    "certs_end",
    "lossy",
    "counters",
    "ecc",
    "hccs",
    "hccs_count",
    "pod",
    "index",
    "sdid",
    "optical",
    "fec",
    "mtu",
    "hccp",
    "cfg",
)
"""Answers of an NPU that only faults change: without the file all is as usual."""


def _stamp(seconds: float) -> str:
    """Return a time as the device's own clock writes it."""
    return time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(seconds))


class Npus:
    """All NPUs of one node."""

    def __init__(self, plane: Path, name: str, platform: SimPlatform, server_index: int) -> None:
        """`plane`: the folder that all nodes share, `name`: of the node."""
        self.plane = plane
        self.name = name
        self.folder = plane / "npus" / name
        self.platform = platform
        self.hardware = HARDWARE[platform]
        self.server_index = server_index % (MAX_SERVER_INDEX + 1)
        self._smi: dict[int, Smi] = {}

    def create(self) -> None:
        """Write a healthy server."""
        for kind in ("roce", "vnic", "gateways", "off"):
            (self.plane / kind).mkdir(parents=True, exist_ok=True)
        self.folder.mkdir(parents=True)
        for phy in range(self.hardware.count):
            home = self.folder / str(phy)
            (home / "hbm").mkdir(parents=True)
            self._smi[phy] = self._fresh(phy)
            for name, value in self._healthy(phy).items():
                self.set(phy, name, value)
            (self.plane / "gateways" / self._healthy(phy)["gateway"]).touch()
            write_file(home / "link_stat", f"{_stamp(time.time() - 86400)}    LINK UP\n")
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
            "lldp": self.port(phy),
            "mac": f"02:5e:00:{self.server_index:02x}:00:{phy:02x}",
        }
        if self.platform == "a3":
            # Super-pod address of driver source: 192.<server>.<2 + die>.<199 - phy>.
            values["vnic"] = "UP"
            values["vnic_ip"] = f"192.{self.server_index}.{2 + phy % 2}.{199 - phy}"
        return values

    def port(self, phy: int) -> str:
        """Return the switch port that an NPU is cabled to: its name, and name, address and MAC of the switch."""
        leaf = self.server_index // 2
        name = f"400GE1/1/{phy + 1}:{self.server_index % 2 + 1}"
        return f"{name} leaf-{leaf + 1} 10.0.0.{254 - leaf} 00:00:5e:00:53:{leaf:02x}"

    def get(self, phy: int, name: str) -> str:
        """Return one answer of the tools; empty without one."""
        path = self.folder / str(phy) / name
        return path.read_text(encoding="utf-8").strip() if path.exists() else ""

    def set(self, phy: int, name: str, value: str) -> None:
        """Change one answer of the tools; an address is found on the plane from then on."""
        index = {"ip": "roce", "vnic_ip": "vnic"}.get(name)
        if index is not None:
            mine = f"{self.name}/{phy}\n"
            old = self.plane / index / (self.get(phy, name) or "none")
            if old.exists() and old.read_text(encoding="utf-8") == mine:
                old.unlink()
            if value:
                write_file(self.plane / index / value, mine)
        write_file(self.folder / str(phy) / name, f"{value}\n")

    def forget(self, phy: int, *names: str) -> None:
        """Let answers be what they are on a machine without a word of them."""
        for name in names:
            (self.folder / str(phy) / name).unlink(missing_ok=True)

    def grow(self, phy: int, file: str, key: str, value: int, rate: int) -> None:
        """Have a counter stand higher by `value`, and grow by `rate` a second from now on; both 0: as it was."""
        path = self.folder / str(phy) / file
        lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
        lines = [line for line in lines if line.split()[0] != key]
        if value or rate:
            uptime = int(float(Path("/proc/uptime").read_text(encoding="ascii").split()[0]))
            lines.append(f"{key} {value} {rate} {uptime}")
        write_file(path, "".join(f"{line}\n" for line in lines))

    def power(self, *, on: bool) -> None:
        """Let the NPUs answer the pings of others, or not: the server is off."""
        if on:
            (self.plane / "off" / self.name).unlink(missing_ok=True)
        else:
            (self.plane / "off" / self.name).touch()

    def record_flaps(self, phy: int, count: int) -> None:
        """Record that the link went down and came up again `count` times in the last minutes."""
        now = time.time()
        records: list[str] = []
        for number in range(count):
            then = now - 40 * (count - number)
            records += [f"{_stamp(then)}    LINK DOWN", f"{_stamp(then + 2)}    LINK UP"]
        self._record(phy, records)

    def _record(self, phy: int, records: list[str]) -> None:
        path = self.folder / str(phy) / "link_stat"
        old = path.read_text(encoding="utf-8").splitlines()
        write_file(path, "\n".join([*old, *records][-10:]) + "\n")

    def set_link(self, phy: int, *, up: bool) -> None:
        """Change the link with what follows from it: the health probe and the record of changes."""
        self.set(phy, "link", "UP" if up else "DOWN")
        self.set(phy, "net_health", "Success" if up else "Fault")
        self._record(phy, [f"{_stamp(time.time())}    LINK {'UP' if up else 'DOWN'}"])

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

    def write_conf(self, path: Path) -> None:
        """Write /etc/hccn.conf of a healthy server, in place: it may be mounted somewhere."""
        keys = {"address": "ip", "netmask": "netmask", "gateway": "gateway", "netdetect": "netdetect"}
        lines: list[str] = []
        for phy in range(self.hardware.count):
            values = self._healthy(phy)
            lines += [f"{key}_{phy}={values[name]}" for key, name in keys.items()]
        path.write_text("\n".join(lines) + "\n", encoding="ascii")

    def edit_conf(self, path: Path, key: str, value: str) -> None:
        """Change a key of hccn.conf, or take it out, in place."""
        old = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        place = next((at for at, line in enumerate(old) if line.startswith(f"{key}=")), len(old))
        lines = [*old[:place], *([f"{key}={value}"] if value else []), *old[place + 1 :]]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def heal(self, phy: int) -> None:
        """Make one NPU healthy again."""
        home = self.folder / str(phy)
        self.forget(phy, "gone", *FAULTY)
        was_down = (home / "link").read_text(encoding="utf-8").strip() != "UP"
        for name, value in self._healthy(phy).items():
            self.set(phy, name, value)
        if was_down:
            self.set_link(phy, up=True)
        self._smi[phy] = self._fresh(phy)
        write_file(home / "smi", self._smi[phy].text())
