"""Text in and out: how long a prompt is in tokens, and an answer that the same prompt always gets."""

import hashlib
import re
from typing import Any

_TOKEN = re.compile(r"\s?[A-Za-z]{1,7}|\s?\d{1,3}|[\u2e80-\u9fff\uff00-\uffef]|\s+|[^\s]")
_HAN = re.compile(r"[\u4e00-\u9fff]")

ENGLISH = (
    "The prefill node computes the key-value cache of the whole prompt in one pass.",
    "Each decode node then pulls those blocks over the interconnect and continues token by token.",
    "Splitting the two phases keeps long prompts from stalling requests that are already streaming.",
    "Time to first token depends on the prefill queue, while the time between tokens depends on decode batch size.",
    "Expert parallelism spreads the routed experts over all devices of a group.",
    "When one rank of such a group stops, the collective operations of the others cannot complete.",
    "A balanced cluster sends new requests to the prefill instance with the least outstanding work.",
    "Measured on a quiet rack, the transfer takes a few milliseconds for a short prompt.",
    "The scheduler admits a request as soon as enough cache blocks are free.",
    "It is usually better to restart a whole group than to wait for a single rank to rejoin.",
    "Operators watch the cache usage on prefill, because blocks stay pinned until they have been pulled.",
    "A graph captured for the common batch sizes removes most of the launch overhead.",
)
CHINESE = (
    "预填充节点会一次性计算整个提示词的键值缓存。",
    "解码节点随后通过高速互联拉取这些缓存块，并逐个生成词元。",
    "把两个阶段分开，可以避免长提示词阻塞正在输出的请求。",
    "首词时延主要取决于预填充队列，词间时延主要取决于解码批大小。",
    "专家并行会把路由专家分布到同一组的所有设备上。",
    "当组内某个进程退出时，其余进程的集合通信将无法完成。",
    "代理会把新请求发送到负载最低的预填充实例。",
    "运维人员需要关注缓存使用率，因为未被拉取的块会一直占用显存。",
)


def split(text: str) -> list[str]:
    """Return the tokens of a text; joined, they are the text."""
    return _TOKEN.findall(text)


def count(prompt: Any) -> int:
    """Return the length in tokens of a prompt: text, or a list of token ids."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], int):
        return len(prompt)
    return max(1, len(split(str(prompt))))


def chat_text(messages: list[Any]) -> str:
    """Return the messages as a chat template would write them. Raises `TypeError`, `KeyError` for other shapes."""
    parts: list[str] = []
    for message in messages:
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
        parts.append(f"<|{message['role']}|>{content}")
    return "".join(parts)


def answer(prompt: str, limit: int, *, sentences: int | None = None) -> list[str]:
    """Return the tokens of the answer to a prompt, at most `limit`; `sentences` bounds a natural end."""
    bank = CHINESE if _HAN.search(prompt) else ENGLISH
    seed = int.from_bytes(hashlib.blake2b(prompt.encode("utf-8", "replace"), digest_size=8).digest(), "big")
    tokens: list[str] = []
    written = 0
    while len(tokens) < limit and (sentences is None or written < sentences):
        seed = (seed * 6364136223846793005 + 1442695040888963407) & ((1 << 64) - 1)
        sentence = bank[(seed >> 33) % len(bank)]
        lead = "" if bank is CHINESE or (written == 0 and prompt.endswith(("|>", " ", "\n"))) else " "
        tokens += split(lead + sentence)
        written += 1
    return tokens[:limit]


def spoiled(prompt: str, salt: str) -> str:
    """Return a prompt that gets another answer, from its first sentence on: what wrong KV makes of it."""
    right = answer(prompt, 1 << 10, sentences=1)
    turn = 0
    while answer(wrong := f"{prompt}\0{salt}{turn}", 1 << 10, sentences=1) == right:
        turn += 1
    return wrong


def natural_length(prompt: str) -> int:
    """Return after how many sentences the answer to a prompt ends by itself."""
    return 2 + hashlib.blake2b(prompt.encode("utf-8", "replace"), digest_size=2).digest()[0] % 4
