"""What an import reads is what bash would run, or it is named; and no secret comes out of it."""

from __future__ import annotations

import json
import subprocess

import pytest

from pdtui.cli.import_ import as_dict, report
from pdtui.topology.importing.assemble import assemble
from pdtui.topology.importing.evaluate import Evaluator
from pdtui.topology.importing.observed import Observed, Wanted
from pdtui.topology.importing.report import Draft, Kind
from pdtui.topology.importing.scripts import read
from pdtui.topology.importing.shell import Script
from pdtui.topology.importing.sources import Source

END = "\x1e"
WORD = "\x1f"


@pytest.mark.parametrize(
    "text",
    [
        "X=3; let X=X+1; p $X",
        "X=3; ((X++)); ((X += 2)); p $X",
        "N=2; X=2; [ $N -gt 4 ] && X=1; p $X",
        "N=8; if [ $N -ge 8 ]; then X=1; else X=2; fi; p $X",
        "N=2; if (( N > 4 )); then X=1; else X=2; fi; p $X",
        "Y=; X=2; [ -n \"$Y\" ] || X=1; p $X",
        "false || p 1; true || p 2; [ a = b ] && p 3 || p 4",
        "p 1\nexit 0\np 2",
        "for i in 0 1 2; do [ $i = 1 ] && continue; p $i; done",
        "for i in 0 1 2; do if [ $i = 1 ]; then break; fi; p $i; done",
        "for ((i=0; i<3; i++)); do if (( i == 2 )); then break; fi; p $i; done",
        "f() { [ $1 = 1 ] && return; p $1; }; f 0; f 1; f 2",
        "( p 1; exit 1 ); p 2",
        "X=2; f() { local X=1; p $X; }; f; p $X",
        "set -- --seed 5; p \"$@\"",
        "f() { shift 2; p $1; }; f 1 2 3",
        "A=0; A=1 B=x$A p $A; A=2 B=$A; p $B; A=3; A=4 p $A",
        "A=0; export A=1 B=$A; p $B",
        "declare -i X=3+4; p $X",
        "X=$((010+1)) Y=$((-7/2)) Z=$((-7%3)); p $X $Y $Z",
    ],
)  # fmt: skip
def test_commands_are_those_that_bash_runs(text: str) -> None:
    function = f'p() {{ printf "%s{WORD}" p "$@"; printf "{END}"; }}'
    done = subprocess.run(
        ["bash", "--norc", "-c", f"{function}\n{text}"], capture_output=True, text=True, check=False
    )
    expected = [one.removesuffix(WORD).split(WORD) for one in done.stdout.split(END)[:-1]]
    found = [[word.text for word in one.words] for one in Evaluator(Script(text), "run.sh").run()]
    assert [words for words in found if words[0] == "p"] == expected


@pytest.mark.parametrize(
    "text",
    [
        "X=3; read X <<< 9; p $X",
        "X=3; printf -v X %s 9; p $X",
        "X=0; while [ $X -lt 3 ]; do X=$((X+1)); done; p $X",
        "X=2; grep -q a /b || X=1; p $X",
        "X=0; for i in $(ls); do X=$i; done; p $X",
    ],
)
def test_what_only_bash_would_know_is_unknown(text: str) -> None:
    [found] = [one for one in Evaluator(Script(text), "run.sh").run() if one.words[0].text == "p"]
    assert found.words[1].unknown


def test_what_hangs_on_the_machine_is_said_and_ends_nothing() -> None:
    evaluator = Evaluator(
        Script("[ -f /a ] && X=1\nif [ -f /b ]; then X=2; exit; fi\n[ -f /c ] && exit\np $X"), "r"
    )
    assert [word.text for word in evaluator.run()[-1].words] == ["p", "1"]
    assert [(note.kind, str(note.origins[0])) for note in evaluator.notes] == [(Kind.ASSUMPTION, "r:1")]


def seen(*files: tuple[str, str]) -> tuple[Observed, list[str]]:
    found, notes = read([Source(name, text.encode()) for name, text in files])
    return found, [f"{note.message} {note.origins[0]}" for note in notes if note.kind is Kind.UNREAD]


@pytest.mark.parametrize(
    "line",
    [
        "tmux new-session -d -s x 'vllm serve /m --port 7100'",
        "screen -dmS x vllm serve /m --port 7100",
        "su - ascend -c 'vllm serve /m --port 7100'",
        "echo 7100 | xargs vllm serve /m --port",
        "alias v='vllm serve'",
        "ssh 192.0.0.1 <<'EOF'\nvllm serve /m\nEOF",
        "sudo tee /opt/t.sh <<EOF\nvllm serve /m\nEOF",
        "echo 'vllm serve /m' > t.sh",
        "start_it || vllm serve /m --port 7100",
    ],
)
def test_a_server_that_is_started_in_an_unknown_way_is_named_by_its_line(line: str) -> None:
    found, unread = seen(("run.sh", f"vllm serve /m --port 7101\n{line}\n"))
    assert len(found.commands) == 1
    assert [words for words in unread if words.endswith("run.sh:2")], unread


@pytest.mark.parametrize(
    "line",
    [
        "echo starting vllm serve",
        "pkill -f 'vllm serve'",
        "ps aux | grep 'vllm serve'",
        "cat <<EOF\nvllm serve\nEOF",
    ],
)
def test_what_only_names_a_server_is_none(line: str) -> None:
    assert seen(("run.sh", f"vllm serve /m --port 7101\n{line}\n"))[1] == []


SERVE = "vllm serve /m --port 7100"


@pytest.mark.parametrize(
    ("text", "env"),
    [
        (f"export A=1; docker exec -e B=2 --env=C=3 -eD=4 c {SERVE}", {"B": "2", "C": "3", "D": "4"}),
        (f"export A=1; docker exec -e A -d c bash -c '{SERVE}'", {"A": "1"}),
        (f"export A=1; docker exec -e B=2 c bash -c 'export C=3; {SERVE}'", {"B": "2", "C": "3"}),
        (f"export A=1; ssh root@192.0.0.1 'export B=2; {SERVE}'", {"B": "2"}),
        (f"export A=1; env -u A B=2 {SERVE}", {"B": "2"}),
        (f"export A=1; env -i B=2 {SERVE}", {"B": "2"}),
        (f"export A=1; env B=2 bash -c '{SERVE}'", {"A": "1", "B": "2"}),
        (f"export A=1; B=2 nohup numactl --cpunodebind 0 --membind 0 {SERVE}", {"A": "1", "B": "2"}),
        (f"X='{SERVE}'; export A=1; eval \"$X\"", {"A": "1"}),
        ("bash -c 'vllm serve /m --port $1' _ 7100", {}),
        ("python3 -W ignore -m vllm.entrypoints.openai.api_server --model /m --port 7100", {}),
    ],
)
def test_a_server_has_the_variables_that_reach_it(text: str, env: dict[str, str]) -> None:
    found, unread = seen(("run.sh", text))
    [command] = found.commands
    assert {name: said.text for name, said in command.env.items()} == env
    assert command.flags["port"].text == "7100"
    assert unread == []


def test_what_a_sourced_file_sets_counts_from_there_on_and_for_nobody_else() -> None:
    first = ("a/run.sh", f"export A=1\nsource ./env.sh\nexport B=3\n{SERVE} --seed $S\n")
    found, unread = seen(first, ("a/env.sh", "S=5\nexport A=2 B=2\n"), ("b/run.sh", "vllm serve /m --port 7200\n"))
    assert [{name: said.text for name, said in one.env.items()} for one in found.commands] == [
        {"A": "2", "B": "3"},
        {},
    ]
    assert found.commands[0].flags["seed"].text == "5"
    assert unread == []


def imported(name: str, text: str) -> Draft:
    wanted = Wanted("x", "a3", "0.22.1rc1")
    found, notes = read([Source(name, text.encode())], wanted)
    return assemble(found, wanted, notes)


CANARY = "qzCANARY7"


@pytest.mark.parametrize(
    "line",
    [
        f"export HTTP_PROXY=user:{CANARY}@10.0.0.1:3128",
        f"docker run -d --name x --env=HF_TOKEN={CANARY} -eMY_API_KEY={CANARY} image bash",
        f"docker run -d --name x --label token={CANARY} --log-opt splunk-token={CANARY} image bash",
        f"docker run -d --name x https://user:{CANARY}@quay.io/image:tag bash",
        f"export A=$(curl -s -u user:{CANARY} http://192.0.0.9)",
        f"if curl -u user:{CANARY} http://192.0.0.9; then export B=1; fi",
        f"tmux new -d 'HF_TOKEN={CANARY} vllm serve /m'",
        f"start || HF_TOKEN={CANARY} vllm serve /m",
        f'FLAGS=\'--additional-config {{"a":{{"password":"{CANARY}"}}}}\'',
        f"HEADER='Authorization: Bearer {CANARY}'",
        f"HEADER='api_key={CANARY}'",
        f"MODEL=https://user:{CANARY}@hub/m",
    ],
)
def test_no_secret_comes_out_of_an_import(line: str) -> None:
    serve = 'vllm serve ${MODEL:-/m} --port 7100 --served-model-name m --header "${HEADER:-none}" $FLAGS\n'
    for name in ("run.sh", "run.txt"):
        draft = imported(name, f"export HCCL_IF_IP=192.0.0.1 FLAGS=\n{line}\n{serve}")
        told = "\n".join(report(draft, "", with_origins=True))
        assert draft.text
        assert CANARY not in draft.text + told + json.dumps(as_dict(draft))


def test_a_secret_that_nothing_can_stand_for_is_left_to_the_user() -> None:
    draft = imported("run.sh", f'{SERVE} --additional-config \'{{"password": "{CANARY}"}}\'\n')
    assert 'password: "***"' in draft.text
    assert any("a secret was not copied" in note.message for note in draft.notes if note.kind is Kind.ASKED)


def test_a_line_of_a_shell_with_several_variables_is_several_in_a_file_of_variables() -> None:
    found, _ = seen(("a.env", "export A=1 B='x y'\nC=p q\n"))
    assert {name: said.text for name, said in found.commands[0].env.items()} == {"A": "1", "B": "x y", "C": "p q"}
