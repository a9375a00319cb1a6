"""Ports (P, R)."""

from __future__ import annotations

from collections.abc import Mapping

from pdtui.topology.findings import Severity
from pdtui.topology.rules.explained.explanation import Explanation, table

RULES: Mapping[str, Explanation] = table(
    (
        Explanation(
            "R11",
            "Every port exists, and no two of one host are the same",
            "The second that binds it ends with «Address already in use», often minutes after the first "
            "has started.",
            "Move one of the two; `pdtui plan FILE --ports` shows what is taken and what is near.",
            "pdtui: the port map, by the formulas of vLLM-Ascend's connectors",
        ),
        Explanation(
            "R13",
            "KV ports of groups that share a host do not overlap",
            "The handshake of the second group cannot bind, or a decode rank talks to the wrong one. The "
            "range is as long as all ranks of the group together, since the rank's number in the whole "
            "group counts.",
            "Put the two kv_port at least dp_size x tp_size apart.",
            "vLLM-Ascend: mooncake_connector.py, mooncake_layerwise_connector.py, handshake ports",
        ),
        Explanation(
            "R14",
            "KV ports keep out of the range from which the transfer engine picks",
            "Mooncake picks a free port there for each NPU, at random, when a rank starts: now and then "
            "it is one of these, and a rank ends with «Address already in use».",
            "Take a kv_port above the range, or move the range with ASCEND_BASE_PORT (Mooncake 0.3.8 and newer).",
            "Mooncake: AscendDirectTransport; vLLM-Ascend's PD guide, table of ports",
        ),
        Explanation(
            "R15",
            "KV ports keep out of the range that the guide reserves for the transfer engine",
            "It has 1000 ports for each NPU up to Mooncake 0.3.7 (vllm-ascend before 0.18): now and then it picks "
            "one of these, and a rank ends with «Address already in use». In newer ones it has 100, and ends "
            "below these ports.",
            "A kv_port of 28000 and up with 8 NPUs, 36000 with 16; nothing where all nodes run a newer version.",
            "vLLM-Ascend's PD guide, table of ports",
            (Severity.WARNING, Severity.INFO),
            (((0, 18, 0), Severity.INFO),),
        ),
        Explanation(
            "R16",
            "Fixed ports are not among those that the kernel hands out to clients",
            "A connection that happens to have the port when a rank starts makes it end with «Address "
            "already in use»; the next try works.",
            "Reserve them on each node, as the message says, and in /etc/sysctl.d, or take ports below 32768.",
            "Linux: net.ipv4.ip_local_port_range; vLLM-Ascend's PD guide",
            (Severity.WARNING,),
        ),
        Explanation(
            "R17",
            "HCCL's ports exist and are free: HCCL_IF_BASE_PORT and one for each NPU",
            "HCCL cannot open its sockets: error EJ0003, or a rank that waits for its neighbours.",
            "Choose another port, or move HCCL's with HCCL_IF_BASE_PORT (60000 where it is not set).",
            "CANN: HCCL_IF_BASE_PORT",
            (
                Severity.ERROR,
                Severity.WARNING,
            ),
        ),
        Explanation(
            "R18",
            "Groups that share a host have HCCL ports of their own",
            "Both take 60000 and up on the same interface; the second fails in HCCL's initialisation, "
            "without a word of ports.",
            "`env: {HCCL_IF_BASE_PORT: 61000}` in one of them.",
            "CANN: HCCL_IF_BASE_PORT",
            (Severity.WARNING,),
        ),
        Explanation(
            "P5",
            "KV ports keep out of the range from which the transfer engine picks its handshake port",
            "Now and then the two meet, and a rank ends with «Address already in use».",
            "Choose another kv_port, or move the range with MC_MIN_RPC_PORT and MC_MAX_RPC_PORT.",
            "Mooncake: P2PHANDSHAKE, MC_MIN_RPC_PORT",
            (Severity.WARNING,),
        ),
        Explanation(
            "P8",
            "API, RPC and proxy ports keep out of the transfer engine's ranges",
            "Now and then the transfer engine has taken the port when the server starts.",
            "Choose another port; `pdtui plan FILE --ports` shows the ranges.",
            "Mooncake: AscendDirectTransport, P2PHANDSHAKE",
            (Severity.WARNING,),
        ),
        Explanation(
            "R20",
            "Ranks of one node do not look for free ports in the same place at the same instant",
            "vLLM looks for a free port, lets it go and binds it again a moment later: of ranks that "
            "start together one now and then ends with «Address already in use».",
            "Delete VLLM_PORT, and leave `start: {stagger: ...}` as it is.",
            "vllm/utils: get_open_port; reports of mass starts",
            (Severity.WARNING,),
        ),
    )
)
