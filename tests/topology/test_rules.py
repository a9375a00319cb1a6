"""Every rule finds what it is for, at its place, and keeps quiet about what is right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pdtui.topology
from pdtui.topology.build import build
from pdtui.topology.findings import Severity
from pdtui.topology.load import one_line
from pdtui.topology.rules.explained import EXPLANATIONS, imported
from pdtui.topology.rules.registry import RULES, Context
from pdtui.topology.validate import validate
from pdtui.topology.yaml_tree import parse
from tests.topology.cases import FAMILIES
from tests.topology.examples import BASE, CPU, FILE, Case, Edits, changed, loaded
from tests.topology.test_rules_cpu import CPU_CASES

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

SHARED: Edits = (("nodes: [n2, n3], dp_size: 8", "nodes: [n1], dp_size: 4"), ("tp_size: 8", "tp_size: 4"))
"""Prefill and decode on one server, 8 NPUs each, not told apart yet."""
APART: Edits = (
    *SHARED,
    ("dp_size: 2,", "dp_size: 2, devices: 0-7, env: {HCCL_IF_BASE_PORT: 61000},"),
    ("dp_size: 4,", "dp_size: 4, devices: 8-15,"),
    ("api_port: 7100, rpc_port: 12321, kv_port: 14200", "api_port: 7200, rpc_port: 12322, kv_port: 14200"),
)
"""The same, told apart."""


GROUP_P = "api_port: 7100, rpc_port: 12321, kv_port: 14000"
GROUP_D = "api_port: 7100, rpc_port: 12321, kv_port: 14200"
LAYERWISE = ("MooncakeConnectorV1", "MooncakeLayerwiseConnector")


def extra(text: str) -> Edits:
    return (("kv: {connector: MooncakeConnectorV1}", f"kv: {{connector: MooncakeConnectorV1, {text}}}"),)


def group_p(text: str) -> tuple[str, str]:
    return GROUP_P, f"{GROUP_P}, {text}"


def group_d(text: str) -> tuple[str, str]:
    return GROUP_D, f"{GROUP_D}, {text}"


def defaults(args: str = "seed: 1024, max-model-len: 4000", env: str = "OMP_NUM_THREADS: 10") -> Edits:
    return (
        (
            "defaults: {env: {OMP_NUM_THREADS: 10}, args: {seed: 1024, max-model-len: 4000}}",
            f"defaults: {{env: {{{env}}}, args: {{{args}}}}}",
        ),
    )


CASES = [
    Case("F02", ERROR, (("pdtui: 1", "pdtui: @1"),), "", "quotes", (("pdtui: 1", "pdtui: 1 # @"),)),
    Case("F03", ERROR, (("name: small", "name: small\nname: other"),), "name", "first on line 2"),
    Case("F03", ERROR, defaults("max-model-len: 1, max_model_len: 2"), "defaults.args.max_model_len", "same flag"),
    Case("F03", ERROR, defaults("no-x: true, x: true"), "defaults.args.x", "same flag", defaults("x: false")),
    Case("F04", ERROR, (("dp_size: 2,", "dp_siz: 2,"),), "groups.p.dp_siz", "did you mean `dp_size`"),
    Case("F04", ERROR, (("tp_size: 8", "tensor-parallel-size: 8"),), "groups.p.tensor-parallel-size", "`tp_size`"),
    Case("F04", ERROR, (("name: small", "name: small\nkv_port: 1"),), "kv_port", "belongs under `groups.<name>`"),
    Case("F04", ERROR, (group_p("max-num-seqs: 8"),), "groups.p.max-num-seqs", "under `args`"),
    Case("F05", ERROR, (("served_name: m", "kind: moe"),), "model.served_name", "is missing in `model`"),
    Case("F05", ERROR, (("rpc_port: 12321, kv_port: 14000", "kv_port: 14000"),), "groups.p", "meet there, on n1"),
    Case("F05", ERROR, (("{host: 192.0.2.1, nic", "{host: gate, nic"),), "nodes.n1", "gate is no IP address"),
    Case("F05", ERROR, (("192.0.2.2, nic: eth0", "192.0.2.2"),), "nodes.n2", "`nic` is missing"),
    Case("F05", ERROR, (("{connector: MooncakeConnectorV1}", "{}"),), "kv", "`connector` is missing"),
    Case("F06", ERROR, (("dp_size: 2,", 'dp_size: "2",'),), "groups.p.dp_size", "write 2, without quotes"),
    Case("F06", ERROR, (("platform: a3", "platform: A3"),), "platform", "did you mean a3"),
    Case("F06", ERROR, (("host: 192.0.2.1,", "host: h, address: server1,"),), "nodes.n1.address", "take no names"),
    Case("F06", ERROR, (('"0.22.1rc1"', "newest"),), "vllm_ascend", "no version", (('"0.22.1rc1"', "main"),)),
    Case("F06", ERROR, defaults("--seed: 1"), "defaults.args.--seed", "without the dashes: `seed`"),
    Case("F06", WARNING, defaults("async-scheduling: yes"), "defaults.args.async-scheduling", "write true"),
    Case("F06", ERROR, defaults(env="A B: 1"), "defaults.env.A B", "no name of an environment variable"),
    Case("F06", ERROR, defaults(env="A: {from_env: x y}"), "defaults.env.A", "no name"),
    Case(
        "F06", ERROR, (("name: small", "name: small\nruntime: {setup: [env.sh]}"),), "runtime.setup.0", "absolute"
    ),
    Case(
        "F06",
        ERROR,
        (("name: small", "name: small\nruntime: {state_dir: ~u/x}"),),
        "runtime.state_dir",
        "absolute",
    ),
    *(
        Case(
            "F06",
            ERROR,
            ((old, f"{key}: {value!r}, {more}"),),
            path,
            "neither a host",
            ((old, f"{key}: {right}, {more}"),),
        )
        for value in (
            *(
                "http://192.0.2.1",
                "192.0.2.1:1999",
                "root@n1",
                "[::1]",
                "n1 ",
                "-oX=y",
                "$(id)",
                "192.0.2.300",
                "a\\nb",
            ),
        )
        for old, key, more, path, right in (
            ("listen: 0.0.0.0,", "advertise", "listen: 0.0.0.0,", "proxy.advertise", "fd00::1"),
            ("listen: 0.0.0.0,", "listen", "", "proxy.listen", "server-1.example"),
            ("host: 192.0.2.1,", "host", "address: 192.0.2.1,", "nodes.n1.host", "bastion_1"),
        )
    ),
    Case(
        "F06",
        ERROR,
        (("host: 192.0.2.1, nic: eth0", "host: 192.0.2.1, nic: eth0 eth1"),),
        "nodes.n1.nic",
        "an interface",
    ),
    Case(
        "F06",
        ERROR,
        (("name: small", "name: small\nruntime: {container: a b}"),),
        "runtime.container",
        "a container",
        (("name: small", "name: small\nruntime: {container: a_b, image: 'r:5000/i@sha256:0'}"),),
    ),
    Case("F06", ERROR, (("served_name: m", 'served_name: "m\\nm"'),), "model.served_name", "one line"),
    Case("F06", WARNING, defaults("tokenizer: ~/t"), "defaults.args.tokenizer", "whole path"),
    Case("F06", WARNING, defaults(env="A: ~/t"), "defaults.env.A", "write $HOME/t", defaults(env="A: $HOME/t")),
    Case("F07", ERROR, (("name: small", "name: Small"),), "name", "a-z, 0-9"),
    Case("F07", ERROR, (("  n1: {", "  N_1: {"),), "nodes.N_1", "no usable name"),
    Case("F07", ERROR, (("  d: {", "  all: {"),), "groups.all", "a meaning of its own"),
    Case("F07", ERROR, (("  d: {", "  n1: {"),), "groups.n1", "of a node and of a group"),
    Case("F08", ERROR, (("nodes: [n1]", "nodes: [n9]"),), "groups.p.nodes.0", "`nodes` has n1, n2, n3"),
    Case("F08", ERROR, (("node: n1", "node: p"),), "proxy.node", "no node p"),
    Case("F08", ERROR, (group_d("ranks: {n2: 4, n1: 4}"),), "groups.d.ranks.n1", "its nodes are n2, n3"),
    Case("K10", ERROR, (("MooncakeConnectorV1", "MultiConnector"),), "kv.connector", "follows from `stores`"),
    Case("K10", ERROR, (("MooncakeConnectorV1", "UCMConnector"),), "kv.connector", "under `stores`"),
    Case(
        "K10",
        ERROR,
        extra("stores: {MooncakeLayerwiseConnector: {}}"),
        "kv.stores.MooncakeLayerwiseConnector",
        "as `connector`",
    ),
    Case("K10", ERROR, extra("stores: {PoolConnector: {}}"), "kv.stores.PoolConnector", "no store PoolConnector"),
    Case("F09", ERROR, (("port: 1999", "port: 1999, api_key: {from_env: K}"),), "proxy.api_key", "not yet"),
    Case("F09", INFO, (("port: 1999", "port: 1999, kind: external"),), "proxy.kind", "not yet supported"),
    Case(
        "F11",
        ERROR,
        (group_p("args: {tensor-parallel-size: 4}"),),
        "groups.p.args.tensor-parallel-size",
        "tp_size",
    ),
    Case("F11", ERROR, (group_p("args: {port: 8000}"),), "groups.p.args.port", "7100 / 7101 follows"),
    Case("F11", INFO, (group_p("args: {data-parallel-size: 2}"),), "groups.p.args.data-parallel-size", "anyway"),
    Case("F11", ERROR, defaults("kv-transfer-config: {}"), "defaults.args.kv-transfer-config", "under `kv:`"),
    Case("F11", INFO, (group_p("dp_address: 192.0.2.1"),), "groups.p.dp_address", "delete it"),
    Case("F11", ERROR, extra("config: {kv_port: 36000}"), "kv.config.kv_port", "kv_port of p, 14000"),
    Case("F11", ERROR, extra("config: {kv_connector: X}"), "kv.config.kv_connector", "contradicts `connector`"),
    Case(
        "F11",
        ERROR,
        extra("config: {kv_connector_extra_config: {}}"),
        "kv.config.kv_connector_extra_config",
        "extra",
    ),
    Case("F11", INFO, (group_p("env: {HCCL_IF_IP: 192.0.2.1}"),), "groups.p.env.HCCL_IF_IP", "delete it"),
    Case("F12", WARNING, (("name: small", "name: small\naccept: {R16: reserved}"),), "accept.R16", "nothing here"),
    Case("F12", WARNING, (("name: small", "name: small\naccept: {T155: x}"),), "accept.T155", "did you mean T15?"),
    Case("R01", ERROR, (("[n2, n3]", "[n2, n2]"),), "groups.d.nodes.1", "listed twice"),
    Case("R01", ERROR, (("dp_size: 8", "dp_size: 1"),), "groups.d.nodes", "nodes without a rank"),
    Case("R01", ERROR, (group_d("ranks: {n2: 8}"),), "groups.d.nodes.1", "nothing about n3"),
    Case("R02", ERROR, (("dp_size: 8", "dp_size: 7"),), "groups.d.dp_size", "ranks: {n2: N"),
    Case(
        "R02",
        ERROR,
        (group_d("ranks: {n2: 4, n3: 3}"),),
        "groups.d.ranks",
        "add up to 7, but dp_size is 8",
        (group_d("ranks: {n2: 5, n3: 3}"),),
    ),
    Case("R04", ERROR, (group_d("dp_address: 127.0.0.1"),), "groups.d.dp_address", "leads every node to itself"),
    Case("R04", ERROR, (group_d("dp_address: 192.0.2.3"),), "groups.d.dp_address", "runs on n2, 192.0.2.2"),
    Case("R05", ERROR, (("platform: a3", "platform: a2"),), "groups.p.tp_size", "needs 16 NPUs on n1"),
    Case(
        "R05",
        ERROR,
        (group_p("devices: 0-7"),),
        "groups.p.tp_size",
        "`devices` has 8",
        (group_p("devices: 0-15"),),
    ),
    Case("R06", ERROR, SHARED, "groups.d", "is taken by p and by d", APART),
    Case("R06", ERROR, (group_p("devices: [0-15, 3]"),), "groups.p.devices", "listed twice"),
    Case("R07", ERROR, (group_d("devices: {n3: 8-17}"),), "groups.d.devices.n3", "from 0 to 15"),
    Case(
        "R11",
        ERROR,
        (("rpc_port: 12321, kv_port: 14000", "rpc_port: 7101, kv_port: 14000"),),
        "groups.p.api_port",
        "rpc of p and api of p/1 both take port 7101",
    ),
    Case(
        "R11",
        ERROR,
        (*APART[:-1], (GROUP_D, "api_port: 7101, rpc_port: 1, kv_port: 14200")),
        "groups.d.api_port",
        "7101",
        APART,
    ),
    Case("R11", ERROR, (("kv_port: 14200", "kv_port: 65530"),), "groups.d.kv_port", "the highest is 65535"),
    Case(
        "R13",
        ERROR,
        (
            (
                "  p: {role: prefill, nodes: [n1], dp_size: 2,",
                "  p: {role: prefill, nodes: [n1], dp_size: 1, devices: 0-7,",
            ),
            (
                "  d: {",
                "  q: {role: prefill, nodes: [n1], dp_size: 1, tp_size: 8, devices: 8-15, api_port: 7200,"
                " rpc_port: 1, kv_port: 14004, env: {HCCL_IF_BASE_PORT: 61000}}\n  d: {",
            ),
        ),
        "groups.q.kv_port",
        "14004-14007; put the two kv_port at least 8 apart",
    ),
    Case("R14", ERROR, (("kv_port: 14000", "kv_port: 20002"),), "groups.p.kv_port", "[20000, 21600)"),
    Case(
        "R15",
        WARNING,
        (("kv_port: 14000", "kv_port: 35990"), ('"0.22.1rc1"', '"0.13.0"')),
        "groups.p.kv_port",
        "kv ports 35990-35999 lie where the transfer engine picks its own: [20000, 36000), 1000 for each of 16",
        (("kv_port: 14000", "kv_port: 36000"), ('"0.22.1rc1"', '"0.13.0"')),
    ),
    Case(
        "R14",
        ERROR,
        (("kv_port: 14000", "kv_port: 13000"), *defaults(env="ASCEND_BASE_PORT: 12500")),
        "groups.p.kv_port",
        "[12500, 14100)",
        (("kv_port: 14000", "kv_port: 20002"), *defaults(env="ASCEND_BASE_PORT: 40000")),
    ),
    Case("R15", INFO, (("kv_port: 14000", "kv_port: 30000"),), "groups.p.kv_port", "reserves"),
    Case(
        "R16", WARNING, (("kv_port: 14000", "kv_port: 36000"),), "groups.p.kv_port", "reserved_ports=36000-36015"
    ),
    Case("R17", ERROR, (("port: 1999", "port: 60007"),), "proxy.port", "HCCL's range"),
    Case(
        "R17", ERROR, defaults(env="HCCL_IF_BASE_PORT: 65530"), "defaults.env.HCCL_IF_BASE_PORT", "no room for 16"
    ),
    Case("R18", WARNING, (*SHARED, *APART[3:]), "groups.d", "share a host and HCCL's ports", APART),
    Case(
        "R22",
        ERROR,
        defaults("""additional-config: '{"a": 1,}'"""),
        "defaults.args.additional-config",
        "JSON",
        defaults("""additional-config: '{"a": 1}'"""),
    ),
    Case("R23", ERROR, extra("config: {kv_producer: kv_role}"), "kv.config.kv_producer", "did you mean `kv_role`"),
    Case("R24", ERROR, extra("config: {kv_role: kv_both}"), "kv.config.kv_role", "must be kv_producer"),
    Case("R25", ERROR, extra("extra: {prefill: {dp_size: 2}}"), "kv.extra.prefill", "`tp_size` is missing"),
    Case("R25", ERROR, extra("extra: {prefill: 2}"), "kv.extra.prefill", "must be a mapping"),
    Case(
        "R26",
        ERROR,
        extra("extra: {prefill: {dp_size: 2, tp_size: 4}}"),
        "kv.extra.prefill.tp_size",
        "is told tp_size 4 for prefill, but p has 8",
        extra("extra: {prefill: {dp_size: 2, tp_size: 8}}"),
    ),
    Case(
        "R26",
        ERROR,
        extra('extra: {decode: {dp_size: "8", tp_size: 2}}'),
        "kv.extra.decode.dp_size",
        "told dp_size '8'",
    ),
    Case("R28", ERROR, (("tp_size: 8", "tp_size: 3"),), "groups.p.tp_size", "or a multiple of it"),
    Case("R28", ERROR, (("tp_size: 8", "tp_size: 1"),), "groups.p.tp_size", "of d (decode) 2"),
    Case("R29", ERROR, (("tp_size: 2", "tp_size: 2, pp_size: 2"),), "groups.d.pp_size", "allows 1 on decode"),
    Case(
        "R29",
        ERROR,
        (("tp_size: 8", "tp_size: 2, pp_size: 2"), group_p("args: {prefill-context-parallel-size: 2}")),
        "groups.p.args.prefill-context-parallel-size",
        "only one of them",
        (("tp_size: 8", "tp_size: 2, pp_size: 2"),),
    ),
    Case("R31", ERROR, (group_d("kv: {connector: MooncakeLayerwiseConnector}"),), "groups.d.kv.connector", "same"),
    Case(
        "R33",
        ERROR,
        (*APART[:-1], (GROUP_D, "api_port: 7200, rpc_port: 12322, kv_port: 14000")),
        "groups.d.kv_port",
        "put the two kv_port at least 8 apart",
        APART,
    ),
    Case("R44", ERROR, (group_d("args: {served-model-name: x}"),), "groups.d.args.served-model-name", "m follows"),
    Case(
        "R45",
        WARNING,
        (("{max-num-seqs: 40}", "{quantization: ascend}"),),
        "roles.decode.args.quantization",
        "not set in p",
    ),
    Case(
        "R46",
        WARNING,
        (("{max-num-seqs: 40}", "{max-model-len: 3000}"),),
        "roles.decode.args.max-model-len",
        "of d is 3000, of p 4000",
        (("{max-num-seqs: 40}", "{max-model-len: 5000}"),),
    ),
    Case(
        "R53",
        ERROR,
        (group_d("env: {HCCL_IF_IP: 192.0.2.2}"),),
        "groups.d.env.HCCL_IF_IP",
        "on n3 it is 192.0.2.3",
    ),
    Case("R53", WARNING, defaults(env="GLOO_SOCKET_IFNAME: eth1"), "defaults.env.GLOO_SOCKET_IFNAME", "eth0"),
    Case("R56", WARNING, defaults(env="VLLM_HOST_IP: 10.0.0.1"), "defaults.env.VLLM_HOST_IP", "192.0.2.1"),
    Case("R72", ERROR, (("port: 1999", "port: 7101"),), "proxy.port", "the proxy both take port 7101"),
    Case("R73", ERROR, (("port: 1999", "port: 1999, advertise: 0.0.0.0"),), "proxy.advertise", "write 192.0.2.1"),
    Case(
        "R73",
        ERROR,
        (LAYERWISE, ("port: 1999", "port: 1999, advertise: 127.0.0.1")),
        "proxy.advertise",
        "to themselves",
        (LAYERWISE,),
    ),
    Case(
        "R73",
        ERROR,
        (LAYERWISE, ("listen: 0.0.0.0", "listen: 127.0.0.1")),
        "proxy.listen",
        "listens on 127.0.0.1 only",
    ),
    Case("R79", ERROR, (("192.0.2.3", "127.0.0.3"),), "nodes.n3", "cannot reach it"),
    Case("R89", WARNING, (('"0.22.1rc1"', '"0.99.0"'),), "vllm_ascend", "of 0.27.1 are used"),
    Case("K2", WARNING, extra("config: {kv_parallel_size: 1}"), "kv.config.kv_parallel_size", "delete it"),
    Case(
        "K6",
        ERROR,
        (
            (
                "  d: {",
                f"  q: {{role: prefill, nodes: [n3], dp_size: 1, tp_size: 4, devices: 8-15, {GROUP_P}}}\n  d: {{",
            ),
        ),
        "groups.q",
        "q has dp_size 1, tp_size 4, p has dp_size 2, tp_size 8",
    ),
    Case("K10", ERROR, (("MooncakeConnectorV1", "LLMDataDistCMgrConnector"),), "kv.connector", "removed after"),
    Case(
        "K10", ERROR, (LAYERWISE, ('"0.22.1rc1"', '"0.10.2"')), "kv.connector", "exists since vllm-ascend 0.11.0"
    ),
    Case("K11", INFO, extra("config: {kv_buffer_device: npu}"), "kv.config.kv_buffer_device", "no longer needed"),
    Case(
        "K20",
        ERROR,
        (
            ('"0.22.1rc1"', '"0.25.1"'),
            ("tp_size: 8", "tp_size: 4"),
            group_p("args: {prefill-context-parallel-size: 2}"),
        ),
        "groups.p.args.prefill-context-parallel-size",
        "removed",
        (("tp_size: 8", "tp_size: 4"), group_p("args: {prefill-context-parallel-size: 2}")),
    ),
    Case("P5", WARNING, (("kv_port: 14000", "kv_port: 15000"),), "groups.p.kv_port", "15000-17000"),
    Case("P8", WARNING, (("port: 1999", "port: 20500"),), "proxy.port", "choose another"),
    Case("P8", WARNING, (("port: 1999", "port: 16000"),), "proxy.port", "15000-17000"),
    Case(
        "T4",
        ERROR,
        (group_p("env: {ASCEND_RT_VISIBLE_DEVICES: 0}"),),
        "groups.p.env.ASCEND_RT_VISIBLE_DEVICES",
        "devices:",
    ),
    Case(
        "T10",
        ERROR,
        (group_p("args: {data-parallel-size-local: 2}"),),
        "groups.p.args.data-parallel-size-local",
        "must be 1",
    ),
    Case(
        "T11",
        ERROR,
        (("served_name: m", "served_name: m, kind: dense"), *defaults("data-parallel-size: 2")),
        "defaults.args.data-parallel-size",
        "vLLM refuses",
    ),
    Case(
        "F11",
        INFO,
        (("served_name: m", "served_name: m, kind: dense"), *defaults("data-parallel-size: 1")),
        "defaults.args.data-parallel-size",
        "is 1 anyway",
    ),
    Case("T11", INFO, (("served_name: m", "served_name: m, kind: dense"),), "groups.p.rpc_port", "no effect"),
    Case("T15", ERROR, (("{role: decode", "{role: prefill"),), "groups", "no decode group"),
    Case("T16", WARNING, (("192.0.2.3", "192.0.2.2"),), "nodes.n3", "same address"),
    Case("V2", ERROR, (("path: /models/m", "path: xxxx"),), "model.path", "placeholder"),
    Case("V2", ERROR, (("192.0.2.3, nic: eth0", "192.0.2.3, nic: nic_name"),), "nodes.n3.nic", "placeholder"),
    Case("V7", INFO, defaults(env="PHYSICAL_DEVICES: 2"), "defaults.env.PHYSICAL_DEVICES", "is gone"),
    Case("X1", INFO, (("proxy: {node: n1, listen: 0.0.0.0, port: 1999}\n", ""),), "groups", "no `proxy`"),
    Case(
        "X5", ERROR, defaults("host: 127.0.0.1"), "defaults.args.host", "cannot reach them", defaults("host: '::'")
    ),
]


ALL = (*CASES, *FAMILIES)


def name(case: Case) -> str:
    return f"{case.rule}-{case.path}"


@pytest.mark.parametrize("case", ALL, ids=name)
def test_rule(case: Case) -> None:
    case.check(BASE)


def test_base_has_no_findings() -> None:
    assert loaded(BASE).findings == ()


def reported() -> set[str]:
    """Return the ids that the code can report."""
    top = Path(pdtui.topology.__file__).parent
    sources = [
        path for path in top.rglob("*.py") if {"explained", "importing"}.isdisjoint(path.relative_to(top).parts)
    ]
    text = "\n".join(path.read_text() for path in sources)
    return set(re.findall(r'"([FRTPKVSXCW]\d{1,2})"', text))


def test_every_rule_has_a_case() -> None:
    """The ids that the code can report are those of the table."""
    assert reported() == {case.rule for case in (*ALL, *CPU_CASES)}


def test_every_rule_is_explained() -> None:
    assert reported() <= EXPLANATIONS.keys()
    assert all(rule.title and rule.why and rule.remedy and rule.source for rule in EXPLANATIONS.values())
    assert EXPLANATIONS.keys() - imported.RULES.keys() <= reported()


@pytest.mark.parametrize("case", [*ALL, *CPU_CASES], ids=name)
def test_functions_yield_what_they_declare_as_severe_as_explained(case: Case) -> None:
    text = changed(*case.broken, base=CPU if case in CPU_CASES else BASE)
    document, _ = parse(text.encode(), "cluster.yaml")
    file, _ = validate(document)
    topology, _ = build(file, FILE, b"") if file is not None else (None, [])
    if file is None or topology is None:
        return
    context = Context(topology, file, document)
    for one in RULES:
        for problem in one.function(context) if one.applies(topology) else ():
            assert problem.rule in one.ids, one.function
            assert problem.severity in EXPLANATIONS[problem.rule].severities


def test_findings_of_different_rules_come_together_in_the_order_of_the_file() -> None:
    text = changed(
        ('"0.22.1rc1"', '"0.99.0"'),
        ("kv_port: 14000", "kv_port: 20002"),
        ("port: 1999", "port: 7101"),
        ("dp_size: 8", "dp_size: 7"),
    )
    findings = loaded(text).findings
    assert [finding.rule for finding in findings] == ["R89", "R14", "R02", "R72"]
    assert [finding.line for finding in findings] == [4, 16, 17, 18]
    assert loaded(text).topology is not None


@pytest.mark.parametrize("rule", ["K20", "K25", "R29"])
def test_context_parallelism_that_one_rule_refuses_is_no_error_of_another(rule: str) -> None:
    [case] = [one for one in ALL if one.rule == rule and "context-parallel" in one.path]
    findings = loaded(changed(*case.broken)).findings
    assert {finding.rule for finding in findings if finding.severity is ERROR} == {rule}, findings


def test_accepted_warnings_stay_visible_as_notes() -> None:
    edits = (
        ("kv_port: 14000", "kv_port: 36000"),
        ("name: small", "name: small\naccept: {R16: reserved by sysctl}"),
    )
    (finding,) = loaded(changed(*edits)).findings
    assert (finding.rule, finding.severity, finding.accepted) == ("R16", Severity.INFO, "reserved by sysctl")
    assert one_line(finding).endswith("(accepted: reserved by sysctl)")


def test_errors_cannot_be_accepted() -> None:
    edits = (("kv_port: 14000", "kv_port: 20002"), ("name: small", "name: small\naccept: {R14: never mind}"))
    findings = loaded(changed(*edits)).findings
    assert [(finding.rule, finding.severity) for finding in findings] == [
        ("F12", Severity.WARNING),
        ("R14", Severity.ERROR),
    ]


def test_nodes_on_one_machine_may_all_be_loopback_addresses() -> None:
    text = re.sub(r"192\.0\.2\.", "127.1.1.", BASE)
    assert loaded(text).findings == ()
    assert loaded(text.replace("MooncakeConnectorV1", "MooncakeLayerwiseConnector")).findings == ()
