"""Rules of the proxy: what breaks each of them, and what does not."""

from __future__ import annotations

from pdtui.topology.findings import Severity
from tests.topology.examples import Case

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO

LAYERWISE = ("MooncakeConnectorV1", "MooncakeLayerwiseConnector")
RECOMPUTE = ("{max-num-seqs: 40}", "{additional-config: {recompute_scheduler_enable: true}}")
NESTED = ("{max-num-seqs: 40}", "{additional-config: {scheduler_config: {recompute_scheduler_enable: true}}}")

KEY = ("env: {OMP_NUM_THREADS: 10}", "env: {VLLM_API_KEY: {from_env: K}}")


def proxy(text: str) -> tuple[str, str]:
    return "port: 1999", f"port: 1999, {text}"


CASES: tuple[Case, ...] = (
    Case("R73", ERROR, (LAYERWISE, proxy("advertise: '::1'")), "proxy.advertise", "to themselves"),
    Case(
        "R75",
        WARNING,
        (LAYERWISE, proxy("kind: reference, advertise: '2001:db8::1'")),
        "proxy.advertise",
        "http://2001:db8::1:1999/",
        (LAYERWISE, proxy("advertise: '2001:db8::1'")),
    ),
    Case(
        "X9",
        INFO,
        (RECOMPUTE, proxy("kind: external")),
        "roles.decode.args.additional-config",
        "cut short",
        (RECOMPUTE,),
    ),
    Case(
        "X10",
        WARNING,
        (LAYERWISE, NESTED, proxy("kind: reference")),
        "roles.decode.args.additional-config",
        "wrong text",
        (NESTED, proxy("kind: reference")),
    ),
    Case(
        "X11",
        INFO,
        (("env: {OMP_NUM_THREADS: 10}", "env: {VLLM_SERVER_DEV_MODE: 1}"),),
        "defaults.env.VLLM_SERVER_DEV_MODE",
        "everyone",
        (("env: {OMP_NUM_THREADS: 10}", "env: {VLLM_SERVER_DEV_MODE: 0}"),),
    ),
    Case(
        "X8",
        WARNING,
        (("{args: {max-num-seqs: 40}}", "{args: {max-num-seqs: 40}, env: {VLLM_API_KEY: {from_env: K}}}"),),
        "groups.d",
        "p has no API key, d has one",
        (KEY,),
    ),
)
