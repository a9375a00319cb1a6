"""Valid topology files for hypothesis: every platform, kind of model, flow, and way to spread ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml
from hypothesis import strategies as st

NPUS = {"a2": 8, "a3": 16, "a5": 8, "cpu": 0}

WORDS = st.sampled_from(
    [
        *(
            "plain",
            "two words",
            "it's",
            '"quoted"',
            "a\\b",
            "$5",
            "*",
            "中文",
            "-x",
            "a=b",
            "~/x",
            "#x",
            "007",
            "1.50",
        ),
        *("${HOME}/x", "a;b", "`x`", "$(x)", "{a,b}", "a\nb", "true", "null", "0x10", " x ", "[1]", "%s", "!!"),
    ]
)
"""Values of arguments and variables that a shell would like to misread."""

POOLS = st.sampled_from(
    [
        {"AscendStoreConnector": {"extra": {"backend": "memcache"}}},
        {"AscendStoreConnector": {"extra": {"backend": "memcache", "load_async": True}}, "UCMConnector": {}},
        {"UCMConnector": {"config": {"kv_role": "kv_both"}}},
    ]
)

_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "max-num-seqs": st.integers(1, 64),
    "seed": st.integers(0, 9999),
    "chat-template": WORDS,
    "hf-overrides": st.dictionaries(
        st.sampled_from(["a", "b c"]), WORDS | st.integers(0, 9), min_size=1, max_size=2
    ),
    "enforce-eager": st.booleans(),
}


@st.composite
def files(draw: st.DrawFn) -> str:
    """Return the text of a valid file."""
    platform = draw(st.sampled_from(sorted(NPUS)))
    kind = draw(st.sampled_from(["moe", "dense"]))
    connector = draw(
        st.sampled_from(["MooncakeConnectorV1", "MooncakeHybridConnector", "MooncakeLayerwiseConnector"])
    )
    if platform == "cpu":
        connector = "NixlConnector"
    groups = dict(draw(_groups(platform, kind)))
    nodes = sorted({node for group in groups.values() for node in group["nodes"]})
    args = draw(st.lists(st.sampled_from(sorted(_VALUES)), unique=True, max_size=4))
    env = draw(st.dictionaries(st.from_regex(r"\AMY_[A-Z]{1,6}\Z"), WORDS, max_size=3))
    value: dict[str, Any] = {
        "pdtui": 1,
        "name": "shape",
        "platform": platform,
        **(
            {"vllm": "0.32.0"}
            if platform == "cpu"
            else {
                "vllm_ascend": draw(st.sampled_from(["0.23.0"] if platform == "a5" else ["0.22.1rc1", "0.23.0"]))
            }
        ),
        "model": {"path": "/models/m", "served_name": draw(st.sampled_from(["m", "m 2"])), "kind": kind},
        "kv": {
            "connector": connector,
            **({"extra": {"ascend_local_comm_res_path": "/etc/hixlep"}} if platform == "a5" else {}),
            **({"stores": draw(POOLS)} if platform != "cpu" and draw(st.booleans()) else {}),
        },
        "nodes": {node: {"host": f"192.0.2.{number}", "nic": "eth0"} for number, node in enumerate(nodes, 1)},
        "defaults": {"env": env, "args": {name: draw(_VALUES[name]) for name in args}},
        "groups": groups,
        "proxy": {"node": nodes[0], "listen": "0.0.0.0", "port": 1999},
    }
    if draw(st.booleans()):
        value["runtime"] = {
            "container": "c",
            "image": "registry/i:1",
            "shm_size": "2g",
            "mounts": ["/models:/models"],
        }
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


@st.composite
def _groups(draw: st.DrawFn, platform: str, kind: str) -> list[tuple[str, dict[str, Any]]]:
    """Return groups of both roles; each has servers of its own, but for two that may share one."""
    npus = NPUS[platform] or 8
    decode_tp = draw(st.sampled_from([1, 2, 4]))
    sizes = {"prefill": decode_tp * draw(st.sampled_from([1, 2])), "decode": decode_tp}
    pipeline = draw(st.sampled_from([1, 1, 2])) if platform != "cpu" and 2 * sizes["prefill"] <= npus else 1
    layers = draw(st.sampled_from([None, "31,30"]))
    names = _names()
    found: list[tuple[str, dict[str, Any]]] = []
    for role, count in (("prefill", draw(st.integers(1, 2))), ("decode", 1)):
        dp_size = draw(st.integers(1, 4)) if role == "prefill" else draw(st.integers(1, 8))
        for number in range(count):
            stages = pipeline if role == "prefill" else 1
            per_node = npus // (sizes[role] * stages)
            least = -(-dp_size // per_node)
            servers = draw(st.integers(least, max(least, min(dp_size, 2)))) if platform != "cpu" else 1
            place = len(found)
            group: dict[str, Any] = {
                "role": role,
                "nodes": [next(names) for _ in range(servers)],
                "dp_size": dp_size,
                "tp_size": sizes[role],
                **({"pp_size": stages} if stages > 1 else {}),
                **({"pp_layer_partition": layers} if layers and stages > 1 else {}),
                "api_port": 7100 + 100 * place,
                "kv_port": 13000 + 200 * place,
            }
            if dp_size % servers:
                each, left = divmod(dp_size, servers)
                group["ranks"] = {node: each + (place < left) for place, node in enumerate(group["nodes"])}
            if kind == "moe" and dp_size > 1:
                group["rpc_port"] = 12321 + place
            found.append((f"{role[0]}{number}", group))
    first, last = found[0][1], found[-1][1]
    needed = first["dp_size"] * first["tp_size"] * first.get("pp_size", 1)
    fits = needed + last["dp_size"] * last["tp_size"] <= npus
    if fits and len(first["nodes"]) == len(last["nodes"]) == 1 and draw(st.booleans()):
        last["nodes"] = first["nodes"]
        if platform != "cpu":
            first["devices"], last["devices"] = f"0-{needed - 1}", f"{needed}-{npus - 1}"
    return found


def _names() -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"n{number}"
