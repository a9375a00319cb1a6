"""What every node must do with acknowledgements, the real agent and the one in memory alike."""

from __future__ import annotations

from dataclasses import replace

from pdtui.remote.interface import NodeAgent
from pdtui.remote.messages.acks import Ack, AckList


def ack(name: str, key: str = "node3/9:link-down", *, age: float = 0.0, left: float = 3600.0) -> Ack:
    """Return an acknowledgement of operator `name`."""
    return Ack(key, f"id-{name}", f"{name} knows", f"{name}@desk", "10.0.0.9", age, left)


def ids(found: AckList) -> dict[str, str]:
    """Return key -> id."""
    assert found.acks is not None
    return {one.key: one.id for one in found.acks}


async def check_rules(agent: NodeAgent, cluster: str) -> None:
    """Put, merge, supersede, take back, and ask whether something is new."""
    nothing = await agent.acks(cluster)
    assert nothing.acks == ()
    first = await agent.put_acks(cluster, [ack("ann", age=50), ack("bob", "decode/3:kv-held", age=40, left=90)])
    assert ids(first) == {"node3/9:link-down": "id-ann", "decode/3:kv-held": "id-bob"}
    seen = {one.key: one for one in (await agent.acks(cluster, unless=nothing.digest)).acks or ()}
    known = seen["node3/9:link-down"]
    assert (known.reason, known.by, known.origin, known.removed) == ("ann knows", "ann@desk", "10.0.0.9", False)
    assert 50 <= known.age < 110
    assert 3500 < known.left <= 3600
    assert (await agent.acks(cluster, unless=first.digest)).acks is None
    # An older one changes nothing, the same one neither, a newer one stands; two at once: all agree on one.
    again = await agent.put_acks(cluster, [ack("old", age=300), replace(ack("ann", age=50), reason="other")])
    assert again.digest == first.digest
    assert ids(await agent.put_acks(cluster, [ack("new", age=20)]))["node3/9:link-down"] == "id-new"
    for name in ("neu", "nex"):
        both = await agent.put_acks(cluster, [ack(name, age=20.5)])
    assert ids(both)["node3/9:link-down"] == "id-nex"
    # Taken back: it stays so, whoever comes with the one from before.
    back = replace(ack("gone", age=0, left=1000), removed=True)
    assert ids(await agent.put_acks(cluster, [back]))["node3/9:link-down"] == "id-gone"
    after = await agent.put_acks(cluster, [ack("new", age=20), ack("nex", age=20.5)])
    assert {one.key: one.removed for one in after.acks or ()}["node3/9:link-down"]
    # At once again, dated a moment ahead.
    assert ids(await agent.put_acks(cluster, [ack("anew", age=-3)]))["node3/9:link-down"] == "id-anew"
    assert (await agent.acks(cluster + "x")).acks == ()
