"""Variables and containers (V, R)."""

from __future__ import annotations

from collections.abc import Mapping

from pdtui.topology.findings import Severity
from pdtui.topology.rules.explained.explanation import Explanation, table

RULES: Mapping[str, Explanation] = table(
    (
        Explanation(
            "R47",
            "Prefill keeps unfetched KV blocks for one to fifteen minutes",
            "Too short: a busy decode rank finds the blocks gone and answers nonsense or fails. Too long: "
            "what failed decode ranks left fills prefill up. Since 0.18 the variable has another name.",
            "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT of 60 to 900 s; the default is 480.",
            "vllm-ascend #12383, #13240; mooncake_connector.py",
            (Severity.WARNING,),
        ),
        Explanation(
            "R48",
            "HCCL waits longer than the ranks of a group start apart",
            "Ranks that reach the first collective more than HCCL_CONNECT_TIMEOUT apart fail with EI0006, "
            "though every link is fine. HCCL takes 120 to 7200.",
            "Raise HCCL_CONNECT_TIMEOUT, or lower start.stagger.",
            "CANN: HCCL_CONNECT_TIMEOUT; collected field cases 49",
            (Severity.WARNING,),
        ),
        Explanation(
            "R49",
            "vLLM waits for its engine as long as weights load",
            "`Timed out waiting for engines to send initial message`: ranks end while they load.",
            "1800 or more, or delete it (600).",
            "vllm/envs.py; vllm-ascend #6175, #7098",
            (Severity.WARNING,),
        ),
        Explanation(
            "R50",
            "HCCL's buffers hold what experts exchange",
            "Too small a buffer looks like a memory fault: `DDR address of the MTE instruction is out of "
            "range`, 507034, then time-outs on all others.",
            "HCCL_BUFFSIZE 512 to 1100 on decode, 256 on prefill.",
            "vllm-ascend #2674, #9887, #15640; guides",
            (
                Severity.ERROR,
                Severity.WARNING,
                Severity.INFO,
            ),
        ),
        Explanation(
            "R53",
            "HCCL and Gloo use the address and interface of their own node",
            "A template that was copied between servers leaves another server's address in it: HCCL does not "
            "come up.",
            "Delete the variables; they are derived from the node.",
            "run_dp_template.sh of vLLM-Ascend",
            (
                Severity.ERROR,
                Severity.WARNING,
            ),
        ),
        Explanation(
            "R54",
            "HCCL_IF_IP is an address, not what a command prints",
            "`hostname -I` lists addresses in no certain order, and pdtui passes text on, it runs nothing.",
            "Delete it; the node's `address` is used.",
            "vllm-ascend #2670",
            (
                Severity.ERROR,
                Severity.WARNING,
            ),
        ),
        Explanation(
            "R56",
            "Ranks announce the address of their own node",
            "The KV connector tells the other side VLLM_HOST_IP; a wrong one leads the transfer elsewhere.",
            "Delete it; it is derived.",
            "vllm/utils: get_ip; mooncake_connector.py",
            (Severity.WARNING,),
        ),
        Explanation(
            "R57",
            "RoCE inside a server is asked for only where it is set up",
            "On A3 NPUs of a server speak HCCS; with HCCL_INTRA_ROCE_ENABLE=1 each needs an address and a "
            "link that is up on the RoCE plane, or HCCL fails at start.",
            "Delete it, unless that plane is configured; `pdtui preflight` shows it.",
            "CANN: HCCL_INTRA_ROCE_ENABLE; collected field cases 54, 55",
            (Severity.WARNING,),
        ),
        Explanation(
            "R58",
            "No variable is a misspelt one",
            "Nobody reads it, so the default holds, in silence.",
            "Write the name that is proposed.",
            "vllm/envs.py, vllm_ascend/envs.py, CANN; vllm-ascend #6240",
            (Severity.WARNING,),
        ),
        Explanation(
            "R61",
            "Ranks write log and metrics",
            "Readiness, stages, first causes and stalls are read from them; without, a fault leaves no trace.",
            "Delete the variable or flag.",
            "vllm-ascend #2494",
            (Severity.WARNING,),
        ),
        Explanation(
            "R62",
            "An HTTP proxy is not asked for the cluster's own addresses",
            "Python's clients and curl obey http_proxy: what a rank sends to the proxy or another rank ends "
            "at the company's, as 502, 503 or a hang.",
            "Add the nodes' addresses to no_proxy, or delete http_proxy.",
            "both guides (`unset http_proxy`)",
            (Severity.WARNING,),
        ),
        Explanation(
            "R82",
            "Each rank has its own folder for CANN's logs",
            "In a folder that ranks share, nobody can tell whose they are, and old ones stay.",
            "Delete ASCEND_PROCESS_LOG_PATH; pdtui sets it to the run's own folder.",
            "vllm-ascend #10365",
            (Severity.INFO,),
        ),
        Explanation(
            "R83",
            "Variables that hold JSON hold valid JSON",
            "Mooncake cannot read it, and goes on with its defaults or ends.",
            "Quote keys and texts with double quotes.",
            "Mooncake #3749, #3791",
        ),
        Explanation(
            "V2",
            "No placeholder of a guide is left",
            "`xxxx`, `nic_name`, `your_ip_here` mean nothing to the node: Gloo and HCCL find no interface.",
            "Put in the real value.",
            "run_dp_template.sh of vLLM-Ascend",
        ),
        Explanation(
            "V3",
            "ASCEND_LAUNCH_BLOCKING is off where graphs are on",
            "vLLM-Ascend refuses to start: operators that wait for each other cannot be captured.",
            "Delete it, or set enforce-eager while you search for a fault.",
            "vllm_ascend/platform.py",
        ),
        Explanation(
            "V6",
            "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS is one that is kept",
            "vLLM-Ascend raises what is below 1836 to 3000.",
            "Delete it.",
            "vllm_ascend/platform.py",
            (Severity.INFO,),
        ),
        Explanation(
            "V7",
            "No variable is set that the release does not read",
            "It does nothing, and looks as if it did.",
            "Delete it.",
            "vllm-ascend and vLLM: envs.py of the releases",
            (Severity.INFO,),
        ),
        Explanation(
            "V8",
            "What moved to additional-config is said there only",
            "additional-config wins over the variable in newer releases, older ones read the variable only.",
            "Keep the one that your release reads.",
            "user_guide/configuration/additional_config.md",
            (Severity.INFO,),
        ),
        Explanation(
            "V9",
            "PYTORCH_NPU_ALLOC_CONF does not contradict itself",
            "expandable_segments cannot be combined with max_split_size_mb or garbage_collection_threshold.",
            "Keep one of them.",
            "vllm_ascend/platform.py",
            (Severity.WARNING,),
        ),
        Explanation(
            "V13",
            "No secret stands in the file",
            "Files are copied, mailed and committed; command lines are shown by `ps` to everybody on the node.",
            "{file: PATH} or {from_env: NAME}: read on the node when the rank starts, never by pdtui.",
            "pdtui",
            (Severity.WARNING,),
        ),
    )
)
