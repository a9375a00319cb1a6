"""What hosts said of what runs there, as the records that a topology is assembled from."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from pdtui.fleet.discovering.survey import ContainerSeen, ServerSeen, Survey
from pdtui.fleet.discovering.variables import as_written, given
from pdtui.fleet.targets import in_short
from pdtui.text import clean_line
from pdtui.topology.build import is_ip
from pdtui.topology.importing.observed import (
    ContainerCommand,
    Host,
    Observed,
    Origin,
    ProxyCommand,
    Said,
    ServeCommand,
    serve_command,
)
from pdtui.topology.importing.proxies import proxy_command
from pdtui.topology.importing.report import Kind, Note, merged, note
from pdtui.topology.memory_size import size_text
from pdtui.topology.model import Node, SshOptions
from pdtui.topology.redact import is_secret, redacted
from pdtui.topology.reference import API_KEY_FLAG, API_KEY_VARIABLE
from pdtui.topology.script import SERVE

_ADDRESSES = ("VLLM_HOST_IP", "HCCL_IF_IP")
"""Variables of a rank that say which address of its host the cluster uses."""


def observed(
    surveys: Sequence[Survey], *, nodes: Mapping[str, Node] | None = None, exec_words: Sequence[str] = ()
) -> tuple[Observed, tuple[Note, ...]]:
    """Return everything that was seen, and what is to be said of it.

    `nodes`: how the hosts were reached; `exec_words`: what runs a command in a container, if that was given.
    """
    notes: list[Note] = []
    commands: list[ServeCommand] = []
    proxies: list[ProxyCommand] = []
    containers: list[ContainerCommand] = []
    hosts: list[Host] = []
    for one in surveys:
        if one.unreachable:
            notes.append(note(Kind.UNREAD, f"{one.host} was not asked: {one.unreachable}", Origin(one.host)))
            continue
        notes += [note(Kind.UNREAD, problem, Origin(one.host)) for problem in one.problems]
        mine = [_command(one, server, notes) for server in one.servers]
        commands += mine
        proxies += list(_proxies(one, notes))
        containers += [_container(one.host, seen) for seen in one.containers if _is_used(seen, one)]
        hosts.append(_host(one, mine, nodes[one.host].ssh if nodes is not None else SshOptions()))
        if not one.servers:
            notes.append(note(Kind.ASSUMPTION, f"no vLLM server runs on {one.host}", Origin(one.host)))
    seen = Observed(
        commands=commands,
        proxies=proxies,
        containers=containers,
        hosts=hosts,
        version=_version(surveys, notes),
        setup=_setup(surveys, notes),
        state_dir=_state_dir(surveys),
        exec=exec_words,
    )
    return seen, merged(notes)


def platform_of(surveys: Sequence[Survey]) -> str:
    """Return the generation of most hosts' NPUs; `cpu` where servers run and no host has any."""
    known = Counter(one.platform for one in surveys if one.platform)
    if known:
        return known.most_common(1)[0][0]
    asked = [one for one in surveys if one.servers]
    return "cpu" if asked and all(one.npus == 0 for one in asked) else ""


def cluster_of(surveys: Sequence[Survey]) -> str:
    """Return the cluster to which the ranks belong that pdtui started; empty for none, or several."""
    names = {
        server.process.rank.partition(":")[0]
        for one in surveys
        for server in one.servers
        if server.record is not None and server.process.rank
    }
    return names.pop() if len(names) == 1 else ""


# --- servers


def _command(survey: Survey, server: ServerSeen, notes: list[Note]) -> ServeCommand:
    origin = Origin(survey.host, pid=server.process.pid)
    argv = server.record.argv if server.record is not None else server.argv
    env = _environment(survey, server, origin, notes)
    words = [Said(word, origin) for word in argv[len(SERVE) :]]
    command = serve_command(words, env, host=survey.host, origin=origin, container=server.container)
    command = replace(command, rank=_rank_name(server))
    if server.is_elsewhere and not server.container:
        words_ = "it runs in a container that no engine could be asked about: name it with --container"
        notes.append(note(Kind.UNREAD, words_, origin))
    return _without_secrets(command, notes)


def _environment(survey: Survey, server: ServerSeen, origin: Origin, notes: list[Note]) -> Mapping[str, Said]:
    """Return the variables that a rank was given: as pdtui's record has them, else beyond a login's."""
    if server.record is not None:
        values, prepended = as_written(server.record.env)
        secrets: Sequence[str] = server.record.secrets
    else:
        if server.seen.error:
            notes.append(note(Kind.UNREAD, _unread(survey, server), origin))
        found = given(server.seen, server.login)
        values, prepended, secrets = found.values, found.prepended, found.secrets
        if server.process.rank:  # Of pdtui, its record unread: where its keeper lets the vendor's logs go.
            values = {name: value for name, value in values.items() if name != "ASCEND_PROCESS_LOG_PATH"}
        if found.left_out:
            words = f"{found.left_out} variables are left out that any login there has or no server looks for"
            notes.append(note(Kind.ASSUMPTION, words, origin))
        if server.login is None and not server.seen.error:
            words = "what of its environment a login has is not known: all that a server looks for is taken over"
            notes.append(note(Kind.ASSUMPTION, words, origin))
    if secrets:
        words = f"{', '.join(secrets)}: secrets, not copied: they come from the environment of the host"
        notes.append(note(Kind.TRANSLATION, words, origin))
    return {
        **{name: Said(value, origin) for name, value in values.items()},
        **{name: Said(value, origin, prepended=True) for name, value in prepended.items()},
        **{name: Said(f"${{{name}}}", origin) for name in secrets},
    }


def _unread(survey: Survey, server: ServerSeen) -> str:
    user = server.process.user or "another user"
    if server.seen.error == "permission":
        return f"its environment cannot be read: it belongs to {user}; log in as {user} or root, or use --sudo"
    return f"its environment cannot be read on {survey.host}: {server.seen.error}"


def _without_secrets(command: ServeCommand, notes: list[Note]) -> ServeCommand:
    """Take secrets out of a command line; the API key becomes a reference, where vLLM looks for it too."""
    hidden = [name for name in command.flags if is_secret(name)]
    if not hidden:
        return command
    flags = {name: said for name, said in command.flags.items() if name not in hidden}
    env = dict(command.env)
    for name in hidden:
        if name == API_KEY_FLAG:
            env.setdefault(API_KEY_VARIABLE, Said(f"${{{API_KEY_VARIABLE}}}", command.origin))
            words = (
                f"--{name} -> {API_KEY_VARIABLE} of the host's environment: all can see a key in a command line"
            )
            notes.append(note(Kind.TRANSLATION, words, command.origin))
        else:
            words = f"--{name} is a secret and was left out; let `env` refer to the variable that does the same"
            notes.append(note(Kind.ASKED, words, command.origin))
    return replace(command, flags=flags, env=env)


# --- proxies


def _proxies(survey: Survey, notes: list[Note]) -> Iterator[ProxyCommand]:
    """Yield the reference proxies; of pdtui's own the file says all, and only that it runs is told."""
    for one in survey.proxies:
        origin = Origin(survey.host, pid=one.process.pid)
        if one.argv[0] == "pdtui":
            words = f"pdtui's own proxy runs here (`{' '.join(redacted(one.argv, {})[0])}`): its file says how"
            notes.append(note(Kind.ASSUMPTION, words, origin))
            continue
        words_ = [Said(word, origin) for word in one.argv[1:]]
        version = survey.versions.get("vllm-ascend", "")
        command, more = proxy_command(one.argv[0], words_, host=survey.host, origin=origin, version=version)
        notes.extend(more)
        yield command


# --- hosts


def _host(survey: Survey, commands: Sequence[ServeCommand], ssh: SshOptions) -> Host:
    address = _address(survey, commands)
    nic = next((name for name, own in survey.addresses if own == address), "")
    return Host(
        name=survey.host,
        address=address,
        nic=nic,
        npus=survey.npus,
        ssh_user=ssh.user or "",
        ssh_port=ssh.port,
        ssh_jump=ssh.jump or "",
        ssh_sudo=ssh.sudo,
        ssh_config=str(ssh.config.expanduser().absolute()) if ssh.config is not None else "",
    )


def _address(survey: Survey, commands: Sequence[ServeCommand]) -> str:
    """Return the address that the cluster uses: what ranks were told if the host has it, else that of SSH."""
    own = {address for _, address in survey.addresses}
    told = Counter(
        said.text for command in commands for name in _ADDRESSES if (said := command.env.get(name)) is not None
    )
    for address, _ in told.most_common():
        if address in own:
            return address
    if is_ip(survey.host):
        return survey.host
    # The first that others can reach.
    return next((one for one in sorted(own, key=lambda one: ":" in one) if _is_reachable(one)), "")


def _is_reachable(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return not (ip.is_loopback or ip.is_link_local or ip.is_unspecified)


def _version(surveys: Sequence[Survey], notes: list[Note]) -> Said | None:
    """Return the version of vllm-ascend, without NPUs of vLLM; hosts that have another one are told."""
    package = "vllm" if platform_of(surveys) == "cpu" else "vllm-ascend"
    found = [(one.host, text.partition("+")[0]) for one in surveys if (text := one.versions.get(package))]
    if not found:
        return None
    (most, _), *others = Counter(version for _, version in found).most_common()
    host = next(host for host, version in found if version == most)
    if others:
        each = ", ".join(f"{version} on {host}" for host, version in found)
        words = f"{package} is not the same on all hosts: {each}"
        notes.append(note(Kind.CONTRADICTION, words, *(Origin(host) for host, _ in found)))
    return Said(most, Origin(host))


def _setup(surveys: Sequence[Survey], notes: list[Note]) -> tuple[Said, ...]:
    """Return the set-up scripts of most servers; a topology has one list for all."""
    found: dict[tuple[str, ...], list[Origin]] = {}
    for one in surveys:
        for server in one.servers:
            scripts = server.record.setup if server.record is not None else server.setup
            if server.record is not None or scripts:  # Else a login gave it what scripts make, or nobody did.
                found.setdefault(scripts, []).append(Origin(one.host, pid=server.process.pid))
    if not found:
        return ()
    most = max(found, key=lambda scripts: len(found[scripts]))
    for scripts, origins in found.items():
        if scripts != most:
            words = f"other set-up scripts: {' '.join(scripts) or 'none'}, where most servers have"
            notes.append(note(Kind.CONTRADICTION, f"{words} {' '.join(most) or 'none'}", *origins))
    return tuple(Said(path, found[most][0]) for path in most)


def _state_dir(surveys: Sequence[Survey]) -> Said | None:
    """Return the folder of pdtui's records, unless it is one of those that are looked for anyway."""
    for one in surveys:
        for server in one.servers:
            if server.record is not None:
                folder = PurePath(server.record.folder).parent.parent.parent
                usual = str(folder) == "/var/lib/pdtui" or folder.parts[-3:] == (".local", "state", "pdtui")
                return None if usual else Said(str(folder), Origin(one.host, pid=server.process.pid))
    return None


# --- containers


def _is_used(container: ContainerSeen, survey: Survey) -> bool:
    return any(server.container == container.name for server in survey.servers)


def _container(host: str, seen: ContainerSeen) -> ContainerCommand:
    settings = seen.host
    size = settings.get("ShmSize")
    return ContainerCommand(
        host=host,
        name=seen.name,
        image=seen.image,
        shm_size=size_text(size) if isinstance(size, int) and size > 0 else "",
        devices=tuple(_devices(settings)),
        mounts=tuple(_mounts(seen)),
        options=tuple(_options(settings)),
        origin=Origin(host),
    )


def _devices(settings: Mapping[str, Any]) -> Iterator[str]:
    for one in _tables(settings.get("Devices")):
        outside, inside = (clean_line(str(one.get(key, ""))) for key in ("PathOnHost", "PathInContainer"))
        if outside:
            yield outside if inside in ("", outside) else f"{outside}:{inside}"


def _mounts(seen: ContainerSeen) -> Iterator[str]:
    """Yield `host-path:container-path[:ro]`: as it was asked for, else as the engine made it."""
    binds = seen.host.get("Binds")
    if isinstance(binds, list):
        yield from (clean_line(str(bind)).removesuffix(":rw") for bind in binds)
        return
    for one in _tables(seen.mounts):
        if one.get("Type") in ("bind", "volume") and one.get("Destination"):
            source = one.get("Name") if one.get("Type") == "volume" else one.get("Source")
            yield clean_line(f"{source}:{one['Destination']}{'' if one.get('RW', True) else ':ro'}")


def _options(settings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words of `docker run` that such a container needs besides; `--net=host` is said of none."""
    if (network := settings.get("NetworkMode")) not in ("host", None, ""):
        yield f"--net={clean_line(str(network))}"
    for key, flag in (("PidMode", "pid"), ("IpcMode", "ipc")):
        if settings.get(key) == "host":
            yield f"--{flag}=host"
    if settings.get("Privileged") is True:
        yield "--privileged"
    if settings.get("Init") is True:
        yield "--init"
    for key, flag in (("CapAdd", "cap-add"), ("SecurityOpt", "security-opt"), ("GroupAdd", "group-add")):
        words = settings.get(key)
        yield from (f"--{flag}={clean_line(str(word))}" for word in (words if isinstance(words, list) else ()))
    for one in _tables(settings.get("Ulimits")):
        if one.get("Name"):
            yield clean_line(f"--ulimit={one['Name']}={one.get('Soft')}:{one.get('Hard')}")
    policy = settings.get("RestartPolicy")
    if isinstance(policy, dict) and policy.get("Name") not in ("no", "", None):
        yield clean_line(f"--restart={policy['Name']}")


def _tables(value: object) -> Iterable[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list | tuple) else []


def in_words(surveys: Sequence[Survey]) -> Iterator[str]:
    """Yield what was found on each host, a line each."""
    for one in surveys:
        if one.unreachable:
            yield f"{one.host}: not asked: {one.unreachable}"
            continue
        ranks = [_rank_name(server) for server in one.servers]
        ours = [name for name in ranks if name]
        by_hand = len(ranks) - len(ours)
        parts = [f"{len(ranks)} server{'s' * (len(ranks) != 1)}"]
        if ours:
            parts.append(f"of pdtui {in_short(ours)}")
        if by_hand and ours:
            parts.append(f"{by_hand} started by hand")
        names = dict.fromkeys(server.container for server in one.servers if server.container)
        parts += [f"container {name}" for name in names]
        parts += [f"{len(one.proxies)} prox{'ies' if len(one.proxies) > 1 else 'y'}"] * bool(one.proxies)
        parts += [f"{one.npus} NPUs"] * (one.npus is not None)
        yield f"{one.host}: {', '.join(parts)}"


def _rank_name(server: ServerSeen) -> str:
    return server.process.rank.partition(":")[2] if server.record is not None else ""
