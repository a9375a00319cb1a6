"""The file as a whole: names, versions, placeholders, what is not there yet."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pdtui.topology.build import is_ip
from pdtui.topology.findings import Path, Problem
from pdtui.topology.model import Node, Role
from pdtui.topology.rules.registry import Context, error, info, rule, warning
from pdtui.topology.script import HOME
from pdtui.topology.versions import NEWEST, VLLM_KNOWN, dotted, release_of

RESERVED_NAMES = frozenset({"all", "failed", "proxy"})
"""Words that mean something where a target is expected."""

_PLACEHOLDER = re.compile(
    r"x{3,}|x{1,3}(?:\.x{1,3}){3}|<[^>]*>|your[_-].+|.*_here|nic_name|local_ip|change_?me|todo|\.{3}|\?+",
    re.IGNORECASE,
)


@rule("F07")
def names(context: Context) -> Iterator[Problem]:
    """Names are unique over nodes and groups, and no reserved words (F07)."""
    topology = context.topology
    for kind, table in (("nodes", topology.nodes), ("groups", topology.groups)):
        for name in table:
            if name in RESERVED_NAMES:
                message = f"`{name}` has a meaning of its own in commands; choose another name"
                yield error("F07", message, (kind, name), on_key=True)
    for name in topology.groups:
        if name in topology.nodes:
            message = f"`{name}` is the name of a node and of a group; rename one of them"
            yield error("F07", message, ("groups", name), on_key=True)


@rule("F06", "R89")
def version(context: Context) -> Iterator[Problem]:
    """The version is one whose port formulas are known (R89)."""
    topology = context.topology
    key, text, what, example, newest = (
        ("vllm_ascend", topology.vllm_ascend, "vllm-ascend", "0.22.1rc1", NEWEST)
        if topology.has_npus
        else ("vllm", topology.vllm, "vllm", "0.32.0", VLLM_KNOWN)
    )
    release = release_of(text, newest)
    if release is None:
        message = f"`{text}` is no version of {what}; write it as in its release notes, such as {example}"
        yield error("F06", message, (key,))
    elif release > newest:
        known = dotted(newest)
        message = f"{text} is newer than what is known here; port formulas and rules of {known} are used"
        yield warning("R89", message, (key,))
    elif not topology.has_npus and release < newest:
        known = dotted(newest)
        message = f"{text} is older than the only vllm that is known here; ports and rules of {known} are used"
        yield warning("R89", message, (key,))


@rule("F06")
def paths(context: Context) -> Iterator[Problem]:
    """Paths on the nodes do not depend on where a program happens to run (F06)."""
    runtime = context.file.runtime
    for index, path in enumerate(runtime.setup):
        if not path.startswith(("/", "$", HOME)):
            yield error("F06", _no_path(path), ("runtime", "setup", index))
    if runtime.state_dir is not None and not runtime.state_dir.startswith(("/", HOME)):
        yield error("F06", _no_path(runtime.state_dir), ("runtime", "state_dir"))
    model = context.file.model.path
    if model.startswith("~") and not model.startswith(HOME):
        yield error("F06", _no_path(model), ("model", "path"))
    for key, word in (("path", model), ("served_name", context.file.model.served_name)):
        if word.startswith("-") or word != word.strip():
            message = (
                f"`{word}` cannot begin with `-`, which begins a flag, and neither begin nor end with a blank"
            )
            yield error("F06", message, ("model", key))
        elif any(sign in word for sign in "\n\t"):
            yield error("F06", "must be one line without tabs", ("model", key))


_NO_HOST = re.compile(r"""\A-|[\s/@'"`$;&|<>(){}\[\]*?!#\\,=]|\A[\d.]+\Z""")
_BLANK = re.compile(r"[\s/]")


@rule("F06")
def hosts(context: Context) -> Iterator[Problem]:
    """Hosts are names or addresses alone, as an interface and a container are names alone (F06)."""
    file = context.file
    found: dict[Path, str] = {("nodes", name, "host"): node.host for name, node in file.nodes.items()}
    if file.proxy is not None:
        found |= {("proxy", "advertise"): file.proxy.advertise or "", ("proxy", "listen"): file.proxy.listen}
    for path, host in found.items():
        if not is_ip(host) and (_NO_HOST.search(host) or ":" in host) and not _PLACEHOLDER.fullmatch(host):
            alone = "without user, port, scheme, brackets or blanks"
            yield error("F06", f"`{host}` is neither a host name nor an IP address; write it {alone}", path)
    words: dict[Path, str] = {("nodes", name, "nic"): node.nic or "" for name, node in file.nodes.items()}
    words[("runtime", "container")] = (file.runtime.container or "").replace("/", "")
    words[("runtime", "image")] = (file.runtime.image or "").replace("/", "")
    for path, word in words.items():
        if _BLANK.search(word) and not _PLACEHOLDER.fullmatch(word):
            what = {"nic": "an interface, as `ip addr` prints it", "image": "an image"}
            yield error("F06", f"`{word}` is no name of {what.get(str(path[-1]), 'a container')}", path)


def _no_path(path: str) -> str:
    return f"`{path}` must be an absolute path, beginning with / or, for the home where ranks run, with ~/"


@rule("T15")
def both_roles(context: Context) -> Iterator[Problem]:
    """There is at least one prefill and one decode group (T15)."""
    for role in Role:
        if not context.groups(role):
            message = f"there is no {role.value} group; requests need one of each role"
            yield error("T15", message, ("groups",), on_key=True)


@rule("V2")
def placeholders(context: Context) -> Iterator[Problem]:
    """No value is left as a guide prints it (V2)."""
    for path, text in _texts(context):
        if _PLACEHOLDER.fullmatch(text.strip()):
            yield error("V2", f"`{text}` is a placeholder; put in the real value", path)


def _texts(context: Context) -> Iterator[tuple[Path, str]]:
    file = context.file
    yield ("model", "path"), file.model.path
    yield ("model", "served_name"), file.model.served_name
    for name, node in file.nodes.items():
        yield ("nodes", name, "host"), node.host
        yield ("nodes", name, "nic"), node.nic or ""
    if file.proxy is not None:
        yield ("proxy", "advertise"), file.proxy.advertise or ""
        yield ("proxy", "listen"), file.proxy.listen
    for group in context.topology.groups.values():
        for key, value in group.env.items():
            if isinstance(value, str):
                yield context.where(group, "env", key), value


@rule("F09")
def not_yet(context: Context) -> Iterator[Problem]:
    """Settings that are read and have no effect yet (F09)."""
    file = context.file
    if file.proxy is not None and file.proxy.kind != "pdtui":
        message = f"a proxy of kind {file.proxy.kind} is not yet supported: it is neither started nor watched"
        yield info("F09", message, ("proxy", "kind"))


@rule("R79", "T16")
def nodes_apart(context: Context) -> Iterator[Problem]:
    """No server stands under two names (T16), and none is reached by loopback when others are not (R79)."""
    topology = context.topology
    nodes = topology.nodes
    seen: dict[str, str] = {}
    reached: dict[tuple[str, int | None, str | None], str] = {}
    for name, node in nodes.items():
        if first := seen.get(node.address):
            message = f"{name} and {first} have the same address {node.address}; one server needs one name"
            yield warning("T16", message, ("nodes", name), on_key=True)
        elif first := reached.get(_way(node)):
            message = f"{name} and {first} are reached at the same place, {node.host}; one server needs one name"
            yield warning("T16", message, ("nodes", name), on_key=True)
        seen.setdefault(node.address, name)
        if topology.has_npus and node.host != "local":
            reached.setdefault(_way(node), name)
    local = {name for name, node in nodes.items() if node.address.startswith("127.") or node.address == "::1"}
    if 0 < len(local) < len(nodes):
        for name in nodes:
            if name in local:
                message = f"{nodes[name].address} of {name} is a loopback address; the other nodes cannot reach it"
                yield error("R79", message, ("nodes", name), on_key=True)


def _way(node: Node) -> tuple[str, int | None, str | None]:
    """Return how SSH comes to a server."""
    return node.host, node.ssh.port, node.ssh.jump
