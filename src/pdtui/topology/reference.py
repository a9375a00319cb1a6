"""Values that the file only refers to: bash looks them up where the rank starts, pdtui never has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self

API_KEY_FLAG = "api-key"
API_KEY_VARIABLE = "VLLM_API_KEY"
"""Where vLLM looks for its key when the flag is not given; unlike the flag it is not shown by `ps`."""

_KINDS = frozenset({"file", "from_env"})
_WHOLE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})\Z|\$\(<[^\n]*\)\Z")


class Reference(str):
    """A variable's value as bash reads it: `${NAME}`, or `$(<PATH)` for the contents of a file on the node.

    Its text is what is shown, recorded and compared; a start script is made from its parts.
    """

    file: str
    """Path on the node, `~/` for the home where ranks run; empty for a variable."""
    name: str
    """Variable of the node's environment; empty for a file."""

    def __new__(cls, *, file: str = "", name: str = "") -> Self:
        """Return a reference to a file or to a variable."""
        made = super().__new__(cls, f"$(<{file})" if file else f"${{{name}}}")
        made.file, made.name = file, name
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Say how it is copied: by its parts, not by its text."""
        return _made, (self.file, self.name)


def _made(file: str, name: str) -> Reference:
    return Reference(file=file, name=name)


def is_reference(value: Any) -> bool:
    """Whether a value in the file is `{file: PATH}` or `{from_env: NAME}`."""
    return isinstance(value, Mapping) and len(value) == 1 and set(value) <= _KINDS


def reference(value: Mapping[str, Any]) -> Reference:
    """Return what `{file: PATH}` or `{from_env: NAME}` refers to."""
    return Reference(file=str(value["file"])) if "file" in value else Reference(name=str(value["from_env"]))


def refers(text: str) -> bool:
    """Whether a text is a reference and nothing besides, so that it can be shown."""
    return _WHOLE.match(text) is not None
