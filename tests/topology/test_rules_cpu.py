"""Rules on a platform without NPUs: what is only there, and what is not asked there."""

from __future__ import annotations

import re

import pytest

from pdtui.topology.findings import Severity
from pdtui.topology.rules.cpu import ASCEND_ENV
from pdtui.topology.rules.environment import OBSOLETE
from tests.topology.examples import CPU, Case, Edits, changed, loaded, of_rule

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

ENV = "defaults: {env: {OMP_NUM_THREADS: 1}, args: {seed: 1024}}"
VERSION = 'vllm: "0.32.0"'
ONE = ("dp_size: 2", "dp_size: 1")
DENSE = ("path: ~/m, served_name: m", "path: ~/m, served_name: m, kind: dense")


def env(text: str) -> Edits:
    return ((ENV, ENV.replace("OMP_NUM_THREADS: 1", text)),)


def args(text: str) -> Edits:
    return ((ENV, ENV.replace("seed: 1024", text)),)


def kv(text: str) -> Edits:
    return (("{connector: NixlConnector}", f"{{connector: NixlConnector, {text}}}"),)


def only_p(text: str) -> tuple[str, str]:
    return "kv_port: 14000", f"kv_port: 14000, {text}"


CPU_CASES = [
    Case("F04", ERROR, ((VERSION, 'vllm_ascend: "0.22.1rc1"'),), "vllm_ascend", 'did you mean `vllm: "0.32.0"`'),
    Case("F04", ERROR, ((VERSION, f'{VERSION}\nvllm_ascend: "0.22.1"'),), "vllm_ascend", "cpu, which runs vllm"),
    Case("F05", ERROR, ((f"{VERSION}\n", ""),), "platform", "`vllm` is missing"),
    Case("F05", ERROR, ((VERSION, "vllm:"),), "platform", "`vllm` is missing"),
    Case("F05", ERROR, (("{connector: NixlConnector}", "{}"),), "kv", "NixlConnector"),
    Case("F05", ERROR, (("192.0.2.2, nic: eth0", "192.0.2.2"),), "nodes.n2", "`nic` is missing"),
    Case("F06", ERROR, ((VERSION, "vllm: newest"),), "vllm", "no version of vllm", ((VERSION, "vllm: main"),)),
    Case("F06", ERROR, (("[~/venv", "[~venv"),), "runtime.setup.0", "with ~/", (("[~/venv", "[$V"),)),
    Case("F06", ERROR, (("path: ~/m", "path: ~u/m"),), "model.path", "with ~/", (("path: ~/m", "path: org/m"),)),
    Case(
        "F11",
        ERROR,
        env("VLLM_NIXL_SIDE_CHANNEL_PORT: 5600"),
        "defaults.env.VLLM_NIXL_SIDE_CHANNEL_PORT",
        "contradicts kv_port of p, from which 14000 follows",
    ),
    Case(
        "F11",
        ERROR,
        (DENSE, only_p("env: {VLLM_NIXL_SIDE_CHANNEL_PORT: 14000}")),
        "groups.p.env.VLLM_NIXL_SIDE_CHANNEL_PORT",
        "14001 follows",  # right for rank 0, and rank 1 would bind it again
        (DENSE,),
    ),
    Case(
        "F11",
        INFO,
        (only_p("env: {VLLM_NIXL_SIDE_CHANNEL_PORT: 14000}"),),
        "groups.p.env.VLLM_NIXL_SIDE_CHANNEL_PORT",
        "delete it",
    ),
    Case(
        "F11",
        ERROR,
        (only_p("env: {VLLM_NIXL_SIDE_CHANNEL_PORT: null}"),),
        "groups.p.env.VLLM_NIXL_SIDE_CHANNEL_PORT",
        "not in the plan",
    ),
    Case(
        "F11",
        ERROR,
        env("VLLM_NIXL_SIDE_CHANNEL_HOST: localhost"),
        "defaults.env.VLLM_NIXL_SIDE_CHANNEL_HOST",
        "the node's address, from which 192.0.2.1 follows",
    ),
    *(
        Case(
            "F11",
            ERROR,
            env(f"VLLM_NIXL_SIDE_CHANNEL_{what}: {value}"),
            f"defaults.env.VLLM_NIXL_SIDE_CHANNEL_{what}",
            "from the node's environment a rank of p binds a port that is not in the plan",
        )
        for what, value in (("PORT", "{from_env: X}"), ("PORT", "$X"), ("HOST", "{prepend: x}"))
    ),
    Case("F11", INFO, kv("config: {kv_buffer_device: cpu}"), "kv.config.kv_buffer_device", "is cpu anyway"),
    Case("K10", ERROR, (("NixlConnector", "MooncakeConnectorV1"),), "kv.connector", "cpu needs NixlConnector"),
    Case("K10", ERROR, (("NixlConnector", "NixlConector"),), "kv.connector", "NixlConnector"),
    Case("R07", ERROR, (only_p("devices: 0-3"),), "groups.p.devices", "platform cpu has none"),
    Case("R11", ERROR, (("kv_port: 14000", "kv_port: 65535"),), "groups.p.kv_port", "65536"),
    Case("R11", ERROR, (("api_port: 7200", "api_port: 14001"),), "groups.d.api_port", "both take port 14001"),
    Case("R11", ERROR, (("rpc_port: 12321", "rpc_port: 14200"),), "groups.d.kv_port", "both take port 14200"),
    Case("R13", ERROR, (("role: decode", "role: prefill"), ("14200", "14001")), "groups.d.kv_port", "4 apart"),
    Case("R16", WARNING, (("kv_port: 14000", "kv_port: 36000"),), "groups.p.kv_port", "36000-36001"),
    Case("R28", ERROR, (("tp_size: 2", "tp_size: 3"), ("tp_size: 1", "tp_size: 2")), "groups.p.tp_size", "is 3"),
    Case("R29", ERROR, (("tp_size: 1,", "tp_size: 1, pp_size: 2,"),), "groups.d.pp_size", "allows 1 on decode"),
    Case(
        "R29",
        ERROR,
        (("kv_port: 14200", "kv_port: 14200, args: {prefill-context-parallel-size: 2}"),),
        "groups.d.args.prefill-context-parallel-size",
        "on prefill only",
        (only_p("args: {prefill-context-parallel-size: 2}"),),
    ),
    Case("R33", ERROR, (("kv_port: 14200", "kv_port: 14001"),), "groups.d.kv_port", "at least 4 apart"),
    Case("R53", WARNING, env("GLOO_SOCKET_IFNAME: lo"), "defaults.env.GLOO_SOCKET_IFNAME", "it is eth0"),
    Case("R56", WARNING, env("VLLM_HOST_IP: 192.0.2.1"), "defaults.env.VLLM_HOST_IP", "on n2 it is 192.0.2.2"),
    Case("R72", ERROR, (("port: 1999", "port: 14000"),), "proxy.port", "both take port 14000"),
    Case("R89", WARNING, (("0.32.0", "0.33.0"),), "vllm", "newer than what is known here"),
    Case("R89", WARNING, (("0.32.0", "0.19.1"),), "vllm", "older than the only vllm that is known", ()),
    Case(
        "T11", ERROR, (DENSE, only_p("args: {data-parallel-size: 2}")), "groups.p.args.data-parallel-size", "vLLM"
    ),
    Case(
        "V7",
        INFO,
        env("VLLM_NIXL_ABORT_REQUEST_TIMEOUT: 60"),
        "defaults.env.VLLM_NIXL_ABORT_REQUEST_TIMEOUT",
        "kv_l",
    ),
    Case(
        "C1",
        WARNING,
        args("quantization: ascend"),
        "defaults.args.quantization",
        "NPUs",
        args("quantization: awq"),
    ),
    Case("C1", WARNING, args("additional_config: {a: 1}"), "defaults.args.additional_config", "nothing reads it"),
    Case("C2", WARNING, env("HCCL_BUFFSIZE: 256"), "defaults.env.HCCL_BUFFSIZE", "delete it", env("HCCL_X: null")),
    Case("C2", WARNING, env("ASCEND_RT_VISIBLE_DEVICES: 0"), "defaults.env.ASCEND_RT_VISIBLE_DEVICES", "NPUs"),
    Case(
        "C2",
        WARNING,
        env("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT: 60"),
        "defaults.env.VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT",
        "kv_lease_duration",
    ),
    *(
        Case(
            "C3",
            ERROR,
            kv(f"extra: {{kv_lease_duration: {value}}}"),
            "kv.extra.kv_lease_duration",
            "positive number of seconds",
            kv("extra: {kv_lease_duration: 60}"),
        )
        for value in ("0", "-5", "true", "'60'", "60s", "null", "[1]")
    ),
    Case(
        "C4", ERROR, kv("config: {kv_buffer_device: npu}"), "kv.config.kv_buffer_device", "'npu' on platform cpu"
    ),
    Case("C5", WARNING, kv("extra: {prefill: {dp_size: 2, tp_size: 1}}"), "kv.extra.prefill", "does not read it"),
    Case(
        "F11",
        ERROR,
        args("kv_transfer_config.kv_buffer_device: cuda"),
        "defaults.args.kv_transfer_config.kv_buffer_device",
        "under `kv:`",
    ),
    Case("X5", ERROR, args("host: 192.0.2.9"), "defaults.args.host", "no address of n1", args("host: 0.0.0.0")),
    Case("F06", ERROR, (("path: ~/m", "path: -m"),), "model.path", "begins a flag"),
    Case("F06", ERROR, (("path: ~/m", "path: ' ~/m'"),), "model.path", "nor end with a blank"),
    Case("F06", ERROR, (("served_name: m", "served_name: --m"),), "model.served_name", "begins a flag"),
    Case(
        "F06", ERROR, (("[~/venv", "[~, ~/venv"),), "runtime.setup.0", "`setup.0` must be text", (("[~/v", "[/v"),)
    ),
    Case("F06", ERROR, (("host: 192.0.2.2", "host: 0.0.0.0"),), "nodes.n2.host", "no address of one server"),
    Case("F06", ERROR, (("host: 192.0.2.2", "host: h, address: '::'"),), "nodes.n2.address", "of one server"),
    Case("C5", WARNING, kv("config: {kv_port: 14000}"), "kv.config.kv_port", "follows from kv_port of p"),
]


@pytest.mark.parametrize("case", CPU_CASES, ids=lambda case: f"{case.rule}-{case.path}")
def test_rule_without_npus(case: Case) -> None:
    case.check(CPU)


def test_no_reason_without_npus_is_one_of_npus() -> None:
    """Rules of all platforms say what is true on each; only findings about what has no place here name NPUs."""
    changes = [*(case.broken for case in CPU_CASES if case.rule not in {"C1", "C2", "R07", "K10"})]
    changes += [env(f"{name}: 1") for name in OBSOLETE if not name.startswith(ASCEND_ENV)]
    changes += [(("host: 192.0.2.1,", "host: h, address: server1,"),)]
    said = [finding for each in changes for finding in loaded(changed(*each, base=CPU)).findings]
    assert len(said) >= len(changes)
    assert not [finding for finding in said if re.search("NPU|HBM|HCCL|CANN", finding.message)]


def test_base_without_npus_has_no_findings() -> None:
    assert loaded(CPU).findings == ()


def test_a_connector_of_vllm_itself_is_none_on_npus() -> None:
    (found,) = of_rule(loaded(changed(("MooncakeConnectorV1", "NixlConnector"))).findings, "K10")
    assert found.severity is ERROR
    assert "platform a3 needs MooncakeConnectorV1 or" in found.message
    assert found.path == "kv.connector"


def test_a_version_of_vllm_itself_is_none_on_npus() -> None:
    findings = loaded(changed(('vllm_ascend: "0.22.1rc1"', 'vllm: "0.32.0"'))).findings
    assert [(finding.rule, finding.line) for finding in findings] == [("F04", 4)]
    assert 'did you mean `vllm_ascend: "0.22.1rc1"`' in findings[0].message
    (missing,) = loaded(changed(('vllm_ascend: "0.22.1rc1"\n', ""))).findings
    assert (missing.rule, missing.line) == ("F05", 3)
    assert "`vllm_ascend` is missing" in missing.message


def test_rules_about_npus_are_not_asked_without_them() -> None:
    """What NPU platforms refuse or warn of on the same lines: ranges of HCCL and Mooncake, shapes, NPUs."""
    text = changed(
        ("kv_port: 14000", "kv_port: 20000"),
        ("api_port: 7200", "api_port: 15500"),
        ("dp_size: 4, tp_size: 1", "dp_size: 4, tp_size: 2"),
        ("dp_size: 2, tp_size: 2", "dp_size: 2, tp_size: 1"),
        base=CPU,
    )
    more = "{role: prefill, nodes: [n2], dp_size: 32, tp_size: 1, api_port: 7100, rpc_port: 12321, kv_port: 61500}"
    text = text.replace("proxy:", f"  q: {more}\nproxy:")
    assert loaded(text).findings == ()
    ascend = text.replace('vllm: "0.32.0"', 'vllm_ascend: "0.22.1rc1"').replace("platform: cpu", "platform: a3")
    rules = {finding.rule for finding in loaded(ascend.replace("NixlConnector", "MooncakeConnectorV1")).findings}
    assert {"R14", "P8", "K6", "R28", "R05"} <= rules


def test_ranks_of_a_laptop_may_listen_on_its_loopback_address() -> None:
    one = changed(("host: 192.0.2.1,", "host: local, address: 127.0.0.1,"), ("[n1, n2]", "[n1]"), base=CPU)
    one = re.sub(r"\n  n2: .*", "", one).replace("seed: 1024", "host: 127.0.0.1")
    assert loaded(one).findings == ()


def test_the_old_name_of_the_lease_counts_where_it_is_read() -> None:
    said = ("OMP_NUM_THREADS: 10", "VLLM_NIXL_ABORT_REQUEST_TIMEOUT: 600")
    assert of_rule(loaded(changed(said)).findings, "R47")
    assert not of_rule(loaded(changed(said, ('"0.22.1rc1"', '"0.13.0"'))).findings, "R47")
