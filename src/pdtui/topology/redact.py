"""Hide secrets of a command before it is shown, written or sent anywhere but to its own process."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pdtui.topology.reference import refers

HIDDEN = "***"

_NAMES = (
    r"(?:(?:API|ACCESS|SECRET|PRIVATE)[-_]?KEYS?|KEYS?[-_]?PASSWORD|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|"
    r"(?<=[-_])PWD|CREDENTIALS?)"
)
"""How names of secrets end."""

SECRET_PATTERN = rf"(?:^|[-_]){_NAMES}$"
"""What finds a secret's name, without regard to case; for Python 3.6, too."""

_SECRET = re.compile(SECRET_PATTERN, re.IGNORECASE)
_OF_A_MODEL = re.compile(r"(?:^|[-_])(?:bos|eos|pad|unk|sep|cls|mask|image|video|audio)[-_]token$", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether a variable's or flag's name says that its value is a secret."""
    return _SECRET.search(name) is not None and _OF_A_MODEL.search(name) is None


def redacted(argv: Sequence[str], env: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return a command and its environment with the values of secrets hidden; references to them stay."""
    words: list[str] = []
    flag = ""
    for word in argv:
        if word.startswith("--"):
            flag, equals, _ = word.partition("=")
            words.append(f"{flag}={HIDDEN}" if equals and is_secret(flag) else _shown(word))
        elif is_secret(flag):
            words.append(HIDDEN)
        else:
            words.append(_shown(word))
    shown = {
        name: value if refers(value) else HIDDEN if is_secret(name) and value else _shown(value)
        for name, value in env.items()
    }
    return tuple(words), shown


def _shown(word: str) -> str:
    if word.lstrip().startswith(("{", "[")):
        try:
            value = json.loads(word)
        except (ValueError, RecursionError):
            return redacted_text(word)
        shown = _shown_value(value)
        return word if shown == value else json.dumps(shown, ensure_ascii=False)
    return redacted_text(word)


def _shown_value(value: Any) -> Any:
    """Return a JSON value with the secrets in it hidden: by their keys, and by what they look like."""
    if isinstance(value, dict):
        return {
            key: HIDDEN if is_secret(key) and inner and not isinstance(inner, bool) else _shown_value(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [_shown_value(inner) for inner in value]
    return redacted_text(value) if isinstance(value, str) else value


_ASSIGNED = re.compile(
    # An assignment, also in JSON, and that in JSON; a quote that nothing closes holds to the end of its line.
    rf"""({_NAMES}\\*["']?\s*[=:]\s*)"""
    r"""(?:\\+"[^"]*"|"[^"]*"|'[^']*'|"[^"\n]*|'[^'\n]*|[^\s"'&;]+)"""
    rf"""|(?<![\w-])(--(?=\w)[\w-]*{_NAMES}\s+)[^\s"']+"""
    r"""|(\bAuthorization\\*["']?:\s*\\*["']?\w+\s+)[^\s"'\\]+|(\bBearer\s+)[^\s"'\\]+"""
    # Passwords of URLs are written with @ and / in them, too: what is before the last @ goes.
    r"""|(\bcurl\s[^\n|;&]{0,300}?(?<=\s)(?:-u|--user)[\s=]*["']?[^\s:"']{1,100}:)[^\s"']+"""
    r"""|(_proxy\\*["']?\s*[=:]\s*\\*["']?(?:\w{1,9}://)?)[^\s"',]{0,300}(?=@)"""
    r"""|(://[^/\s:@"']{0,300}:)[^\s"']{1,300}(?=@)|(https?://)[^/\s:@"']{1,300}(?=@)"""
    # What tokens of hubs begin with.
    r"""|(\b(?:hf_|sk-|gh[pousr]_|glpat-))[\w-]{16,}""",
    re.IGNORECASE,
)


_HINTS = (
    *("key", "token", "secret", "passw", "passphrase", "pwd", "credential", "authorization", "bearer"),
    *("://", "_proxy", "curl", "hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "glpat-"),
)
"""One of these is in whatever `_ASSIGNED` finds."""


def shown_command(argv: Sequence[str]) -> str:
    """Return an operator's command as a shell line for the journal, values that look like secrets hidden.

    Flags by their names, assignments (`HF_TOKEN=...`, also inside a shell line), authorization headers, passwords
    in URLs.
    """
    words, _ = redacted(argv, {})
    return shlex.join(redacted_text(word) for word in words)


def redacted_text(text: str) -> str:
    """Return a text with the values of assignments, flags, headers and URLs hidden that look like secrets."""
    lower = text.lower()
    if not any(
        word in lower for word in _HINTS
    ):  # Most text, and much of it: reports of many nodes are megabytes.
        return text
    return _ASSIGNED.sub(lambda match: f"{next(filter(None, match.groups()))}{HIDDEN}", text)
