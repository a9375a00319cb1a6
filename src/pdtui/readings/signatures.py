"""Finds what a line of a rank's log means, in an operator's words."""

from __future__ import annotations

import re

from pdtui.readings.signature_table import SIGNATURES, Signature

_WORTH_A_LOOK = re.compile(
    r"error|fail|exce|timed? ?out|E[IJLZ]\d{4}|already in use|not (?:found|set|ok)|out of|no module|cannot"
    r"|dead|died|mismatch|conflict|invalid|support|must be|refuse|reset|50\d{4}|107\d{3}|207\d{3}|too|less than"
    r"|unexpected|insufficient|alloc|memory|requires|install|sigbus|unable|force freed|expired|unrecognized|assert"
    r"|triggered|trigger received|unexpectedly",
    re.IGNORECASE,
)
"""One quick search for all lines that no signature knows."""

_MILD = re.compile(r"^(?:\([^()]{1,60}\) )?(?:INFO|DEBUG|WARNING)\b")
_WRAPPER = re.compile(
    r"ERR99999|please check the stack trace above|Driver Version: .* is invalid or not supported yet"
)
"""Lines that look bad and say nothing."""


def match_line(line: str) -> tuple[Signature, dict[str, str]] | None:
    """Return the first signature that knows a line, with the values that it found there, or None."""
    if not _WORTH_A_LOOK.search(line) or _WRAPPER.search(line):
        return None
    mild = _MILD.match(line) is not None
    for signature in SIGNATURES:
        if mild and not signature.quiet:
            continue
        match = signature.pattern.search(line)
        if match is not None:
            return signature, signature.values(match)
    return None
