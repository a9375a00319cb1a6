"""What the answers of hccn_tool say, each alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

from pdtui.readings.assess.base import ANYWHERE, Assessment, Place, finding, good, nothing_to_say, worst
from pdtui.readings.hccn.counters import LinkRecord, LinkStat
from pdtui.readings.hccn.lldp import Lldp
from pdtui.readings.hccn.network import Address, Gateway, Link, NetDetect, NetHealth, Vnic
from pdtui.readings.hccn.optical import Optical, Range
from pdtui.readings.hccn.ping import HccsPing, Ping
from pdtui.readings.hccn.port import HccpProcess
from pdtui.readings.hccn.tls import Tls
from pdtui.readings.hccn_conf import HccnConf
from pdtui.topology.model import Platform


def assess_link(link: Link, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess `-link`. On A3 a port that is DOWN may not be in use, which one NPU alone cannot tell."""
    if link.status == "UP":
        return good("link UP")
    if platform == "a3":
        return finding("link-unknown", "link DOWN, and whether RoCE is configured is not known yet", place)
    return finding("link-down", "link DOWN", place)


NET_HEALTH_WORDS: Mapping[str, tuple[str, str]] = {
    "success": ("", ""),
    "socket fail": ("net-health", "the probe could not open its socket"),
    "socket failed": ("net-health", "the probe could not open its socket"),
    "receive timeout": ("net-health", "the detect address does not answer"),
    "unreachable": ("net-health", "the detect address is unreachable"),
    "time exceeded": ("net-health", "sending the probe takes too long"),
    "fault": ("net-health", "the probe cannot be sent; typical right after a link went down"),
    "init": ("net-health-init", "no probe result: no detect address is set, or it was just set"),
    "thread error": ("net-health-unknown", "the probe does not run"),
    "detect ip set": ("net-health-init", "the detect address is being set"),
}
"""Word of `-net_health` with the link UP, in small letters -> id of the reason, what it says."""


def assess_net_health(health: NetHealth, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess `-net_health`; it says something only while the link is UP."""
    kind, words = NET_HEALTH_WORDS.get(health.word.lower(), ("net-health-unknown", "a word that is not known"))
    if not kind:
        return good(f"net health {health.word}")
    return finding(kind, f"net health {health.word}: {words}", place)


def assess_vnic(vnic: Vnic, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess `-vnic`, the HCCS plane, which A2 does not have."""
    if platform == "a2":
        return nothing_to_say("there is no HCCS plane between nodes on A2")
    if vnic.status == "DOWN":
        return finding("vnic-down", "vnic link DOWN", place)
    if not vnic.address:
        return finding("vnic-no-address", "vnic UP but without an address", place)
    return good(f"vnic UP, {vnic.address}")


def assess_netdetect(netdetect: NetDetect, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess `-netdetect`."""
    if not netdetect.address:
        return finding("netdetect-unset", "no detect address is set", place)
    return good(f"detect address {netdetect.address}")


def assess_address(address: Address, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess `-ip`."""
    return good(f"address {address.address}")


FLAP_WINDOW = 3600.0
"""Seconds before the answer, by the device's own clock, in which a link that went down counts."""

_BOOT = 30.0
"""Seconds that a link takes to settle after a start: UP, DOWN, UP."""

_KEPT = 10
"""Records that a device keeps."""


def flaps(stat: LinkStat, window: float = FLAP_WINDOW) -> tuple[LinkRecord, ...]:
    """Return the records of a link going down inside a window, newest first, without those of a start."""
    boot = set(_boot_records(stat)) if len(stat.records) < _KEPT else set()
    return tuple(
        record
        for record in stat.records
        if record.status == "DOWN" and 0 <= record.ago <= window and record not in boot
    )


def _boot_records(stat: LinkStat) -> Iterator[LinkRecord]:
    """Yield the first changes that a device knows of, as long as they follow each other within a start."""
    oldest_first = stat.records[::-1]
    if not oldest_first or (oldest_first[-1].status == "DOWN" and len(oldest_first) < 3):
        return
    yield oldest_first[0]
    for before, after in pairwise(oldest_first):
        if oldest_first[0].ago - after.ago > _BOOT or before.ago < after.ago:
            return
        yield after


def assess_link_stat(stat: LinkStat, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess `-link_stat`: the last change, and those of the last hour."""
    last = stat.records[0] if stat.records else None
    if last is not None and last.status == "DOWN":
        words = f"the last change of the link is DOWN, at {last.at} (the device's clock)"
        return finding("link-unknown" if platform == "a3" else "link-down", words, place)
    found = flaps(stat)
    if found:
        return finding("flapping", flap_words(len(found), found[0].at), place)
    return good(f"link came up {stat.up_count} times, not down in the last hour")


def flap_words(times: int, last: str) -> str:
    """Return how often a link went down in the window."""
    often = "once" if times == 1 else f"{times} times"
    return f"link went DOWN {often} in the hour before it was asked, last at {last} (the device's clock)"


def _outside(name: str, values: tuple[float | None, ...], usual: Range | None, unit: str) -> Iterator[str]:
    if usual is None:
        return
    outside = {lane: value for lane, value in enumerate(values) if value is not None and not usual.holds(value)}
    if len(outside) == len(values) > 1:
        yield f"{name} {min(outside.values()):g} {unit} on all lanes, outside {usual.low:g} to {usual.high:g}"
        return
    for lane, value in outside.items():
        which = f" lane {lane}" if len(values) > 1 else ""
        yield f"{name}{which} {value:g} {unit}, outside {usual.low:g} to {usual.high:g}"


def _flags(optical: Optical) -> Iterator[str]:
    named = {
        "Rx loss of signal": optical.rx_los,
        "Rx loss of lock": optical.rx_lol,
        "Tx loss of signal": optical.tx_los,
        "Tx loss of lock": optical.tx_lol,
    }
    for name, bits in named.items():
        if bits:
            yield f"{name} (0x{bits:x})"


def assess_optical(optical: Optical, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess `-optical` by the module's own thresholds; that it is not there overrides what it reads."""
    if optical.present is False:
        return finding("optical-absent", "optical module not present", place)
    wrong = [
        *_flags(optical),
        *_outside("Rx power", optical.rx_power_mw, optical.rx_power_range, "mW"),
        *_outside("Tx power", optical.tx_power_mw, optical.tx_power_range, "mW"),
        *_outside("module", (optical.temperature_c,), optical.temperature_range, "°C"),
        *_outside("supply", (optical.vcc_mv,), optical.vcc_range, "mV"),
    ]
    if wrong:
        return finding("optical", f"optical module: {'; '.join(wrong)}", place)
    return good("optical module within its thresholds")


def assess_tls(tls: Tls, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess `-tls`; that the switch is equal everywhere one answer cannot tell."""
    switch = "on" if tls.enabled else "off"
    if tls.enabled and tls.expiration == 2:
        return finding("tls-expired", "TLS is on and a certificate has expired", place)
    if tls.enabled and tls.expiration == 1:
        return finding("tls-expiring", "TLS is on and a certificate expires soon", place)
    return good(f"TLS {switch}")


def assess_lldp(lldp: Lldp, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess `-lldp`: a neighbour is heard."""
    return good(f"switch port {lldp.interface} of {lldp.system or lldp.management or 'a switch without a name'}")


def assess_gateway(gateway: Gateway, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess `-gateway`."""
    return good(f"gateway {gateway.address}")


def assess_conf(conf: HccnConf, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess hccn.conf by itself."""
    if not conf.problems:
        return good(f"settings of {len(conf.devices)} NPUs")
    return worst([finding("hccn-conf", f"line {one.line}: {one.summary}", place) for one in conf.problems[:4]])


def assess_ping(ping: Ping | HccsPing, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess a ping from an NPU; how long it took is no matter."""
    words = f"{ping.received} of {ping.sent} packets came back from {ping.address}"
    told = "; ".join((words, *dict.fromkeys(ping.problems)))
    if ping.received <= 0:
        return finding("ping-lost", told, place)
    planes = any(ping.planes) if isinstance(ping, HccsPing) else False
    if ping.received < ping.sent or ping.problems or planes:
        return finding("ping-loss", f"{told}{'; a plane reports an error' if planes else ''}", place)
    return good(words)


def assess_process(process: HccpProcess, platform: Platform, place: Place = ANYWHERE) -> Assessment:
    """Assess `-process`."""
    if process.exists:
        return good("the device's network process lives")
    return finding("hccp-missing", "the device's network process does not exist", place)
