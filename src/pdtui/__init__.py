"""pdtui: an operations console for vLLM-Ascend prefill/decode disaggregated serving."""

from __future__ import annotations

__version__ = "0.1.0"
