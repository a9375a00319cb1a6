"""Scenarios: read strictly, played at their times."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from pdtui.assets import asset_dir
from pdtui.errors import FileError, UsageError
from pdtui.sim import scenario as module
from pdtui.sim.scenario import begin, play, read_scenario
from pdtui.sim.simulation import Simulation
from tests.support.manual_clock import ManualClock, settle

NODES = ("node1", "node2", "node3", "node4")


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "night.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_samples_are_in_order() -> None:
    found = sorted(asset_dir("sample_configs").glob("scenarios/*.yaml"))
    assert [path.name for path in found] == ["bad-night.yaml"]
    for path in found:
        night = read_scenario(path, NODES)
        assert night.start
        assert [step.at for step in night.steps] == sorted(step.at for step in night.steps)


def test_every_mistake_is_told_at_once_with_its_place(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """\
scenario: 2
nam: x
start: [lnk node1/3 down, link node9/1 up]
events:
  - {at: soon, faults: hang}
  - {faults: heal all, at: 3s, when: 1}
  - at: 3s
""",
    )
    with pytest.raises(FileError) as wrong:
        read_scenario(path, NODES)
    assert wrong.value.message.splitlines() == [
        f"{path}:1:11: write scenario: 1, the format of this file",
        f"{path}:2:1: unknown key nam; did you mean name?",
        f"{path}:3:9: no fault 'lnk'; did you mean link?",
        f"{path}:3:27: no node node9; did you mean node4?",
        f"{path}:5:10: at: when, such as 30s or 5m; not soon",
        f"{path}:5:24: write hang NODE[/NPU]|all [hccn_tool|npu-smi] [QUERY] [on|off]",
        f"{path}:6:32: unknown key when",
        f"{path}:7:5: faults: what happens then; see pdtui demo --faults",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nothing in this file"),
        ("- a\n", "a scenario is a mapping"),
        ("scenario: 1\nevents: {at: 3s}\n", ":2:9: events is a list"),
        ("scenario: 1\nscenario: 1\n", ":2:1: scenario stands here twice"),
        ("scenario: [1\n", ":2: no YAML"),
    ],
)
def test_what_is_no_scenario(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FileError, match=said.replace("[", r"\[")):
        read_scenario(write(tmp_path, text), NODES)


async def test_events_come_at_their_times_and_a_failure_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def apply(_: Simulation, spec: str) -> str:
        if spec.startswith("crash"):
            raise UsageError("no rank runs")
        return spec.upper()

    monkeypatch.setattr(module, "apply", apply)
    path = write(
        tmp_path,
        """\
scenario: 1
start: link node1/3 down
events:
  - {at: 2m, faults: heal all}
  - {at: 30s, say: boom, faults: [crash d/3, cut node2]}
""",
    )
    night, clock, said = read_scenario(path, NODES), ManualClock(), list[str]()
    nothing = cast("Simulation", SimpleNamespace())
    await begin(nothing, night, said.append)
    assert said == ["start: LINK NODE1/3 DOWN"]
    playing = asyncio.ensure_future(play(nothing, night, clock, said.append))
    await settle()
    await clock.advance(29)
    assert len(said) == 1
    await clock.advance(2)
    assert said[1:] == ["30 s: boom", f"30 s: {path}:5: no rank runs", "30 s: CUT NODE2"]
    await clock.advance(90)
    await playing
    assert said[-1] == "120 s: HEAL ALL"


async def test_a_beginning_that_cannot_be_is_told_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def apply(_: Simulation, spec: str) -> str:
        raise UsageError(f"{spec}: no")

    monkeypatch.setattr(module, "apply", apply)
    night = read_scenario(write(tmp_path, "scenario: 1\nstart: link node1/77 down\n"), NODES)
    with pytest.raises(FileError, match=r"night.yaml:2: link node1/77 down: no"):
        await begin(cast("Simulation", SimpleNamespace()), night, list[str]().append)
