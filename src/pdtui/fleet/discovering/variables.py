"""Which variables of a process say how a rank was meant to run, and what of them the rank was given.

A process shows its whole environment: of some hundred variables most come from the login, the image and CANN's
set-up scripts. What is taken over:

- variables of the families below (vLLM, vLLM-Ascend, HCCL, CANN, Gloo, OpenMP, PyTorch, Mooncake, hubs of models),
  unless a login there, with the set-up scripts that the process was given, has them with the same value;
- of LD_LIBRARY_PATH and PYTHONPATH the entries in front of what such a login has;
- of secrets the name alone.

Everything else is left out and counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

KEEP = (
    r"(?:VLLM_|HCCL_|ASCEND_|GLOO_|TP_SOCKET_|OMP_|KMP_|PYTORCH_|TORCH|MC_|MOONCAKE_|ATB_|ASDOPS_|ACL_|ACLNN_|LCAL_"
    r"|LCCL_|NCCL_|MMC_|YR_|NPU_|UCX_|NIXL_|LMCACHE_|UCM_|MSMONITOR_|KINETO_|HF_|TRANSFORMERS_|MODELSCOPE_|RAY_|MASTER_|TRITON_"
    r"|(?:TASK_QUEUE_ENABLE|CPU_AFFINITY_CONF|COMBINED_ENABLE|DYNAMIC_EPLB|EXPERT_MAP_RECORD|PHYSICAL_DEVICES"
    r"|DISAGGREGATED_PREFILL_RANK_TABLE_PATH|PYTHONHASHSEED|LD_PRELOAD|USE_OPTIMIZED_MODEL|MKL_NUM_THREADS"
    r"|NUMEXPR_NUM_THREADS|OPENBLAS_NUM_THREADS|TOKENIZERS_PARALLELISM|INF_NAN_MODE_ENABLE|STREAMS_PER_DEVICE"
    r"|MULTI_STREAM_MEMORY_REUSE|MALLOC_[A-Z_]+|CUDA_DEVICE_MAX_CONNECTIONS)$)"
)
"""Beginnings of names, and whole names (vllm/envs.py, vllm_ascend/envs.py, CANN's and Mooncake's manuals)."""

LISTS = ("LD_LIBRARY_PATH", "PYTHONPATH")
"""Lists of folders, to which start scripts put something in front."""

ROOTS = ("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH", "ATB_HOME_PATH", "VIRTUAL_ENV")
"""Where an installation lies whose set-up script a process was given; a login that has it gave it."""

_MADE = frozenset(
    {
        *(
            "ASCEND_TOOLKIT_HOME",
            "ASCEND_HOME_PATH",
            "ASCEND_OPP_PATH",
            "ASCEND_AICPU_PATH",
            "ASCEND_INSTALL_PATH",
        ),
        *("ATB_HOME_PATH", "ASCEND_DRIVER_PATH", "ASCEND_TOOLKIT_LATEST_HOME"),
    }
)
"""What set-up scripts make: places of an installation. A file that set them would break with the next image."""

_OWN = frozenset({"PDTUI_RANK", "SPT_NOENV", "VIRTUAL_ENV"})


@dataclass(frozen=True, slots=True)
class Seen:
    """What a host tells of an environment."""

    env: Mapping[str, str]
    secrets: tuple[str, ...] = ()
    """Names of variables that hold one."""
    left_out: int = 0
    """Variables that are of no interest here."""
    error: str = ""
    """Why it could not be read: `permission`, `gone`, or the system's words."""


@dataclass(frozen=True, slots=True)
class Given:
    """What of an environment a rank was given."""

    values: Mapping[str, str]
    prepended: Mapping[str, str]
    """Of lists of folders: what was put in front."""
    secrets: tuple[str, ...]
    left_out: int
    """Variables that any login there has, or that are of no interest."""


def given(process: Seen, login: Seen | None) -> Given:
    """Return what a process has beyond a login with its set-up scripts; without a login all that matters."""
    base = login.env if login is not None else {}
    known = login.secrets if login is not None else ()
    values: dict[str, str] = {}
    prepended: dict[str, str] = {}
    left_out = process.left_out
    for name, value in process.env.items():
        if name in LISTS:
            if front := _front(value, base.get(name, "")) if login is not None else "":
                prepended[name] = front
        elif name in _MADE or name in _OWN or base.get(name) == value:
            left_out += 1
        else:
            values[name] = value
    # A secret that every login has is not the rank's own.
    secrets = tuple(name for name in process.secrets if name not in known)
    return Given(values, prepended, secrets, left_out + len(process.secrets) - len(secrets))


def _front(value: str, base: str) -> str:
    """Return the folders that stand before those of a login, each once and none that the login has."""
    common = set(_folders(base))
    front: list[str] = []
    body = value.removesuffix(base).rstrip(":") if base and value.endswith(base) else value
    for folder in _folders(body):
        if folder in common:
            if body is value:  # From here on it is the login's, in another order.
                break
            continue
        if folder not in front:
            front.append(folder)
    return ":".join(front)


def _folders(value: str) -> Sequence[str]:
    return [part for part in value.split(":") if part]


def setup_of(process: Seen, login: Seen | None) -> Mapping[str, str]:
    """Return the roots of installations that a process was given and a login does not have, or not all of."""
    base = login.env if login is not None else {}
    fronts = given(process, login).prepended.values()
    front = [folder for text in fronts for folder in _folders(text)]

    def is_given(name: str, root: str) -> bool:
        return base.get(name) != root or any(f"{folder}/".startswith(f"{root}/") for folder in front)

    return {name: root for name in ROOTS if (root := process.env.get(name)) and is_given(name, root)}


_APPENDED = re.compile(r"(?P<front>.+)\$\{(?P<name>\w+):\+:\$\{(?P=name)\}\}\Z", re.DOTALL)


def as_written(env: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return values and what is put in front of lists, of variables as a plan has them."""
    values, prepended = {}, {}
    for name, value in env.items():
        match = _APPENDED.match(value)
        if match is not None and match["name"] == name:
            prepended[name] = match["front"]
        else:
            values[name] = value
    return values, prepended
