from __future__ import annotations

from collections.abc import AsyncIterator

from pdtui.fleet.polling import Breaker, Pace, Target, closing
from pdtui.readings.commands import Query


def test_a_breaker_opens_at_the_second_time_out_and_doubles_its_pause() -> None:
    breaker = Breaker(threshold=2, first=20, longest=100)
    breaker.timed_out(10.0, 1000.0)
    assert breaker.suspect
    assert not breaker.hanging
    assert breaker.retry_at == 0.0
    pauses = []
    for now in (20.0, 50.0, 100.0, 200.0, 400.0):
        breaker.timed_out(now, 1000.0 + now)
        pauses.append(breaker.retry_at - now)
    assert pauses == [20, 40, 80, 100, 100]
    assert breaker.since == 1000.0
    breaker.answered()
    assert not breaker.suspect
    assert breaker.retry_at == 0.0


def test_a_target_is_asked_one_thing_at_a_time_while_it_is_suspect() -> None:
    target = Target(4, {Query.VNIC: 0.0, Query.LINK: 0.0, Query.IP: 50.0})
    assert target.pick(1.0) == (Query.VNIC, Query.LINK)
    target.breaker.timed_out(1.0, 0.0)
    assert target.pick(1.0) == (Query.VNIC,)
    target.breaker.timed_out(1.0, 0.0)
    assert target.pick(20.0) == ()
    assert target.next_at() == 21.0
    assert target.pick(21.0) == (Query.VNIC,)
    target.asking = True
    assert target.pick(100.0) == ()


def test_the_pace_goes_by_cost() -> None:
    pace = Pace(table=1, network=2, probe=4, slow=3)
    assert [pace.interval(q) for q in (Query.TABLE, Query.LINK, Query.VNIC, Query.IP)] == [1, 2, 2, 3]


async def test_a_stream_is_closed_when_its_reader_leaves() -> None:
    closed = []

    async def stream() -> AsyncIterator[int]:
        try:
            for number in range(10):
                yield number
        finally:
            closed.append(True)

    async with closing(stream()) as numbers:
        async for number in numbers:
            if number == 2:
                break
    assert closed == [True]
