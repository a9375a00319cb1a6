"""`pdtui import`: scripts of today, or what runs now -> a topology file, and a report of how it came about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import click

from pdtui.cli import check
from pdtui.cli.output import print_json
from pdtui.errors import FileError, UsageError
from pdtui.text import clean_line
from pdtui.topology.findings import Severity
from pdtui.topology.importing.observed import Wanted
from pdtui.topology.importing.report import Draft, Kind, Note

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}

_TITLES = {
    Kind.UNREAD: "could not be read",
    Kind.ASKED: "to be written by you",
    Kind.CONTRADICTION: "contradictions, with both places",
    Kind.FINDING: "wrong in what was read",
    Kind.TRANSLATION: "said in another way now",
    Kind.ASSUMPTION: "concluded, not said outright",
    Kind.ORIGIN: "where values come from",
}


@click.command("import")
@click.argument("scripts", nargs=-1, metavar="[HOST=]SCRIPT...|HOST...")
@click.option("--from", "hosts", is_flag=True, help="Ask HOSTs ([USER@]HOST[:PORT], or local) what runs there.")
@click.option("--user", metavar="NAME", help="With --from: login name, where a HOST has none.")
@click.option("--jump", metavar="HOST", help="With --from: jump host, [user@]host[:port].")
@click.option("--sudo", is_flag=True, help="With --from: look with `sudo -n`.")
@click.option(
    "--ssh-config",
    type=click.Path(path_type=Path, exists=True),
    help="With --from: SSH configuration in place of ~/.ssh/config.",
)
@click.option("--container", metavar="NAME", default="", help="With --from: look inside this container.")
@click.option(
    "--exec-prefix",
    metavar="WORDS",
    help="With --from: what runs a command in a container; 'docker exec -i'.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the topology to this file.")
@click.option("--force", is_flag=True, help="With -o: replace a file that is there.")
@click.option("--name", default="", help="Name of the cluster; else that of the served model.")
@click.option("--platform", type=click.Choice(["a2", "a3", "a5"]), help="Generation of the servers.")
@click.option(
    "--vllm-ascend", "version", default="", metavar="VERSION", help="Version that runs, such as 0.22.1rc1."
)
@click.option("--flow", type=click.Choice(["pull", "layerwise"]), help="Which to read of a guide that has both.")
@click.option("--origins", "with_origins", is_flag=True, help="List in the report where each value comes from.")
@click.option("--json", "as_json", is_flag=True, help="Print topology and report as JSON.")
def command(
    scripts: tuple[str, ...],
    hosts: bool,
    user: str | None,
    jump: str | None,
    sudo: bool,
    ssh_config: Path | None,
    container: str,
    exec_prefix: str | None,
    output: Path | None,
    force: bool,
    name: str,
    platform: str | None,
    version: str,
    flow: Literal["pull", "layerwise"] | None,
    with_origins: bool,
    as_json: bool,
) -> int:
    """Read SCRIPTs and print the topology file that says the same, nothing twice; the report goes to stderr.

    Templates with their launch lines, launchers of v0.9.1, `vllm serve` and proxy command lines, `docker run`,
    variables (.env), JSON values, and whole guides as text; give all at once. A comment `# on 192.0.0.1`, or HOST=
    before the file, says where something runs. Nothing is executed.

    With --from the words are HOSTs: servers that run there, whoever started them, are read by their command lines
    and environments, their containers by `docker inspect`; nothing is changed, and no secret is copied.

    Exit status: 1 when something could not be read or is left for you to write, 2 when a file cannot be read.
    """
    told = {"--user": user, "--jump": jump, "--sudo": sudo, "--ssh-config": ssh_config, "--container": container}
    given = [name for name, value in {**told, "--exec-prefix": exec_prefix}.items() if value]
    if hosts:
        if not scripts:
            raise UsageError("no host is named", remedy="pdtui import --from 192.0.0.1 192.0.0.2 -o cluster.yaml")
        _refuse_existing(output, force=force)
        from pdtui.cli.import_from import DOCKER_EXEC, Reach, draft_from_hosts

        reach = Reach(user, jump, sudo, ssh_config, container, exec_prefix or DOCKER_EXEC)
        draft = draft_from_hosts(scripts, reach, Wanted(name, platform or "", version, flow or ""))
        return show(draft, output, as_json=as_json, with_origins=with_origins)
    if given:
        raise UsageError(f"{given[0]} goes with --from")
    from pdtui.topology.importing.assemble import assemble
    from pdtui.topology.importing.scripts import read
    from pdtui.topology.importing.sources import Source

    if not scripts:
        raise UsageError("no script is named", remedy="pdtui import run_dp_template.sh launch.sh proxy.sh")
    wanted = Wanted(name, platform or "", version, flow or "")
    sources = [Source(shown, _bytes(path), host) for host, path, shown in map(_named, scripts)]
    _refuse_existing(output, force=force)
    seen, notes = read(sources, wanted)
    draft = assemble(seen, wanted, notes)
    return show(draft, output, as_json=as_json, with_origins=with_origins)


def _refuse_existing(output: Path | None, *, force: bool) -> None:
    if output is not None and output.exists() and not force:
        raise UsageError(f"{output} is there already", remedy="another name, or --force")


def _named(word: str) -> tuple[str, Path, str]:
    """Return host, file and the file as it is shown; a name with = that is there is a file."""
    host, equals, path = word.partition("=")
    if equals and host and "/" not in host and not Path(word).exists():
        return host, Path(path), path
    return "", Path(word), word


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except IsADirectoryError as error:
        raise FileError(f"cannot read {path}: it is a folder", remedy=f"name its files: {path}/*.sh") from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise FileError(f"cannot read {clean_line(str(path))}: {error}") from error
    said = (line for line in data.splitlines() if line.strip() and not line.lstrip().startswith(b"#"))
    if next(said, b"").startswith(b"pdtui:"):
        raise UsageError(f"{path} is a topology file already", remedy=f"pdtui check {path}")
    return data


def show(draft: Draft, output: Path | None, *, as_json: bool, with_origins: bool) -> int:
    """Print or write a draft and its report; return the exit status."""
    if output is not None:  # What is found is found in the file that the user has.
        draft = replace(draft, findings=tuple(replace(found, file=str(output)) for found in draft.findings))
    if output is not None and draft.text:
        try:
            output.write_text(draft.text, encoding="utf-8")
        except OSError as error:
            raise FileError(f"cannot write {output}: {error.strerror or error}") from error
    if as_json:
        print_json(as_dict(draft))
    else:
        if output is None:
            click.echo(draft.text, nl=False)
        for line in report(draft, str(output or ""), with_origins=with_origins):
            click.echo(line, err=True)
    return 0 if draft.complete else 1


def as_dict(draft: Draft) -> dict[str, object]:
    """Return a draft as what `--json` prints: an interface."""
    return {
        "schema_version": 1,
        "topology": draft.text,
        "complete": draft.complete,
        "notes": [_note(note) for note in draft.notes],
        "findings": check.findings_as_dicts(draft.findings),
    }


def _note(note: Note) -> dict[str, object]:
    return {
        "kind": note.kind.value,
        "severity": note.severity.value,
        "rule": note.rule,
        "message": note.message,
        "path": note.path,
        "origins": [{"source": at.source, "line": at.line, "pid": at.pid} for at in note.origins],
    }


def report(draft: Draft, output: str, *, with_origins: bool) -> Iterator[str]:
    """Yield the report's lines: what needs a hand first, then what was made of the rest."""
    for kind, title in _TITLES.items():
        notes = [note for note in draft.notes if note.kind is kind]
        if kind is Kind.ORIGIN and not with_origins:
            continue
        if notes:
            yield click.style(f"{title}:", bold=True)
            for note in notes:
                yield from _lines(note)
    if draft.text:
        name = output or "the draft"
        found = check.table(draft.findings)
        if found:
            yield click.style(f"what `pdtui check` says of {name}:", bold=True)
            yield from (f"  {line}" for line in found)
        yield check.summary(draft.findings, name)


def _lines(note: Note) -> Iterator[str]:
    severe = note.severity is not Severity.INFO or bool(note.rule)
    mark = (
        click.style(f"{note.severity.value} {note.rule}".strip() + "  ", fg=_COLOURS[note.severity])
        if severe
        else ""
    )
    yield f"  {mark}{note.message}"
    if note.origins:
        yield f"      {_places(note.origins)}"


def _places(origins: Sequence[object]) -> str:
    shown = [clean_line(str(origin)) for origin in origins[:4]]
    return ", ".join(shown) + (f" and {len(origins) - 4} more" if len(origins) > 4 else "")
