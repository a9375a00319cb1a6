"""What a script's text says that no topology can show: glued lines, erased logs, a template's order of words."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pdtui.topology.findings import Severity
from pdtui.topology.importing.launches import Launch
from pdtui.topology.importing.observed import Origin
from pdtui.topology.importing.report import Kind, Note, note
from pdtui.topology.redact import redacted_text

_ERASED = re.compile(r"\brm\s+(?:-\w+\s+)+\S*ascend/log|\bfind\s+\S*ascend/log\S*\s.*-delete")
_VISIBLE = re.compile(r"\bASCEND_RT_VISIBLE_DEVICES=[\"']?\$\{?([1-9])")
_SUBSTITUTED_IP = re.compile(r"\b(HCCL_IF_IP|VLLM_HOST_IP|local_ip|LOCAL_IP)=[\"']?(?:\$\(|`)")
_OLD = re.compile(r"\bVLLM_DP_(?:SIZE|RANK|MASTER_IP|MASTER_PORT|RANK_LOCAL|SIZE_LOCAL)=")
_PORT = re.compile(r"--port[ =\"']+\$\{?([1-9])")


def lint(text: str, source: str, first_line: int) -> list[Note]:
    """Return what is wrong with the text of a script, whatever it would run."""
    return [*_lines(text.split("\n"), source, first_line), *nic_commented_out(text, source, first_line)]


_COMMENTED = re.compile(r"\s*#\s*(?:export\s+)?(?:GLOO|TP|HCCL)_SOCKET_IFNAME=")
_NIC_SET = re.compile(r"^[^#\n]*_SOCKET_IFNAME=", re.MULTILINE)


def nic_commented_out(text: str, source: str, first_line: int) -> list[Note]:
    """Return where the interface is named in a comment only."""
    if _NIC_SET.search(text):
        return []
    for number, line in enumerate(text.split("\n")):
        if _COMMENTED.match(line):
            message = "GLOO_, TP_ and HCCL_SOCKET_IFNAME are commented out: any interface may be taken"
            at = Origin(source, first_line + number)
            return [note(Kind.FINDING, message, at, rule="R53", severity=Severity.ERROR)]
    return []


def _lines(lines: list[str], source: str, first_line: int) -> Iterator[Note]:
    quote = ""
    for number, line in enumerate(lines):
        at = Origin(source, first_line + number)
        inside = bool(quote)
        quote, commented = _quote_after(line, quote)
        if inside or line.lstrip().startswith("#"):
            continue
        code = line[:commented]
        if re.search(r"\\[ \t]+$", code):
            yield _error(
                "R60", "a blank after the backslash: the command ends here, and what follows is another one", at
            )
        elif re.search(r"(?<!\\)\\ +\\$", code):
            yield _error("R60", "`\\ \\` passes a blank as a word of its own; write one backslash", at)
        elif re.search(r"[^\s\\]\\$", code) and not quote:
            following = lines[number + 1] if number + 1 < len(lines) else ""
            if following and not following[0].isspace():
                last, first = code[:-1].split()[-1], following.split()[0].rstrip("\\")
                read = "one word" if redacted_text(code) != code else f"{last}{first}"
                message = f"no blank before the backslash and none in the next line: bash reads {read}"
                yield _error("R60", message, at)
        if _ERASED.search(code):
            message = (
                "it erases ~/ascend/log, and runs once for each rank: later ranks erase the logs of earlier ones"
            )
            yield note(Kind.FINDING, message, at, rule="R81", severity=Severity.WARNING)
        if match := _SUBSTITUTED_IP.search(code):
            message = (
                f"{match[1]} is taken from a command; the order of addresses can change: the topology says it"
            )
            yield note(Kind.FINDING, message, at, rule="R54", severity=Severity.WARNING)


def _quote_after(line: str, quote: str) -> tuple[str, int]:
    """Return the quote that is open after a line, and where its comment begins."""
    index = 0
    while index < len(line):
        char = line[index]
        if quote == "'":
            quote = "" if char == "'" else quote
        elif char == "\\":
            index += 1
        elif quote == '"':
            quote = "" if char == '"' else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (index == 0 or line[index - 1] in " \t;"):
            return quote, index
        index += 1
    return quote, len(line)


def _error(rule: str, message: str, at: Origin) -> Note:
    return note(Kind.FINDING, message, at, rule=rule, severity=Severity.ERROR)


def contract(text: str, source: str, first_line: int, started: Launch | None) -> list[Note]:
    """Return where a template does not take the words as its launcher passes them."""
    old_template = _OLD.search(text) is not None
    found = [
        (number, match)
        for number, line in enumerate(text.split("\n"))
        if (match := _PORT.search(line)) is not None
    ]
    notes = []
    for number, match in found:
        at = Origin(source, first_line + number)
        places = (at, started.origin) if started is not None else (at,)
        expected = "6" if (started.old if started is not None else old_template) else "2"
        if match[1] != expected:
            message = f"the template takes its port from ${match[1]}, the launcher passes it as ${expected}"
            notes.append(note(Kind.FINDING, message, *places, rule="R59", severity=Severity.ERROR))
    visible = _VISIBLE.search(text)
    if "NixlConnector" in text:  # Of vLLM without NPUs.
        return notes
    if not old_template and not (started is not None and started.old) and (visible is None or visible[1] != "1"):
        at = Origin(source, first_line + (text.count("\n", 0, visible.start()) if visible else 0))
        message = "the template does not set ASCEND_RT_VISIBLE_DEVICES=$1, so every rank takes the first NPUs"
        notes.append(note(Kind.FINDING, message, at, rule="R59", severity=Severity.ERROR))
    return notes
