"""The container engine of a simulated node: its program, what the container is made from, what it says of that.

docker's form is that of its Engine API («Inspect a container»), containerd's that of `ctr containers info`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pdtui.sim.engine_words import BadWords, described, read_run, size_of
from pdtui.sim.machine import HERE, Machine, python, write_executable
from pdtui.sim.software import PORT_RANGE, RESERVED_PORTS, device_names

ENGINES = ("docker", "podman", "nerdctl", "ctr")
CONTAINER_ETC = {
    "hostname": "{hostname}\n",
    "hosts": "127.0.0.1 localhost {hostname}\n",
    "passwd": "root:x:0:0:root:/root:/bin/bash\n",
    "group": "root:x:0:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "os-release": 'NAME="openEuler"\nVERSION="24.03 (LTS)"\nID="openEuler"\n',
    "machine-id": "",
}
"""Files of the container's image; as in published images, nothing in it tells one machine from another."""


def write_engine(machine: Machine) -> None:
    """Write the container engine's program, what the container is made from and its image."""
    home = machine.engine / machine.container
    home.mkdir(parents=True)
    mounts = list(mounts_of(machine, make=True))
    binds = [
        *((str(path), str(path), True) for path in (Path(python()), Path(python()).parents[1] / "lib")),
        (str(machine.shared), str(machine.shared), True),
        *((str(machine.folder / name), str(machine.folder / name), False) for name in ("npu", "fault", "run")),
        *((str(machine.folder / name), f"/{name}", False) for name in (PORT_RANGE, RESERVED_PORTS)),
        *mounts,
    ]
    devices = device_names(machine.platform) if machine.platform != "cpu" else ()
    spec = {
        "hostname": machine.container_hostname,
        "state": str(machine.state),
        "binds": binds,
        "devices": devices,
        "shm": machine.shm_size or "1g",
    }
    (home / "spec.json").write_text(json.dumps(spec), encoding="utf-8")
    (machine.engine / "images").write_text(f"{machine.image}\n", encoding="utf-8")
    base = {"binds": binds[: len(binds) - len(mounts)], "hostname": machine.container_hostname}
    base["state"] = str(machine.state)
    (machine.engine / "base.json").write_text(json.dumps(base), encoding="utf-8")
    write_inspect(machine)
    etc = machine.folder / "containers" / machine.container / "etc"
    etc.mkdir(parents=True, exist_ok=True)
    for name, text in CONTAINER_ETC.items():
        (etc / name).write_text(text.format(hostname=machine.container_hostname), encoding="ascii")
    shutil.copytree(etc.parent, machine.engine / "image", symlinks=True)
    program = (
        f"#!{python()} -ISB\n"
        "import sys\n"
        f"sys.path.insert(0, {str(HERE.parents[1])!r})\n"
        "from pdtui.sim.container_init import main\n"
        f"sys.exit(main({str(machine.folder)!r}))\n"
    )
    write_executable(machine.engine / "engine", program)


def mounts_of(machine: Machine, *, make: bool = False) -> Iterator[tuple[str, str, bool]]:
    """Return the file's mounts: of the simulated host if it has that path, else of this machine, else empty.

    `make`: as the engine does at first, an empty folder for what is not there.
    """
    for mount in machine.mounts:
        source, _, rest = mount.partition(":")
        target, _, options = rest.partition(":")
        if not source.startswith("/") or not (target or source).startswith("/"):
            continue
        ours = machine.folder / source.lstrip("/")
        if not ours.exists() and Path(source).exists():
            ours = Path(source)
        elif make and not ours.exists():
            ours.mkdir(parents=True)
        yield str(ours), target or source, options == "ro"


GUIDE_MOUNTS = (
    "/usr/local/dcmi",
    "/usr/local/Ascend/driver/tools/hccn_tool",
    "/usr/local/bin/npu-smi",
    "/usr/local/Ascend/driver/lib64",
    "/usr/local/Ascend/driver/version.info",
    "/etc/ascend_install.info",
    "/etc/hccn.conf",
)
"""What the guides' `docker run` mounts of the driver."""

SHM = "/dev/shm"  # noqa: S108 (a place in the container)


def write_inspect(
    machine: Machine, *, network: str = "", hidden: Collection[str] = (), closed: Collection[str] = ()
) -> None:
    """Write what the engine knows of the container: docker's form without the state, and containerd's.

    `hidden`: mounts and `closed`: devices that it was made without.
    """
    home = machine.engine / machine.container
    if not (home / "made.json").exists():
        (home / "made.json").write_text(json.dumps(as_made(machine)), encoding="utf-8")
    made = json.loads((home / "made.json").read_text(encoding="utf-8"))
    text = described(made, hostname=machine.container_hostname, network=network, hidden=hidden, closed=closed)
    (home / "inspect.json").write_text(text, encoding="utf-8")
    network = network or made["network"]
    mounts = [(source, target, mode) for source, target, mode in made["mounts"] if target not in hidden]
    names = [inside.rpartition("/")[2] for _, inside in made["devices"]]
    names = [name for name in names if name not in closed]
    size = size_of(made["shm"])
    spaces: list[dict[str, str]] = [{"type": name} for name in ("pid", "ipc", "uts", "mount")]
    if network != "host":
        spaces.append({"type": "network"})
    spec = {
        "ID": machine.container,
        "Image": machine.image,
        "Spec": {
            "mounts": [
                {"destination": SHM, "type": "tmpfs", "source": "shm", "options": [f"size={size >> 10}k"]},
                *({"destination": target, "type": "bind", "source": source, "options": ["rbind", mode]}
                  for source, target, mode in mounts),
            ],
            "linux": {"namespaces": spaces, "devices": [{"path": f"/dev/{name}", "type": "c"} for name in names]},
        },
    }  # fmt: skip
    (home / "ctr.json").write_text(json.dumps(spec, indent=4) + "\n", encoding="utf-8")


def as_made(machine: Machine) -> dict[str, Any]:
    """Return how somebody has made the container by vLLM-Ascend's guides, with what the file adds."""
    names = device_names(machine.platform) if machine.platform != "cpu" else ()
    own = list(declared_mounts(machine))
    there = {target for _, target, _ in own}
    driver = [(path, path, False) for path in GUIDE_MOUNTS if path not in there] if names else []
    bare = read_run([machine.image or "image"])
    try:
        asked = read_run([*machine.options, machine.image or "image"])
    except BadWords:  # Whoever made it cannot have used the file's words.
        asked = bare
    usual: dict[str, Any] = {
        "name": machine.container,
        "image": machine.image,
        "command": ["sleep", "infinity"],
        "network": "host",
        "pid": "",
        "ipc": "private",
        "privileged": False,
        "shm": machine.shm_size or "1g",
        "restart": "no",
        "mounts": [[source, target, "ro" if read_only else "rw"] for source, target, read_only in (*driver, *own)],
        "devices": [[f"/dev/{name}", f"/dev/{name}"] for name in names],
        "env": [],
        "capabilities": [],
        "limits": [],
    }
    lists = {name: [*usual[name], *asked[name]] for name in usual if isinstance(asked[name], list)}
    said = {name: asked[name] for name in usual if asked[name] != bare[name] and name not in lists}
    return {**usual, **lists, **said, "command": usual["command"]}


def declared_mounts(machine: Machine) -> Iterator[tuple[str, str, bool]]:
    """Return the mounts as the engine was told them: host path, path in the container, read-only."""
    for mount in machine.mounts:
        source, _, rest = mount.partition(":")
        target, _, options = rest.partition(":")
        if source.startswith("/") and (target or source).startswith("/"):
            yield source, (target or source).rstrip("/") or "/", options == "ro"
    yield str(machine.state), str(machine.state), False
