"""The whole table: every check, in every state that it can be in."""

from __future__ import annotations

from dataclasses import replace

from pdtui.fleet.preflight.check import registered
from pdtui.fleet.preflight.checks import load
from tests.preflight import rows_links, rows_npus, rows_places, rows_roce
from tests.preflight.rows import MAIN, WELL, Row

load()

PARTS = (rows_npus, rows_roce, rows_places, rows_links)

OF_THE_MACHINE = frozenset({"ulimit"})
"""What a simulated node has from the machine of the tests: whether they pass is not ours to say."""

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
    ("ulimit", "pass"): "what this machine allows; see test_place_checks",
    **{key: why for part in PARTS for key, why in part.EXCEPT.items()},
}

SCENES = tuple(dict.fromkeys(row.scene for row in ROWS))
