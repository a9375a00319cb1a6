"""Rules of flags of `vllm serve`: what breaks each of them, and what does not."""

from __future__ import annotations

from tests.topology.examples import Case

CASES: tuple[Case, ...] = ()
