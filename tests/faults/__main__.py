"""`python -m tests.faults [FILE]`: run the fault table and print it; FILE gets it as Markdown."""

from __future__ import annotations

import os
import sys

import pytest

from tests.faults.report import TABLE

if __name__ == "__main__":
    if sys.argv[1:]:
        os.environ[TABLE] = sys.argv[1]
    sys.exit(pytest.main(["-q", "-n", "0", "tests/faults"]))
