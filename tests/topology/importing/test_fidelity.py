"""Any values in a script: the plan of the draft has them again."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pdtui.topology.importing.assemble import assemble
from pdtui.topology.importing.observed import Wanted
from pdtui.topology.importing.scripts import read
from pdtui.topology.importing.sources import Source
from pdtui.topology.load import load_bytes
from pdtui.topology.planner import make_plan

TEXT = st.text(
    st.characters(codec="utf-8", exclude_characters="\x00\r$", exclude_categories=("Cc", "Cn", "Cs")), max_size=12
)
STRANGE = st.sampled_from(
    [
        "",
        "0",
        "007",
        "-1",
        "1.0",
        "0.90",
        "1e5",
        "true",
        "no",
        "null",
        "~",
        "1_000",
        "0x1f",
        "a: b",
        "a #b",
        "#a",
        "- a",
        "{a",
        "[1",
        "'",
        '"',
        "\\n",
        "*a",
        "&a",
        "!a",
        "%a",
        "@a",
        "`a",
        "2026-01-01",
        "1:30",
        "a,b",
        " a ",
        "=",
        "<<",
        "?",
    ]
)
VALUES = TEXT | STRANGE
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT.filter(bool), inner, max_size=3),
    max_leaves=8,
)
KV = {
    "kv_connector": "MooncakeConnectorV1",
    "kv_role": "kv_producer",
    "kv_port": "14000",
    "kv_connector_extra_config": {"prefill": {"dp_size": 1, "tp_size": 1}},
}


@settings(max_examples=40, deadline=None)
@given(
    VALUES.filter(lambda text: not text.startswith("-")),
    VALUES,
    st.dictionaries(TEXT.filter(bool), JSON, max_size=3),
)
def test_the_plan_has_what_the_script_has(flag: str, variable: str, config: dict[str, Any]) -> None:
    words = ["vllm", "serve", "/m", "--served-model-name", "m", "--port", "7100", "--some-flag", flag]
    words += ["--additional-config", json.dumps(config), "--kv-transfer-config", json.dumps(KV)]
    exports = f"export HCCL_IF_IP=192.0.0.1 HCCL_SOCKET_IFNAME=e\nexport ANY={shlex.quote(variable)}\n"
    text = f"{exports}{shlex.join(words)}\n"
    wanted = Wanted("x", "a3", "0.22.1rc1")
    seen, notes = read([Source("a.sh", text.encode())], wanted)
    draft = assemble(seen, wanted, notes)
    loaded = load_bytes(draft.text.encode(), Path("x.yaml"))
    assert loaded.topology is not None, (draft.text, loaded.findings)
    [rank] = make_plan(loaded.topology).ranks
    assert rank.env["ANY"] == variable
    found = dict(zip(rank.argv, rank.argv[1:], strict=False))
    if set(config) != {"json"}:
        assert json.loads(found["--additional-config"]) == config
    said = found["--some-flag"]
    if flag.lstrip().startswith(("{", "[")):
        return  # Taken for JSON, as far as it is that.
    assert said == flag
