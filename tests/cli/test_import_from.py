"""`pdtui import --from` before any host is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import pdtui


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--from",), "no host is named"),
        (("--user", "root", "run.sh"), "--user goes with --from"),
        (("--container", "c", "run.sh"), "--container goes with --from"),
        (("--from", "a b"), "'a b' is no host"),
        (("--from", "n1", "n1"), "n1 is named twice"),
        (("--from", "n1", "--exec-prefix", "'"), "--exec-prefix"),
        (("--from", "n1", "-o", "there.yaml"), "there.yaml is there already"),
    ],
)
def test_what_cannot_be_meant_is_2(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    (tmp_path / "there.yaml").touch()
    done = pdtui("import", *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
