"""Look at real vLLM and write down what it does: `python -m tests.engines.record FOLDER`.

FOLDER keeps what was seen, raw, with the servers' logs; `--again` makes the expectations anew from that.
`--failures` tries starts that fail and nothing else, all of them or those that are named, at 15 s of both
processors each; without it those that a run of the tests repeats. What was not looked at stays as it was expected.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from tests.engines.contract import facts_of
from tests.engines.houses import real
from tests.engines.observe import observe, observe_failures
from tests.support.real_vllm import real_vllm

EXPECTED = Path(__file__).parent / "expected.json"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--failures", nargs="*", metavar="NAME")
    parser.add_argument("--again", action="store_true")
    chosen = parser.parse_args()
    raw = chosen.folder / "seen.json"
    if not chosen.again:
        chosen.folder.mkdir(parents=True, exist_ok=True)
        house = real(real_vllm(), chosen.folder.resolve())
        if chosen.failures is None:
            seen = observe(house)
        else:
            seen = observe_failures(replace(house, live=False), frozenset(chosen.failures))
        raw.write_text(json.dumps(seen, indent=1), encoding="utf-8")
    known = json.loads(EXPECTED.read_text(encoding="utf-8")) if EXPECTED.exists() else {}
    facts = facts_of(json.loads(raw.read_text(encoding="utf-8")))
    kept = {name: known[name] for name in known if chosen.failures is not None or name.startswith("fail: ")}
    text = json.dumps({**kept, **facts}, indent=1, ensure_ascii=False)
    EXPECTED.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
