"""The whole table: every check, in every state that it can be in."""

from __future__ import annotations

import resource
from dataclasses import replace

from pdtui.fleet.preflight.check import registered
from pdtui.fleet.preflight.checks import load
from pdtui.fleet.preflight.checks.capacity import NOFILE
from tests.preflight import rows_links, rows_npus, rows_places, rows_roce
from tests.preflight.rows import MAIN, WELL, Row

load()

PARTS = (rows_npus, rows_roce, rows_places, rows_links)

_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)[1]

OF_THE_MACHINE = frozenset() if _FILES == resource.RLIM_INFINITY or _FILES >= NOFILE else frozenset({"ulimit"})
"""What a simulated node cannot have since the machine of the tests does not allow it."""

PORTS = ("ephemeral all 33000-50000",)
"""The ports that outgoing connections take, or they would be this machine's."""

ROWS: tuple[Row, ...] = (
    *(Row(one.id, "pass", PORTS, scene=WELL) for one in registered() if one.id not in OF_THE_MACHINE),
    *(
        replace(row, scene=part.__name__.rpartition("_")[2]) if row.scene == MAIN else row
        for part in PARTS
        for row in part.ROWS
    ),
)

EXCEPT: dict[tuple[str, str], str] = {
    **{
        (one, "pass"): f"no process here may have {NOFILE} files open; see test_place_checks"
        for one in OF_THE_MACHINE
    },
    **{key: why for part in PARTS for key, why in part.EXCEPT.items()},
}

SCENES = tuple(dict.fromkeys(row.scene for row in ROWS))
