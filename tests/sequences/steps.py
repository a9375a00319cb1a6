"""Random sequences of steps, made from a number; run, and cut down to what fails."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pdtui.fleet.intents import StopRanks
from pdtui.fleet.leases import LEASE_TTL
from tests.sequences.checks import Checks
from tests.sequences.topologies import NODES
from tests.sequences.world import BEHAVIOURS, TICK, World
from tests.support.virtual_time import VirtualLoop, run_virtual

Step = tuple[object, ...]
"""Name of a method of `World`, and its arguments; or `wait` and seconds."""

QUIET = 16.0
"""Seconds after which every console has seen what there is: a link comes back, polls, a look at /health."""

_RANKS = ("p/0", "d/0", "d/1")
_TARGETS = ("all", "p", "d", "d/0", "d/1", "failed", "alive")
_WAITS = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 20.0)


def make(seed: int) -> tuple[str, list[Step]]:
    """Return a kind of cluster and a sequence."""
    rng = random.Random(seed)
    kind = rng.choice(("moe", "dense"))
    steps: list[Step] = [("open", 0, 0)]
    if rng.random() < 0.6:
        steps.append(("open", 1, rng.choice((0, 0, 1, 2))))
    steps.append(("wait", 3.0))
    if rng.random() < 0.7:
        steps.extend((("act", 0, "start", "all"), ("wait", rng.choice((0.0, 2.0, 12.0)))))
    for _ in range(rng.randint(3, 9)):
        name = rng.choices(list(_MAKERS), [weight for weight, _ in _MAKERS.values()])[0]
        steps.extend(_MAKERS[name][1](rng))
        steps.append(("wait", rng.choice(_WAITS)))
    return kind, steps


def _node(rng: random.Random) -> str:
    return rng.choice(NODES)


def _act(verb: str) -> Callable[[random.Random], Sequence[Step]]:
    return lambda rng: [("act", rng.randrange(3), verb, rng.choice(_TARGETS))]


def _both(rng: random.Random) -> Sequence[Step]:
    """Let two consoles do something at the same moment."""
    verbs = ("start", "stop", "restart")
    return [("act", number, rng.choice(verbs), rng.choice(_TARGETS)) for number in (0, 1)]


def _away(rng: random.Random) -> Sequence[Step]:
    name, number = _node(rng), rng.choice((None, 0, 1))
    return [("cut", name, number), ("wait", rng.choice((1.0, 5.0, 20.0, 70.0))), ("restore", name, number)]


_MAKERS: dict[str, tuple[float, Callable[[random.Random], Sequence[Step]]]] = {
    "start": (8, _act("start")),
    "stop": (6, _act("stop")),
    "restart": (7, _act("restart")),
    "restart alone": (1, lambda rng: [("alone", rng.randrange(3), rng.choice(_RANKS))]),
    "both": (6, _both),
    "cancel": (3, lambda rng: [("cancel", rng.randrange(3))]),
    "open": (4, lambda rng: [("open", rng.randrange(3), rng.choice((0, 0, 1, 2)))]),
    "close": (3, lambda rng: [("close", rng.randrange(3))]),
    "away": (4, _away),
    "agent": (3, lambda rng: [("kill_agent", _node(rng))]),
    "lose": (5, lambda rng: [("lose", _node(rng), rng.choice(("request", "answer")))]),
    "freeze": (2, lambda rng: [("freeze", _node(rng), rng.choice((3.0, 14.0, 25.0)))]),
    "slow": (1.5, lambda rng: [("slow", _node(rng), rng.choice((0.3, 2.0, 8.0, 25.0)))]),
    "kill": (
        8,
        lambda rng: [
            (
                "kill",
                _node(rng),
                rng.choice(_RANKS),
                rng.choice(("all", "server", "engine", "keeper", "keeper+server")),
            )
        ],
    ),
    "reboot": (2, lambda rng: [("reboot", _node(rng), rng.choice((3.0, 10.0, 70.0)))]),
    "port": (2, lambda rng: [("take_port", _node(rng), rng.choice((7100, 7200, 7201)))]),
    "port freed": (1, lambda rng: [("free_port", _node(rng))]),
    "clock": (2, lambda rng: [("set_clock", _node(rng), rng.choice((-7200.0, -30.0, 0.0, 3600.0)))]),
    "behave": (6, lambda rng: [("behave", rng.choice(list(BEHAVIOURS)))]),
    "sicken": (2, lambda rng: [("sicken", _node(rng), rng.choice(_RANKS), rng.choice((503, None, 200)))]),
}


def run(kind: str, steps: Sequence[Step], files: Path) -> None:
    """Run a sequence and check it throughout. Raises AssertionError."""
    folder = Path(tempfile.mkdtemp(dir=files))
    loop = VirtualLoop()
    try:
        run_virtual(_run(World(kind, folder, files, loop), steps), loop)
    finally:
        shutil.rmtree(folder)


async def _run(world: World, steps: Sequence[Step]) -> None:
    checks = Checks(world)

    async def wait(seconds: float) -> None:
        end = world.now + seconds
        while True:
            world.look()
            checks.always()
            left = end - world.now
            if left <= 1e-9:
                return
            await asyncio.sleep(min(TICK, left))

    for name, *arguments in steps:
        if name == "wait":
            await wait(float(str(arguments[0])))
            continue
        if name == "alone":
            number, rank = arguments
            world.act(int(str(number)), "restart", str(rank), whole=False)
            continue
        result = getattr(world, str(name))(*arguments)
        if asyncio.iscoroutine(result):
            await result
    world.calm()
    until = world.now + 500.0
    while world.busy:
        assert world.now < until, f"never quiet: {world.busy}"
        await wait(1.0)
    await wait(QUIET + max(0.0, world.rough_until - world.now))  # What was asked before has its time.
    checks.quiet()
    if world.leases:
        await wait(LEASE_TTL + 1.0)
        assert not world.leases, f"held by nobody who does anything: {world.leases}"
    await _stop_all(world, checks, wait)


async def _stop_all(world: World, checks: Checks, wait: Callable[[float], object]) -> None:
    """Stop everything from one console, as an operator would, and leave."""
    await world.open(0, 0)
    console = world.consoles[0]
    assert console is not None
    assert await console.fleet.settled(10.0, npus=False)
    ids = world.targets(console, "alive")
    if ids:
        done = await world.perform(console, StopRanks(ids, grace=5.0))
        checks.always()
        checks.all_stopped(done)
    for number in range(3):
        await world.close(number)
    checks.always()


def shrink(kind: str, steps: Sequence[Step], files: Path, *, tries: int = 300) -> list[Step]:
    """Return a shorter sequence that fails as well."""
    best, size = list(steps), max(1, len(steps) // 2)
    while size >= 1 and tries > 0:
        at = 0
        while at < len(best) and tries > 0:
            shorter = best[:at] + best[at + size :]
            tries -= 1
            if shorter and fails(kind, shorter, files):
                best = shorter
            else:
                at += size
        size //= 2
    return best


def fails(kind: str, steps: Sequence[Step], files: Path) -> str:
    """Return in which words a sequence fails; empty if it does not."""
    try:
        run(kind, steps, files)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
