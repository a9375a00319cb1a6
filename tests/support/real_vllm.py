"""Real vLLM on this machine's processors, where someone has installed it and asks for it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

VARIABLE = "PDTUI_REAL_VLLM"
"""Names the folder that `tests/real/install` made; unset, the tests that need it are skipped."""

_INSTALL = Path(__file__).parents[1] / "real" / "install"


@dataclass(frozen=True)
class RealVllm:
    """What `tests/real/install` made."""

    folder: Path

    @property
    def venv(self) -> Path:
        """The virtual environment with vLLM, NIXL and the plugin for few processors."""
        return self.folder / "venv"

    @property
    def activate(self) -> Path:
        """The script that puts `vllm` on PATH."""
        return self.venv / "bin" / "activate"

    @property
    def vllm(self) -> Path:
        """The command."""
        return self.venv / "bin" / "vllm"

    @property
    def dense(self) -> Path:
        """The tiny dense model."""
        return self.folder / "tiny-qwen2"

    @property
    def moe(self) -> Path:
        """The tiny mixture of experts."""
        return self.folder / "tiny-qwen2-moe"


def real_vllm() -> RealVllm:
    """Return it; skip where it is not asked for, fail where it is and something is missing."""
    name = os.environ.get(VARIABLE)
    if not name:
        pytest.skip(f"{VARIABLE} does not name the folder that tests/real/install makes")
    found = RealVllm(Path(name).expanduser())
    for path in (found.activate, found.vllm, found.dense / "config.json", found.moe / "config.json"):
        if not path.exists():
            pytest.fail(f"{VARIABLE}={name}, but there is no {path}; {_INSTALL} {name}")
    return found
