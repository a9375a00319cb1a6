"""Start ranks as the guides do, without pdtui: a launcher in Python, a template in bash, one log for all."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from pdtui.sim.simulation import Simulation
from pdtui.topology.plan import Plan, RankPlan
from pdtui.topology.script import double_quoted

LAUNCHER = '''"""Call ./run_dp_template.sh for each rank of this node, all at the same time, and wait for them."""
import argparse
import multiprocessing
import subprocess


def call(words):
    subprocess.run(["bash", "./run_dp_template.sh"] + words, check=True)


def main():
    parser = argparse.ArgumentParser()
    for name in ("dp-size", "tp-size", "dp-size-local", "dp-rank-start", "vllm-start-port"):
        parser.add_argument("--" + name, type=int, required=True)
    for name in ("dp-address", "dp-rpc-port"):
        parser.add_argument("--" + name, required=True)
    o = parser.parse_args()
    children = []
    for i in range(o.dp_size_local):
        devices = ",".join(str(n) for n in range(i * o.tp_size, (i + 1) * o.tp_size))
        words = [devices, o.vllm_start_port + i, o.dp_size, o.dp_rank_start + i]
        words += [o.dp_address, o.dp_rpc_port, o.tp_size]
        children.append(multiprocessing.Process(target=call, args=([str(word) for word in words],)))
        children[-1].start()
    for child in children:
        child.join()


if __name__ == "__main__":
    main()
'''

_PLACES = {
    "--port": "$2",
    "--data-parallel-size": "$3",
    "--data-parallel-rank": "$4",
    "--data-parallel-address": "$5",
    "--data-parallel-rpc-port": "$6",
    "--tensor-parallel-size": "$7",
}
NAME = "launch_online_dp.py"


def template(rank: RankPlan, *changes: str) -> str:
    """Return the script of a rank's group; `changes` are words that stand last on the command line."""
    words, place = [], ""
    for word in rank.argv:
        words.append(place or shlex.quote(word))
        place = _PLACES.get(word, "")
    lines = ["set +H", 'pdtui_quote="\'"']
    lines += [f"export {name}={double_quoted(value)}" for name, value in rank.env.items()]
    lines += ["export ASCEND_RT_VISIBLE_DEVICES=$1", " ".join([*words, *changes])]
    return "\n".join(lines) + "\n"


def command(ranks: Sequence[RankPlan], plan: Plan, *, output: str = "> serve.log 2>&1") -> str:
    """Return the line that an operator types to start a group's ranks on one node."""
    first = ranks[0]
    group = plan.of_group(first.group)
    rpc = next((use.first for use in plan.ports if use.use == "rpc" and use.owner == first.group), 12321)
    words = ["python3", NAME, "--dp-size", len(group), "--tp-size", len(first.devices)]
    words += ["--dp-size-local", len(ranks), "--dp-rank-start", first.dp_rank]
    words += ["--dp-address", group[0].host, "--dp-rpc-port", rpc, "--vllm-start-port", first.api_port]
    return f"nohup {shlex.join(map(str, words))} {output} < /dev/null &"


def lay_out(simulation: Simulation, plan: Plan, node: str, group: str, *changes: str) -> str:
    """Put the two scripts into a folder of the node's home and return its path."""
    folder = simulation.node(node).machine.home / "deploy" / group
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_text(LAUNCHER)
    rank = next(rank for rank in plan.of_group(group) if rank.node == node)
    (folder / "run_dp_template.sh").write_text(template(rank, *changes))
    return str(folder)


def launch_line(
    simulation: Simulation, plan: Plan, node: str, group: str, *changes: str, output: str = "> serve.log 2>&1"
) -> str:
    """Return what is typed in a shell on the node to start a group's ranks there."""
    folder = lay_out(simulation, plan, node, group, *changes)
    ranks = [rank for rank in plan.of_group(group) if rank.node == node]
    line = f". ~/.bashrc; cd {shlex.quote(folder)} && {{ {command(ranks, plan, output=output)} }}"
    return f"bash -c {shlex.quote(line)}"
