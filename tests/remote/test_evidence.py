"""Evidence as the agent keeps it beside a run: what is in it, who may read it, how much of it stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from pdtui.errors import AgentError
from pdtui.remote.messages.ranks import ProcessState, RankRecord
from tests.remote.conftest import Connect, spec
from tests.support.waiting import eventually


async def test_ends_of_logs_are_kept_privately_and_only_a_few_times(connect: Connect, cluster: str) -> None:
    agent = await connect()
    script = 'd="$ASCEND_PROCESS_LOG_PATH/a"; mkdir -p "$d"; echo plog >"$d/plog-1.log"; echo boom; exit 3'
    record = (await agent.start_rank(spec(cluster, script))).record

    async def ended() -> list[RankRecord]:
        return [one for one in await agent.ranks(cluster) if one.state is ProcessState.EXITED]

    found: list[RankRecord] = await eventually(ended, what="its end")
    assert found[0].exit_status == 3
    for number in range(5):
        stamp = f"20261130-18000{number}"
        kept = await agent.save_evidence(
            cluster, "decode/0", stamp=stamp, files={"deaths.txt": "decode/0 \udcff"}, collect=True
        )
        assert kept.errors == ()
    more = await agent.save_evidence(cluster, "decode/0", stamp=stamp, files={"npu-smi.txt": "x"}, collect=False)
    assert more.folder == kept.folder
    folder = Path(kept.folder)
    assert folder == Path(record.log).parent / "evidence" / stamp
    assert sorted(path.name for path in folder.parent.iterdir()) == [f"20261130-18000{n}" for n in (2, 3, 4)]
    names = {path.name for path in folder.iterdir()}
    assert names >= {"log", "exit.json", "deaths.txt", "npu-smi.txt", "plog-0-plog-1.log"}
    assert (folder / "log").read_text() == "boom\n"
    assert not {"env", "script", "start.json", "record.json"} & names  # They hold secrets.
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    (seen,) = await (await connect()).ranks(cluster)
    assert seen.evidence == kept.folder
    (again,) = [(await agent.start_rank(spec(cluster))).record]
    assert again.evidence == kept.folder  # Also in the next run.


async def test_what_makes_no_sense_is_refused(connect: Connect, cluster: str) -> None:
    agent = await connect()
    with pytest.raises(AgentError, match="never started here"):
        await agent.save_evidence(cluster, "decode/0", stamp="1", files={}, collect=True)
    await agent.start_rank(spec(cluster))
    for stamp, name in (("../x", "a"), ("1", "../../a")):
        with pytest.raises(AgentError, match="no valid names"):
            await agent.save_evidence(cluster, "decode/0", stamp=stamp, files={name: "x"}, collect=False)
