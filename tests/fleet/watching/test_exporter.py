"""What Prometheus is told: by its conventions, and never what is no longer known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from pdtui.errors import UsageError
from pdtui.fleet.snapshot import Acknowledgement, Alarm, NodeState, RankState, Snapshot
from pdtui.fleet.watching.exporter import FRESH, FRESH_METRICS, STRAYS, Exporter, serve
from pdtui.readings.verdict import Reason, Verdict
from tests.support.fake_fleet import NOW, FakeFleet, faulty, with_node, with_npu, with_rank


def scrape(snapshot: Snapshot, *, now: float = NOW) -> dict[str, list[Sample]]:
    """Return the samples by name, as Prometheus reads them."""
    registry = CollectorRegistry()
    registry.register(Exporter(lambda: snapshot, lambda: now, transitions={("npu", True): 3}, hook_runs={"ok": 2}))
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        assert family.documentation
        for sample in family.samples:
            found.setdefault(sample.name, []).append(sample)
    return found


def values(samples: list[Sample], *labels: str) -> dict[tuple[str, ...], float]:
    return {tuple(sample.labels[label] for label in labels): sample.value for sample in samples}


def test_a_cluster_that_is_well() -> None:
    snapshot = FakeFleet.healthy().snapshot
    found = scrape(snapshot)
    assert values(found["pdtui_node_up"], "node") == {(f"node{n}",): 1.0 for n in range(1, 5)}
    assert len(found["pdtui_npu_verdict"]) == 64
    assert {sample.labels["verdict"] for sample in found["pdtui_npu_verdict"]} == {"healthy"}
    npu = snapshot.nodes[0].npus[3]
    assert npu.hbm_used_mb is not None
    used = values(found["pdtui_npu_hbm_used_bytes"], "node", "npu")
    assert used["node1", "3"] == npu.hbm_used_mb * 1024 * 1024
    rank = snapshot.rank("decode/9")
    assert rank is not None
    assert rank.metrics is not None
    running = values(found["pdtui_rank_requests_running"], "rank", "group", "role", "node")
    assert running["decode/9", "decode", "decode", "node3"] == rank.metrics.running
    assert values(found["pdtui_rank_state"], "rank", "state")["decode/9", "ready"] == 1
    assert values(found["pdtui_serving"], "word") == {("SERVING",): 1.0}
    assert found["pdtui_healthy"][0].value == 1
    assert values(found["pdtui_transitions_total"], "kind", "worse") == {("npu", "true"): 3.0}
    assert values(found["pdtui_hook_runs_total"], "result")["ok",] == 2
    assert "pdtui_trouble" not in found
    units = ("bytes", "celsius", "watts", "seconds", "ratio", "total", "per_second")
    for name in found:
        assert "_mb" not in name
        assert not name.endswith(("_percent", "_ms")), name
        if any(word in name for word in ("hbm", "temperature", "power", "usage", "time_", "offset")):
            assert name.endswith(units), name


def test_what_is_no_longer_known_is_gone() -> None:
    snapshot = FakeFleet.healthy().snapshot
    away = with_node(snapshot, "node3", state=NodeState.RECONNECTING, error="lost")
    found = scrape(with_rank(away, "decode/9", state=RankState.LOST))
    assert values(found["pdtui_node_up"], "node")["node3",] == 0
    assert ("node3", "3") not in values(found["pdtui_npu_temperature_celsius"], "node", "npu")
    assert ("decode/9",) not in values(found["pdtui_rank_healthy"], "rank")
    assert values(found["pdtui_trouble"], "subject", "id")["node3", "unreachable"] == 1
    # Old readings of what answers.
    at = max(rank.metrics.observed_at for rank in snapshot.ranks if rank.metrics is not None)
    assert "pdtui_rank_requests_running" in scrape(snapshot, now=at + FRESH_METRICS - 5)
    found = scrape(snapshot, now=NOW + FRESH + FRESH_METRICS)
    assert "pdtui_rank_requests_running" not in found
    assert "pdtui_npu_hbm_used_bytes" not in found
    assert len(found["pdtui_npu_verdict"]) == 64
    # The last figures of a rank that has failed are for people only.
    failed = with_rank(snapshot, "decode/9", state=RankState.FAILED, health="refused")
    assert ("decode/9",) not in values(scrape(failed)["pdtui_rank_requests_running"], "rank")


def test_what_is_wrong_and_known() -> None:
    reason = Reason(Verdict.FAILED, "link DOWN", id="link-down")
    snapshot = with_npu(FakeFleet.healthy().snapshot, "node3", 9, verdict=Verdict.FAILED, reasons=(reason,))
    alarm = Alarm("kv-held", "warning", "holds prompts", "look", NOW)
    snapshot = with_rank(snapshot, "p1/0", alarms=(alarm,))
    given = Acknowledgement("node3/9:link-down", 'a"b\\c\nd', "ann@desk", NOW, NOW + 60)
    found = scrape(replace(snapshot, acknowledgements=(given,)))
    assert values(found["pdtui_trouble"], "kind", "subject", "id", "severity", "acknowledged") == {
        ("npu", "node3/9", "link-down", "error", "true"): 1.0,
        ("alarm", "p1/0", "kv-held", "warning", "false"): 1.0,
    }
    assert values(found["pdtui_troubles"], "severity", "acknowledged")["error", "true"] == 1
    assert found["pdtui_acknowledgements"][0].value == 1
    assert found["pdtui_healthy"][0].value == 1
    assert scrape(faulty(FakeFleet.healthy().snapshot))["pdtui_healthy"][0].value == 0


def test_labels_do_not_grow_without_end() -> None:
    snapshot = FakeFleet.healthy().snapshot
    rank = snapshot.ranks[0]
    strays = tuple(
        replace(rank, id=f"old{n}/0", group=f"old{n}", flags=("not-in-file",), state=RankState.UNHEALTHY)
        for n in range(5000)
    )
    found = scrape(replace(snapshot, ranks=(*snapshot.ranks, *strays)))
    assert len(found["pdtui_rank_state"]) == len(snapshot.ranks) + STRAYS
    assert len(found["pdtui_trouble"]) == 2000
    assert max(Counter(sample.labels["id"] for sample in found["pdtui_trouble"]).values()) == 2000


def test_it_is_served_on_loopback_and_a_taken_port_is_said() -> None:
    snapshot = FakeFleet.healthy().snapshot
    server, thread = serve(Exporter(lambda: snapshot, lambda: NOW, transitions={}), 0)
    try:
        assert server.server_address[0] == "127.0.0.1"
        with urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=60) as answer:
            assert b"pdtui_node_up" in answer.read()
        with pytest.raises(UsageError, match=f"port {server.server_port} is taken"):
            serve(Exporter(lambda: snapshot, lambda: NOW, transitions={}), server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
