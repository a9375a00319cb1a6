"""What only scripts can show: found by `pdtui import` (R, X)."""

from __future__ import annotations

from collections.abc import Mapping

from pdtui.topology.findings import Severity
from pdtui.topology.rules.explained.explanation import Explanation, table

_LAUNCHER = "vllm-ascend: examples/external_online_dp/launch_online_dp.py and run_dp_template.sh"
_PROXY = "vllm-ascend: examples/disaggregated_prefill_v1/load_balance_proxy_*.py"

RULES: Mapping[str, Explanation] = table(
    (
        Explanation(
            "R08",
            "launch_online_dp.py starts one group on a node",
            "It hands out NPUs from 0 up and has no offset: two groups on a node take the same NPUs.",
            "Let a topology say `devices` for each group; pdtui starts them without the launcher.",
            _LAUNCHER,
        ),
        Explanation(
            "R09",
            "launch_online_dp.py is called with --dp-rpc-port",
            "Its own default is a number, which ends it with a TypeError: «expected str, bytes or os.PathLike».",
            "Add --dp-rpc-port and a free port, the same on all nodes of the group.",
            _LAUNCHER,
        ),
        Explanation(
            "R10",
            "Ranks that meet are started with all four --data-parallel flags: size, rank, address, rpc port",
            "With a part of them vLLM balances the load itself or fails; VLLM_DP_* is the way of v0.9.1.",
            "Write all four, or let a topology derive them.",
            "vLLM: vllm/config/parallel.py; vllm-ascend v0.9.1: large scale EP guide",
        ),
        Explanation(
            "R59",
            "A template takes its words in the order in which the launcher passes them",
            "With the template of one era and the launcher of another every rank gets a wrong port, or the "
            "first NPUs.",
            "Today: $1 NPUs, $2 port, $3 size, $4 rank, $5 address, $6 rpc port, $7 tp; v0.9.1 had another order.",
            _LAUNCHER,
        ),
        Explanation(
            "R60",
            "A continued line ends in one backslash, with a blank before it or before the next word",
            "bash glues words together, passes a blank as a word of its own, or ends the command in the middle.",
            "Put one blank before the backslash and nothing behind it.",
            "bash: manual, 3.1.2.1 Escape Character",
        ),
        Explanation(
            "R71",
            "The proxy's lists are exactly the ranks: each once, in the list of its role",
            "A rank that is left out gets no request, an entry that is no rank fails a part of all requests.",
            "A topology has no such list: the proxy of pdtui and the rendered command follow from the groups.",
            _PROXY,
        ),
        Explanation(
            "R74",
            "The proxy knows every option that it is given",
            "It ends with «unrecognized arguments»; guides still print options of v0.9.1.",
            "Leave the option out, or write the lists in full.",
            _PROXY,
        ),
        Explanation(
            "R80",
            "No host:port is in both lists of the proxy",
            "One of the two entries sends requests to a server of the other role.",
            "Correct the list that is wrong; give the two servers ports of their own if they share one.",
            _PROXY,
        ),
        Explanation(
            "R81",
            "A template does not erase ~/ascend/log",
            "It runs once for each rank, so later ranks erase the logs of those before, when they are needed.",
            "Delete the line; pdtui gives every start a log folder of its own.",
            "start scripts in reports to vllm-ascend and Mooncake",
            (Severity.WARNING,),
        ),
        Explanation(
            "X12",
            "Test requests and benchmarks go to the proxy's port and name the model as it is served",
            "The connection is refused, or the answer is 404: the model does not exist.",
            "Take port and name from the topology; `pdtui ask` and the rendered benchmark do.",
            "vllm-ascend's guides: their curl and AISBench examples name other ports and models",
            (Severity.INFO,),
        ),
        Explanation(
            "X3",
            "Lists that the proxy of v0.9.1 expands come out equally long",
            "It pairs hosts and ports and drops what is left over, without a word.",
            "Make --*-hosts-num and --*-ports-inc as long as the lists that they belong to, with equal sums.",
            "vllm-ascend v0.9.1: examples/disaggregate_prefill_v1",
        ),
    )
)
