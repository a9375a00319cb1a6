"""Secrets are taken from the environment where a script runs; no rendered file holds one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pdtui.topology.model import Runtime, Topology
from pdtui.topology.planner import make_plan
from pdtui.topology.render.files import render
from tests.topology.examples import topology
from tests.topology.render.stand_ins import Bench

SECRET = 'hunter2 it\'s "quoted" $HOME'
ARGS = {
    "seed": 1,
    "api-key": SECRET,
    "other": {"nested_api_key": "hunter2", "list": [1]},
}


def with_secrets() -> Topology:
    """Return the small cluster with secrets in flags, JSON, variables and options of the container."""
    base = topology()
    groups = {
        name: replace(group, args=ARGS, env={"HF_TOKEN": SECRET.replace("$", ""), "FROM": {"from_env": "THERE"}})
        for name, group in base.groups.items()
    }
    runtime = Runtime(
        container="c",
        image="i",
        options=("-e", "HF_TOKEN=hunter2", "--env=A_PASSWORD=hunter2", "--label", "url=http://me:hunter2@host/"),
    )
    return replace(base, groups=groups, runtime=runtime)


def test_no_file_holds_a_secret_and_each_is_named() -> None:
    rendering = render(with_secrets())
    for file in rendering.files:
        assert "hunter2" not in file.text, file.path
    notes = "\n".join(rendering.notes)
    assert "hunter2" not in notes
    for name in ("HF_TOKEN", "API_KEY", "NESTED_API_KEY", "A_PASSWORD"):
        assert name in notes
    (start,) = (file.text for file in rendering.files if file.path == "n1/start_container.sh")
    assert "  -e HF_TOKEN \\\n" in start
    assert "  --env=A_PASSWORD \\\n" in start


def test_ranks_start_with_the_secrets_of_their_environment(tmp_path: Path) -> None:
    cluster = with_secrets()
    bench = Bench(tmp_path)
    out = bench.write(render(cluster).files)
    values = {"HF_TOKEN": SECRET.replace("$", ""), "API_KEY": SECRET, "NESTED_API_KEY": "hunter2", "THERE": "x"}
    done = bench.run(out / "n2/d/launch.sh", **values)
    assert done.returncode == 0, done.stderr
    starts = bench.take()
    assert [start.argv for start in starts] == [rank.argv[1:] for rank in make_plan(cluster).on_node("n2")]
    assert {start.env["HF_TOKEN"] for start in starts} == {values["HF_TOKEN"]}
    assert {start.env["FROM"] for start in starts} == {"x"}


def test_a_secret_that_is_not_set_is_named_and_nothing_starts(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    out = bench.write(render(with_secrets()).files)
    done = bench.run(out / "n1/p/run_dp_template.sh", *"1234567", HF_TOKEN="x", API_KEY="y")
    assert done.returncode != 0
    assert "NESTED_API_KEY" in done.stderr
    assert not bench.take()


@pytest.mark.parametrize("missing", ["file", "variable"])
def test_references_are_looked_up_where_the_script_runs(missing: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    key = tmp_path / "it's a key"
    key.write_text("from a file\n")
    env = f"{{HF_TOKEN: {{from_env: THERE}}, VLLM_API_KEY: {{file: {json.dumps(str(key))}}}}}"
    out = bench.write(render(topology(("{OMP_NUM_THREADS: 10}", env))).files)
    done = bench.run(out / "n2/d/launch.sh", THERE="from the shell")
    assert done.returncode == 0, done.stderr
    starts = bench.take()
    assert {(start.env["HF_TOKEN"], start.env["VLLM_API_KEY"]) for start in starts} == {
        ("from the shell", "from a file")
    }
    if missing == "file":
        key.unlink()
    done = bench.run(out / "n1/p/run_dp_template.sh", *"1234567", **{"THERE": "x"} if missing == "file" else {})
    assert done.returncode == 1
    assert ("VLLM_API_KEY" if missing == "file" else "THERE") in done.stderr
    assert not bench.take()
