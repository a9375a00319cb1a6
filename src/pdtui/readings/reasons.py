"""Every reason that an NPU can have for not being healthy: its verdict, what it means, and what to do.

A kind has one verdict, so that who knows of a lesser one does not miss the worse. Ids are an interface:
acknowledgements, hooks and scripts name them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pdtui.readings.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of reason. In its texts `{device}` is the id for hccn_tool, `{npu}` and `{chip}` are npu-smi's."""

    verdict: Verdict
    meaning: str
    remedy: str


_FAILED, _DEGRADED, _UNKNOWN = Verdict.FAILED, Verdict.DEGRADED, Verdict.UNKNOWN

KINDS: Mapping[str, Kind] = {
    "npu-missing": Kind(
        _FAILED,
        "The driver does not list this NPU any more: the chip dropped off the bus, or a VM or another "
        "driver holds it. A rank on it cannot start, one that ran on it has died or hangs.",
        "lspci -n | grep 19e5 shows whether the bus still has it, dmesg -T says when it went; then "
        "power-cycle the server by its BMC (a reboot may not bring it back), and have the card changed when "
        "it stays away.",
    ),
    "npu-unseen": Kind(
        _UNKNOWN,
        "The table of npu-smi was cut off before this NPU came, so nothing is known of its health.",
        "Run npu-smi info by hand on the node: it may be slow, or its output too long for a bad link.",
    ),
    "npu-health": Kind(
        _FAILED,
        "The chip reports a major or critical fault of its own. Ranks on it fail or compute wrongly; a new "
        "one should not be started here.",
        "npu-smi info -t health -i {npu} -c {chip} names the error code; stop the rank, then power-cycle "
        "the server; a fault that comes back is a card to change.",
    ),
    "npu-health-warning": Kind(
        _DEGRADED,
        "The chip reports a minor fault. Ranks on it go on, often slower; it can be the first sign of a "
        "worse one.",
        "npu-smi info -t health -i {npu} -c {chip} names the error code; look at its temperature and power, "
        "and plan to empty this NPU.",
    ),
    "npu-health-unknown": Kind(
        _UNKNOWN,
        "npu-smi does not say whether the chip is well: it is absent, not started, or answers a word that "
        "is not known.",
        "npu-smi info -t health -i {npu} -c {chip} may say more; do not start a rank here before it is OK.",
    ),
    "hot": Kind(
        _DEGRADED,
        "The chip throttles at this temperature, so its rank slows down and with it every rank of its group.",
        "Check fans and inlet temperature (the BMC shows both); npu-smi info -t temp -i {npu} -c {chip} "
        "tells chip and memory apart; one hot NPU among cool ones is its heat sink or airflow.",
    ),
    "vnic-down": Kind(
        _FAILED,
        "The HCCS port of this NPU is down: it reaches no other NPU of the super pod. Its rank fails in "
        "collectives and KV transfers, and takes its group with it.",
        "Compare with the other chip of the same card: both down points to the card or its HCCS cabling, "
        "one to the chip. npu-smi info -t hccs -i {npu} -c {chip} shows the lanes. Stop the rank here; then "
        "the super pod's switch, then the card.",
    ),
    "vnic-no-address": Kind(
        _DEGRADED,
        "The HCCS port is up but has no address, so peers cannot name this NPU: KV transfers to it fail.",
        "npu-smi info -t spod-info -i {npu} -c {chip} shows whether the super pod is configured; compare "
        "with the other NPUs of this node, and restart the server's network set-up of the super pod.",
    ),
    "link-down": Kind(
        _FAILED,
        "The RoCE port of this NPU has no carrier. Ranks on it lose their peers: one that starts times out "
        "while HCCL connects, KV transfers by RoCE fail.",
        "hccn_tool -i {device} -optical -g tells a missing or dead module from a dark fibre, hccn_tool -i "
        "{device} -link_stat -g when it went down, -lldp -g of a sister node which switch port it should "
        "be. Look at that port, reseat or swap cable and module; move the rank when it does not come back.",
    ),
    "link-dark": Kind(
        _DEGRADED,
        "RoCE addresses are set on this node but no RoCE port has a link. HCCS inside the super pod works "
        "on; what crosses super pods by RoCE does not.",
        "Not cabled, or the switch is off: when RoCE is meant to be used look there; otherwise nothing is lost.",
    ),
    "link-unknown": Kind(
        _UNKNOWN,
        "The RoCE port is down, but on this generation it may just not be in use, which is not known yet.",
        "hccn_tool -i {device} -ip -g: an address means that RoCE is configured and the link should be UP.",
    ),
    "net-health": Kind(
        _FAILED,
        "The NPU's own probe does not reach its detect address, normally the gateway, though the link is "
        "up. Peers behind that gateway are most likely unreachable for its rank.",
        "hccn_tool -i {device} -netdetect -g shows what it probes, -gateway -g and -ip -g whether that "
        "fits; compare with an NPU that succeeds. One NPU: its switch port, VLAN or address; all of a node: "
        "the gateway.",
    ),
    "net-health-init": Kind(
        _DEGRADED,
        "The NPU's own probe has no result: it was just set up, or has no detect address. Whether the "
        "network works is not tested.",
        "hccn_tool -i {device} -netdetect -g shows whether an address is set; when it is, ask again in a minute.",
    ),
    "net-health-vnic": Kind(
        _DEGRADED,
        "The detect address lies in the range of the vNICs (192.168.0 to 192.168.7), where nobody answers, "
        "so the probe says nothing about the network.",
        "Set a detect address outside that range, normally the RoCE gateway (netdetect_{device} in "
        "/etc/hccn.conf).",
    ),
    "net-health-unknown": Kind(
        _UNKNOWN,
        "The NPU's own probe does not run, or answers a word that is not known.",
        "Ask again; hccn_tool -i {device} -process -g shows whether the device's network process lives. "
        "Preflight with pings tests the network itself.",
    ),
    "netdetect-unset": Kind(
        _DEGRADED,
        "No detect address is set, so the NPU does not test its network and net health stays Init: a broken "
        "path shows only when a rank fails.",
        "Set netdetect_{device} in /etc/hccn.conf to the gateway, as on the other NPUs, and apply it in a "
        "quiet hour.",
    ),
    "flapping": Kind(
        _DEGRADED,
        "The RoCE link of this NPU went down and came back. Each time, transfers under way stall or fail; a "
        "rank may die of it hours later, and its peers see only a time-out.",
        "hccn_tool -i {device} -link_stat -g lists when, -optical -g whether light is weak, -stat -g "
        "whether errors grow. One NPU: reseat or swap cable and module. Many at the same second: the "
        "switch.",
    ),
    "errors-growing": Kind(
        _DEGRADED,
        "Packets of this NPU are damaged or sent again, now. KV transfers get slow before they fail; "
        "growing fcs or bad packets point to the cable, growing retries to loss on the way.",
        "hccn_tool -i {device} -optical -g shows the light; compare -stat -g with a sister NPU. Only this "
        "one: swap cable, then module, then switch port. Many: the switch's congestion settings (PFC, ECN).",
    ),
    "ecc": Kind(
        _FAILED,
        "The memory of this chip had errors that could not be corrected since the device started. A rank "
        "that touches such a page dies, or has died of it.",
        "npu-smi info -t ecc -i {npu} -c {chip} counts them. Stop the rank here and restart the server, "
        "which isolates the pages; errors that come back are a card to change.",
    ),
    "ecc-growing": Kind(
        _DEGRADED,
        "Corrected memory errors or isolated pages of this chip grow. Nothing is lost yet; errors that "
        "cannot be corrected often follow.",
        "npu-smi info -t ecc -i {npu} -c {chip} shows how fast. Plan to empty this NPU and have the card "
        "looked at; check its temperature too.",
    ),
    "hccs": Kind(
        _FAILED,
        "A link between this chip and its neighbours inside the server or super pod lost lanes. Collectives "
        "over it fail or crawl, and the whole group waits for this rank.",
        "npu-smi info -t hccs -i {npu} -c {chip} names link and lanes; compare with the chip at the other "
        "end. Stop the rank here, power-cycle the server, and have card or backplane changed when it stays.",
    ),
    "hccs-errors": Kind(
        _DEGRADED,
        "Retries or errors on a link between this chip and its neighbours grow: collectives get slower, and "
        "lanes may be lost next.",
        "npu-smi info -t hccs -i {npu} -c {chip} twice, a minute apart, shows which link. Two chips with "
        "growing counts share the bad link; have it looked at when it goes on.",
    ),
    "optical": Kind(
        _DEGRADED,
        "The optical module of this NPU is outside its own thresholds or has lost light on a lane. The link "
        "can hold for a while, with errors, and then drop.",
        "Weak Rx power: clean or change the fibre, then the module at the other end. Weak Tx power, heat or "
        "supply: change this module. hccn_tool -i {device} -stat -g tells whether packets suffer yet.",
    ),
    "optical-absent": Kind(
        _FAILED,
        "The port of this NPU has no optical module, and its link is not up.",
        "Plug a module in, or reseat it: hccn_tool -i {device} -optical -g says present when the NPU sees it.",
    ),
    "optical-unreachable": Kind(
        _DEGRADED,
        "The management path to the optical module is dead: its light and heat are not known, though "
        "traffic may pass.",
        "Reseat the module in a quiet hour; when hccn_tool -i {device} -optical -g still says so with "
        "another module, it is the port.",
    ),
    "address-missing": Kind(
        _DEGRADED,
        "This NPU has no RoCE address though others of its node have one. Peers cannot reach it: KV "
        "transfers by RoCE and HCCL across nodes fail for its rank.",
        "Look for address_{device} in /etc/hccn.conf and set it as on the other NPUs; hccn_tool -i {device} "
        "-ip -g shows what runs.",
    ),
    "address-unlike-conf": Kind(
        _DEGRADED,
        "The running RoCE address is not the one in /etc/hccn.conf. What reads the file (Mooncake does) "
        "gives peers an address where nobody is: transfers to this NPU time out, and a reboot changes the "
        "address.",
        "Find out which one is right (the plan of addresses, the gateway's subnet, no second NPU with it), "
        "then make file and device equal before a rank starts here.",
    ),
    "hccn-conf": Kind(
        _DEGRADED,
        "/etc/hccn.conf has lines that do not fit. After the next reboot NPUs come up without their "
        "addresses, and Mooncake takes wrong ones from it today.",
        "Correct the file on the host; it must be the same file inside the container.",
    ),
    "tls-mixed": Kind(
        _DEGRADED,
        "The TLS switch of this NPU is not as on the others of its node. Two NPUs with different switches "
        "never get a connection: HCCL times out when the group starts.",
        "hccn_tool -i {device} -tls -g | head -1 shows the switch; set all NPUs of all nodes of the job "
        "alike, normally off, before the next start.",
    ),
    "tls-expired": Kind(
        _FAILED,
        "TLS is on and a certificate of this NPU has expired: it gets no new connection, so a rank that "
        "starts here times out.",
        "hccn_tool -i {device} -tls -g names the certificate; renew it, or switch TLS off on all NPUs of the job.",
    ),
    "tls-expiring": Kind(
        _DEGRADED,
        "TLS is on and a certificate of this NPU expires soon; from then on ranks that start here time out.",
        "hccn_tool -i {device} -tls -g names the certificate and its end; renew it on all NPUs.",
    ),
    "lldp-shared-port": Kind(
        _DEGRADED,
        "Two NPUs of this node hear the same switch port, which cannot be: a cable is crossed, or a "
        "breakout is split wrongly. Traffic of one goes the other's way.",
        "hccn_tool -i {device} -lldp -g of both NPUs, once more in a minute; when it stays, follow both "
        "cables and compare with a sister node's order.",
    ),
    "spod": Kind(
        _FAILED,
        "What this NPU says of its place in the super pod contradicts the other NPUs or itself; typical "
        "after a board was changed. Peers address the wrong chip over HCCS, and groups across servers do "
        "not form.",
        "npu-smi info -t spod-info -i {npu} -c {chip} for all NPUs of the node: pod id, size and server "
        "index must be equal, SDIDs all different. Have the super pod configured again for this server.",
    ),
    "incompatible": Kind(
        _DEGRADED,
        "The driver and the firmware on this card do not fit each other; calls fail in odd ways.",
        "Bring firmware and driver to one release (npu-smi info -t board -i {npu} shows both), then reboot.",
    ),
    "hccp-missing": Kind(
        _FAILED,
        "The process that runs the network of this device is gone: no RoCE connection can be made.",
        "Stop the rank here; a restart of the server brings it back. dmesg -T and the driver's log say why "
        "it ended.",
    ),
    "ping-lost": Kind(
        _FAILED,
        "No packet from this NPU came back: the path to that address is broken, one way at least.",
        "Ping the gateway from the same NPU, and the same address from a sister NPU: that tells the own "
        "port, the peer and the switch between them apart.",
    ),
    "ping-loss": Kind(
        _DEGRADED,
        "Some packets from this NPU were lost or damaged. Transfers over that path are slow and may time out.",
        "Ping again with more packets; then hccn_tool -i {device} -stat -g and -optical -g on both ends.",
    ),
    "tool-hangs": Kind(
        _UNKNOWN,
        "The vendor tool does not come back on this NPU, so nothing is known of it. Often the driver or the "
        "chip is wedged, and ranks on it hang too. It is asked again ever more rarely, to pile up no dead "
        "processes.",
        "Look for processes in state D (ps -eo pid,stat,wchan,args) and at dmesg -T; stop the ranks of this "
        "NPU; only a reset or reboot of the server frees a wedged driver.",
    ),
    "no-answer": Kind(
        _UNKNOWN,
        "There is no usable answer to this question, so the NPU is neither known to be good nor bad.",
        "",
    ),
    "stale": Kind(
        _UNKNOWN,
        "The last answer is too old to be believed: the node, or the tool, has not answered since.",
        "See whether the node is connected; c asks it again now.",
    ),
    "not-asked": Kind(
        _UNKNOWN,
        "This has not been asked since the console began.",
        "",
    ),
}
"""By id. `no-answer`, `stale` and `not-asked` are families: the id of the reason ends in what was asked."""


def kind_of(reason_id: str) -> Kind:
    """Return the kind of a reason by its id, or its family's (`no-answer-link`). Raises KeyError."""
    if reason_id in KINDS:
        return KINDS[reason_id]
    family = next((name for name in ("no-answer", "stale", "not-asked") if reason_id.startswith(f"{name}-")), "")
    return KINDS[family or reason_id]
