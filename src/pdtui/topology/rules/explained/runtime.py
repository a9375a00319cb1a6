"""The container of a node (V, R)."""

from __future__ import annotations

from collections.abc import Mapping

from pdtui.topology.findings import Severity
from pdtui.topology.rules.explained.explanation import Explanation, table

RULES: Mapping[str, Explanation] = table(
    (
        Explanation(
            "R66",
            "The container uses the host's network and has 1 GiB of shared memory or more",
            "In a bridge network no other server reaches the ranks' addresses, and HCCL takes two containers of "
            "one server for two; with 64 MiB in /dev/shm, the engine's default, vLLM's message queues break.",
            "Delete the option: `render` and `container up` use the host's network and 1g by themselves.",
            "vLLM-Ascend's guides, docker run with --net=host --shm-size=1g",
        ),
        Explanation(
            "V10",
            "The container can be made, and has what its ranks need of the host",
            "The container engine refuses to start it; or it starts, and ranks in it find no NPUs, or nowhere to "
            "keep their logs.",
            "Correct the mount, device or option that is named. The driver's files and devices, and a place for "
            "ranks' records, are added by themselves.",
            "vLLM-Ascend's guides, docker run",
        ),
        Explanation(
            "V11",
            "The image is made for the platform and is of the file's version",
            "Without kernels for its NPUs a rank ends while it loads the model; one of another version binds "
            "other ports than those that are planned.",
            "Take the image of the same version with the platform's suffix: none for A2, -a3, -950dt for A5.",
            "vLLM-Ascend: installation.md, images",
            (Severity.ERROR, Severity.WARNING),
        ),
    )
)
