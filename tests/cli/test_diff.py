"""`pdtui diff` and `pdtui plan --diff` as a shell sees them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import pdtui
from tests.topology.examples import BASE, changed


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "old.yaml").write_text(BASE)
    (tmp_path / "same.yaml").write_text("# tonight\n" + changed(("seed: 1024", "'seed': 1024")))
    (tmp_path / "reordered.yaml").write_text(
        changed(("seed: 1024, max-model-len: 4000", "max-model-len: 4000, seed: 1024"))
    )
    (tmp_path / "new.yaml").write_text(
        changed(
            ("max-num-seqs: 40", "max-num-seqs: 50, api-key: hunter2"),
            ("dp_size: 8, tp_size: 2, api_port: 7100", "dp_size: 8, tp_size: 2, api_port: 7300"),
            ("kv_port: 14000", "kv_port: 36000"),
        )
    )
    (tmp_path / "broken.yaml").write_text("pdtui: 1\n\tname: x\n")
    return tmp_path


def test_diff_of_two_files(folder: Path) -> None:
    done = pdtui("diff", "old.yaml", "new.yaml", cwd=folder)
    assert (done.returncode, done.stderr) == (1, "")
    head, findings = done.stdout.split("findings that are new\n")
    assert head == (
        "group p\n"
        "  --kv-transfer-config.kv_port: 14000 -> 36000\n"
        "group d\n"
        "  --api-key: absent -> ***\n"
        "  --max-num-seqs: 40 -> 50\n"
        "  --port: 7100-7103 -> 7300-7303  (each rank its own)\n"
        "ports\n"
        "  api d: 7100-7103 -> 7300-7303  (192.0.2.2, 192.0.2.3)\n"
        "  kv p: 14000-14015 -> 36000-36015  (192.0.2.1)\n"
        "for this to take effect\n"
        "  restart group p (2 ranks)\n"
        "  restart group d (8 ranks)\n"
        "  restart the proxy: its address or its list of servers changes\n"
    )
    assert "  warning  R16  " in findings


def test_diff_as_json(folder: Path) -> None:
    done = pdtui("diff", "old.yaml", "new.yaml", "--json", cwd=folder)
    found = json.loads(done.stdout)
    assert (done.returncode, found["schema_version"], found["same"]) == (1, 1, False)
    assert (found["old"], found["new"]) == ("old.yaml", "new.yaml")
    d = found["groups"][1]
    assert (d["name"], d["fate"], d["size"], len(d["ranks"])) == ("d", "changed", 8, 8)
    assert d["ranks"][0] == {"id": "d/0", "fate": "changed", "node": "n2", "note": ""}
    seqs = next(change for change in d["changes"] if change["name"] == "--max-num-seqs")
    assert (seqs["kind"], seqs["old"], seqs["new"], len(seqs["ranks"])) == ("flag", "40", "50", 8)
    assert found["steps"][1]["action"] == "restart"
    checked = json.loads(pdtui("check", "new.yaml", "--json", cwd=folder).stdout)["findings"]
    assert [one for one in found["new_findings"] if one["rule"] == "R16"] == [
        one for one in checked if one["rule"] == "R16"
    ]
    assert "hunter2" not in done.stdout


@pytest.mark.parametrize(
    ("name", "more"), [("same.yaml", ""), ("reordered.yaml", "p/0-1, d/0-7: the same flags and")]
)
def test_no_difference_in_what_runs(folder: Path, name: str, more: str) -> None:
    done = pdtui("diff", "old.yaml", name, cwd=folder)
    assert done.returncode == 0
    first, _, rest = done.stdout.partition("\n")
    assert first == "no difference in what runs"
    assert rest.startswith(more)
    assert bool(rest) is bool(more)
    assert json.loads(pdtui("diff", "old.yaml", name, "--json", cwd=folder).stdout)["same"] is True


def test_a_file_that_cannot_be_read_is_2_and_diff_needs_no_network_library(folder: Path) -> None:
    for words in (("old.yaml", "broken.yaml"), ("none.yaml", "old.yaml")):
        done = pdtui("diff", *words, cwd=folder)
        assert (done.returncode, done.stdout) == (2, "")
        assert "broken.yaml:2" in done.stderr or "none.yaml" in done.stderr
    code = "import sys; from pdtui.cli import diff; print({'asyncssh', 'textual', 'aiohttp'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "set()\n"
    )


def test_plan_diff_of_two_ranks(folder: Path) -> None:
    done = pdtui("plan", "new.yaml", "--diff", "d/1", "d/5", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.stdout.startswith("nothing but what follows from where they stand\n")
    assert ["--data-parallel-rank", "1", "5"] in lines
    across = pdtui("plan", "new.yaml", "--diff", "p/0", "d/0", cwd=folder).stdout
    written, _, placed = across.partition("BY POSITION")
    assert "--api-key" in written
    assert "hunter2" not in across
    assert "--kv-transfer-config.kv_port" in placed
    found = json.loads(pdtui("plan", "new.yaml", "--diff", "p/0", "d/0", "--json", cwd=folder).stdout)
    assert (found["schema_version"], found["ranks"]) == (1, ["p/0", "d/0"])
    assert {"kind": "place", "name": "node", "old": "n1", "new": "n2", "by_position": True} in found["changes"]
    same = pdtui("plan", "new.yaml", "--diff", "d/1", "d/1", cwd=folder)
    assert same.stdout == "d/1 and d/1 differ in nothing\n"
    for words in (("--diff", "d/1", "d/9"), ("--diff", "d/1", "d/2", "--rank", "d/1")):
        assert pdtui("plan", "new.yaml", *words, cwd=folder).returncode == 2
