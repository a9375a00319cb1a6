"""Answers of real tools, kept as files beside the tests."""

from __future__ import annotations

from pathlib import Path

from pdtui.readings.answer import Answer

DATA = Path(__file__).parent / "data"


def sample(name: str) -> bytes:
    """Return the bytes of a captured answer of a vendor tool."""
    return (DATA / "hccn" / name).read_bytes()


def log(name: str) -> str:
    """Return a captured log of a server."""
    return (DATA / "vllm" / name).read_text(encoding="utf-8", errors="replace")


def answered(name: str, command: str = "npu-smi info", at: float = 0.0) -> Answer:
    """Return a captured answer as a command that ended well."""
    return Answer(command, sample(name), at=at)


def said(
    stdout: str = "", stderr: str = "", status: int | None = 0, *, command: str = "hccn_tool", at: float = 0.0
) -> Answer:
    """Return an answer with this text."""
    return Answer(command, stdout.encode(), stderr.encode(), status, at=at)
