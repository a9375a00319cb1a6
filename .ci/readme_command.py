"""Print the README's command that is marked `<!-- command: NAME -->`: the code block after the mark."""

from __future__ import annotations

import re
import sys
from pathlib import Path

readme = (Path(__file__).parent.parent / "README.md").read_text()
found = re.search(rf"<!-- command: {re.escape(sys.argv[1])} -->\s*```(?:sh|bash)\n(.+?)\n```", readme, re.DOTALL)
if found is None:
    sys.exit(f"README.md has no command marked {sys.argv[1]!r}")
sys.stdout.write(found[1] + "\n")
