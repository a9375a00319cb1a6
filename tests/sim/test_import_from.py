"""What runs on simulated nodes, of pdtui and of the guides' launcher, asked for without a topology file."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pdtui.clock import SystemClock
from pdtui.fleet.discovering.hosts import Hosts, hosts_of, survey_all
from pdtui.fleet.discovering.observing import observed, platform_of
from pdtui.fleet.fleet import Fleet
from pdtui.fleet.intents import StartRanks
from pdtui.sim.simulation import Simulation
from pdtui.topology.compare import argv_changes, env_changes, rank_changes
from pdtui.topology.importing.assemble import assemble
from pdtui.topology.importing.observed import ServeCommand, Wanted
from pdtui.topology.importing.report import Kind
from pdtui.topology.load import load_bytes, load_checked
from pdtui.topology.model import SshOptions
from pdtui.topology.plan import Plan, RankPlan
from pdtui.topology.planner import make_plan
from tests.fleet.cluster import write_file
from tests.sim.support import run, until
from tests.support.by_hand import launch_line

pytestmark = pytest.mark.slow

CONTAINER = """
runtime:
  container: vllm-ascend
  image: quay.io/ascend/vllm-ascend:v0.22.1rc1-a3
  shm_size: 4g
  mounts: [/mnt/weights:/mnt/weights:ro]
"""


@pytest.fixture
async def simulation(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Simulation]:
    path = write_file(tmp_path)
    path.write_text(
        path.read_text()
        .replace("OMP_NUM_THREADS: 10", "OMP_NUM_THREADS: 10, LD_LIBRARY_PATH: {prepend: /opt/mooncake}")
        .replace("\nmodel:", f"\n{getattr(request, 'param', '')}model:".replace("\n\n", "\n"))
    )
    async with Simulation(path, tmp_path / "sim", speed=20.0) as simulation:
        if not simulation.isolated:
            pytest.skip("without pid namespaces a node's tools see the processes of all nodes")
        yield simulation


def hosts(simulation: Simulation, *names: str, container: str = "") -> Hosts:
    """Return nodes by names that only the SSH configuration beside the simulated topology knows."""
    ssh = SshOptions(user="root", config=simulation.root / "ssh" / "config")
    return hosts_of(names or tuple(simulation.nodes), ssh, container=container)


async def start(simulation: Simulation, folder: Path, *ids: str) -> None:
    topology = load_checked(simulation.topology_path)
    plan = make_plan(topology)
    clock = SystemClock()
    async with Fleet(
        topology, plan, clock=clock, read_only=False, by="test@here", journal_dir=folder / "journal"
    ) as fleet:
        assert await fleet.settled(60)
        done = await fleet.wait(await fleet.submit(StartRanks(ids)))
        assert done.state == "done", done


def differences(rank: RankPlan, command: ServeCommand) -> list[str]:
    """Return how a command differs from a rank's plan."""
    argv = ["vllm", "serve", command.model.text if command.model else ""]
    for name, said in command.flags.items():
        argv += [f"--{name}", *([said.text] if said.value is not True else [])]
    env = {
        name: f"{said.text}${{{name}:+:${{{name}}}}}" if said.prepended else said.text
        for name, said in command.env.items()
    }
    return [change.words() for change in (*argv_changes(argv, rank.argv), *env_changes(env, rank.env))]


async def test_what_runs_is_what_the_plan_says_whoever_started_it(simulation: Simulation, tmp_path: Path) -> None:
    topology = load_checked(simulation.topology_path)
    plan = make_plan(topology)
    await start(simulation, tmp_path, "p1/0", "p2/0")
    for node in ("node3", "node4"):
        line = launch_line(simulation, plan, node, "decode")
        assert (await run(simulation, line, node)).exit_status == 0

    lists = {
        role: f"--{role}-hosts {' '.join(rank.host for rank in ranks)} --{role}-ports "
        + " ".join(str(rank.api_port) for rank in ranks)
        for role, ranks in (("prefiller", plan.ranks[:2]), ("decoder", plan.ranks[2:]))
    }
    name = "load_balance_proxy_server_example.py"
    line = f"echo 'import time; time.sleep(600)' > {name}; nohup python3 {name} --host 0.0.0.0 --port 1999"
    await run(
        simulation, f"{line} {lists['prefiller']} {lists['decoder']} > proxy.log 2>&1 < /dev/null &", "node1"
    )

    where = hosts(simulation)

    async def all_run() -> bool:
        now, _ = observed(await survey_all(where, clock=SystemClock()), nodes=where.nodes)
        return (len(now.commands), len(now.proxies)) == (6, 1)

    await until(all_run)
    surveys = await survey_all(where, clock=SystemClock())
    seen, notes = observed(surveys, nodes=where.nodes)
    assert platform_of(surveys) == "a3"
    assert seen.version is not None
    assert seen.version.text == "0.22.1rc1"
    commands = {(command.host, command.flags["port"].text): command for command in seen.commands}
    assert len(commands) == len(seen.commands) == 6
    secret = "HF_TOKEN: ${HF_TOKEN} -> ***"
    for rank in plan.ranks:
        found = differences(rank, commands[rank.node, str(rank.api_port)])
        assert found == [secret], rank.id
    assert [(host.name, host.address, host.nic) for host in seen.hosts] == [
        (node.name, node.address, node.nic) for node in topology.nodes.values()
    ]
    assert "very-secret" not in repr((seen, notes))

    status, out, err = await pdtui(
        *("import", "--from", *simulation.nodes, "nowhere", "--user", "root", "--json"),
        *("--ssh-config", str(simulation.root / "ssh" / "config"), "-o", str(tmp_path / "new.yaml")),
    )
    assert status == 1, err  # One host could not be asked.
    assert "node3: 2 servers, 16 NPUs" in err
    assert "node1: 1 server, of pdtui p1/0, 1 proxy, 16 NPUs" in err
    assert "nowhere: not asked: nowhere: the name has no address" in err
    said = json.loads(out)
    assert (said["schema_version"], said["complete"]) == (1, False)
    assert [one["message"].partition(":")[0] for one in said["notes"] if one["kind"] == "unread"] == [
        "nowhere was not asked"
    ]
    assert "very-secret" not in out + err + (tmp_path / "new.yaml").read_text()
    round_trip(plan, tmp_path / "new.yaml")
    proxy = load_checked(tmp_path / "new.yaml").proxy
    assert proxy is not None
    assert (proxy.node, proxy.port) == ("node1", 1999)


def round_trip(plan: Plan, path: Path) -> None:
    """Hold the plan of an imported file against the one by which ranks were started."""
    ranks = {(rank.host, rank.api_port): rank for rank in make_plan(load_checked(path)).ranks}
    assert len(ranks) == len(plan.ranks)
    for rank in plan.ranks:
        found = [change.words() for change in rank_changes(ranks[rank.host, rank.api_port], rank)]
        assert found == ["HF_TOKEN: ${HF_TOKEN} -> ***"], rank.id


async def pdtui(*words: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pdtui", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("simulation", [CONTAINER], indirect=True, ids=["in a container"])
async def test_ranks_in_a_container_are_seen_from_the_host_and_from_inside(
    simulation: Simulation, tmp_path: Path
) -> None:
    plan = make_plan(load_checked(simulation.topology_path))
    rank = plan.by_id["p1/0"]
    await start(simulation, tmp_path, "p1/0")
    outside = hosts(simulation, "node1", "nowhere")
    inside = hosts(simulation, "node1", container="vllm-ascend")
    for where in (outside, inside):
        seen, notes = observed(await survey_all(where, clock=SystemClock()), nodes=where.nodes)
        (command,) = seen.commands
        assert differences(rank, command) == ["HF_TOKEN: ${HF_TOKEN} -> ***"]
        assert command.container == "vllm-ascend"
        (container,) = seen.containers
        assert (container.image, container.shm_size) == ("quay.io/ascend/vllm-ascend:v0.22.1rc1-a3", "4g")
        assert "/mnt/weights:/mnt/weights:ro" in container.mounts
        assert seen.hosts[0].npus == 16
        unread = [one.message for one in notes if one.kind is Kind.UNREAD]
        assert [words.partition(":")[0] for words in unread] == ["nowhere was not asked"] * (where is outside)
    draft = assemble(seen, Wanted(platform="a3", name="tiny"), notes)
    assert draft.complete, draft.notes
    topology = load_bytes(draft.text.encode(), Path("new.yaml")).topology
    assert topology is not None
    assert topology.name == "tiny"
    assert list(topology.groups) == ["p1"]
    assert topology.runtime.container == "vllm-ascend"
    assert topology.runtime.image == "quay.io/ascend/vllm-ascend:v0.22.1rc1-a3"
