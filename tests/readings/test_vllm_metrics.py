from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtui.readings.vllm_metrics import KEEP, Mean, MetricsReading, rates, read_metrics
from pdtui.text import decode
from tests.readings.samples import log


def read(name: str, at: float = 0.0) -> MetricsReading:
    reading = read_metrics(log(name), at)
    assert reading is not None
    return reading


def test_a_decode_rank_that_pulled_everything() -> None:
    reading = read("metrics_decode.txt")
    assert (reading.running, reading.waiting, reading.kv_usage) == (0, 0, 0.0)
    assert (reading.prompt_tokens, reading.generation_tokens) == (245.0, 80.0)
    assert (reading.local_prefill_tokens, reading.transferred_tokens) == (0.0, 245.0)
    assert reading.ttft is not None
    assert reading.tpot is not None
    assert reading.ttft.count == 5
    assert reading.tpot.count > 0


def test_a_prefill_rank_computed_its_prompts_itself() -> None:
    reading = read("metrics_prefill.txt")
    assert reading.local_prefill_tokens == reading.prompt_tokens
    assert reading.transferred_tokens == 0


@pytest.mark.parametrize(
    ("name", "own", "external", "ttft", "tokens"),
    [
        ("metrics_plain.txt", 62, 0.0, 5, (62, 65)),
        ("metrics_prefill.txt", 245, 0.0, 5, (245, 5)),
        ("metrics_decode.txt", 0, 1.0, 5, (245, 80)),
    ],
)
def test_every_captured_scrape_is_read_whole(
    name: str, own: int, external: float, ttft: int, tokens: tuple[int, int]
) -> None:
    reading = read(name)
    assert (reading.running, reading.waiting, reading.kv_usage, reading.preemptions) == (0, 0, 0.0, 0)
    assert (reading.own_prompt_tokens, reading.external_share) == (own, external)
    assert (reading.prompt_tokens, reading.generation_tokens) == tokens
    assert reading.ttft is not None
    assert reading.ttft.count == ttft
    assert (reading.errors, reading.aborts, reading.drafts) == (0, 0, None)
    expired = None if name == "metrics_plain.txt" else 0
    assert (reading.expired_leases, reading.late_pulls, reading.failed_transfers) == (expired,) * 3


@pytest.mark.parametrize("name", ["metrics_plain.txt", "metrics_decode.txt", "metrics_prefill.txt"])
def test_what_the_node_keeps_is_all_that_is_read_and_little(name: str) -> None:
    whole = log(name)
    kept = [line for line in whole.split("\n") if line.partition("{")[0].partition(" ")[0] in KEEP]
    assert read_metrics("\n".join(kept), 0.0) == read_metrics(whole, 0.0)
    assert 0 < len("\n".join(kept)) < 2000  # Of sixty thousand, every five seconds, of each rank.
    assert sum(map(len, KEEP)) < 1000  # What asks for them.


def test_old_names_are_read_too() -> None:
    text = (
        'vllm:gpu_cache_usage_perc{model_name="m",engine="0"} 0.25\n'
        'vllm:prompt_tokens{model_name="m"} 7\n'
        'vllm:time_per_output_token_seconds_sum{model_name="m"} 3.0\n'
        'vllm:time_per_output_token_seconds_count{model_name="m"} 6.0\n'
    )
    reading = read_metrics(text, 1.0)
    assert reading == MetricsReading(1.0, kv_usage=0.25, prompt_tokens=7.0, tpot=Mean(3.0, 6.0))


def test_a_version_that_has_old_and_new_names_at_once_is_not_counted_twice() -> None:
    text = (
        'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\nvllm:kv_cache_usage_perc{model_name="m"} 0.5\n'
        'vllm:time_per_output_token_seconds_sum{model_name="m"} 3\n'
        'vllm:time_per_output_token_seconds_count{model_name="m"} 6\n'
        'vllm:inter_token_latency_seconds_sum{model_name="m"} 3\n'
        'vllm:inter_token_latency_seconds_count{model_name="m"} 6\n'
    )
    assert read_metrics(text, 1.0) == MetricsReading(1.0, kv_usage=0.5, tpot=Mean(3.0, 6.0))


def test_a_version_without_sources_says_what_its_connector_had() -> None:
    text = (
        'vllm:prompt_tokens_total{engine="0"} 300\n'
        'vllm:external_prefix_cache_queries_total{engine="0"} 300\n'
        'vllm:external_prefix_cache_hits_total{engine="0"} 240\n'
    )
    reading = read_metrics(text, 0.0)
    assert reading is not None
    assert (reading.own_prompt_tokens, reading.external_share) == (60.0, 0.8)
    without = read_metrics('vllm:prompt_tokens_total{engine="0"} 300\n', 0.0)
    assert without is not None
    assert (without.own_prompt_tokens, without.external_share) == (None, None)


def test_engines_of_one_server_are_summed_and_their_cache_is_averaged() -> None:
    text = "".join(
        f'vllm:num_requests_running{{engine="{engine}",model_name="m"}} {3 + engine}\n'
        f'vllm:kv_cache_usage_perc{{engine="{engine}",model_name="m"}} {0.2 + 0.4 * engine}\n'
        for engine in range(2)
    )
    reading = read_metrics(text, 0.0)
    assert reading is not None
    assert reading.running == 7
    assert reading.kv_usage == pytest.approx(0.4)


def test_a_label_value_that_looks_like_labels_is_one() -> None:
    text = 'vllm:request_success_total{model_name="a\\",finished_reason=\\"error",finished_reason="abort"} 4\n'
    reading = read_metrics(text, 0.0)
    assert reading is not None
    assert (reading.errors, reading.aborts) == (None, 4)


def test_times_and_spaces_behind_a_value_are_no_trouble() -> None:
    text = 'vllm:num_requests_waiting{ engine = "0" , } 3 1796060528929 \r\nvllm:num_requests_running 2\n'
    assert read_metrics(text, 0.0) == MetricsReading(0.0, running=2, waiting=3)


@pytest.mark.parametrize("broken", ["NaN", "+Inf", "-1", "x", "", '1 {"', "\ufffd"])
def test_a_broken_value_is_missing_and_the_others_are_read(broken: str) -> None:
    text = f'vllm:kv_cache_usage_perc{{engine="0"}} {broken}\nvllm:num_requests_running{{engine="0"}} 2\n'
    assert read_metrics(text, 0.0) == MetricsReading(0.0, running=2)


def test_speculative_decoding_of_an_interval() -> None:
    def scrape(drafts: int, drafted: int, accepted: tuple[int, ...], at: float) -> MetricsReading:
        labels = 'engine="0",model_name="m"'
        text = (
            f"vllm:spec_decode_num_drafts_total{{{labels}}} {drafts}\n"
            f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {drafted}\n"
            f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {sum(accepted)}\n"
        )
        for position, count in enumerate(accepted):
            text += (
                f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{position}"}} {count}\n'
            )
        reading = read_metrics(text, at)
        assert reading is not None
        return reading

    first, second = scrape(10, 20, (5, 5), 0.0), scrape(110, 220, (85, 45), 5.0)
    result = rates(first, second)
    assert result is not None
    assert (result.acceptance, result.accepted_length) == (0.6, 2.2)
    assert result.acceptance_by_position == (0.8, 0.4)
    idle = rates(second, second.__class__(10.0, drafts=110, drafted_tokens=220, accepted_tokens=130))
    assert idle is not None
    assert (idle.acceptance, idle.accepted_length, idle.acceptance_by_position) == (None, None, ())


def test_rates_between_two_readings() -> None:
    old = MetricsReading(10.0, prompt_tokens=100, generation_tokens=50, ttft=Mean(1.0, 2), tpot=Mean(1.0, 100))
    new = MetricsReading(14.0, prompt_tokens=300, generation_tokens=90, ttft=Mean(2.0, 4), tpot=Mean(1.8, 140))
    result = rates(old, new)
    assert result is not None
    assert (result.prompt_tokens_per_s, result.generation_tokens_per_s) == (50.0, 10.0)
    assert result.ttft_s == pytest.approx(0.5)
    assert result.tpot_s == pytest.approx(0.02)
    assert rates(new, old) is None


def test_a_server_that_was_started_anew_has_no_rate_instead_of_a_wrong_one() -> None:
    result = rates(MetricsReading(0.0, generation_tokens=1e6), MetricsReading(5.0, generation_tokens=10))
    assert result is not None
    assert result.generation_tokens_per_s is None


def test_no_requests_in_between_means_no_mean() -> None:
    same = Mean(1.0, 2)
    result = rates(MetricsReading(0.0, ttft=same), MetricsReading(5.0, ttft=same))
    assert result is not None
    assert result.ttft_s is None


@pytest.mark.parametrize("text", ["", "<html>502</html>", "up 1\n", "vllm:num_requests_running{ 1", "\x00"])
def test_what_is_no_vllm_metrics_gives_nothing(text: str) -> None:
    assert read_metrics(text, 0.0) is None


PARTS = st.sampled_from([*KEEP, "{", "}", '"', ",", "=", " ", "\n", "source", "engine", "NaN", "+Inf", "1", "\\"])


@pytest.mark.parametrize(
    ("name", "counts", "own"),
    [
        ("prefill_idle", (0, 0, 0, 0), 917),
        ("prefill_held", (0, 0, 0, 0), 1689),
        ("prefill_expired", (9, 1, 0, 0), 3524),
        ("decode_pulled", (0, 0, 0, 0), 0),
        ("decode_failures", (0, 0, 6, 4), 102),
    ],
)
def test_what_real_servers_count_when_pulls_fail_or_are_late(name: str, counts: tuple[int, ...], own: int) -> None:
    reading = read(f"kept/{name}.txt")
    assert (reading.expired_leases, reading.late_pulls, reading.failed_transfers, reading.errors) == counts
    assert reading.own_prompt_tokens == own
    assert (reading.kv_usage or 0.0) == pytest.approx(
        {"prefill_held": 7 / 1023, "decode_failures": 1 / 1023}.get(name, 0.0), rel=1e-3
    )


@settings(max_examples=60)
@given(st.binary(max_size=200))
def test_no_bytes_raise(data: bytes) -> None:
    read_metrics(decode(data), 0.0)
    read_metrics("vllm:num_requests_running" + decode(data), 0.0)


@settings(max_examples=60)
@given(st.one_of(st.text(max_size=200), st.lists(PARTS, max_size=20).map("".join)))
def test_no_text_raises(text: str) -> None:
    reading = read_metrics(text, 0.0)
    if reading is not None:
        rates(reading, reading)
