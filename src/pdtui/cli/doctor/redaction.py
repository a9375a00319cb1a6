"""Takes names of people and machines out of what the doctor says, for reports that others read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pdtui.cli.doctor.items import Attachment, Section

_ADDRESS = re.compile(
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]\d)|(?<![\w:])(?:[0-9a-fA-F]{1,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:])"
)
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/=]+")


class Redaction:
    """Puts `<user-1>`, `<host-2>`, `<address>` in the place of names; the same name always gets the same word."""

    def __init__(self, home: str, users: Iterable[str], hosts: Iterable[str]) -> None:
        self._home = re.compile(rf"(?<![\w./-]){re.escape(home)}(?![\w.-])") if len(home) > 1 else None
        people = [user for user in dict.fromkeys(users) if user and user != "root"]
        places = [host for host in dict.fromkeys(hosts) if host and host not in ("local", "localhost")]
        words = {name: f"<host-{number}>" for number, name in enumerate(places, 1)}
        words.update({name: f"<user-{number}>" for number, name in enumerate(people, 1)})
        self._words: Mapping[str, str] = words
        inner = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
        self._names = re.compile(rf"(?<![\w-])(?:{inner})(?![\w-])") if inner else None

    def text(self, text: str) -> str:
        """Return a text without the names."""
        if self._home is not None:
            text = self._home.sub("~", text)
        if self._names is not None:
            text = self._names.sub(lambda found: self._words[found[0]], text)
        return _FINGERPRINT.sub("<fingerprint>", _ADDRESS.sub("<address>", text))

    def sections(self, sections: Sequence[Section]) -> Sequence[Section]:
        """Return sections without the names."""
        return [
            replace(
                section,
                items=tuple(
                    replace(one, name=self.text(one.name), text=self.text(one.text), remedy=self.text(one.remedy))
                    for one in section.items
                ),
            )
            for section in sections
        ]

    def attachments(self, attachments: Sequence[Attachment]) -> Sequence[Attachment]:
        """Return what to attach without the names."""
        return [replace(one, what=self.text(one.what)) for one in attachments]
