"""Faults of NPUs: their links, planes, counters, health, and how they are configured."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from pdtui.errors import UsageError
from pdtui.sim.fault_words import Fault, npu, one, rate, switch, targets
from pdtui.sim.files import put, take_away

if TYPE_CHECKING:
    from pdtui.sim.simulation import SimNode, Simulation

HEALTH_WORDS = ("OK", "Warning", "Alarm", "Critical", "UNKNOWN")
OPTICAL_WORDS = ("absent", "control", "los", "dim", "hot", "copper", "off")
ECC_WORDS = (
    *("single", "double", "single-total", "double-total", "single-pages", "double-pages"),
    *("single-next", "double-next"),
)


async def _link(simulation: Simulation, words: Sequence[str]) -> str:
    node, phy = npu(simulation, words[0])
    up = one(words[1:], "up", "down") == "up"
    node.npus.set_link(phy, up=up)
    return f"link of {words[0]} is {'UP' if up else 'DOWN'}"


async def _net_health(simulation: Simulation, words: Sequence[str]) -> str:
    node, phy = npu(simulation, words[0])
    word = " ".join(words[1:]) or "Fault"
    node.npus.set(phy, "net_health", word)
    return f"net_health of {words[0]} is {word}"


async def _vnic(simulation: Simulation, words: Sequence[str]) -> str:
    node, phy = npu(simulation, words[0])
    word = one(words[1:], "UP", "DOWN")
    node.npus.set(phy, "vnic", word)
    return f"vnic of {words[0]} is {word}"


async def _health(simulation: Simulation, words: Sequence[str]) -> str:
    node, phy = npu(simulation, words[0])
    word = one(words[1:], *HEALTH_WORDS)
    node.npus.set_smi(phy, health=word)
    return f"health of {words[0]} is {word}"


async def _temperature(simulation: Simulation, words: Sequence[str]) -> str:
    node, phy = npu(simulation, words[0])
    node.npus.set_smi(phy, temperature=int(words[1]))
    return f"{words[0]} has {int(words[1])} degrees"


async def _hbm(simulation: Simulation, words: Sequence[str]) -> str:
    node, phy = npu(simulation, words[0])
    node.npus.set_smi(phy, hbm_idle_mb=int(words[1]))
    return f"{words[0]} has {int(words[1])} MB of HBM in use without a process"


async def _gone(simulation: Simulation, words: Sequence[str]) -> str:
    node, phy = npu(simulation, words[0])
    if switch(words, 1):
        (node.npus.folder / str(phy) / "gone").touch()
        return f"{words[0]} has dropped off the bus"
    node.npus.forget(phy, "gone")
    return f"{words[0]} is back"


def _answer(name: str) -> Callable[[Simulation, Sequence[str]], Awaitable[str]]:
    """Return a fault that gives NPUs another address of a kind, or none."""

    async def answer(simulation: Simulation, words: Sequence[str]) -> str:
        word, value = words
        for target in targets(simulation, word):
            for phy in target.npus:
                target.node.npus.set(phy, name, "" if value == "off" else value)
        return f"{name} of {word}: {value}"

    return answer


TLS_WORDS = ("on", "off", "certs", "near", "expired", "no-certs")
_CERTS = {"certs": "0", "near": "1", "expired": "2", "no-certs": "none"}


async def _tls(simulation: Simulation, words: Sequence[str]) -> str:
    how = one(words[1:], *TLS_WORDS)
    for target in targets(simulation, words[0]):
        for phy in target.npus:
            if how in _CERTS:
                target.node.npus.set(phy, "certs", _CERTS[how])
            else:
                target.node.npus.set(phy, "tls", str(int(how == "on")))
    return f"TLS of {words[0]}: {how}"


async def _lldp(simulation: Simulation, words: Sequence[str]) -> str:
    word, how = words
    for target in targets(simulation, word):
        npus = target.node.npus
        if how == "reversed":
            for phy, other in zip(target.npus, reversed(target.npus), strict=True):
                npus.set(phy, "lldp", npus.port(other))
            continue
        for phy in target.npus:
            _, *switch_words = npus.port(phy).split()
            npus.set(phy, "lldp", {"off": "", "on": npus.port(phy)}.get(how, " ".join([how, *switch_words])))
    return f"switch port of {word}: {how}"


async def _flap(simulation: Simulation, words: Sequence[str]) -> str:
    word, *count = words
    times = int(count[0]) if count else 3
    for target in targets(simulation, word):
        for phy in target.npus:
            target.node.npus.record_flaps(phy, times)
    return f"the link of {word} went down and came up {times} times in the last minutes"


async def _counter(simulation: Simulation, words: Sequence[str]) -> str:
    word, name, *much = words
    value, speed = rate(much)
    for target in targets(simulation, word):
        for phy in target.npus:
            target.node.npus.grow(phy, "counters", name, value, speed)
    return f"{name} of {word}: {much[0]}"


async def _ecc(simulation: Simulation, words: Sequence[str]) -> str:
    word, name, *much = words
    name = one([name], *ECC_WORDS)
    value, speed = rate(much)
    for target in targets(simulation, word):
        for phy in target.npus:
            target.node.npus.grow(phy, "ecc", name, value, speed)
    return f"ECC {name} of {word}: {much[0]}"


async def _hccs(simulation: Simulation, words: Sequence[str]) -> str:
    word, name, *much = words
    name = one([name], "OK", "NOK", "lane", "retry", "error")
    value, speed = rate(much) if name in {"retry", "error"} else (0, 0)
    for target in targets(simulation, word):
        npus = target.node.npus
        for phy in target.npus:
            if name == "OK":
                npus.forget(phy, "hccs", "hccs_count")
            elif name in {"NOK", "lane"}:
                npus.set(phy, "hccs", "NOK 1111" if name == "NOK" else "OK 1101")
            else:
                npus.grow(phy, "hccs_count", name, value, speed)
    return f"HCCS of {word}: {' '.join([name, *much])}"


async def _spod(simulation: Simulation, words: Sequence[str]) -> str:
    word, name, *value = words
    name = one([name], "pod", "index", "sdid", "off")
    for target in targets(simulation, word):
        for phy in target.npus:
            if name == "off":
                target.node.npus.forget(phy, "pod", "index", "sdid")
            else:
                target.node.npus.set(phy, name, str(int(value[0])))
    return f"super pod of {word}: {' '.join([name, *value])}"


async def _optical(simulation: Simulation, words: Sequence[str]) -> str:
    how = one(words[1:], *OPTICAL_WORDS)
    for target in targets(simulation, words[0]):
        for phy in target.npus:
            target.node.npus.set(phy, "optical", "" if how == "off" else how)
    return f"optical module of {words[0]}: {how}"


async def _ping_loss(simulation: Simulation, words: Sequence[str]) -> str:
    on = switch(words, 1)
    for target in targets(simulation, words[0]):
        for phy in target.npus:
            target.node.npus.set(phy, "lossy", "3" if on else "")
    return f"pings of {words[0]} lose {'one packet of three' if on else 'nothing'}"


async def _no_roce(simulation: Simulation, words: Sequence[str]) -> str:
    on = switch(words, 1)
    for target in targets(simulation, words[0]):
        for phy in target.npus:
            npus = target.node.npus
            if not on:
                npus.heal(phy)
                continue
            for name in ("ip", "netmask", "gateway", "netdetect", "lldp"):
                npus.set(phy, name, "")
            npus.set(phy, "link", "DOWN")
            npus.set(phy, "net_health", "Init")
        restore_conf(target.node)
        if on and target.npu is None:
            put(target.node.folder / "etc" / "hccn.conf", b"")
    return f"the RoCE plane of {words[0]} is {'not configured' if on else 'there'}"


async def _conf(simulation: Simulation, words: Sequence[str]) -> str:
    word, key, *value = words
    if not value and key not in CONF_STATES:
        raise UsageError(f"{key}: missing, empty, garble, on, or a key and its value")
    for target in targets(simulation, word):
        path = target.node.folder / "etc" / "hccn.conf"
        if value:
            for phy in target.npus:
                target.node.npus.edit_conf(path, f"{key}_{phy}", "" if value[0] == "off" else value[0])
            continue
        restore_conf(target.node)
        if key == "missing":
            take_away(path)
        elif key != "on":
            put(path, CONF_STATES[key])
    return f"hccn.conf of {word}: {' '.join([key, *value])}"


def restore_conf(node: SimNode) -> None:
    """Have /etc/hccn.conf be there as on a healthy server."""
    path = node.folder / "etc" / "hccn.conf"
    put(path, b"")
    node.npus.write_conf(path)


CONF_STATES = {
    "on": b"",
    "missing": b"",
    "empty": b"",
    "garble": b"\xff\xfe\x1b[2Jaddr\0ess_0 10.0.0.1\n[section]\n= =\naddress_=\naddress_0=300.1.2\n",
}

NPU_FAULTS: dict[str, Fault] = {
    "link": Fault("NODE/NPU up|down", "RoCE link of one NPU, with net_health following", _link),
    "net_health": Fault(
        "NODE/NPU WORD", "what hccn_tool -net_health says: Success, Fault, Init, ...", _net_health
    ),
    "vnic": Fault("NODE/NPU UP|DOWN", "HCCS plane of one NPU (A3)", _vnic),
    "ip": Fault("NODE[/NPU] ADDRESS|off", "the address that the NPU runs with, unlike hccn.conf", _answer("ip")),
    "gateway": Fault("NODE[/NPU] ADDRESS|off", "the NPU's gateway", _answer("gateway")),
    "netdetect": Fault("NODE[/NPU] ADDRESS|off", "the address that net_health probes", _answer("netdetect")),
    "tls": Fault(
        f"NODE[/NPU]|all {'|'.join(TLS_WORDS)}",
        "TLS switch of the NPUs and their certificates: valid, near their end, expired, none set",
        _tls,
    ),
    "lldp": Fault(
        "NODE[/NPU] PORT|reversed|off|on", "the switch port that lldp names: another, none, all backwards", _lldp
    ),
    "flap": Fault("NODE/NPU [TIMES]", "the link went down and came up again in the last minutes", _flap),
    "counter": Fault("NODE/NPU NAME N|N/s|off", "a counter of hccn_tool -stat stands higher, or grows", _counter),
    "optical": Fault(f"NODE/NPU {'|'.join(OPTICAL_WORDS)}", "the optical module or its light", _optical),
    "ping-loss": Fault("NODE[/NPU] [on|off]", "RoCE pings from there lose one packet of three", _ping_loss),
    "no-roce": Fault(
        "NODE|all [on|off]", "the RoCE plane is neither cabled nor configured (as on many A3)", _no_roce
    ),
    "conf": Fault(
        "NODE[/NPU]|all KEY VALUE|off", "a key of hccn.conf; or for the file: missing, empty, garble, on", _conf
    ),
    "npu": Fault("NODE/NPU OK|Warning|Alarm|Critical|UNKNOWN", "health in npu-smi", _health),
    "temperature": Fault("NODE/NPU DEGREES", "temperature in npu-smi", _temperature),
    "hbm": Fault("NODE/NPU MB", "HBM in use that no process owns", _hbm),
    "gone": Fault("NODE/NPU [on|off]", "the NPU drops off the bus", _gone),
    "ecc": Fault(f"NODE/NPU {'|'.join(ECC_WORDS)} N|N/s|off", "errors of the HBM", _ecc),
    "hccs": Fault("NODE/NPU OK|NOK|lane|retry N/s|error N/s", "the HCCS links in npu-smi", _hccs),
    "spod": Fault(
        "NODE[/NPU] pod N|index N|sdid N|off", "what the NPUs say of their place in the super pod (A3)", _spod
    ),
}
