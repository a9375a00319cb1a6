"""Groups, ranks and NPUs (T, R)."""

from __future__ import annotations

from collections.abc import Mapping

from pdtui.topology.findings import Severity
from pdtui.topology.rules.explained.explanation import Explanation, table

RULES: Mapping[str, Explanation] = table(
    (
        Explanation(
            "R01",
            "The ranks of a group cover 0 to dp_size-1 exactly once",
            "Each rank waits for all others of its group: with a gap none of them ever becomes ready, and "
            "a number that is taken twice dies with «Address already in use».",
            "List each node once in `nodes`, and give each of them ranks: with `ranks: {node: n}` when "
            "they are not equal.",
            "vLLM-Ascend: examples/external_online_dp; vllm/config/parallel.py",
        ),
        Explanation(
            "R02",
            "The ranks of a group's nodes add up to dp_size",
            "Ranks that no node has are waited for without end; most often dp_size was left at what one node has.",
            "Change dp_size, or say what each node has: `ranks: {node1: 16, node2: 8}`.",
            "vLLM-Ascend: examples/external_online_dp, dp_size and dp_size_local",
        ),
        Explanation(
            "R04",
            "A group meets at an address of the node of its rank 0 that its other nodes can reach",
            "Rank 0 opens the meeting point; the others connect to where nobody listens, and time out "
            "after ten minutes or more.",
            "Delete `dp_address`: it follows from the first of `nodes`.",
            "vllm/config/parallel.py, data_parallel_master_ip",
        ),
        Explanation(
            "R05",
            "A node has the NPUs that its ranks take: ranks x tp_size x pp_size",
            "vLLM ends with «local_world_size > visible devices», or the last ranks find no device.",
            "Lower tp_size or dp_size, use more nodes, or give the group more with `devices`.",
            "vLLM-Ascend: tests/e2e/nightly/multi_node/external_dp, check of the sizes",
        ),
        Explanation(
            "R06",
            "No NPU is taken twice",
            "The second rank ends with too little free memory, or HCCL cannot bind port 16666 of the NPU: "
            "neither names the device.",
            "Give each group its own with `devices:`. To share NPUs on purpose, list them in both groups "
            "and set HCCL_NPU_SOCKET_PORT_RANGE in both.",
            "vLLM-Ascend issue 11968; HCCL: HCCL_NPU_SOCKET_PORT_RANGE",
            (
                Severity.ERROR,
                Severity.WARNING,
            ),
        ),
        Explanation(
            "R07",
            "NPU ids exist on the platform: 0-7 on A2 and A5, 0-15 on A3",
            "CANN drops ids that it does not know without a word; later a rank ends with error 107001.",
            "Correct `devices`.",
            "CANN: ASCEND_RT_VISIBLE_DEVICES",
            (Severity.ERROR,),
        ),
        Explanation(
            "T4",
            "Each rank sees its own NPUs, as many as it needs",
            "A value in the file is one for all ranks: they would all take the same NPUs.",
            "Delete ASCEND_RT_VISIBLE_DEVICES; `devices:` says which NPUs a group may use.",
            "vLLM-Ascend: launch_online_dp.py",
        ),
        Explanation(
            "T10",
            "`data-parallel-size-local` is 1 or absent where each rank is a server of its own",
            "vLLM refuses it beside `--data-parallel-rank` and ends.",
            "Delete it.",
            "vllm/engine/arg_utils.py",
        ),
        Explanation(
            "T11",
            "Data parallel settings stand only where ranks form a group",
            "A dense model, or a group of one rank, is an independent instance: newer vLLM refuses data "
            "parallel flags for it, older vLLM makes every instance rank 0, and all take the same KV "
            "ports.",
            "Delete the setting; or `model: {kind: moe}`, if the model is one.",
            "vllm/engine/arg_utils.py; vLLM-Ascend issue 11863",
            (
                Severity.ERROR,
                Severity.INFO,
            ),
        ),
        Explanation(
            "T15",
            "There is a prefill group and a decode group",
            "A request needs one of each.",
            "Add the group that is missing.",
            "vLLM-Ascend: tests/e2e/nightly/multi_node/external_dp, check of the routing",
        ),
        Explanation(
            "T16",
            "One server has one name",
            "Under two names its NPUs and ports are given out twice, and nothing notices.",
            "Merge the two, and let groups name the one.",
            "pdtui: nodes of a topology file",
            (Severity.WARNING,),
        ),
        Explanation(
            "R19",
            "Groups that share NPUs on purpose let HCCL choose its ports there",
            "HCCL has one port for each NPU, 16666: the second group cannot bind it.",
            "Set HCCL_NPU_SOCKET_PORT_RANGE, such as auto, in both groups; if they should not share, "
            "correct `devices`.",
            "vLLM-Ascend issue 11968; CANN: HCCL_NPU_SOCKET_PORT_RANGE",
        ),
        Explanation(
            "T13",
            "The old launcher's VLLM_DP_ variables are gone",
            "Beside data parallel flags nothing reads them. Without such flags vLLM takes them for "
            "offline data parallelism: a dense model refuses to start, another waits for ranks that never "
            "come.",
            "Delete them: sizes, ranks and addresses are derived.",
            "vllm/config/parallel.py; vLLM-Ascend 0.9.1: docs, large_scale_ep",
            (
                Severity.WARNING,
                Severity.INFO,
            ),
        ),
        Explanation(
            "T17",
            "HCCL_LOGIC_SUPERPOD_ID is not one value for servers of several super pods",
            "With the same value HCCL goes over HCCS, which ends at the super pod; with different ones it "
            "goes over RoCE.",
            "Delete it, if all servers are in one super pod; else set it on each server and refer to it "
            "with $NAME.",
            "vLLM-Ascend's PD guide, npu-smi info -t spod-info; CANN: HCCL_LOGIC_SUPERPOD_ID",
            (Severity.WARNING,),
        ),
    )
)
