"""What a node is asked, and what is known of it when its tools are busy or hang, or its time is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from pdtui.errors import AgentError
from pdtui.fleet.preflight.checks import load
from pdtui.fleet.preflight.facts import NodeFacts
from pdtui.fleet.preflight.gathering import Gathering
from pdtui.fleet.preflight.limits import Limits
from pdtui.readings.answer import Failure
from pdtui.readings.commands import Query, is_read_only
from pdtui.readings.hccn import Link
from pdtui.readings.words import failure_words
from pdtui.remote.messages.commands import Command, Completed
from tests.fleet.cluster import Cluster

load()


class Tools:
    """Vendor tools: what is asked, and which of it hangs or is busy."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.hang: set[tuple[str, int | None]] = set()
        """Program and device."""
        self.busy: Counter[int | None] = Counter()
        """Busy answers that a device still gives."""

    def __call__(self, command: Command) -> Completed:
        self.asked.append(command.argv)
        if (command.argv[0], command.device) in self.hang:
            return Completed(command.argv, None, b"", b"", timed_out=True)
        if self.busy[command.device]:
            self.busy[command.device] -= 1
            return Completed(command.argv, 1, b"", b"hccn_tool is busy, please try again.\n")
        return Completed(command.argv, 0, b"link status: UP\n", b"")


async def gather(
    tmp_path: Path, tools: Callable[[Command], Completed], *needs: str, limits: Limits | None = None
) -> NodeFacts:
    cluster = Cluster(tmp_path)
    node = cluster.nodes["node1"]
    node.handler = tools
    link = node.link()
    link.refresh()
    gathering = Gathering(
        link, cluster.topology, cluster.plan, cluster.clock, limits or Limits(), needs, lambda: None
    )
    await cluster.drive(gathering.gather())
    assert gathering.done == gathering.total or gathering.lost
    return gathering.facts


async def test_every_npu_is_asked_once_and_only_what_may_be_asked(tmp_path: Path) -> None:
    tools = Tools()
    facts = await gather(tmp_path, tools, Query.LINK, Query.NET_HEALTH, Query.TABLE)
    assert len(tools.asked) == len(set(tools.asked)) == 33
    assert all(map(is_read_only, tools.asked))
    assert all(facts.get(Query.LINK, device).value == Link("UP") for device in range(16))
    assert facts.get(Query.TABLE).failure is Failure.UNREADABLE


async def test_a_tool_that_hangs_is_left_alone_on_its_npu_and_asked_on_the_others(tmp_path: Path) -> None:
    tools = Tools()
    tools.hang = {("hccn_tool", 3)}
    facts = await gather(tmp_path, tools, Query.LINK, Query.NET_HEALTH, Query.HEALTH)
    assert sum(argv[:3] == ("hccn_tool", "-i", "3") for argv in tools.asked) == 1
    for query in (Query.LINK, Query.NET_HEALTH):
        reading = facts.get(query, 3)
        assert reading.failure is Failure.TIMEOUT
        assert reading.raw.endswith("no answer from hccn_tool within 10 s")
    assert facts.get(Query.HEALTH, 3).failure is not Failure.TIMEOUT  # npu-smi is another tool.
    assert facts.get(Query.LINK, 4).value is not None


async def test_a_tool_that_hangs_on_several_npus_is_not_called_on_the_rest_of_the_node(tmp_path: Path) -> None:
    tools = Tools()
    tools.hang = {("hccn_tool", device) for device in range(16)}
    facts = await gather(tmp_path, tools, Query.LINK, limits=Limits(parallel=4, hanging=3))
    assert 3 <= len(tools.asked) <= 8
    assert {facts.get(Query.LINK, device).failure for device in range(16)} == {Failure.TIMEOUT}
    assert "not asked: it hangs on this node" in facts.get(Query.LINK, 15).raw


async def test_a_busy_tool_is_asked_again_before_that_is_said(tmp_path: Path) -> None:
    tools = Tools()
    tools.busy = Counter({2: 2, 5: 100})
    facts = await gather(tmp_path, tools, Query.LINK)
    assert facts.get(Query.LINK, 2).value is not None
    assert facts.get(Query.LINK, 5).failure is Failure.BUSY
    assert sum(argv[2] == "5" for argv in tools.asked) == 1 + Limits().busy_tries


async def test_what_is_not_answered_when_the_nodes_time_is_over_says_so(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    node = cluster.nodes["node1"]
    link = node.link()
    link.refresh()
    needs = (Query.LINK, "clock")
    gathering = Gathering(link, cluster.topology, cluster.plan, cluster.clock, Limits(node=7), needs, lambda: None)
    node.stuck = True
    began = cluster.clock.monotonic()
    await cluster.drive(gathering.gather())
    assert cluster.clock.monotonic() - began < 9
    assert gathering.facts.lost
    reading = gathering.facts.get(Query.LINK, 0)
    assert reading.failure is Failure.TIMEOUT
    assert "within 7 s" in reading.raw
    assert not gathering.out


async def test_a_connection_that_breaks_leaves_what_was_gathered(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    node = cluster.nodes["node1"]
    link = node.link()
    link.refresh()

    def answer(command: Command) -> Completed:
        if command.device == 7:
            link.drop()
        return Completed(command.argv, 0, b"link status: UP\n", b"")

    node.handler = answer
    limits = Limits(parallel=1)
    gathering = Gathering(link, cluster.topology, cluster.plan, cluster.clock, limits, (Query.LINK,), lambda: None)
    await cluster.drive(gathering.gather())
    assert gathering.facts.get(Query.LINK, 3).value is not None
    late = gathering.facts.get(Query.LINK, 12)
    assert late.failure is Failure.EMPTY
    assert "connection" in late.raw


async def test_a_node_whose_connection_had_failed_is_tried_anew(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path)
    node = cluster.nodes["node1"]
    link = node.link()
    node.reachable = False
    link.refresh()
    node.reachable = True
    limits = Limits()
    gathering = Gathering(link, cluster.topology, cluster.plan, cluster.clock, limits, ("clock",), lambda: None)
    await cluster.drive(gathering.gather())
    assert gathering.facts.connection.host
    assert gathering.facts.get("clock").value == 0.0


async def test_an_agent_that_refuses_is_told_of_its_own_devices_and_ends_nothing_else(tmp_path: Path) -> None:
    tools = Tools()

    def refusing(command: Command) -> Completed:
        if command.device == 3:
            raise AgentError("no process could be started: Resource temporarily unavailable", code="failed")
        return tools(command)

    facts = await gather(tmp_path, refusing, Query.LINK, Query.NET_HEALTH)
    assert not facts.lost
    for query in (Query.LINK, Query.NET_HEALTH):
        refused = facts.get(query, 3)
        assert refused.failure is Failure.ERROR
        assert "Resource temporarily unavailable" in failure_words(refused)
    assert facts.get(Query.LINK, 4).value == Link("UP")
