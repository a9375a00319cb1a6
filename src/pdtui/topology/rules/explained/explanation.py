"""What is known about a rule itself, whatever file it looks at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pdtui.topology.findings import Severity
from pdtui.topology.versions import Release


@dataclass(frozen=True, slots=True)
class Explanation:
    """A rule in words, for `pdtui check --explain`."""

    id: str
    title: str
    """What must hold, in one sentence without a full stop."""
    why: str
    """What happens otherwise: what the operator would see."""
    remedy: str
    source: str
    """Where it comes from: document and section, or file of vllm-ascend, vLLM or Mooncake."""
    severities: tuple[Severity, ...] = (Severity.ERROR,)
    """What its findings can be, the worst first."""
    since: tuple[tuple[Release, Severity], ...] = ()
    """What it is from a release of vllm-ascend on; before the first of them it is the worst of the above."""

    def severity(self, release: Release) -> Severity:
        """Return how severe it is in a release of vllm-ascend."""
        later = (severity for start, severity in reversed(self.since) if release >= start)
        return next(later, self.severities[0])


def table(rules: Iterable[Explanation]) -> Mapping[str, Explanation]:
    """Return rules by their id."""
    return {rule.id: rule for rule in rules}
