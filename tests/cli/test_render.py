"""`pdtui render` as a shell sees it: what it writes, what it never writes over."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest

from tests.support.command import pdtui
from tests.topology.examples import BASE, changed

ONE_LESS = changed(("nodes: [n2, n3], dp_size: 8", "nodes: [n2], dp_size: 8"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.yaml").write_text(BASE)
    (tmp_path / "bad.yaml").write_text(changed(("kv_port: 14000", "kv_port: 20001")))
    return tmp_path


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_it_writes_what_it_says_and_scripts_are_executable(folder: Path) -> None:
    done = pdtui("render", "good.yaml", "-o", "deep/out", cwd=folder)
    assert done.returncode == 0, done.stderr
    written = done.stdout.splitlines()
    os.umask(mask := os.umask(0o022))
    assert written[0] == "deep/out/README.md"
    assert "deep/out/n1/p/run_dp_template.sh" in written
    assert "9 files" in done.stderr
    assert {f"deep/out/{name}" for name in tree(folder / "deep/out")} == {*written, "deep/out/.pdtui-render.json"}
    for name in written:
        mode = stat.S_IMODE((folder / name).stat().st_mode)
        assert mode == (0o777 if name.endswith(".sh") else 0o666) & ~mask, name
    assert names(folder / "deep") == {"out"}


def test_the_same_file_gives_the_same_bytes_wherever_it_is_rendered(folder: Path) -> None:
    pdtui("render", "good.yaml", "-o", "one", cwd=folder)
    (folder / "sub").mkdir()
    pdtui("render", "../good.yaml", "-o", "two", cwd=folder / "sub")
    assert tree(folder / "one") == tree(folder / "sub/two")
    again = pdtui("render", "good.yaml", "-o", "one", cwd=folder)
    assert (again.returncode, "all as before" in again.stderr) == (0, True)
    assert tree(folder / "one") == tree(folder / "sub/two")


def test_json(folder: Path) -> None:
    pdtui("render", "good.yaml", "-o", "out", cwd=folder)
    (folder / "good.yaml").write_text(ONE_LESS)
    done = pdtui("render", "good.yaml", "-o", "out", "--json", cwd=folder)
    value = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert value.keys() == {"schema_version", "folder", "files", "removed", "kept", "notes"}
    assert (value["schema_version"], value["folder"], value["kept"]) == (1, "out", [])
    assert value["removed"] == ["n3/d/launch.sh", "n3/d/run_dp_template.sh"]
    files = {file["path"]: file for file in value["files"]}
    assert files["n2/d/launch.sh"] == {
        "path": "n2/d/launch.sh",
        "kind": "launch",
        "executable": True,
        "changed": True,
    }
    assert not files["n1/p/launch.sh"]["changed"]
    assert {file["kind"] for file in value["files"]} == {"readme", "template", "launch", "proxy", "benchmark"}
    assert not (folder / "out/n3").exists()


def test_errors_of_the_file_are_shown_as_plan_shows_them(folder: Path) -> None:
    done = pdtui("render", "bad.yaml", "-o", "out", cwd=folder)
    plan = pdtui("plan", "bad.yaml", cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", plan.stderr)
    assert not (folder / "out").exists()
    assert pdtui("render", "good.yaml", cwd=folder).returncode == 2


def test_a_folder_of_somebody_else_is_refused_with_the_remedy(folder: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine/notes.txt").write_text("mine")
    done = pdtui("render", "good.yaml", "-o", "mine", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "mine is not empty" in done.stderr
    assert "--force" in done.stderr
    assert tree(folder / "mine") == {"notes.txt": b"mine"}
    assert pdtui("render", "good.yaml", "-o", "mine", "--force", cwd=folder).returncode == 0
    assert (folder / "mine/notes.txt").read_text() == "mine"
    file = pdtui("render", "good.yaml", "-o", "good.yaml", cwd=folder)
    assert (file.returncode, "is no folder" in file.stderr) == (2, True)


def test_an_empty_folder_is_taken_and_kept(folder: Path) -> None:
    (folder / "out").mkdir(mode=0o700)
    inode = (folder / "out").stat().st_ino
    assert pdtui("render", "good.yaml", "-o", ".", cwd=folder / "out").returncode == 2  # No good.yaml there.
    assert pdtui("render", "../good.yaml", "-o", ".", cwd=folder / "out").returncode == 0
    assert (folder / "out").stat().st_ino == inode
    assert (folder / "out/README.md").exists()


def test_what_was_edited_by_hand_is_never_lost_without_force(folder: Path) -> None:
    pdtui("render", "good.yaml", "-o", "out", cwd=folder)
    edited = folder / "out/n3/d/launch.sh"
    edited.write_text("mine\n")
    (folder / "out/n3/d/launch.log").write_text("a log\n")
    before = tree(folder / "out")
    done = pdtui("render", "good.yaml", "-o", "out", cwd=folder)
    assert done.returncode == 2
    assert "n3/d/launch.sh is not as `pdtui render` wrote it" in done.stderr
    assert tree(folder / "out") == before

    (folder / "good.yaml").write_text(ONE_LESS)
    done = pdtui("render", "good.yaml", "-o", "out", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "left n3/d/launch.sh: edited by hand" in done.stderr
    assert names(folder / "out/n3/d") == {"launch.sh", "launch.log"}

    (folder / "good.yaml").write_text(BASE)
    done = pdtui("render", "good.yaml", "-o", "out", cwd=folder)
    assert done.returncode == 2, "it is not ours any more"
    assert pdtui("render", "good.yaml", "-o", "out", "--force", cwd=folder).returncode == 0
    assert edited.read_text().startswith("#!/bin/bash")
    assert (folder / "out/n3/d/launch.log").read_text() == "a log\n"


@pytest.mark.parametrize("before", [False, True])
def test_a_disk_that_fills_up_leaves_everything_as_it_was(
    folder: Path, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if before:
        pdtui("render", "good.yaml", "-o", "out", cwd=folder)
        (folder / "good.yaml").write_text(ONE_LESS)
    left = tree(folder)
    synced = []

    def full(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    done = pdtui("render", "good.yaml", "-o", "out", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert "No space left on device" in done.stderr
    assert tree(folder) == left


def test_a_damaged_manifest_and_a_folder_in_the_way_are_said(folder: Path) -> None:
    pdtui("render", "good.yaml", "-o", "out", cwd=folder)
    (folder / "out/.pdtui-render.json").write_text('{"files": {"../good.yaml": 1')
    done = pdtui("render", "good.yaml", "-o", "out", cwd=folder)
    assert (done.returncode, "is damaged" in done.stderr) == (2, True)
    (folder / "out/.pdtui-render.json").write_text('{"files": {"../good.yaml": "0"}}')
    assert pdtui("render", "good.yaml", "-o", "out", cwd=folder).returncode == 0
    assert (folder / "good.yaml").exists()
    (folder / "out/README.md").unlink()
    (folder / "out/README.md").mkdir()
    done = pdtui("render", "good.yaml", "-o", "out", "--force", cwd=folder)
    assert (done.returncode, "README.md cannot be written" in done.stderr) == (2, True)


def test_what_is_no_file_in_the_way_is_said_and_not_waited_for(folder: Path) -> None:
    pdtui("render", "good.yaml", "-o", "out", cwd=folder)
    for name in ("README.md", ".pdtui-render.json"):
        kept = (folder / "out" / name).read_bytes()
        (folder / "out" / name).unlink()
        os.mkfifo(folder / "out" / name)
        done = pdtui("render", "good.yaml", "-o", "out", "--force", cwd=folder)
        assert (done.returncode, f"{name} " in done.stderr, "move it away" in done.stderr) == (2, True, True)
        (folder / "out" / name).unlink()
        (folder / "out" / name).write_bytes(kept)
    (folder / "round").symlink_to(folder / "round")
    done = pdtui("render", "good.yaml", "-o", "round", cwd=folder)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)


@pytest.mark.parametrize(
    "manifest", ["[" * 100_000, '{"files": 3}', "\x00", '{"files": {"a\\u0000": "0", "n1": "0"}}']
)
def test_a_manifest_of_any_kind_harms_nothing(folder: Path, manifest: str) -> None:
    pdtui("render", "good.yaml", "-o", "out", cwd=folder)
    before = {name: data for name, data in tree(folder / "out").items() if name != ".pdtui-render.json"}
    (folder / "out/.pdtui-render.json").write_text(manifest)
    done = pdtui("render", "good.yaml", "-o", "out", cwd=folder)
    assert (done.returncode in {0, 2}, "Traceback" in done.stderr) == (True, False)
    assert pdtui("render", "good.yaml", "-o", "out", "--force", cwd=folder).returncode == 0
    assert {name: data for name, data in tree(folder / "out").items() if name in before} == before
