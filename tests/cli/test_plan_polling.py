from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pdtui.cli.plan import command
from pdtui.fleet.polling import Pace, calls_per_minute

CONFIGS = Path(__file__).parents[2] / "sample_configs"


def run(*words: str) -> str:
    done = CliRunner().invoke(command, list(words), standalone_mode=False)
    assert done.exception is None, done.output
    return done.output


def test_what_polling_costs_is_what_the_monitor_keeps() -> None:
    answer = json.loads(run(str(CONFIGS / "demo.yaml"), "--polling", "--json", "--call-seconds", "0.4"))
    assert (answer["schema_version"], answer["npus_per_node"], answer["consoles"]) == (1, 16, 1)
    assert set(answer) == {
        "schema_version", "platform", "nodes", "npus_per_node", "consoles", "call_seconds", "cases"
    }  # fmt: skip
    sums = {"calls_per_minute", "tool_seconds_per_minute"}
    assert set(answer["cases"][0]) == {"roce_in_use", "queries", *sums}
    assert set(answer["cases"][0]["queries"][0]) == {"query", "command", "every_seconds", *sums}
    by_case = {case["roce_in_use"]: case for case in answer["cases"]}
    for roce in (True, False):
        planned = calls_per_minute(Pace(), "a3", 16, roce=roce)
        told = {query["query"]: query["calls_per_minute"] for query in by_case[roce]["queries"]}
        assert told == {query.value: round(calls, 3) for query, calls in planned.items()}
        assert by_case[roce]["tool_seconds_per_minute"] == pytest.approx(sum(planned.values()) * 0.4, abs=0.01)
    assert by_case[False]["calls_per_minute"] < by_case[True]["calls_per_minute"]


def test_ten_consoles_cost_little_more_than_one() -> None:
    file = str(CONFIGS / "demo.yaml")
    one, ten = (json.loads(run(file, "--polling", "--json", "--consoles", n))["cases"][0] for n in ("1", "10"))
    assert one["calls_per_minute"] < ten["calls_per_minute"] < 1.2 * one["calls_per_minute"]


def test_people_read_commands_intervals_and_the_sum() -> None:
    text = run(str(CONFIGS / "demo.yaml"), "--polling")
    rows = [line.split() for line in text.splitlines()]
    assert ["npu-smi", "info", "15", "s", "4.0", "2.0"] in rows
    assert ["hccn_tool", "-i", "N", "-vnic", "-g", "30", "s", "32.0", "16.0"] in rows
    assert ["npu-smi", "info", "-t", "hccs", "-i", "N", "-c", "C", "5", "min", "3.2", "1.6"] in rows
    assert "RoCE not in use" in text
    assert "tools run on a node at a time" in text


@pytest.mark.parametrize("words", [("--consoles", "2"), ("--polling", "--commands")])
def test_options_that_do_not_fit_are_refused(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(command, [str(CONFIGS / "demo.yaml"), *words], standalone_mode=False)
    assert "--polling" in str(done.exception)
