"""Whatever the bytes are, an import ends with a draft or with words, and never with an exception."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtui.topology.importing.assemble import assemble
from pdtui.topology.importing.report import Draft, Kind
from pdtui.topology.importing.scripts import read
from pdtui.topology.importing.sources import LARGEST, Source

HERE = Path(__file__).parent
SEEDS = [
    path.read_text()
    for path in (*sorted((HERE / "data").iterdir()), *sorted((HERE.parent / "data").glob("guide_*.txt")))
]
NAMES = st.sampled_from(["a.sh", "a.txt", "a.json", "a.env", "a.py", "a"])
PIECES = st.sampled_from(
    [
        *(
            "vllm serve",
            " /m",
            " --port",
            " $2",
            "\n",
            "\\\n",
            "'",
            '"',
            "{",
            "}",
            "${A:-",
            "$((",
            "$(",
            ")",
            "`",
            "<<EOF\n",
        ),
        *(
            "EOF\n",
            "for i in {0..3}; do ",
            "done\n",
            "if ",
            "then ",
            "fi\n",
            "export A=",
            " # on 192.0.0.1\n",
            "(",
            "&",
        ),
        *(' --kv-transfer-config \'{"kv_connector": "MooncakeConnectorV1", "kv_role": "kv_producer",}\'', "|"),
        *(
            " --data-parallel-size 2",
            " --data-parallel-rank 1",
            " --tensor-parallel-size 99999999",
            "[",
            "\x00",
            "é",
        ),
        *(
            "python launch_online_dp.py --dp-size 4 --dp-rpc-port 1 --dp-address 192.0.0.1\n",
            "import multiprocessing\n",
        ),
        *(
            "python load_balance_proxy_server_example.py --prefiller-hosts a b --prefiller-ports 1\n",
            "A=(b c)\n",
            "\t",
        ),
        *(
            "bash a.sh 0 1 2 3 4 5 6\n",
            "docker run --name x -v a:b image bash\n",
            "dp_size = 2\n",
            "a.sh() { a.sh; }\na.sh\n",
        ),
    ]
)


def imported(name: str, data: bytes) -> Draft:
    seen, notes = read([Source(name, data)])
    return assemble(seen, None, notes)


@settings(max_examples=80, deadline=None)
@given(NAMES, st.binary(max_size=200))
def test_random_bytes(name: str, data: bytes) -> None:
    assert imported(name, data).notes


@settings(max_examples=120, deadline=None)
@given(NAMES, st.lists(PIECES, max_size=25).map("".join))
def test_pieces_of_scripts_in_any_order(name: str, text: str) -> None:
    assert imported(name, text.encode()).notes


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SEEDS), st.integers(0, 20_000), st.integers(0, 300), PIECES)
def test_scripts_with_a_piece_cut_out(text: str, start: int, count: int, piece: str) -> None:
    at = start % max(len(text), 1)
    assert imported("a.txt", (text[:at] + piece + text[at + count :]).encode()).notes


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        ("vllm serve /m\n".encode("utf-16"), "save the file as UTF-8"),
        (b"x" * (LARGEST + 1), "files up to 4096 KiB are read"),
        (b"echo hello\n", "no vllm serve command was found"),
    ],
)
def test_files_that_are_no_scripts_are_refused_in_words(data: bytes, words: str) -> None:
    draft = imported("a.sh", data)
    assert any(words in note.message for note in draft.notes if note.kind is Kind.UNREAD)
    assert not draft.text


def test_a_byte_that_is_no_utf8_is_named_by_its_line() -> None:
    draft = imported("a.sh", b"# ok\n# caf\xe9\nvllm serve /m --port 1\n")
    [note] = [note for note in draft.notes if "UTF-8" in note.message]
    assert [str(origin) for origin in note.origins] == ["a.sh:2"]
    assert "path: /m" in draft.text


def test_line_ends_of_windows_are_read_and_named() -> None:
    draft = imported("a.sh", b"export A=1\r\nvllm serve /m \\\r\n  --port 7100\r\n")
    assert "api_port: 7100" in draft.text
    assert any(note.rule == "R60" and "Windows" in note.message for note in draft.notes)


@pytest.mark.parametrize(
    "text",
    [
        "${A:-" * 3000,
        "$(" * 3000,
        "{a,b}" * 400,
        "( " * 3000,
        "if x; then " * 500,
        "f() { f; f; }\nf\n",
        "for i in {0..9999}; do for j in {0..9999}; do vllm serve $i; done; done\n",
        "vllm serve " + "--a " * 5_000,
        "vllm serve --kv-transfer-config '" + "[" * 5000 + "'",
        "vllm serve --kv-transfer-config '" + "{'a'," * 5000 + "'",
        "A="
        + "x" * 100_000
        + "\n"
        + "B=$A$A$A$A$A$A$A$A\nC=$B$B$B$B$B$B$B$B\nD=$C$C$C$C$C$C$C$C\nE=$D$D$D$D\np $E\n",
        "import x\n\n" * 2000,
    ],
    ids=range(12),
)
def test_texts_that_would_never_end_do(text: str) -> None:
    for name in ("a.sh", "a.txt"):
        imported(name, text.encode())
