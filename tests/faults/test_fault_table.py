"""Every row of the table happens to real processes and is shown in time; at the end nothing is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.faults.bench import loopback, servers
from tests.faults.driver import Table, order
from tests.faults.left import left_over
from tests.faults.report import record
from tests.faults.rows_links import LINKS
from tests.faults.rows_npus import NPUS
from tests.faults.rows_places import PLACES
from tests.faults.rows_ranks import RANKS
from tests.faults.rows_servers import SERVERS
from tests.faults.rows_starts import STARTS
from tests.faults.table import Row
from tests.remote.injected import need_namespaces
from tests.support.netns import require_netns

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("faults"),
]

HERE = order((*RANKS, *STARTS, *LINKS, *PLACES, *NPUS))
THERE = order(SERVERS)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    need_namespaces("-Urm")  # Else the nodes' disks could not be filled without this machine's.
    with loopback(tmp_path_factory.mktemp("here")) as made:
        table = Table(made, HERE)
        try:
            yield table
        finally:
            table.close()


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    require_netns()
    with servers(tmp_path_factory.mktemp("there")) as made:
        table = Table(made, THERE)
        try:
            yield table
        finally:
            table.close()


def check(table: Table, row: Row, note: Callable[[str, object], None]) -> None:
    outcome = table.outcome(row)
    record(outcome, note)
    assert not outcome.missing, f"not within {row.within:.0f} s: {outcome.missing}"


@pytest.mark.parametrize("row", HERE, ids=lambda row: row.id)
def test_event_is_shown(here: Table, row: Row, record_property: Callable[[str, object], None]) -> None:
    check(here, row, record_property)


def test_stop_all_leaves_nothing(here: Table) -> None:
    here.close()
    assert left_over(here.bench) == []


@pytest.mark.parametrize("row", THERE, ids=lambda row: row.id)
def test_event_of_servers_is_shown(there: Table, row: Row, record_property: Callable[[str, object], None]) -> None:
    check(there, row, record_property)


def test_stop_all_leaves_nothing_on_servers(there: Table) -> None:
    there.close()
    assert left_over(there.bench) == []
