"""The KV blocks of one rank: which are free, in vLLM's order, and whose KV lies in each."""

import hashlib
import threading


def digest(prompt: str) -> str:
    """Return what stands for a prompt's KV."""
    return hashlib.blake2b(prompt.encode("utf-8", "replace"), digest_size=12).hexdigest()


class Blocks:
    """Block 0 is vLLM's null block and never given out. Without a prefix cache what was freed last is taken first."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size
        self._free = list(range(count - 1, 0, -1))
        self._content: dict[int, tuple[str, int]] = {}
        self._lock = threading.Lock()

    def needed(self, tokens: int) -> int:
        """Return how many blocks hold this many tokens."""
        return -(-tokens // self.size)

    def has(self, tokens: int) -> bool:
        """Say whether a request of this many tokens can begin."""
        return len(self._free) >= self.needed(tokens)

    def take(self, held: list[int], prompt: str, tokens: int) -> int:
        """Let a request hold blocks for this many tokens; returns how many came to those that it held."""
        with self._lock:
            wanted = min(self.needed(tokens) - len(held), len(self._free))
            for _ in range(max(wanted, 0)):
                block = self._free.pop()
                self._content[block] = (prompt, len(held))
                held.append(block)
        return max(wanted, 0)

    def give(self, held: list[int]) -> None:
        """Take a request's blocks back; what lies in them stays until another request writes there."""
        with self._lock:
            self._free.extend(held)

    def holds(self, ids: list[int], prompt: str) -> bool:
        """Say whether these blocks hold this prompt's KV, in this order. Raises `IndexError` for no block of ours."""
        if any(not 0 <= block < self.count for block in ids):
            raise IndexError(ids)
        return all(self._content.get(block) == (prompt, index) for index, block in enumerate(ids))
