"""Find the files that travel with pdtui: themes and sample configurations.

In a wheel they lie inside the package; in a source tree (also an editable install) at the top of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal


def asset_dir(kind: Literal["themes", "sample_configs"]) -> Path:
    """Return the folder of the packaged themes or sample configurations."""
    package = Path(__file__).resolve().parent
    installed = package / kind
    return installed if installed.is_dir() else package.parent.parent / kind
