"""What is asked: short, a thousand tokens, a chat, Chinese; greedy, with answers of one length."""

from __future__ import annotations

from typing import Any

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"

_DUCKS = " ".join(f"Her {n} ducks lay {3 * n} eggs a day; she eats {n % 5} and sells the rest." for n in range(30))

_CHINESE = "你是谁？请介绍一下预填充与解码分离。"

_GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0, "max_tokens": 48, "ignore_eos": True}

PROMPTS: dict[str, tuple[str, dict[str, Any]]] = {
    "short": (COMPLETIONS, {**_GREEDY, "prompt": "Who are you?"}),
    "long": (COMPLETIONS, {**_GREEDY, "prompt": _DUCKS}),
    "chat": (CHAT, {**_GREEDY, "messages": [{"role": "user", "content": f"How many eggs? {_DUCKS[:300]}"}]}),
    "chinese": (
        CHAT,
        {**_GREEDY, "messages": [{"role": "user", "content": _CHINESE}]},
    ),
}
