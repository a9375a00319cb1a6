"""The TLS switch of the NPUs: where it is not equal everywhere, links never come up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pdtui.fleet.preflight.check import NodeView, Survey, check, unknown
from pdtui.fleet.preflight.outcome import Finding, Outcome, Result
from pdtui.fleet.preflight.roce import CONF
from pdtui.readings.answer import Failure, Reading
from pdtui.readings.commands import Query
from pdtui.readings.hccn import Tls
from pdtui.readings.hccn_conf import HccnConf

_EQUAL = (
    "NPUs whose TLS switch differs never connect. Set all to one value as root on the hosts, in a quiet hour: "
    "hccn_tool -i N -tls -s enable 0 (or 1, with certificates on all)"
)
_RENEW = (
    "have the certificates of this NPU renewed (hccn_tool -i N -tls -g shows all), or switch TLS off everywhere"
)
_UNSET = (
    "the tool shows no switch while there are no certificates; tls_enable_N in /etc/hccn.conf would tell. "
    "As root on the host: hccn_tool -i N -tls -g"
)


@dataclass(frozen=True, slots=True)
class _Switch:
    """The switch of one NPU."""

    on: bool
    expiration: int | None


@check(
    "tls", "The TLS switch is equal on all NPUs", needs=(Query.TLS, CONF), scope="cluster", platforms=("a2", "a3")
)
def tls(survey: Survey) -> Iterable[Result]:
    """One value of the switch on every NPU of every node, and no expired certificate where it is on."""
    switches = {(view.name, device): _switch(view, device) for view in survey.views for device in view.devices}
    counts = Counter(switch.on for switch in switches.values() if switch is not None)
    readings = [view.read(Query.TLS, device) for view in survey.views for device in view.devices]
    if not counts and len(readings) > 1 and all(one.failure is Failure.NOT_CONFIGURED for one in readings):
        # Alike everywhere, as servers come: nothing that could be mixed is seen, and nobody's is known to be odd.
        words = f"none of {len(readings)} NPUs has certificates, so no switch is shown that could differ"
        yield survey.warned(words, *readings, remedy=_UNSET)
        return
    usual = counts.most_common(1)[0][0] if counts else False
    for view in survey.views:
        found = []
        for device in view.devices:
            reading, switch = view.read(Query.TLS, device), switches[(view.name, device)]
            told = _unreadable(reading) if switch is None else _judge(switch, counts, usual)
            found.append((device, told, reading))
        yield from view.rolled(found)


def _switch(view: NodeView, device: int) -> _Switch | None:
    """Return the switch of an NPU, also when only hccn.conf says it because there are no certificates."""
    reading = view.read(Query.TLS, device)
    if isinstance(reading.value, Tls):
        return _Switch(reading.value.enabled, reading.value.expiration)
    conf = view.read(CONF).value
    if reading.failure is Failure.NOT_CONFIGURED and isinstance(conf, HccnConf):
        said = conf.value(device, "tls_enable")
        return _Switch(said == "1", None) if said in ("0", "1") else None
    return None


def _unreadable(reading: Reading[Any]) -> Finding:
    if reading.failure is Failure.NOT_CONFIGURED:
        return Finding(Outcome.UNKNOWN, "no certificates are set, and the switch is not shown", _UNSET)
    return unknown(reading, "the TLS switch")


def _judge(switch: _Switch, counts: Counter[bool], usual: bool) -> Finding:
    if len(counts) > 1 and (switch.on != usual or counts[True] == counts[False]):
        other = f"{counts[not switch.on]} of {counts.total()} NPUs have it {_word(not switch.on)}"
        return Finding(Outcome.FAIL, f"TLS is {_word(switch.on)}; {other}", _EQUAL)
    if switch.on and switch.expiration == 2:
        return Finding(Outcome.FAIL, "TLS is on, and a certificate has expired", _RENEW)
    if switch.on and switch.expiration == 1:
        return Finding(Outcome.WARN, "TLS is on, and a certificate expires soon", _RENEW)
    spare = (
        " (a certificate has expired, which does not matter while TLS is off)" if switch.expiration == 2 else ""
    )
    return Finding(Outcome.PASS, f"TLS is {_word(switch.on)}{spare}")


def _word(on: bool) -> str:
    return "on" if on else "off"
