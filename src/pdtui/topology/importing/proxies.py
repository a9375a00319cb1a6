"""Command lines of the reference proxies, of v0.9.1 too, and what of them cannot be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pdtui.topology.findings import Severity
from pdtui.topology.importing.observed import Backend, Origin, ProxyCommand, Said
from pdtui.topology.importing.report import Kind, Note, note
from pdtui.topology.versions import dotted, release_of

_LISTS = ("prefiller-hosts", "prefiller-ports", "decoder-hosts", "decoder-ports")
_OLD = ("prefiller-hosts-num", "prefiller-ports-inc", "decoder-hosts-num", "decoder-ports-inc")
KNOWN = (
    *("port", "host", *_LISTS, "max-retries", "retry-delay", "max-waiting-retries", "waiting-retry-interval"),
    *("workers", "log-level", *_OLD),
)
"""Options of the reference scripts, without dashes."""

_SINCE = {
    "max-waiting-retries": (0, 13, 0),
    "waiting-retry-interval": (0, 13, 0),
    "workers": (0, 21, 0),
    "log-level": (0, 21, 0),
}
_MOST_BACKENDS = 4096


def proxy_command(
    script: str, words: Sequence[Said], *, host: str, origin: Origin, version: str = ""
) -> tuple[ProxyCommand, list[Note]]:
    """Return what a proxy's command line says, its lists expanded, and what is wrong with it."""
    flags, notes = _flags(words)
    notes += _unknown(flags, version)
    prefill, more = _backends("prefiller", flags, origin)
    notes += more
    decode, more = _backends("decoder", flags, origin)
    notes += more
    name = script.rsplit("/", 1)[-1]
    command = ProxyCommand(host, name, flags.get("host"), flags.get("port"), prefill, decode, flags, origin)
    return command, [*notes, *_repeated(command)]


def _flags(words: Sequence[Said]) -> tuple[dict[str, Said], list[Note]]:
    """Return flags by their full name: argparse takes any beginning that fits one only."""
    found: dict[str, list[Said]] = {}
    origins: dict[str, Origin] = {}
    current: list[Said] | None = None
    for word in words:
        if word.text.startswith("--"):
            name, equals, text = word.text[2:].partition("=")
            fits = [known for known in KNOWN if known.startswith(name) and known not in _OLD]
            full = name if name in KNOWN or len(fits) != 1 else fits[0]
            current = found[full] = [Said(text, word.origin, word.unknown)] if equals else []
            origins[full] = word.origin
        elif current is not None:
            current.append(word)
    return {
        name: Said(
            tuple(value.text for value in values) if len(values) != 1 else values[0].text,
            values[0].origin if values else origins[name],
            next((value.unknown for value in values if value.unknown), ""),
        )
        for name, values in found.items()
    }, []


def _unknown(flags: Mapping[str, Said], version: str) -> list[Note]:
    release = release_of(version) if version else None
    notes = []
    for name, said in flags.items():
        if name in _OLD and (release is None or release >= (0, 10, 0)):
            notes.append(
                note(
                    Kind.FINDING,
                    f"--{name} exists in the proxy of v0.9.1 only; the lists are written out here instead",
                    said.origin,
                    rule="R74",
                    severity=Severity.ERROR,
                )
            )
        elif name not in KNOWN:
            notes.append(
                note(
                    Kind.FINDING,
                    f"the proxy has no option --{name}",
                    said.origin,
                    rule="R74",
                    severity=Severity.ERROR,
                )
            )
        elif release is not None and release < _SINCE.get(name, release):
            since = dotted(_SINCE[name])
            message = f"--{name} exists since v{since}, not in {version}"
            notes.append(note(Kind.FINDING, message, said.origin, rule="R74", severity=Severity.ERROR))
    return notes


def _words(said: Said | None) -> tuple[str, ...]:
    if said is None or said.value is True:
        return ()
    return said.value if isinstance(said.value, tuple) else (said.value,)


def _backends(side: str, flags: Mapping[str, Said], origin: Origin) -> tuple[tuple[Backend, ...], list[Note]]:
    """Return one of the two lists; hosts-num and ports-inc as v0.9.1 expands them."""
    hosts, ports = flags.get(f"{side}-hosts"), flags.get(f"{side}-ports")
    at = (hosts or ports or Said("", origin)).origin
    port_at = (ports or hosts or Said("", origin)).origin
    notes: list[Note] = []
    names = list(_words(hosts))
    numbers: list[int] = []
    for word in _words(ports):
        if word.isascii() and word.isdecimal() and len(word) < 6:
            numbers.append(int(word))
        else:
            notes.append(_bad(f"{word} in --{side}-ports is no port", port_at, "R71"))
    repeats, unit = _numbers(flags.get(f"{side}-hosts-num")), _numbers(flags.get(f"{side}-ports-inc"))
    if repeats is not None:
        if len(repeats) != len(names):
            notes.append(_bad(f"--{side}-hosts-num has {len(repeats)} numbers for {len(names)} hosts", at, "X3"))
        names = [name for name, count in zip(names, repeats, strict=False) for _ in range(min(count, 1024))]
    if unit is not None:
        if len(unit) != len(numbers):
            notes.append(
                _bad(f"--{side}-ports-inc has {len(unit)} numbers for {len(numbers)} ports", port_at, "X3")
            )
        numbers = [
            first + index for first, count in zip(numbers, unit, strict=False) for index in range(min(count, 1024))
        ]
    glued = next((name for name in names if _is_glued(name)), None)
    if glued is not None:
        notes.append(_bad(f"{glued} in --{side}-hosts is no host name: words that run together?", at, "R71"))
    elif len(names) != len(numbers):
        rule = "X3" if repeats is not None or unit is not None else "R71"
        what = f"--{side}-hosts has {len(names)} hosts, --{side}-ports {len(numbers)} ports"
        notes.append(_bad(f"{what}; each backend needs both", at, rule, port_at))
    pairs = zip(names[:_MOST_BACKENDS], numbers, strict=False)
    return tuple(Backend(name, port, at) for name, port in pairs), notes


def _numbers(said: Said | None) -> list[int] | None:
    if said is None:
        return None
    return [int(word) for word in _words(said) if word.isascii() and word.isdecimal() and len(word) < 6]


def _is_glued(name: str) -> bool:
    """Whether a host is more than one: digits and dots that are no address, or an option within."""
    if "--" in name or not name:
        return True
    labels = name.split(".")
    return all(label.isdecimal() for label in labels) and len(labels) != 4


def _bad(message: str, at: Origin, rule: str, *others: Origin) -> Note:
    return note(Kind.FINDING, message, at, *others, rule=rule, severity=Severity.ERROR)


_LOCAL = frozenset({"localhost", "127.0.0.1", "0.0.0.0"})  # noqa: S104 - what the script takes for one host


def _repeated(command: ProxyCommand) -> Iterator[Note]:
    """Find a backend that is listed twice; localhost, 127.0.0.1 and 0.0.0.0 are one to the reference proxies."""
    seen: dict[tuple[str, int], tuple[str, Backend]] = {}
    for side, backends in (("prefiller", command.prefill), ("decoder", command.decode)):
        for backend in backends:
            key = ("localhost" if backend.host in _LOCAL else backend.host, backend.port)
            before = seen.setdefault(key, (side, backend))
            if before[1] is backend:
                continue
            where = f"{backend.host}:{backend.port}"
            if before[0] == side:
                message = f"{where} is listed twice among the {side}s"
                yield _bad(message, backend.origin, "R71")
            else:
                message = f"{where} is in both lists: one of the two points to the other role"
                yield _bad(message, before[1].origin, "R80", backend.origin)
