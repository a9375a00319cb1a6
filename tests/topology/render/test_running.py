"""The rendered scripts, really run: what they start is what the plan says, whatever the values are."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtui.assets import asset_dir
from pdtui.topology.load import load
from pdtui.topology.model import Model, Topology
from pdtui.topology.plan import RankPlan
from pdtui.topology.planner import make_plan
from pdtui.topology.render.files import Rendering, render
from pdtui.topology.render.template import template
from pdtui.topology.script import run_script
from tests.topology.examples import BASE, CPU, changed, loaded
from tests.topology.render.stand_ins import Bench
from tests.topology.shapes import files

SAMPLES = sorted(asset_dir("sample_configs").glob("*.yaml"))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def of_text(text: str) -> Topology:
    result = loaded(text)
    assert result.topology is not None, result.findings
    assert not result.errors, result.findings
    return result.topology


def of_file(path: Path) -> Topology:
    topology = load(path).topology
    assert topology is not None
    return topology


KV = "kv: {connector: MooncakeConnectorV1}"
POOL = "kv: {connector: MooncakeConnectorV1, stores: {AscendStoreConnector: {extra: {backend: memcache}}}}"
SHAPES = {
    "base": BASE,
    "cpu": CPU,
    "two groups on a node": changed(
        ("n1], dp_size: 2, tp_size: 8", "n1], devices: 0-7, dp_size: 2, tp_size: 4"),
        (
            "  d: {role: decode, nodes: [n2, n3], dp_size: 8, tp_size: 2, api_port: 7100, rpc_port: 12321,",
            "  q: {role: prefill, nodes: [n1], devices: 8-15, dp_size: 2, tp_size: 4, api_port: 7200, "
            "rpc_port: 12331, kv_port: 14100}\n"
            "  d: {role: decode, nodes: [n2, n3], dp_size: 8, tp_size: 2, api_port: 7100, rpc_port: 12321,",
        ),
    ),
    "uneven": changed(("nodes: [n2, n3], dp_size: 8", "nodes: [n2, n3], ranks: {n2: 2, n3: 6}, dp_size: 8")),
    "odd NPUs": changed(("nodes: [n2, n3], dp_size: 8", 'nodes: [n2, n3], devices: "15,14,2-7", dp_size: 8')),
    "pipelines": changed(("dp_size: 2, tp_size: 8, api", "dp_size: 2, tp_size: 4, pp_size: 2, api")),
    "layers of a pipeline": changed(
        (KV, POOL),
        ("dp_size: 2, tp_size: 8, api", "dp_size: 2, tp_size: 4, pp_size: 2, pp_layer_partition: [31, 30], api"),
    ),
    "pool": changed((KV, POOL)),
    "pool on prefill alone": changed(
        (KV, POOL), ("decode: {args", "decode: {kv: {stores: {AscendStoreConnector: null}}, args")
    ),
    "pool of a dense model": changed((KV, POOL), ("served_name: m}", "served_name: m, kind: dense}")),
    "through host memory": changed(
        (KV, "kv: {connector: SfaRemoteD2HConnector}"),
        ("0.22.1rc1", "main"),
        ("max-num-seqs: 40", "additional-config: {sparse_kv_offload_config: {enabled: true}}"),
    ),
    "a5": changed(
        ("platform: a3", "platform: a5"),
        (KV, "kv: {connector: MooncakeConnectorV1, extra: {ascend_local_comm_res_path: /etc/hixlep}}"),
        ("tp_size: 8,", "tp_size: 4,"),
        ("0.22.1rc1", "0.23.0"),
        ("nodes:\n", "runtime: {container: c, image: i, mounts: ['/models:/models']}\nnodes:\n"),
    ),
    "a group on parts of two nodes": changed(
        ("nodes: [n2, n3], dp_size: 8", "nodes: [n1, n3], dp_size: 8, ranks: {n1: 3, n3: 5}, devices: {n1: 8-13}"),
        ("tp_size: 8, api_port: 7100", "tp_size: 4, devices: 0-7, api_port: 7200"),
        ("rpc_port: 12321, kv_port: 14200", "rpc_port: 12322, kv_port: 14200"),
    ),
    "one rank": changed(("dp_size: 2, tp_size: 8", "dp_size: 1, tp_size: 8")),
    "dense": changed(("served_name: m}", "served_name: m, kind: dense}")),
}


def run_all(topology: Topology, rendering: Rendering, bench: Bench, **env: str) -> dict[str, list[RankPlan]]:
    """Run every launch.sh and compare what it started with the plan; return node -> its ranks."""
    out = bench.write(rendering.files)
    plan = make_plan(topology)
    compared: dict[str, list[RankPlan]] = {}
    for file in rendering.files:
        if file.kind != "launch":
            continue
        node, group, _ = file.path.split("/")
        done = bench.run(out / file.path, **env)
        logs = "".join(log.read_text() for log in (out / file.path).parent.glob("rank-*.log"))
        assert (done.returncode, done.stdout, done.stderr, logs) == (0, "", "", "")
        ranks = [rank for rank in plan.on_node(node) if rank.group == group]
        starts = bench.take()
        home = f"{bench.folder}/"
        expected = [
            tuple(word.replace("~/", home, 1) if at == 2 else word for at, word in enumerate(rank.argv))[1:]
            for rank in ranks
        ]
        assert [start.argv for start in starts] == expected
        for rank, start in zip(ranks, starts, strict=True):
            wanted = {name: value for name, value in rank.env.items() if "$" not in value}
            more = {name: start.env[name] for name in rank.env.keys() - wanted.keys()}
            assert start.env == {**bench.env(**env), "SET_UP": "0", **more, **wanted}
        compared.setdefault(node, []).extend(ranks)
    assert sum(map(len, compared.values())) == len(plan.ranks)
    return compared


def with_set_up(topology: Topology, bench: Bench) -> Topology:
    """Return the topology with a set-up file that is there, and that sees whether it has arguments."""
    path = bench.folder / "set up's.sh"
    path.write_text("export SET_UP=$#\n")
    return replace(topology, runtime=replace(topology.runtime, setup=(str(path),)))


@pytest.mark.parametrize("name", SHAPES)
def test_the_scripts_of_every_shape_start_the_plans_ranks(name: str, bench: Bench) -> None:
    topology = with_set_up(of_text(SHAPES[name]), bench)
    run_all(topology, render(topology), bench)


@pytest.mark.parametrize("name", ["deepseek-r1-2p1d.yaml", "a2-1p1d.yaml", "cpu-1p1d.yaml"])
def test_the_scripts_of_the_samples_start_the_plans_ranks(name: str, bench: Bench) -> None:
    topology = with_set_up(of_file(asset_dir("sample_configs") / name), bench)
    run_all(topology, render(topology), bench)


def test_a_prepended_variable_keeps_what_the_server_has(bench: Bench) -> None:
    topology = with_set_up(of_file(asset_dir("sample_configs") / "a2-1p1d.yaml"), bench)
    out = bench.write(render(topology).files)
    for before, after in (({"LD_LIBRARY_PATH": "/old"}, ":/old"), ({}, "")):
        assert bench.run(out / "node1/prefill/launch.sh", **before).returncode == 0
        values = {start.env["LD_LIBRARY_PATH"] for start in bench.take()}
        assert values == {f"/usr/local/lib64/python3.12/site-packages/mooncake{after}"}


def test_a_missing_set_up_file_is_named(bench: Bench) -> None:
    topology = of_text(changed(("nodes:\n", "runtime: {setup: [/no/such/file]}\nnodes:\n")))
    out = bench.write(render(topology).files)
    done = bench.run(out / "n1/p/run_dp_template.sh", *"abcdefg")
    assert done.returncode == 1
    assert "cannot read /no/such/file" in done.stderr
    assert not bench.take()


@pytest.mark.parametrize(
    ("shape", "path", "why"),
    [
        ("base", "n1/p", ""),
        ("base", "n3/d", ""),
        ("uneven", "n3/d", ""),
        ("two groups on a node", "n1/p", ""),
        ("two groups on a node", "n1/q", "it gives each rank the next NPUs from 0 on"),
        ("odd NPUs", "n2/d", "it gives each rank the next NPUs from 0 on"),
        ("pipelines", "n1/p", "it counts tensor parallel NPUs only"),
        ("one rank", "n1/p", "an instance that stands alone takes none"),
        ("dense", "n3/d", "instances of their own, with a KV port each"),
        ("cpu", "n2/d", "belongs to vLLM-Ascend"),
    ],
)
def test_the_launcher_is_used_where_it_can_say_it(shape: str, path: str, why: str) -> None:
    rendering = render(of_text(SHAPES[shape]))
    (text,) = (file.text for file in rendering.files if file.path == f"{path}/launch.sh")
    readme = rendering.files[0].text
    assert ("python3 launch_online_dp.py" in text) == (not why)
    assert ("bash run_dp_template.sh" in text) == bool(why)
    if why:
        assert why in text
        assert why in " ".join(readme.split())
        assert f"`{path}`" in readme


CONTAINER = "runtime: {container: c, image: i, exec: %s, mounts: ['/models:/models']}\nnodes:\n"


@pytest.mark.parametrize(
    ("runtime", "says", "notes"),
    [
        (CONTAINER % "[docker, exec, -i]", "docker exec -i -t c bash", []),
        (CONTAINER % "[nerdctl, exec, -i]", "nerdctl cp NODE c:/opt/", []),
        (
            "runtime: {container: c, mounts: ['/models:/models']}\nnodes:\n",
            "have to run already",
            ["runtime.image"],
        ),
        (CONTAINER % "[ctr, tasks, exec]", "have to run already", ["docker, podman or nerdctl only"]),
        ("runtime: {container: c, image: i}\nnodes:\n", "start_container.sh", ["No mount", "/models/m"]),
        ("nodes:\n", "in an interactive shell", []),
    ],
)
def test_the_page_says_how_to_get_where_ranks_run(runtime: str, says: str, notes: list[str]) -> None:
    rendering = render(of_text(changed(("nodes:\n", runtime))))
    page = rendering.files[0].text
    starts = [file.path for file in rendering.files if file.kind == "container"]
    assert says in " ".join(page.split())
    assert bool(starts) == ("start_container.sh" in page)
    said = [note for note in rendering.notes if "launch_online_dp.py starts all" not in note]
    assert len(said) == bool(notes)
    for piece in notes:
        assert piece in said[0]
        assert piece in page


def test_what_the_proxy_cannot_say_is_said() -> None:
    layerwise = ("MooncakeConnectorV1", "MooncakeLayerwiseConnector")
    narrow = render(of_text(changed(layerwise, ("listen: 0.0.0.0", "listen: 192.0.2.1, advertise: 192.0.2.99"))))
    assert any("not at the file's `listen` (192.0.2.1)" in note for note in narrow.notes)
    (text,) = (file.text for file in narrow.files if file.kind == "proxy")
    assert "--host 192.0.2.99 " in text
    external = render(of_text(changed(("port: 1999}", "port: 1999, kind: external}"))))
    assert not any(file.kind == "proxy" for file in external.files)
    assert "- prefill: 192.0.2.1:7100 192.0.2.1:7101\n- decode: 192.0.2.2:7100" in external.files[0].text
    none = render(of_text(changed(("proxy: {node: n1, listen: 0.0.0.0, port: 1999}\n", ""))))
    assert {file.kind for file in none.files} == {"readme", "template", "launch"}
    assert any("no `proxy`" in note for note in none.notes)


def test_the_benchmark_is_of_the_workload() -> None:
    plain, said = (
        next(file.text for file in render(of_text(text)).files if file.kind == "benchmark")
        for text in (BASE, BASE + "workload: {input_tokens: 100, output_tokens: 300, concurrency: 50}\n")
    )
    assert "max_out_len=10,\n        batch_size=192," in plain
    assert "max_out_len=300,\n        batch_size=50," in said


def test_independent_instances_get_their_kv_port_as_an_eighth_argument() -> None:
    files = {file.path: file.text for file in render(of_text(SHAPES["dense"])).files}
    text = files["n1/p/run_dp_template.sh"]
    assert "#   $8  kv_port" in text
    assert '"kv_port": "\'"$8"\'"' in text
    assert "data-parallel" not in text.split("exec vllm")[1]
    assert "bash run_dp_template.sh 0,1,2,3,4,5,6,7 7100 2 0 - - 8 14000 >" in files["n1/p/launch.sh"]
    assert "bash run_dp_template.sh 8,9,10,11,12,13,14,15 7101 2 1 - - 8 14008 >" in files["n1/p/launch.sh"]


def every_rendering() -> Iterator[tuple[str, Rendering]]:
    for name, text in SHAPES.items():
        yield name, render(of_text(text))
    for path in SAMPLES:
        yield path.name, render(of_file(path))


def test_everything_is_deterministic_and_valid_bash(tmp_path: Path) -> None:
    count = 0
    renderings = list(every_rendering())
    for name, rendering in renderings:
        texts = {file.text for file in rendering.files if file.path.endswith(".sh")}
        for text in texts:
            done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), name
            assert text.startswith("#!/bin/bash\n# Written by `pdtui render` from ")
            assert text.endswith("\n")
        count += len(texts)
        for file in rendering.files:
            assert file.executable == file.path.endswith(".sh")
            if file.path.endswith(".py"):
                compile(file.text, file.path, "exec")
        assert len({file.path for file in rendering.files}) == len(rendering.files)
    assert count > 60
    assert list(every_rendering()) == renderings


ANY = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
HARD = st.sampled_from(
    [
        "",
        "-",
        "--",
        "--x",
        "-n",
        "'",
        '"',
        "\\",
        "\n",
        "$1",
        "$@",
        "${2}",
        "`id`",
        "$(id)",
        "~/x",
        "${N:-it's}",
        "!!",
        "*",
        "中文 🙂",
    ]
)
TEXT = st.one_of(ANY, HARD, st.lists(HARD, max_size=4).map("".join))
JSON = st.recursive(
    st.one_of(TEXT, st.integers(), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
ARGS = st.dictionaries(
    st.sampled_from(["seed", "dtype", "quantization", "chat-template", "rope-scaling", "hf-overrides"]),
    st.one_of(
        TEXT, st.booleans(), st.integers(), st.lists(TEXT, max_size=3), st.dictionaries(TEXT, JSON, max_size=3)
    ),
    max_size=4,
)
ENV = st.dictionaries(st.from_regex(r"V[A-Z0-9]{0,4}", fullmatch=True), TEXT, max_size=5)
KINDS = st.sampled_from(["moe", "dense"])


@settings(max_examples=25)
@given(ARGS, ENV, KINDS, TEXT.filter(bool), TEXT, st.dictionaries(TEXT, JSON, max_size=2))
def test_any_value_arrives_as_pdtui_itself_would_start_it(
    args: dict[str, object], env: dict[str, str], kind: str, path: str, served: str, extra: dict[str, object]
) -> None:
    base = of_text(BASE)
    group = replace(base.groups["d"], args=args, env=env, kv_extra=extra)
    if kind == "dense":
        group = replace(group, rpc_port=0, dp_address="")
    topology = replace(
        base,
        model=Model(path, served, "dense" if kind == "dense" else "moe"),
        groups={**base.groups, "d": group},
    )
    ranks = [rank for rank in make_plan(topology).ranks if (rank.group, rank.node) == ("d", "n3")][:2]
    made = template(topology, topology.groups["d"], "n3", ranks)
    with TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        ours, theirs = bench.folder / "ours.sh", bench.folder / "theirs.sh"
        ours.write_text(made.text)
        for rank, words in zip(ranks, made.runs, strict=True):
            theirs.write_text(run_script(rank, topology.runtime))
            for script, arguments in ((ours, words), (theirs, ())):
                done = bench.run(script, *arguments)
                assert (done.returncode, done.stderr) == (0, ""), made.text
            first, second = bench.take()
            assert first == second
            assert first.argv[2:] == rank.argv[3:]
            plain = {name: value for name, value in rank.env.items() if "$" not in value}
            assert plain.items() <= first.env.items()


@settings(max_examples=8)
@given(files())
def test_the_scripts_of_any_valid_file_start_the_plans_ranks(text: str) -> None:
    with TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        topology = with_set_up(of_text(text), bench)
        run_all(topology, render(topology), bench)
