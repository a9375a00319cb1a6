"""Rules of ports: what breaks each of them, and what does not."""

from __future__ import annotations

from pdtui.topology.findings import Severity
from tests.topology.examples import Case, Edits

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO


def env(text: str) -> Edits:
    return (("env: {OMP_NUM_THREADS: 10}", f"env: {{OMP_NUM_THREADS: 10, {text}}}"),)


def start(text: str) -> Edits:
    return (("name: small", f"name: small\nstart: {{{text}}}"),)


CASES: tuple[Case, ...] = (
    Case(
        "R11",
        ERROR,
        env("ASCEND_BASE_PORT: 64000"),
        "defaults.env.ASCEND_BASE_PORT",
        "100 ports for each of 16",
        env("ASCEND_BASE_PORT: 63900"),
    ),
    Case(
        "R11",
        ERROR,
        env("MC_MIN_RPC_PORT: 18000"),
        "defaults.env.MC_MIN_RPC_PORT",
        "no range of ports",
        env("MC_MIN_RPC_PORT: 18000, MC_MAX_RPC_PORT: 18999"),
    ),
    Case(
        "R17",
        WARNING,
        env("ASCEND_BASE_PORT: 59000"),
        "defaults.env.ASCEND_BASE_PORT",
        "HCCL's ports 60000-60016 and those from which the transfer engine picks, 59000-60599",
        env("ASCEND_BASE_PORT: 58400"),
    ),
    Case(
        "R20",
        WARNING,
        env("VLLM_PORT: 30000"),
        "defaults.env.VLLM_PORT",
        "for the 2 ranks of p on n1",
        (
            *env("VLLM_PORT: 30000"),
            ("dp_size: 8", "dp_size: 2"),
            ("dp_size: 2, tp_size: 8", "dp_size: 1, tp_size: 8"),
        ),
    ),
    Case(
        "R20",
        WARNING,
        start("stagger: 0"),
        "start.stagger",
        "4 ranks of a node start at once",
        start("stagger: 2s"),
    ),
)
