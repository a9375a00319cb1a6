"""The whole table: every check, in every state that it can be in."""

from __future__ import annotations

from dataclasses import replace

from pdtui.fleet.preflight.check import registered
from pdtui.fleet.preflight.checks import load
from tests.preflight import rows_links, rows_npus, rows_places, rows_roce
from tests.preflight.rows import MAIN, WELL, Row

load()

PARTS = (rows_links, rows_npus, rows_roce, rows_places)

PENDING = frozenset({"ulimit"})
"""What this machine decides, so that these checks need not pass on its simulated nodes: its hard limits."""

ROWS: tuple[Row, ...] = (
    *(Row(one.id, "pass", scene=WELL) for one in registered() if one.id not in PENDING),
    *(
        replace(row, scene=part.__name__.rpartition("_")[2]) if row.scene == MAIN else row
        for part in PARTS
        for row in part.ROWS
    ),
)

EXCEPT: dict[tuple[str, str], str] = {key: why for part in PARTS for key, why in part.EXCEPT.items()}

SCENES = tuple(dict.fromkeys(row.scene for row in ROWS))
