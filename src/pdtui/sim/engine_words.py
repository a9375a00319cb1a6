"""The words of `docker run` and of `docker inspect`, as the simulated engine takes and gives them.

Standard library only: this runs on the node. Flags as on docker's page «docker container run», the description as
in its Engine API («Inspect a container»). Of the flags, those that show in the description are kept; the others
are taken and forgotten, and what docker does not know is refused.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Collection, Sequence
from typing import Any

_SWITCHES = (
    "-d --detach --rm --init -i --interactive -t --tty --privileged --read-only --oom-kill-disable"
    " --no-healthcheck -P --publish-all -q --quiet --sig-proxy --help"
)
_VALUES = (
    "--add-host --annotation -a --attach --blkio-weight --blkio-weight-device --cap-add --cap-drop --cgroup-parent"
    " --cgroupns --cidfile --cpu-count --cpu-percent --cpu-period --cpu-quota --cpu-rt-period --cpu-rt-runtime -c"
    " --cpu-shares --cpus --cpuset-cpus --cpuset-mems --detach-keys --device --device-cgroup-rule"
    " --device-read-bps --device-read-iops --device-write-bps --device-write-iops --disable-content-trust --dns"
    " --dns-option --dns-search --domainname --entrypoint -e --env --env-file --expose --gpus --group-add"
    " --health-cmd --health-interval --health-retries --health-start-interval --health-start-period"
    " --health-timeout -h --hostname --ip --ip6 --ipc --isolation --kernel-memory -l --label --label-file --link"
    " --link-local-ip --log-driver --log-opt --mac-address -m --memory --memory-reservation --memory-swap"
    " --memory-swappiness --mount --name --net --net-alias --network --network-alias --oom-score-adj --pid"
    " --pids-limit --platform -p --publish --pull --restart --runtime --security-opt --shm-size --stop-signal"
    " --stop-timeout --storage-opt --sysctl --tmpfs --ulimit -u --user --userns --uts -v --volume --volume-driver"
    " --volumes-from -w --workdir"
)
SWITCHES = frozenset(_SWITCHES.split())
"""Flags of `run` without a word after them."""
VALUES = frozenset(_VALUES.split())
"""Those with one, or with it in the same word."""
UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
LISTS = ("--device", "-v", "--volume", "--mount", "-e", "--env", "--cap-add", "--ulimit")


class BadWords(Exception):
    """The engine does not take them; the text is what docker would say."""


def size_of(text: str) -> int:
    """Return the bytes that a size such as 1g means. Raises `ValueError`, `KeyError`."""
    digits = text.lower().rstrip("ib").rstrip("kmg")
    return int(float(digits) * UNITS[text.lower().rstrip("ib")[len(digits) :]])


def read_run(words: Sequence[str]) -> dict[str, Any]:
    """Return what `run WORDS` asks for. Raises `BadWords`."""
    single: dict[str, str] = {}
    lists: dict[str, list[str]] = {name: [] for name in LISTS}
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        if not word.startswith("--") and all(f"-{letter}" in SWITCHES for letter in word[1:]):
            continue  # Several in one word: `-itd`.
        if not word.startswith("--"):
            flag, value = word[:2], word[2:].removeprefix("=")
            equals = value
        if flag in SWITCHES:
            value = value or "true"
        elif flag not in VALUES:
            short = f"unknown shorthand flag: '{word[1]}' in {word}"
            raise BadWords(f"unknown flag: {flag}" if word.startswith("--") else short)
        elif not equals:
            if not rest:
                raise BadWords(f"flag needs an argument: {flag}")
            value = rest.pop(0)
        if flag in lists:
            lists[flag].append(value)
        else:
            single[flag] = value
    if not rest:
        raise BadWords('"docker run" requires at least 1 argument.')
    strict = [_bind(one) for one in lists["--mount"]]
    mounts = [*(_mount(one) for one in (*lists["-v"], *lists["--volume"])), *strict]
    entry = [single["--entrypoint"]] if single.get("--entrypoint") else []
    return {
        "name": single.get("--name", "unnamed"),
        "image": rest[0],
        "command": [*entry, *rest[1:]] or ["sleep", "infinity"],
        "network": single.get("--net") or single.get("--network") or "bridge",
        "pid": single.get("--pid", ""),
        "ipc": single.get("--ipc", "private"),
        "privileged": single.get("--privileged", "false").lower() == "true",
        "shm": single.get("--shm-size", "64m"),
        "stop_timeout": float(single.get("--stop-timeout") or 0),
        "restart": single.get("--restart", "no"),
        "mounts": [mount for mount in mounts if mount is not None],
        "must_exist": [mount[0] for mount in strict if mount is not None],
        "devices": [_device(one) for one in lists["--device"]],
        "env": [*lists["-e"], *lists["--env"]],
        "capabilities": lists["--cap-add"],
        "limits": lists["--ulimit"],
    }


def _mount(text: str) -> list[str] | None:
    parts = text.split(":")
    if len(parts) < 2 or not parts[0].startswith("/"):
        return None
    mode = "ro" if len(parts) > 2 and "ro" in parts[2].split(",") else "rw"
    return [posixpath.normpath(parts[0]), posixpath.normpath(parts[1]), mode]


def _bind(text: str) -> list[str] | None:
    words = dict(part.partition("=")[::2] for part in text.split(","))
    target = next((words[name] for name in ("target", "dst", "destination") if name in words), "")
    source = words.get("source", words.get("src", ""))
    if words.get("type") != "bind" or not source or not target:
        return None
    read_only = any(words.get(name, "false") in ("", "true", "1") for name in ("readonly", "ro"))
    return [posixpath.normpath(source), posixpath.normpath(target), "ro" if read_only else "rw"]


def _device(text: str) -> list[str]:
    host, _, rest = text.partition(":")
    inside = rest.partition(":")[0]
    return [host, inside if inside.startswith("/") else host]


def described(
    made: dict[str, Any],
    *,
    hostname: str,
    network: str = "",
    hidden: Collection[str] = (),
    closed: Collection[str] = (),
) -> str:
    """Return what `inspect` says without the state, as JSON without its first brace.

    `hidden`: mounts and `closed`: device files that it was made without, whatever was asked for.
    """
    mounts = [(source, target, mode) for source, target, mode in made["mounts"] if target not in hidden]
    network = network or made["network"]
    document = {
        "Image": f"sha256:{image_id(made['image'])}",
        "HostConfig": {
            "Binds": [f"{source}:{target}:{mode}" for source, target, mode in mounts],
            "NetworkMode": network,
            "IpcMode": made["ipc"],
            "PidMode": made["pid"],
            "Privileged": made["privileged"],
            "ShmSize": size_of(made["shm"]),
            "Ulimits": [_limit(one) for one in made["limits"]],
            "CapAdd": made["capabilities"] or None,
            "Devices": [
                {"PathOnHost": host, "PathInContainer": inside, "CgroupPermissions": "rwm"}
                for host, inside in made["devices"]
                if inside.rpartition("/")[2] not in closed
            ],
            "RestartPolicy": {"Name": made["restart"], "MaximumRetryCount": 0},
        },
        "Mounts": [
            {
                "Type": "bind",
                "Source": source,
                "Destination": target,
                "Mode": mode,
                "RW": mode == "rw",
                "Propagation": "rprivate",
            }
            for source, target, mode in mounts
        ],
        "Config": {
            "Hostname": hostname,
            "Image": made["image"],
            "Cmd": made["command"],
            "Env": [*made["env"], "PATH=/usr/local/bin:/usr/bin:/bin"],
        },
        "NetworkSettings": {"Networks": {network: {}}},
    }
    return json.dumps(document)[1:]


def image_id(image: str) -> str:
    """Return the id of an image, without `sha256:`."""
    return hashlib.sha256(image.encode()).hexdigest()


def _limit(text: str) -> dict[str, Any]:
    name, _, numbers = text.partition("=")
    soft, _, hard = numbers.partition(":")
    return {"Name": name, "Soft": int(soft), "Hard": int(hard or soft)}
