"""README.md of a rendered folder: what to run where and in which order, and what the scripts do not do."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pdtui.errors import FileError
from pdtui.text import clean_line
from pdtui.topology.model import Flow, Group, Node, ProxySettings, Topology
from pdtui.topology.plan import Plan
from pdtui.topology.render.container import container_argv, engine_argv
from pdtui.topology.render.launch import EXAMPLES, Launch
from pdtui.topology.render.proxy import FOLDER, SCRIPTS
from pdtui.topology.render.shell import LAUNCHER, origin
from pdtui.topology.render.template import Template

INSIDE = "/opt/"
"""Where the scripts are put in a container."""


@dataclass(frozen=True, slots=True)
class Part:
    """What was written for one group on one node."""

    group: Group
    node: str
    ranks: str
    """`0-15` or `3`."""
    template: Template
    launch: Launch

    @property
    def folder(self) -> str:
        """Return where its scripts lie."""
        return f"{self.node}/{self.group.name}"


def readme(topology: Topology, plan: Plan, parts: Sequence[Part], notes: Sequence[str]) -> str:
    """Return the text; `notes` are what cannot be expressed, each with its reason."""
    with_proxy = topology.proxy is not None
    numbered = (section for section in _sections(topology, plan, parts) if section)
    sections = [
        f"# {topology.name}: scripts",
        _text(
            f"{origin(topology)} For {topology.engine}. The ranks start with the same commands and environment as "
            "from pdtui."
        ),
        _contents(topology, parts),
        *(f"## {number}. {section}" for number, section in enumerate(numbered, 1)),
        "## What these scripts do not do\n\n" + "\n".join(map(_item, (*notes, *_ALWAYS[: 1 + with_proxy]))),
    ]
    return "\n\n".join(section.strip("\n") for section in sections) + "\n"


_ALWAYS = (
    "Nothing watches the ranks, starts them again, or ends the others of a group when one has died.",
    "The benchmark's figures are those of vLLM-Ascend's guides for as many decode ranks, but for what the file's "
    "`workload` says (concurrency, output_tokens).",
)


def _sections(topology: Topology, plan: Plan, parts: Sequence[Part]) -> Iterator[str]:
    yield _nodes(topology)
    yield _copy(topology)
    yield _containers(topology)
    yield _ranks(topology, parts)
    if topology.proxy is not None:
        yield _proxy(topology, topology.proxy, plan)
        yield _try(topology, topology.proxy)
    yield _stop(topology)


def _contents(topology: Topology, parts: Sequence[Part]) -> str:
    rows = ["| folder | server | what runs there |", "|---|---|---|"]
    for name, node in topology.nodes.items():
        here = [part for part in parts if part.node == name]
        what = [f"{part.group.role.value}, `{part.group.name}/{part.ranks}`" for part in here]
        if topology.proxy is not None and topology.proxy.node == name:
            what.append("the proxy")
        if what:
            rows.append(f"| `{name}/` | {clean_line(node.host)} | {'; '.join(what)} |")
    return "\n".join(rows)


def _text(text: str) -> str:
    """Return a paragraph in lines that a terminal shows whole."""
    return textwrap.fill(text, 110, break_long_words=False, break_on_hyphens=False)


def _item(text: str) -> str:
    return textwrap.fill(
        text, 110, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _code(*lines: str) -> str:
    return "```bash\n" + "\n".join(lines) + "\n```"


_CHECKS = (
    ("the switch port that each NPU is connected to", "hccn_tool -i $i -lldp -g | grep Ifname"),
    ("link: UP", "hccn_tool -i $i -link -g"),
    ("network health: Success", "hccn_tool -i $i -net_health -g"),
    ("the address that is watched", "hccn_tool -i $i -netdetect -g"),
    ("the gateway", "hccn_tool -i $i -gateway -g"),
)

_A3 = (
    ("addresses of the NPUs", "hccn_tool -i $i -vnic -g"),
    ("place in the super pod", "npu-smi info -t spod-info -i $i -c 0; npu-smi info -t spod-info -i $i -c 1"),
    ("to an NPU of another server, for its address x.x.x.x", "hccn_tool -i $i -hccs_ping -g address x.x.x.x"),
)

_A2 = (
    ("addresses of the NPUs", "hccn_tool -i $i -ip -g"),
    ("to an NPU of another server, for its address x.x.x.x", "hccn_tool -i $i -ping -g address x.x.x.x"),
)


def _nodes(topology: Topology) -> str:
    if not topology.has_npus:
        return ""
    loop = f"for i in {{0..{topology.npus_per_node - 1}}}; do"
    checks = (*_CHECKS, *(_A3 if topology.platform == "a3" else _A2))
    lines = [line for title, command in checks for line in (f"# {title}", f"{loop} {command}; done")]
    a5 = topology.platform == "a5"
    files = "ls -d /lib/route.conf /etc/hccl_rootinfo.json /etc/hixlep" if a5 else "cat /etc/hccn.conf"
    tls = "# TLS: the same on all servers"
    return "\n\n".join(
        [
            "Look over the servers",
            _text("On each server; a ping disturbs ranks that run. `pdtui preflight` asks all of this and more."),
            _code(
                *lines,
                *("# needed in containers, too", files),
                *(tls, f"{loop} hccn_tool -i $i -tls -g; done | grep switch"),
            ),
        ]
    )


def _copy(topology: Topology) -> str:
    lines = []
    for name, node in topology.nodes.items():
        if node.host != "local" and (
            any(name in group.nodes for group in topology.groups.values())
            or (topology.proxy is not None and topology.proxy.node == name)
        ):
            lines.append(_scp(name, node))
    if not lines:
        return ""
    return "\n\n".join(["Copy the scripts", "Each server's folder, from here:", _code(*lines)])


def _scp(name: str, node: Node) -> str:
    ssh = node.ssh
    options = [
        *(["-P", str(ssh.port)] if ssh.port else []),
        *(["-i", str(ssh.key)] if ssh.key else []),
        *(["-J", ssh.jump] if ssh.jump else []),
        *(["-F", str(ssh.config)] if ssh.config else []),
    ]
    host = f"[{node.host}]" if ":" in node.host else node.host
    return shlex.join(["scp", "-r", *options, name, f"{ssh.user}@{host}:" if ssh.user else f"{host}:"])


def _containers(topology: Topology) -> str:
    runtime = topology.runtime
    if not runtime.container:
        return ""
    shell = shlex.join([*runtime.exec, "-t", runtime.container, "bash"])
    lines = [*_into(topology), f"{shell}   # what follows runs in this shell"]
    text = "On each server, NODE being its folder. "
    try:
        container_argv(topology, next(iter(topology.nodes)))
    except FileError:
        title = "Go into the containers"
        text += "The containers have to run already: no script starts them, see the end of this page."
    else:
        title = "Start the containers"
        lines.insert(0, "NODE/start_container.sh")
        text += (
            "`start_container.sh` starts it in the background, `container_shell.sh` with a shell in the terminal, "
            "and then the container ends with the shell."
        )
    return "\n\n".join([title, _text(text), _code(*lines)])


def _into(topology: Topology) -> tuple[str, ...]:
    try:
        engine = engine_argv(topology)
    except FileError:
        return ()
    return (shlex.join([*engine, "cp", "NODE", f"{topology.runtime.container}:{INSIDE}"]),)


def _ranks(topology: Topology, parts: Sequence[Part]) -> str:
    where = "In the container's shell" if topology.runtime.container else "On each server, in an interactive shell"
    text = f"{where}: the ranks start from its environment, `~/.bashrc` and all. "
    if any(len(group.nodes) > 1 and group.dp_address for group in topology.groups.values()):
        text += (
            "Start a group's first server first: its ranks meet there, and the others wait ten minutes for it. "
        )
    text += "A rank takes requests when its port answers `/health`."
    if any(not part.launch.why for part in parts):
        text += f" {_found('launch.sh', LAUNCHER, 'external_online_dp', topology)}"
    home = INSIDE if topology.runtime.container else ""
    first: dict[str, str] = {}
    lines = []
    for part in parts:
        begin = first.setdefault(part.group.name, part.node)
        lines.append(
            f"# on {part.node}{f', after {begin}' if begin != part.node and part.group.dp_address else ''}"
        )
        lines.append(f"nohup {home}{part.folder}/launch.sh > {home}{part.folder}/launch.log 2>&1 &")
    return "\n\n".join(["Start the ranks", _text(text), _code(*lines), *_one_by_one(parts)])


def _one_by_one(parts: Sequence[Part]) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for part in parts:
        if part.launch.why:
            reasons.setdefault(part.launch.why, []).append(f"`{part.folder}`")
    if reasons:
        yield "Some are started one by one; each has its own log, `rank-N.log`, in the folder:"
        yield "\n".join(_item(f"{', '.join(folders)}: {why}") for why, folders in reasons.items())


def _found(script: str, name: str, folder: str, topology: Topology) -> str:
    """Return where a rendered script finds a script of vLLM-Ascend."""
    if topology.runtime.container:
        return f"`{script}` takes `{name}` of its own folder, else that of the image ({EXAMPLES}/{folder})."
    return f"`{script}` takes `{name}` of its own folder: copy it there from vLLM-Ascend's examples/{folder}."


def _proxy(topology: Topology, proxy: ProxySettings, plan: Plan) -> str:
    if proxy.kind == "external":
        addresses = {
            role: " ".join(f"{rank.host}:{rank.api_port}" for rank in plan.ranks if rank.role.value == role)
            for role in ("prefill", "decode")
        }
        text = "The proxy is not among these scripts (`kind: external`). Its backends have to be:"
        return "\n\n".join(
            ["The proxy", text, "\n".join(f"- {role}: {where}" for role, where in addresses.items())]
        )
    text = (
        f"On {proxy.node}, when the ranks are ready: its lists are fixed, and a request that it sends to a rank "
        "that is not ready fails. " + _found("proxy.sh", SCRIPTS[topology.flow], FOLDER, topology)
    )
    if proxy.kind == "pdtui":
        text += " It stands in for the proxy of pdtui, which the file names."
    if topology.flow is Flow.LAYERWISE:
        text += (
            f" Decode ranks call it back at http://{proxy.advertise}:{proxy.port}/v1/metaserver, so every decode "
            "server has to reach that, and no `http_proxy` may be in the way."
        )
    home = INSIDE if topology.runtime.container else ""
    folder = f"{home}{proxy.node}"
    return "\n\n".join(
        ["Start the proxy", _text(text), _code(f"nohup {folder}/proxy.sh > {folder}/proxy.log 2>&1 &")]
    )


def _try(topology: Topology, proxy: ProxySettings) -> str:
    host = f"[{proxy.advertise}]" if ":" in proxy.advertise else proxy.advertise
    model = json.dumps(topology.model.served_name, ensure_ascii=False)
    body = f'{{"model": {model}, "prompt": "Who are you?", "max_tokens": 100, "temperature": 0}}'
    return "\n\n".join(
        [
            "Try it",
            _code(
                f"curl http://{host}:{proxy.port}/v1/completions -H 'Content-Type: application/json' "
                f"-d {shlex.quote(body)}"
            ),
            _text(
                "Ask a few times before you measure: the first requests warm the operators up. Then AISBench, "
                "with `benchmark/vllm_api_stream_chat.py` in its `ais_bench/benchmark/configs/models/vllm_api/`:"
            ),
            _code(
                "unset http_proxy https_proxy",
                "ais_bench --models vllm_api_stream_chat --datasets gsm8k_gen_0_shot_cot_str_perf \\",
                "  --debug --mode perf",
            ),
        ]
    )


def _stop(topology: Topology) -> str:
    text = (
        "The proxy first, then the ranks: `pkill -TERM -f 'vllm serve'` where they run ends all of a server, "
        "those of other clusters, too. Ending the launcher alone leaves ranks behind. Look for what is left with "
        "`npu-smi info` before the next start."
    )
    if not topology.has_npus:
        text = text.replace("`npu-smi info`", "`ps aux`")
    return f"Stop\n\n{_text(text)}"
