"""`docker run` lines: what of them a topology's `runtime` says."""

from __future__ import annotations

from collections.abc import Sequence

from pdtui.topology.importing.observed import ContainerCommand, Origin, Said
from pdtui.topology.importing.report import Kind, Note, note
from pdtui.topology.redact import is_secret, redacted_text

_VALUED = frozenset(
    {
        *("--name", "--shm-size", "--device", "-v", "--volume", "--mount", "-e", "--env", "--env-file", "-w"),
        *("--workdir", "-u", "--user", "--net", "--network", "-p", "--publish", "--ipc", "--pid", "--cap-add"),
        *("--security-opt", "--ulimit", "--entrypoint", "-h", "--hostname", "--restart", "-m", "--memory"),
        *("--cpuset-cpus", "--cpus", "--runtime", "--gpus", "--log-driver", "--log-opt", "-l", "--label"),
        *("--add-host", "--dns", "--sysctl", "--tmpfs", "--platform", "--group-add", "--device-cgroup-rule"),
    }
)
"""Options of `docker run` that take a word."""

_OURS = frozenset(
    {"--rm", "-it", "-i", "-t", "-d", "-itd", "-dit", "-ti", "-tid", "--detach", "--interactive", "--tty"}
)
"""Options that say how it is started, not what it is."""

_OWN_NET = frozenset({"host"})


def container_command(
    words: Sequence[Said], *, host: str, origin: Origin
) -> tuple[ContainerCommand | None, list[Note]]:
    """Return what a `docker run` says, and what is to be said about it; `words` come after `run`.

    None when it names no image.
    """
    name = shm = ""
    notes: list[Note] = []
    devices: list[str] = []
    mounts: list[str] = []
    options: list[str] = []
    at = 0
    texts = [word.text for word in words]
    while at < len(texts) and texts[at].startswith("-"):
        option, equals, value = texts[at].partition("=")
        if texts[at][:2] == "-e" and len(texts[at]) > 2:
            option, equals, value = "-e", "", texts[at][2:]
            at -= 1  # The value is in the same word.
            texts[at] = value
        at += 1
        if not equals and option in _VALUED:
            value = texts[at] if at < len(texts) else ""
            at += 1
        if option in {"-e", "--env"} and _is_secret(value):
            value = value.partition("=")[0]
            message = f"the value of {value} is a secret and was not copied: set it where the container is started"
            notes.append(note(Kind.TRANSLATION, message, origin, path="runtime.options"))
        if option == "--name":
            name = value
        elif option == "--shm-size":
            shm = value
        elif option == "--device":
            devices.append(value)
        elif option in {"-v", "--volume"}:
            mounts.append(value)
        elif option in {"--net", "--network"} and value in _OWN_NET:
            continue
        elif option not in _OURS and option != "--entrypoint":  # A container of ranks has its own.
            options += [f"{option}={value}"] if equals else [option, value] if option in _VALUED else [option]
    if at >= len(texts):
        return None, [note(Kind.UNREAD, "a container without an image", origin)]
    command = ContainerCommand(host, name, texts[at], shm, tuple(devices), tuple(mounts), tuple(options), origin)
    return command, notes


def _is_secret(assignment: str) -> bool:
    """Whether `NAME=VALUE` has a value that is one."""
    name, _, value = assignment.partition("=")
    return bool(value) and (is_secret(name) or redacted_text(assignment) != assignment)
