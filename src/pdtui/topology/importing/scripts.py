"""From scripts, guides and samples to what they would run: templates are filled in by their launch lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pdtui.topology.findings import Severity
from pdtui.topology.importing import lint
from pdtui.topology.importing.commands import Understood, understand
from pdtui.topology.importing.containers import container_command
from pdtui.topology.importing.documents import Part, parts
from pdtui.topology.importing.evaluate import Evaluator, Ran
from pdtui.topology.importing.launches import Launch, launch, python_launch
from pdtui.topology.importing.observed import (
    ContainerCommand,
    Host,
    Observed,
    Origin,
    ProxyCommand,
    Said,
    ServeCommand,
    Target,
    Wanted,
    serve_command,
)
from pdtui.topology.importing.proxies import proxy_command
from pdtui.topology.importing.report import Kind, Note, note
from pdtui.topology.importing.shell import Script
from pdtui.topology.importing.sources import Source, decoded, env_fragment, json_fragment
from pdtui.topology.importing.targets import targets
from pdtui.topology.importing.templates import first_address, flow_of, is_address, needs_words, without_words
from pdtui.topology.importing.values import State, Value
from pdtui.topology.redact import redacted_text

_SEEN_HOST = ("local_ip", "LOCAL_IP", "HCCL_IF_IP", "VLLM_HOST_IP", "HOST_IP", "host_ip", "NODE_IP", "node_ip")
"""Variables that hold the address of the machine on which a script runs."""

_HANDED_ON = re.compile(r"\bvllm['\"]?\s+['\"]?serve\b|vllm\.entrypoints\.|\blaunch_online_dp\.py\b")
"""What starts a server, anywhere in a command's words."""

_SHOW = frozenset(
    {
        *("echo", "printf", "cat", "grep", "egrep", "fgrep", "pgrep", "pkill", "kill", "killall", "ps", "pidof"),
        *("awk", "sed", "ls", "rm", "cp", "mv", "tail", "head", "which", "type", "logger", "trap", "curl", "test"),
        *("[", "wc", "sort", "tee", "true", "false", ":", "pip", "python", "git"),
    }
)
"""Programs that may name a server without starting it."""

_SERVES = re.compile(r"template|vllm|serve|prefill|decode|_dp", re.IGNORECASE)
"""Names of scripts that are likely to start a server."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """One script: a file, or a part of a document."""

    name: str
    text: str
    first_line: int
    host: str
    whole: bool
    """A file of its own, not a part of a document."""
    written: str = ""
    """Name of the file, where another script writes it by a here-document."""

    @property
    def base(self) -> str:
        """The name by which other scripts call it."""
        return self.written or self.name.rsplit("/", 1)[-1]


@dataclass
class _Template:
    """A script that needs words to run."""

    piece: _Piece
    host: str
    flow: str


@dataclass
class _Reader:
    wanted: Wanted
    notes: list[Note] = field(default_factory=list)
    pieces: list[_Piece] = field(default_factory=list)
    templates: list[_Template] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    commands: list[ServeCommand] = field(default_factory=list)
    proxies: list[ProxyCommand] = field(default_factory=list)
    containers: list[ContainerCommand] = field(default_factory=list)
    fragments: list[ServeCommand] = field(default_factory=list)
    """What sets variables or configures a transfer, but starts nothing."""
    common: dict[str, Said] = field(default_factory=dict)
    """Exports that stand in a document outside of its scripts."""
    setups: list[Said] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    _direct: list[tuple[_Piece, ServeCommand]] = field(default_factory=list)
    """Commands of scripts that need no words."""
    sourced: set[str] = field(default_factory=set)
    """Files that others source: they count there, and for nobody else."""
    users: dict[str, str] = field(default_factory=dict)
    """Host -> user of SSH."""

    def read(self, source: Source) -> None:
        text = decoded(source, self.notes)
        if text is None:
            return
        name = source.name
        lower = name.lower()
        self.targets += targets(text, name)
        stripped = text.lstrip()
        if lower.endswith(".json") or (stripped.startswith("{") and not lower.endswith((".sh", ".txt", ".md"))):
            json_fragment(name, text, source.host, self.fragments, self.notes)
        elif lower.endswith(".env"):
            env_fragment(name, text, source.host, self.fragments, self.notes)
        elif lower.endswith(".py") or re.search(r"^import multiprocessing\b", text) is not None:
            self._python(Part("python", text, 1), name, source.host)
        elif lower.endswith((".txt", ".md", ".rst")) or (
            not lower.endswith((".sh", ".bash")) and any(True for _ in Script(text).errors())
        ):
            for part in parts(text):
                if part.kind == "python":
                    self._python(part, name, source.host)
                else:
                    self.pieces.append(_Piece(name, part.text, part.first_line, source.host, whole=False))
        else:
            self.pieces.append(_Piece(name, text, 1, source.host, whole=True))

    def _unread(self, message: str, origin: Origin) -> None:
        self.notes.append(note(Kind.UNREAD, message, origin))

    def _python(self, part: Part, name: str, host: str) -> None:
        found, notes = python_launch(part.text, name, part.first_line, host=host)
        if found is None and any(one.kind == "port" for one in targets(part.text, name)):
            return  # A benchmark's settings: what they are aimed at is all that is in them.
        self.notes += notes
        if found is not None:
            self.launches.append(found)

    def evaluate(self) -> None:
        """Run through all scripts without words; templates are kept for their launch lines."""
        for piece in self.pieces:
            self.notes += lint.lint(piece.text, piece.name, piece.first_line)
            script = Script(piece.text, piece.first_line)
            for line, text in script.errors():
                self._unread(f"no shell that can be read: {redacted_text(text):.60}", Origin(piece.name, line))
            state = State(dict(self.common), dict.fromkeys(self.common))
            found, evaluator = self._run(piece, script, state)
            self.notes += evaluator.notes
            for name, (text, line) in evaluator.files.items():
                self.pieces.append(_Piece(piece.name, text, line, piece.host, True, name))
            if not self._sort(piece, found) and state.env():
                self._outside(piece, state)

    def _run(self, piece: _Piece, script: Script, state: State, host: str = "") -> tuple[list[Ran], Evaluator]:
        evaluator = Evaluator(
            script, piece.name, state, host=host or piece.host, ends=piece.whole, others=self._others(piece)
        )
        found = evaluator.run()
        self.sourced |= evaluator.sourced
        return found, evaluator

    def _others(self, piece: _Piece) -> dict[str, tuple[str, str]]:
        """Return the files that a script may source, those in its own folder before those of the same name."""
        folder = piece.name.rpartition("/")[0]
        whole = [one for one in self.pieces if one.whole and not one.written]
        return {
            one.base: (one.name, one.text)
            for one in sorted(whole, key=lambda one: one.name.rpartition("/")[0] == folder)
        }

    def _outside(self, piece: _Piece, state: State) -> None:
        env = {
            key: said
            for key, said in state.env().items()
            if key not in self.common or self.common[key] is not said
        }
        if not env:
            return
        first = next(iter(env.values())).origin
        if piece.whole:
            self.fragments.append(ServeCommand(piece.host, None, {}, env, first))
        else:
            self.common.update(env)
            message = f"{', '.join(env)} stands outside of any script; taken as set for every rank"
            self.notes.append(note(Kind.ASSUMPTION, message, first))

    def _sort(self, piece: _Piece, found: Sequence[Ran]) -> bool:
        """Put commands where they belong; return whether there was one that matters."""
        matters = False
        for ran in found:
            understood = understand(ran.words)
            matters = self._one(piece, ran, understood, 0) or matters
        return matters

    def _one(self, piece: _Piece, ran: Ran, understood: Understood, depth: int) -> bool:
        host = self._host(piece, ran)
        env = understood.environment(ran.env)
        if understood.kind == "serve":
            command = serve_command(understood.words, env, host=host, origin=ran.origin)
            if needs_words(command):
                if not any(template.piece is piece for template in self.templates):
                    self.templates.append(_Template(piece, host, flow_of(command)))
            else:
                self.commands.append(command)
                self._direct.append((piece, command))
        elif understood.kind == "launch":
            started, notes = launch(understood.words, host=host, origin=ran.origin)
            self.notes += notes
            if started is not None:
                self.launches.append(replace(started, env=ran.env))
        elif understood.kind == "proxy":
            script, words = understood.name, understood.words
            proxy, notes = proxy_command(
                script, words, host=host, origin=ran.origin, version=self.wanted.vllm_ascend
            )
            self.proxies.append(proxy)
            if not self._other_flow(proxy):
                self.notes += notes
        elif understood.kind == "container":
            container, notes = container_command(understood.words, host=host, origin=ran.origin)
            self.notes += notes
            if container is not None:
                self.containers.append(container)
        elif understood.kind == "source":
            self._sourced(understood, ran)
        elif understood.kind in {"shell", "remote"} and depth < 4:
            self._nested(piece, ran, understood, depth)
        elif understood.kind == "script":
            return self._called(ran, understood, host, env)
        else:
            self._not_followed(ran, understood)
            return False
        return understood.kind != "source"

    def _not_followed(self, ran: Ran, understood: Understood) -> None:
        """Name a command that hands a server to something else to run, in a way that is not known here."""
        program = understood.name.rsplit("/", 1)[-1]
        if program not in _SHOW and _HANDED_ON.search(" ".join(word.text for word in ran.words)):
            self._unread(f"what {program} starts here is not followed, and it is a server", ran.origin)

    def _other_flow(self, proxy: ProxyCommand) -> bool:
        return bool(self.wanted.flow) and proxy.layerwise != (self.wanted.flow == "layerwise")

    def _host(self, piece: _Piece, ran: Ran) -> str:
        if ran.host:
            return ran.host
        for name in _SEEN_HOST:
            value = ran.variables.get(name)
            if isinstance(value, Said) and not value.unknown and is_address(value.text):
                return value.text
        return piece.host

    def _sourced(self, understood: Understood, ran: Ran) -> None:
        """Take a file that is sourced for one of `runtime.setup`, unless it is here or a login reads it anyway."""
        name = understood.name
        last = name.rsplit("/", 1)[-1]
        if name.endswith("bashrc") or any(piece.base == last for piece in self.pieces):
            return
        if not name.endswith("set_env.sh") and not name.startswith(("/", "~/")):
            self._unread(f"{name} is sourced here; give that file too", ran.origin)
        elif name not in [old.text for old in self.setups]:
            self.setups.append(Said(name, ran.origin))

    def _nested(self, piece: _Piece, ran: Ran, understood: Understood, depth: int) -> None:
        """Follow the command line of `bash -c` or ssh."""
        inside = understood.kind == "shell" and understood.name != "eval"
        words = understood.words
        if not words:
            return
        line = words[:1] if inside else words
        text = " ".join(word.text for word in line)
        if any(word.unknown for word in line) and not re.search(r"vllm|launch|proxy", text):
            return
        host = ran.host or piece.host
        if understood.kind == "remote":
            user, at, name = understood.name.rpartition("@")
            host = name
            if at:
                self.users[name] = user
        env = understood.environment(ran.env)
        variables: dict[str, Value] = {**ran.variables, **env} if understood.name == "eval" else {**env}
        state = State(variables, dict.fromkeys(env), words[2:] if inside and words[1:] else None)
        inner = _Piece(piece.name, text, words[0].origin.line, host, piece.whole)
        found, evaluator = self._run(inner, Script(text, inner.first_line), state, host)
        self.notes += evaluator.notes
        for one in found:
            self._one(inner, one, understand(one.words), depth + 1)

    def _called(self, ran: Ran, understood: Understood, host: str, env: Mapping[str, Said]) -> bool:
        """Take a call of a template with its words for a launch of one rank."""
        name = understood.name.rsplit("/", 1)[-1]
        if any(word.unknown for word in understood.words):
            return False
        known = any(piece.base == name for piece in self.pieces)
        if not known and (not understood.words or _SERVES.search(name) is None):
            return False
        self.launches.append(Launch(host, name, (understood.words,), ran.origin, env=dict(env)))
        return True

    def _crowded(self) -> None:
        """Find two groups that today's launcher would put on the same NPUs of a host."""
        first: dict[str, Launch] = {}
        for started in self.launches:
            if started.old or not started.host or started.calls[:1] == ():
                continue
            before = first.setdefault(started.host, started)
            if before is not started and started.by_launcher and before.by_launcher:
                message = f"two launch lines on {started.host}: the launcher gives both the NPUs from 0 up"
                places = (before.origin, started.origin)
                self.notes.append(note(Kind.FINDING, message, *places, rule="R08", severity=Severity.ERROR))

    def expand(self) -> None:
        """Fill in the templates, each launch line with its own."""
        self._crowded()
        for number, started in enumerate(self.launches):
            chosen = self._chosen(started, number)
            if not chosen:
                self._bare(started)
            for template in chosen:
                self.notes += lint.contract(
                    template.piece.text, template.piece.name, template.piece.first_line, started
                )
                for words in started.calls:
                    self._fill(template.piece, words, started, started.host or template.host)
        for template in self.templates:
            if not self.launches:
                origin = Origin(template.piece.name, template.piece.first_line)
                self.notes += lint.contract(
                    template.piece.text, template.piece.name, template.piece.first_line, None
                )
                message = "a template, and no launch line that says with which words it runs: give that too"
                self._unread(message, origin)
                script = Script(template.piece.text, template.piece.first_line)
                found, _ = self._run(template.piece, script, State(dict(self.common), dict.fromkeys(self.common)))
                for ran in found:
                    understood = understand(ran.words)
                    if understood.kind == "serve":
                        command = serve_command(understood.words, ran.env, host=template.host, origin=ran.origin)
                        self.fragments.append(without_words(command))

    def _fill(self, piece: _Piece, words: Sequence[Said], started: Launch, host: str) -> None:
        env = {**self.common, **started.env}
        state = State(dict(env), dict.fromkeys(env), tuple(words))
        found, _ = self._run(piece, Script(piece.text, piece.first_line), state, host)
        for ran in found:
            understood = understand(ran.words)
            if understood.kind == "serve":
                own = understood.environment(ran.env)
                place = host or self._host(piece, ran) or first_address(started)
                self.commands.append(serve_command(understood.words, own, host=place, origin=ran.origin))

    def _chosen(self, started: Launch, number: int) -> list[_Template]:
        """Return the templates that a launch line starts: one for each flow."""
        named = [t for t in self.templates if t.piece.base == started.template]
        if not named and started.template:
            extra = [piece for piece in self.pieces if piece.base == started.template]
            if extra and not started.old:
                self._only_called(extra[0])
                return [_Template(extra[0], started.host, "")]
        folder = started.origin.source.rpartition("/")[0]
        beside = [t for t in named if t.piece.whole and t.piece.name.rpartition("/")[0] == folder]
        if len(beside) == 1:
            return beside
        pool = named or self.templates
        at = started.host or (started.address if started.first_rank == 0 else "")
        here = [template for template in pool if template.host and template.host == at]
        if here:
            return here
        anyones = [template for template in pool if not template.host]
        if len(anyones) == 1:
            return anyones
        if len(anyones) == len(self.launches):
            template = anyones[number]
            line = template.piece.first_line
            message = f"this launcher and the template in line {line} were taken for a pair, by their order"
            self.notes.append(
                note(
                    Kind.ASSUMPTION,
                    message,
                    started.origin,
                    Origin(template.piece.name, template.piece.first_line),
                )
            )
            return [template]
        if len(pool) == 1:
            return pool
        return []

    def _only_called(self, piece: _Piece) -> None:
        """Take a script that another calls for one that does not run by itself."""
        own = [command for one, command in self._direct if one is piece]
        self.commands = [command for command in self.commands if not any(command is mine for mine in own)]

    def _bare(self, started: Launch) -> None:
        """Keep the ranks of a launch line whose template is not there, as far as today's order says them."""
        message = (
            f"{started.template} is not among the files: give it too, it says what the ranks are started with"
        )
        self._unread(message, started.origin)
        if started.old:
            return
        names = (
            "port",
            "data-parallel-size",
            "data-parallel-rank",
            "data-parallel-address",
            "data-parallel-rpc-port",
            "tensor-parallel-size",
        )
        for words in started.calls:
            if len(words) == 7:
                env = {**started.env, "ASCEND_RT_VISIBLE_DEVICES": words[0]}
                flags = dict(zip(names, words[1:], strict=True))
                host = started.host or first_address(started)
                self.commands.append(ServeCommand(host, None, flags, env, started.origin))

    def observed(self) -> Observed:
        """Return what was found, of one flow."""
        flow = self.wanted.flow
        flows = dict.fromkeys(flow_of(command) for command in self.commands if flow_of(command))
        commands = self.commands
        proxies = self.proxies
        if len(flows) > 1 and not flow:
            flow = "layerwise" if next(iter(flows)) == "layerwise" else "pull"
            other = next(name for name in flows if name != flow)
            places = [next(c.origin for c in commands if flow_of(c) == name) for name in flows]
            message = f"both flows are in it; {flow} was read: --flow {other} reads the other"
            self.notes.append(note(Kind.ASSUMPTION, message, *places, severity=Severity.WARNING))
        if flow:
            commands = [command for command in commands if flow_of(command) in ("", flow)]
            proxies = [proxy for proxy in proxies if proxy.layerwise == (flow == "layerwise")] or proxies
        commands = commands or self.fragments
        loose = [fragment for fragment in self.fragments if fragment.origin.source not in self.sourced]
        if loose and commands is not self.fragments:
            extra = {key: said for fragment in loose for key, said in fragment.env.items()}
            if extra:
                message = f"nothing sources what sets {', '.join(extra)}; taken as set for every rank"
                where = dict.fromkeys(fragment.origin for fragment in loose if fragment.env)
                self.notes.append(note(Kind.ASSUMPTION, message, *where))
            commands = [replace(command, env={**extra, **command.env}) for command in commands]
        hosts = [Host(name, ssh_user=user) for name, user in self.users.items()]
        return Observed(
            tuple(commands),
            tuple(proxies),
            tuple(self.containers),
            tuple(hosts),
            setup=tuple(self.setups),
            targets=tuple(self.targets),
        )


def read(sources: Sequence[Source], wanted: Wanted | None = None) -> tuple[Observed, list[Note]]:
    """Return what scripts, guides and samples would run, and what is to be said of reading them. Never raises."""
    reader = _Reader(wanted or Wanted())
    for source in sources:
        reader.read(source)
    reader.evaluate()
    reader.expand()
    observed = reader.observed()
    return observed, list(dict.fromkeys(reader.notes))
