"""`pdtui doctor`: what this machine and terminal can do, where things are, what belongs to a bug report."""

from __future__ import annotations

import getpass
import hashlib
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pdtui.cli.doctor.aside import Aside
from pdtui.cli.doctor.items import (
    Attachment,
    Section,
    as_dict,
    as_text,
    counted,
    fail,
    paragraph,
    summary,
    worst,
)
from pdtui.cli.doctor.redaction import Redaction
from pdtui.cli.output import print_json
from pdtui.console.glyphs import environment
from pdtui.errors import PdtuiError

if TYPE_CHECKING:
    from pdtui.fleet.examination import NodeExamination
    from pdtui.remote.messages.commands import Facts
    from pdtui.topology.load import Loaded
    from pdtui.topology.model import Topology

CRASHES = 3
"""Reports of failed consoles that are asked for, the newest."""


@click.command("doctor")
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.option("--redact", is_flag=True, help="Leave out names of users and hosts, addresses and fingerprints.")
def command(file: Path | None, as_json: bool, redact: bool) -> int:
    """Say what this machine and terminal can do, where files are, and what belongs to a bug report.

    With FILE also what is wrong with it, and whether each of its nodes can be used, asked all at once for 20 s at
    most. Nothing is started or changed. Exit status: 1 when something stops pdtui from working, 0 with mere
    warnings, 2 when FILE cannot be read.
    """
    given = _Given(file) if file is not None else None
    looks = _looks(environment(), given.cluster if given is not None else "")
    begun = [_Look(name, look) for name, look in looks.items()]
    written = Aside(partial(_files_to_attach, given.cluster if given is not None else ""))
    about_file = given.sections() if given is not None else []
    sections: Sequence[Section] = [*(look.section() for look in begun), *about_file]
    attachments: Sequence[Attachment] = _attachments(given, written.result() or ())
    if redact:
        redaction = _redaction(given)
        sections, attachments = redaction.sections(sections), redaction.attachments(attachments)
    if as_json:
        print_json(as_dict(sections, attachments))
    else:
        _print(sections, attachments)
        click.echo(summary(sections), err=True)
    return 1 if worst(sections) == "fail" else 0


def _looks(environ: Mapping[str, str], cluster: str) -> Mapping[str, Callable[[], Section]]:
    """Return what is looked at on this machine. Imported when it is run: any of it may lack what it needs."""

    def machine() -> Section:
        from pdtui.cli.doctor import machine

        return machine.section(environ)

    def terminal() -> Section:
        from pdtui.cli.doctor import terminal

        return terminal.section(environ)

    def ssh() -> Section:
        from pdtui.cli.doctor import ssh

        return ssh.section(environ)

    def files() -> Section:
        from pdtui.cli.doctor import files

        return files.section(cluster)

    def simulation() -> Section:
        from pdtui.cli.doctor import simulation

        return simulation.section()

    return {"machine": machine, "terminal": terminal, "ssh": ssh, "files": files, "simulation": simulation}


class _Look(Aside[Section]):
    """One section about this machine."""

    def __init__(self, name: str, look: Callable[[], Section]) -> None:
        super().__init__(look)
        self._name = name

    def section(self) -> Section:
        """Return it, or one that says why it is not there."""
        return self.result() or Section(self._name, (fail(self._name, self.error),))


class _Given:
    """The file of the command line."""

    def __init__(self, file: Path) -> None:
        """Load it. Raises `FileError` when it cannot be read."""
        self.file = file
        self.problem = ""
        self.loaded: Loaded | None = None
        self._found: list[NodeExamination] = []
        try:
            from pdtui.topology.load import load

            self.loaded = load(file)
        except ImportError as error:
            self.problem = f"files cannot be read: {error}"

    @property
    def topology(self) -> Topology | None:
        """What the file says, if that can be known."""
        return self.loaded.topology if self.loaded is not None else None

    @property
    def cluster(self) -> str:
        """The cluster's name, or empty."""
        return self.topology.name if self.topology is not None else ""

    def hosts(self) -> Sequence[str]:
        """Return all names of machines in it, or heard from them."""
        nodes = list(self.topology.nodes.values()) if self.topology is not None else []
        jumps = [(node.ssh.jump or "").rpartition("@")[2].partition(":")[0] for node in nodes]
        return [*(node.host for node in nodes), *jumps, *(facts.hostname for facts in self._facts())]

    def users(self) -> Sequence[str]:
        """Return all names of people in it, or heard from its nodes."""
        nodes = list(self.topology.nodes.values()) if self.topology is not None else []
        return [*(node.ssh.user or "" for node in nodes), *(facts.user for facts in self._facts())]

    def _facts(self) -> Sequence[Facts]:
        return [facts for one in self._found for facts in (one.host, one.ranks) if facts is not None]

    def sections(self) -> list[Section]:
        """Say what is in it, and ask its nodes."""
        if self.loaded is None:
            return [Section("file", (fail("file", self.problem),))]
        try:
            from pdtui.cli.doctor.cluster import file_section, nodes_section
            from pdtui.cli.live import narrate, run
            from pdtui.clock import SystemClock
            from pdtui.fleet.examination import examine
        except ImportError as error:
            return [Section("nodes", (fail("nodes", f"cannot be reached: {error}"),))]
        digest = hashlib.sha256(self.file.read_bytes()).hexdigest()
        sections = [file_section(self.file, self.loaded, digest)]
        topology = self.topology
        if topology is None:
            return sections
        narrate(f"asking {counted(len(topology.nodes), 'node')}")

        async def ask() -> int:
            self._found.extend(await examine(topology, clock=SystemClock()))
            return 0

        try:
            run(ask)
        except PdtuiError as error:
            return [*sections, Section("nodes", (fail("nodes", error.message, error.remedy),))]
        return [*sections, nodes_section(topology, self._found)]


def _files_to_attach(cluster: str) -> Sequence[Attachment]:
    """Return the files of this machine that belong to a bug report, as far as they are there."""
    from pdtui.cli.doctor.files import crash_logs, journal_file

    found = [
        Attachment(str(path), "where the console failed: lines of code, no values")
        for path in crash_logs()[:CRASHES]
    ]
    if cluster and journal_file(cluster).is_file():
        holds = "who did what and when; commands in it with what looks like a secret hidden"
        found.append(Attachment(str(journal_file(cluster)), holds))
    return found


def _attachments(given: _Given | None, files: Sequence[Attachment]) -> list[Attachment]:
    """Return what belongs to a bug report."""
    name = shlex.quote(str(given.file)) if given is not None else ""
    page = Attachment(
        f"pdtui doctor --json {name}".rstrip() + " > doctor.json",
        "this page: versions, paths, names of users and hosts (--redact leaves them out); no keys, no secrets",
    )
    if given is None:
        return [page, *files]
    return [
        page,
        Attachment(str(given.file.absolute()), "the cluster as you wrote it: look for secrets in env"),
        *files,
        Attachment(
            f"pdtui status --json {name} > status.json; pdtui logs {name} RANK -n 5000 > RANK.log",
            "the state of the cluster, and the log of a rank that it is about: prompts may be in it",
        ),
    ]


def _print(sections: Sequence[Section], attachments: Sequence[Attachment]) -> None:
    """Print it for people."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in as_text(sections, columns):
        click.echo(line)
    click.echo("")
    click.echo(click.style("for a bug report", bold=True))
    for line in paragraph("Say what you did, what you expected and what you saw, and attach:", columns):
        click.echo(f"  {line}")
    for one in attachments:
        click.echo(f"  - {one.what}")
        for line in paragraph(one.holds, None if columns is None else columns - 6):
            click.echo(f"      {line}")


def _redaction(given: _Given | None) -> Redaction:
    hosts = [socket.gethostname(), *(given.hosts() if given is not None else ())]
    return Redaction(_home(), [_user(), *(given.users() if given is not None else ())], hosts)


def _home() -> str:
    try:
        return str(Path.home())
    except RuntimeError:
        return ""


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
