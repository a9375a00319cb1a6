"""The container engine of a simulated node: its program, what the container is made from, what it says of that.

docker's form is that of its Engine API («Inspect a container»), containerd's that of `ctr containers info`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

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
    binds = [
        *((str(path), str(path), True) for path in (Path(python()), Path(python()).parents[1] / "lib")),
        (str(machine.shared), str(machine.shared), True),
        *((str(machine.folder / name), str(machine.folder / name), False) for name in ("npu", "fault", "run")),
        *((str(machine.folder / name), f"/{name}", False) for name in (PORT_RANGE, RESERVED_PORTS)),
        *mounts_of(machine, make=True),
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
    write_inspect(machine)
    etc = machine.folder / "containers" / machine.container / "etc"
    etc.mkdir(parents=True, exist_ok=True)
    for name, text in CONTAINER_ETC.items():
        (etc / name).write_text(text.format(hostname=machine.container_hostname), encoding="ascii")
    shutil.copytree(etc.parent, home / "image", symlinks=True)
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


SHM = "/dev/shm"  # noqa: S108 (a place in the container)
UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def size_of(text: str) -> int:
    """Return the bytes that a size such as 1g means. Raises `ValueError`, `KeyError`."""
    digits = text.lower().rstrip("ib").rstrip("kmg")
    return int(float(digits) * UNITS[text.lower().rstrip("ib")[len(digits) :]])


def write_inspect(
    machine: Machine, *, network: str = "host", hidden: Collection[str] = (), closed: Collection[str] = ()
) -> None:
    """Write what the engine knows of the container: docker's form without the state, and containerd's.

    `hidden`: mounts and `closed`: devices that it was made without.
    """
    home = machine.engine / machine.container
    devices = device_names(machine.platform) if machine.platform != "cpu" else ()
    names = [name for name in devices if name not in closed]
    mounts = [
        (source, target, "ro" if read_only else "rw")
        for source, target, read_only in declared_mounts(machine)
        if target not in hidden
    ]
    size = size_of(machine.shm_size or "1g")
    document = {
        "Image": f"sha256:{hashlib.sha256(machine.image.encode()).hexdigest()}",
        "HostConfig": {
            "Binds": [f"{source}:{target}:{mode}" for source, target, mode in mounts],
            "NetworkMode": network,
            "IpcMode": "private",
            "PidMode": "",
            "Privileged": False,
            "ShmSize": size,
            "Ulimits": [],
            "Devices": [
                {"PathOnHost": f"/dev/{name}", "PathInContainer": f"/dev/{name}", "CgroupPermissions": "rwm"}
                for name in names
            ],
            "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        },
        "Mounts": [
            {"Type": "bind", "Source": source, "Destination": target, "Mode": mode, "RW": mode == "rw",
             "Propagation": "rprivate"}
            for source, target, mode in mounts
        ],
        "Config": {"Hostname": machine.container_hostname, "Image": machine.image, "Cmd": ["sleep", "infinity"]},
        "NetworkSettings": {"Networks": {network: {}}},
    }  # fmt: skip
    (home / "inspect.json").write_text(json.dumps(document)[1:], encoding="utf-8")
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


def declared_mounts(machine: Machine) -> Iterator[tuple[str, str, bool]]:
    """Return the mounts as the engine was told them: host path, path in the container, read-only."""
    for mount in machine.mounts:
        source, _, rest = mount.partition(":")
        target, _, options = rest.partition(":")
        if source.startswith("/") and (target or source).startswith("/"):
            yield source, (target or source).rstrip("/") or "/", options == "ro"
    yield str(machine.state), str(machine.state), False
