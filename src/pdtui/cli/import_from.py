"""`pdtui import --from HOST...`: what runs on hosts now, as a topology."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pdtui.cli.live import narrate, run
from pdtui.clock import SystemClock
from pdtui.errors import UsageError
from pdtui.fleet.discovering.hosts import Hosts, hosts_of, survey_all
from pdtui.fleet.discovering.observing import cluster_of, in_words, observed, platform_of
from pdtui.fleet.discovering.survey import Survey
from pdtui.topology.importing.assemble import assemble
from pdtui.topology.importing.observed import Wanted
from pdtui.topology.importing.report import Draft
from pdtui.topology.model import SshOptions

DOCKER_EXEC = "docker exec -i"


@dataclass(frozen=True, slots=True)
class Reach:
    """How hosts are reached that are in no file."""

    user: str | None = None
    jump: str | None = None
    sudo: bool = False
    config: Path | None = None
    """SSH client configuration in place of ~/.ssh/config."""
    container: str = ""
    """Look for servers in this container, from inside."""
    exec_prefix: str = DOCKER_EXEC
    """Words before the container's name, as a shell reads them."""

    @property
    def ssh(self) -> SshOptions:
        """What is told to SSH."""
        return SshOptions(user=self.user, jump=self.jump, sudo=self.sudo, config=self.config)

    @property
    def exec_words(self) -> tuple[str, ...]:
        """The prefix as words. Raises `UsageError`."""
        try:
            words = tuple(shlex.split(self.exec_prefix))
        except ValueError as error:
            raise UsageError(f"--exec-prefix: {error}", remedy=f"for example '{DOCKER_EXEC}'") from error
        if not words:
            raise UsageError("--exec-prefix is empty", remedy=f"for example '{DOCKER_EXEC}'")
        return words


def draft_from_hosts(words: Sequence[str], reach: Reach, wanted: Wanted) -> Draft:
    """Ask hosts what runs there and return a topology of it; each is told on stderr when it has answered.

    A host that cannot be asked is unread in the draft. Raises `UsageError`.
    """
    prefix = reach.exec_words
    hosts = hosts_of(words, reach.ssh, container=reach.container, prefix=prefix)
    surveys = _surveys(hosts)
    other = reach.exec_prefix != DOCKER_EXEC
    seen, notes = observed(surveys, nodes=hosts.nodes, exec_words=prefix if other else ())
    # Under its own name pdtui finds its ranks again.
    said = replace(
        wanted, name=wanted.name or cluster_of(surveys), platform=wanted.platform or platform_of(surveys)
    )
    return assemble(seen, said, notes)


def _surveys(hosts: Hosts) -> Sequence[Survey]:
    found: list[Survey] = []

    def told(survey: Survey) -> None:
        for line in in_words([survey]):
            narrate(line)

    async def main() -> int:
        found.extend(await survey_all(hosts, clock=SystemClock(), told=told))
        return 0

    if status := run(main):  # Told to end: what is known is not all.
        raise SystemExit(status)
    return found
