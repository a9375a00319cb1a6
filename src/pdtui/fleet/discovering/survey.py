"""Asks one host what runs there, and reads its answers into values; changes nothing."""

from __future__ import annotations

import base64
import functools
import ipaddress
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any

from pdtui.clock import Clock
from pdtui.errors import RemoteError
from pdtui.fleet.answers import answer_of
from pdtui.fleet.discovering.variables import KEEP, LISTS, ROOTS, Seen, setup_of
from pdtui.fleet.servers import server_words, servers_among
from pdtui.readings.commands import Query, argv_of
from pdtui.readings.npu_smi import read_table
from pdtui.readings.npu_smi_identity import read_board
from pdtui.remote.interface import NodeAgent
from pdtui.remote.messages.commands import Command
from pdtui.remote.messages.processes import ProcessInfo
from pdtui.text import clean, clean_line
from pdtui.topology.build import is_ip
from pdtui.topology.redact import SECRET_PATTERN
from pdtui.topology.script import double_quoted

MATCH = ("vllm", "load_balance_proxy", "proxy_server", "pdtui")
"""What the words of servers and proxies contain."""

CALL = 30.0
"""Seconds that one question may take on the host."""

GRACE = 5.0
LOGIN = 15.0
MARK = "PDTUI-SURVEY "

# What the login shell's start-up files print is kept away.
_AS_LOGIN = ("sh", "-c", """exec 3>&1 >/dev/null 2>&1; exec bash -ic '"$0" "$@" >&3 3>&-' "$@" """, "pdtui")


@functools.cache
def _program() -> str:
    packed = zlib.compress(Path(__file__).with_name("survey_script.py").read_bytes(), 9)
    return f'import base64,zlib;exec(zlib.decompress(base64.b64decode("{base64.b64encode(packed).decode()}")))'


@dataclass(frozen=True, slots=True)
class Record:
    """What pdtui's keeper was asked to start."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """As it was written: `$NAME` refers to the host's environment."""
    secrets: tuple[str, ...]
    setup: tuple[str, ...]
    """Scripts that were sourced before."""
    folder: str
    """Of the rank's records: `STATE_DIR/MACHINE/CLUSTER/GROUP.RANK`."""


@dataclass(frozen=True, slots=True)
class ServerSeen:
    """A vLLM server that runs."""

    process: ProcessInfo
    argv: tuple[str, ...]
    """From `vllm` on."""
    seen: Seen
    cwd: str = ""
    files: tuple[str, ...] = ()
    """What it writes: its output, logs."""
    container: str = ""
    """Name of the container that it is in."""
    is_elsewhere: bool = False
    """It has a file system of its own: a container's."""
    record: Record | None = None
    login: Seen | None = None
    """What a login there has, the set-up scripts of the process included; None: that could not be found out."""
    setup: tuple[str, ...] = ()
    """Set-up scripts of installations that it has and a plain login has not."""


@dataclass(frozen=True, slots=True)
class ProxySeen:
    """A proxy that runs."""

    process: ProcessInfo
    argv: tuple[str, ...]
    """From the script, or from `pdtui`, on."""


@dataclass(frozen=True, slots=True)
class ContainerSeen:
    """A container as its engine describes it."""

    engine: str
    id: str
    name: str
    image: str
    space: str
    """Its mount namespace."""
    host: Mapping[str, Any]
    mounts: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Survey:
    """What one host said."""

    host: str
    hostname: str = ""
    addresses: tuple[tuple[str, str], ...] = ()
    """(interface, address)."""
    servers: tuple[ServerSeen, ...] = ()
    proxies: tuple[ProxySeen, ...] = ()
    containers: tuple[ContainerSeen, ...] = ()
    npus: int | None = None
    platform: str = ""
    """`a2`, `a3`, `a5`; empty when it is not known."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Package -> version beside the servers."""
    problems: tuple[str, ...] = ()
    """What could not be found out, a sentence each."""
    unreachable: str = ""
    """Why nothing of this is known."""


class Surveyor:
    """One host while it is asked."""

    def __init__(
        self, host: str, agent: NodeAgent, host_agent: NodeAgent, *, clock: Clock, containers: Sequence[str] = ()
    ) -> None:
        """`agent` sees the servers; `host_agent` has the vendor's tools; `containers` are asked for by name."""
        self._host = host
        self._agent = agent
        self._host_agent = host_agent
        self._clock = clock
        self._containers = containers
        self._problems: list[str] = []

    async def run(self) -> Survey:
        """Ask. Raises `RemoteError` when the host is lost meanwhile."""
        found = await self._agent.processes(match=MATCH)
        servers = servers_among(found)
        proxies = tuple(_proxies(found))
        said = await self._said("processes", pids=[server.process.pid for server in servers])
        processes = _table(said.get("processes"))
        containers = await self._containers_of(said)
        space = str(said.get("space"))
        seen = [
            self._placed(
                _server(server.process, _table(processes.get(str(server.process.pid))), space, containers)
            )
            for server in servers
        ]
        seen = [one for one in seen if one.seen.error != "gone"]  # It has ended since it was listed.
        npus, platform = await self._npus()
        logins = await self._logins(seen, containers)
        return Survey(
            host=self._host,
            hostname=self._host_agent.facts.hostname,
            addresses=tuple(_addresses(said)),
            servers=tuple(self._with_login(one, logins) for one in seen),
            proxies=proxies,
            containers=tuple(containers),
            npus=npus,
            platform=platform,
            versions=_versions(processes.values()),
            problems=tuple(dict.fromkeys(self._problems)),
        )

    async def _ask(self, argv: Sequence[str], agent: NodeAgent, timeout: float = CALL) -> Mapping[str, Any] | None:
        """Run the script and return what it said; None when it said nothing."""
        try:
            async with self._clock.timeout(timeout + GRACE):
                done = await agent.run(Command(tuple(argv), timeout=timeout, limit=8 << 20))
        except TimeoutError:
            return None
        for line in reversed(done.stdout.decode("utf-8", "replace").split("\n")):
            if line.startswith(MARK):
                try:
                    return _table(json.loads(line.removeprefix(MARK)))
                except (ValueError, RecursionError):
                    return None
        return None

    def _script(self, what: str, **more: object) -> tuple[str, ...]:
        wanted = {"ask": what, "keep": KEEP, "lists": [*LISTS, *ROOTS], "secret": SECRET_PATTERN, **more}
        return ("python3", "-S", "-c", _program(), json.dumps(wanted))

    async def _said(self, what: str, **more: object) -> Mapping[str, Any]:
        said = await self._ask(self._script(what, **more), self._agent)
        if said is None:
            self._problems.append(f"{self._host} did not say what its processes run with within {CALL:.0f} s")
        return said or {}

    async def _containers_of(self, said: Mapping[str, Any]) -> Sequence[ContainerSeen]:
        """Return the containers, asked of the host's engine also when the servers are seen from inside."""
        if self._agent is not self._host_agent:
            said = (
                await self._ask(
                    self._script("processes", pids=[], containers=list(self._containers)), self._host_agent
                )
                or {}
            )
        told = _table(said.get("containers"))
        self._problems += [f"{self._host}: {_line(problem)}" for problem in _list(told.get("problems"))]
        return [_container(_table(one)) for one in _list(told.get("found"))]

    def _placed(self, server: ServerSeen) -> ServerSeen:
        """Return a server with its container: seen from inside it is in the one that was named."""
        if self._agent is self._host_agent or server.container:
            return server
        return replace(server, container=self._containers[0] if self._containers else "", is_elsewhere=False)

    async def _npus(self) -> tuple[int | None, str]:
        """Return how many NPUs the host has, and of which generation."""
        answers = {}
        for query in (Query.TABLE, Query.BOARD):
            command = Command(
                argv_of(query, "a2", None if query is Query.TABLE else 0), timeout=CALL, max_age=60.0
            )
            try:
                async with self._clock.timeout(CALL + GRACE):
                    done = await self._host_agent.run(command)
            except TimeoutError:
                break
            if done.error:  # There is no npu-smi: a machine without NPUs.
                return (0, "") if query is Query.TABLE else (None, "")
            answers[query] = answer_of(done, self._clock.wall(), CALL)
        table = read_table(answers[Query.TABLE]).value if Query.TABLE in answers else None
        board = read_board(answers[Query.BOARD]).value if Query.BOARD in answers else None
        if table is None:
            self._problems.append(f"{self._host}: npu-smi does not say how many NPUs there are")
        return (len(table.chips) if table is not None else None), board.generation if board is not None else ""

    # --- logins

    async def _logins(
        self, servers: Sequence[ServerSeen], containers: Sequence[ContainerSeen]
    ) -> Mapping[tuple[str, ...], tuple[Seen | None, tuple[str, ...]]]:
        """Return (container, roots...) -> what a login has there after its set-up scripts, and these scripts."""
        found: dict[tuple[str, ...], tuple[Seen | None, tuple[str, ...]]] = {}
        for place in dict.fromkeys(one.container for one in servers if one.record is None):
            mine = [one for one in servers if one.container == place and one.record is None]
            prefix = self._prefix(place, containers)
            if prefix is None:
                continue
            plain, _ = await self._login(prefix, {}, ())
            found[(place,)] = plain, ()
            for roots in dict.fromkeys(tuple(sorted(setup_of(one.seen, plain).items())) for one in mine):
                if not roots or plain is None:
                    continue
                _, scripts = await self._login(prefix, dict(roots), ())
                setup = tuple(dict.fromkeys(scripts[name] for name in ROOTS if name in scripts))
                made, _ = await self._login(prefix, {}, setup) if setup else (plain, {})
                found[(place, *(f"{name}={value}" for name, value in roots))] = made or plain, setup
        return found

    def _prefix(self, container: str, containers: Sequence[ContainerSeen]) -> tuple[str, ...] | None:
        """Return what runs a command in a container from where the servers are seen; None: nothing is known to."""
        if not container or self._agent is not self._host_agent:
            return ()
        engine = next((one.engine for one in containers if one.name == container), "")
        return (engine, "exec", "-i", container) if engine else None

    async def _login(
        self, prefix: Sequence[str], roots: Mapping[str, str], setup: Sequence[str]
    ) -> tuple[Seen | None, Mapping[str, str]]:
        """Return the environment of an interactive login, and which set-up scripts belong to `roots`."""
        script = self._script("login", roots=roots)
        if setup:
            script = ("bash", "-c", f'{"".join(map(_sourced, setup))}exec "$0" "$@"', *script)
        said = await self._ask((*prefix, *_AS_LOGIN, *script), self._agent, LOGIN)
        if said is None:
            self._problems.append(f"{self._host}: a login shell there does not say what its environment is")
            return None, {}
        return _seen(said), {_line(k): _line(v) for k, v in _table(said.get("scripts")).items()}

    @staticmethod
    def _with_login(
        one: ServerSeen, logins: Mapping[tuple[str, ...], tuple[Seen | None, tuple[str, ...]]]
    ) -> ServerSeen:
        plain, _ = logins.get((one.container,), (None, ()))
        roots = tuple(f"{name}={value}" for name, value in sorted(setup_of(one.seen, plain).items()))
        login, setup = logins.get((one.container, *roots), (plain, ()))
        return replace(one, login=login, setup=setup)


async def survey(
    host: str, agent: NodeAgent, host_agent: NodeAgent, *, clock: Clock, containers: Sequence[str] = ()
) -> Survey:
    """Return what a host says; one that is lost meanwhile is unreachable."""
    try:
        return await Surveyor(host, agent, host_agent, clock=clock, containers=containers).run()
    except RemoteError as error:
        return Survey(host, unreachable=error.message)


def _sourced(path: str) -> str:
    """Return the line that sources a set-up script, below the root of its own that a simulated host has."""
    word = double_quoted(path)
    return f'if [ -r "$PDTUI_ROOT_VIEW"{word} ]; then . "$PDTUI_ROOT_VIEW"{word}; else . {word}; fi\n'


# --- what was said, into values


def _table(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _line(value: object) -> str:
    return clean_line(value) if isinstance(value, str) else ""


def _lines(value: object) -> tuple[str, ...]:
    return tuple(_line(one) for one in _list(value))


def _texts(value: object) -> dict[str, str]:
    """Return variables; a newline in a value stays."""
    return {_line(name): clean(text) for name, text in _table(value).items() if isinstance(text, str)}


def _seen(raw: Mapping[str, Any]) -> Seen:
    count = raw.get("left_out")
    return Seen(
        _texts(raw.get("env")),
        _lines(raw.get("secrets")),
        count if isinstance(count, int) else 0,
        _line(raw.get("error")) or ("" if "env" in raw else "nothing was said of it"),
    )


def _server(
    process: ProcessInfo, raw: Mapping[str, Any], space: str, containers: Sequence[ContainerSeen]
) -> ServerSeen:
    words = tuple(clean(word) for word in _list(raw.get("argv")) if isinstance(word, str))
    own, number = _line(raw.get("space")), _line(raw.get("container"))
    container = next(
        (one for one in containers if (number and one.id == number) or (own and one.space == own)), None
    )
    return ServerSeen(
        process=process,
        argv=server_words(words) or server_words(process.argv),
        seen=_seen(raw),
        cwd=_line(raw.get("cwd")),
        files=_lines(raw.get("files")),
        container=container.name if container is not None else "",
        is_elsewhere=bool(number) or bool(own and space and own != space),
        record=_record(_table(raw.get("record"))),
    )


def _record(raw: Mapping[str, Any]) -> Record | None:
    argv = tuple(clean(word) for word in _list(raw.get("argv")) if isinstance(word, str))
    if not argv:
        return None
    return Record(
        argv,
        _texts(raw.get("env")),
        _lines(raw.get("secrets")),
        _lines(raw.get("setup")),
        _line(raw.get("folder")),
    )


def _container(raw: Mapping[str, Any]) -> ContainerSeen:
    return ContainerSeen(
        engine=_line(raw.get("engine")),
        id=_line(raw.get("id")),
        name=_line(raw.get("name")),
        image=_line(raw.get("image")),
        space=_line(raw.get("space")),
        host=_table(raw.get("host")),
        mounts=tuple(map(_table, _list(raw.get("mounts")))),
    )


def _addresses(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (interface, address); where several hosts share a network only the host's own address is its."""
    view = _line(said.get("view"))
    for pair in _list(said.get("addresses")):
        if isinstance(pair, list) and len(pair) == 2 and is_ip(address := _line(pair[1])):
            yield _line(pair[0]), address
    if is_ip(view) and ipaddress.ip_address(view).is_loopback:
        yield "lo", view


def _versions(processes: Sequence[Any] | Any) -> Mapping[str, str]:
    """Return the version that most servers have beside them."""
    found: dict[str, Counter[str]] = {}
    for raw in processes:
        for name, version in _texts(_table(raw).get("packages")).items():
            found.setdefault(name, Counter())[version] += 1
    return {name: versions.most_common(1)[0][0] for name, versions in found.items()}


def _proxies(processes: Sequence[ProcessInfo]) -> Iterator[ProxySeen]:
    for info in processes:
        if words := proxy_words(info.argv):
            yield ProxySeen(info, words)


def proxy_words(argv: Sequence[str]) -> tuple[str, ...]:
    """Return a proxy's command from its script, or from `pdtui`, on; empty for what is none."""
    first = PurePath(argv[0]).name if argv else ""
    if not first.startswith(("python", "pdtui")):
        return ()
    for index, word in enumerate(argv[:6]):
        name = PurePath(word).name
        if name.endswith(".py") and "proxy" in name and "server" in name:
            return (name, *argv[index + 1 :])
        if name == "pdtui" and tuple(argv[index + 1 : index + 2]) == ("proxy",):
            return ("pdtui", *argv[index + 1 :])
    return ()
