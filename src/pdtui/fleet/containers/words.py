"""What engines say when they do not do what they are told, in the operator's words and with a remedy.

The sentences are those of docker's daemon and client (moby daemon/names.go, daemon/create.go, docker/cli), podman
(libpod/define/errors.go, containers/storage errors.go) and nerdctl (pkg/namestore, its issues 499 and 2284);
runc's come through all three.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from pdtui.text import clean_line
from pdtui.topology.redact import redacted_text


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why an engine did not do it."""

    message: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """Both, in one line."""
        return f"{self.message}: {self.remedy}" if self.remedy else self.message


@dataclass(frozen=True, slots=True)
class Place:
    """What the words are about; their `{...}` are filled in from it."""

    tool: str
    """The engine's command as it is called on the node: `docker`, `nerdctl -n k8s.io`."""
    name: str
    image: str
    user: str

    @property
    def service(self) -> str:
        """What has to run for it."""
        engine = PurePosixPath(self.tool.split()[0]).name if self.tool else ""
        return {"docker": "docker", "podman": "podman.socket"}.get(engine, "containerd")


_TAKEN = re.compile(
    r"container name .{0,200} is already in use|that name is already in use|is already used by ID", re.IGNORECASE
)

_TROUBLES: Sequence[tuple[re.Pattern[str], str, str]] = tuple(
    (re.compile(pattern, re.IGNORECASE), message, remedy)
    for pattern, message, remedy in (
        (
            r"permission denied.{0,200}\.sock|\.sock.{0,200}permission denied|dial .{0,80}permission denied",
            "{user} may not use {tool} on the node",
            "as root: usermod -aG docker {user}; or set ssh: {{sudo: true}} in the file",
        ),
        (
            r"cannot connect to the \w+ daemon|failed to connect to the \w+ api|is the \w+ daemon running"
            r"|failed to dial|cannot access containerd socket",
            "the engine behind {tool} does not answer on the node",
            "as root: systemctl start {service}",
        ),
        (
            r"no space left on device|disk quota exceeded|not enough space",
            "the disk of the engine is full on the node",
            "see what fills it: df -h; {tool} system df",
        ),
        (
            _TAKEN.pattern,
            "the name {name} is taken by another container on the node",
            "see which: {tool} ps -a; remove or rename it, or write another runtime.container",
        ),
        (
            r"unable to find image|no such image|image not known|pull access denied|manifest unknown"
            r"|manifest for .{0,200} not found|repository .{0,200} not found",
            "the image {image} is not on the node",
            "{tool} pull {image} there (or --pull), or load it from a file: {tool} load -i FILE",
        ),
        (
            r"error gathering device information while adding custom device \"(?P<what>[^\"]+)\""
            r"|stat (?P<dev>/dev/\S+): no such file or directory|(?P<it>/dev/\S+).{0,40}no such file",
            "the node has no device file {what}",
            "load the driver (npu-smi info shows whether it runs), or name the NPUs in runtime.devices",
        ),
        (
            r"statfs (?P<what>/\S+): no such file or directory|bind source path does not exist: (?P<it>/\S+)",
            "the node has no {what} to mount",
            "make it there, or take it out of runtime.mounts",
        ),
        (
            r"unknown or invalid runtime name:? ?(?P<what>\S*)|default OCI runtime \"(?P<it>[^\"]+)\" not found",
            "the engine has no runtime {what}",
            "take --runtime out of runtime.options, or install Ascend Docker Runtime",
        ),
        (
            r"unknown (?:shorthand )?flag: (?P<what>.+)|flag provided but not defined: (?P<it>\S+)",
            "{tool} does not know the flag {what}",
            "mend runtime.options",
        ),
        (
            r"invalid (?:reference format|argument)|not a valid",
            "{tool} does not take what the file says: {said}",
            "mend runtime.image, runtime.mounts or runtime.options",
        ),
    )
)
"""The first that fits counts."""

_NO_CONTAINER = re.compile(
    r"no such (container|object)|no container with name|container .{0,80}not found", re.IGNORECASE
)
_BEING_REMOVED = re.compile(
    r"removal of container .{0,100} is already in progress|marked for removal", re.IGNORECASE
)


def is_missing(said: str) -> bool:
    """Return whether an engine says that there is no such container."""
    return _NO_CONTAINER.search(said) is not None


def is_being_removed(said: str) -> bool:
    """Return whether an engine says that somebody removes the container right now."""
    return _BEING_REMOVED.search(said) is not None


def is_taken(said: str) -> bool:
    """Return whether an engine says that the name belongs to another container."""
    return _TAKEN.search(said) is not None


def trouble_of(said: str, place: Place, status: int | None = None) -> Trouble:
    """Return what an engine's last words mean; its own last line when they are not known."""
    last = redacted_text(clean_line(next((line for line in reversed(said.splitlines()) if line.strip()), "")))
    last = last.removesuffix("See 'docker run --help'.").strip()
    for pattern, message, remedy in _TROUBLES:
        if match := pattern.search(said):
            groups = {name: value for name, value in match.groupdict().items() if value}
            filling = {
                "tool": place.tool,
                "name": place.name,
                "image": place.image,
                "user": place.user or "this user",
                "service": place.service,
                "said": last,
                "what": clean_line(next(iter(groups.values()), "")).strip(" '\"."),
            }
            return Trouble(message.format(**filling), remedy.format(**filling))
    if status == 127 and not last:
        last = "command not found"
    return Trouble(f"{place.tool}: {last}" if last else f"{place.tool} ended with status {status}")
