from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtui.readings.vllm_metrics import KEEP, Mean, MetricsReading, rates, read_metrics
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


@pytest.mark.parametrize("name", ["metrics_plain.txt", "metrics_decode.txt", "metrics_prefill.txt"])
def test_what_the_node_keeps_is_all_that_is_read(name: str) -> None:
    whole = log(name)
    kept = [line for line in whole.split("\n") if line.partition("{")[0].partition(" ")[0] in KEEP]
    assert 0 < len(kept) < 30
    assert read_metrics("\n".join(kept), 0.0) == read_metrics(whole, 0.0)


def test_old_names_are_read_too() -> None:
    text = (
        'vllm:gpu_cache_usage_perc{model_name="m",engine="0"} 0.25\n'
        'vllm:prompt_tokens{model_name="m"} 7\n'
        'vllm:time_per_output_token_seconds_sum{model_name="m"} 3.0\n'
        'vllm:time_per_output_token_seconds_count{model_name="m"} 6.0\n'
    )
    reading = read_metrics(text, 1.0)
    assert reading == MetricsReading(1.0, kv_usage=0.25, prompt_tokens=7.0, tpot=Mean(3.0, 6.0))


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


@given(st.one_of(st.text(max_size=200), st.lists(PARTS, max_size=20).map("".join)))
def test_no_text_raises(text: str) -> None:
    reading = read_metrics(text, 0.0)
    if reading is not None:
        rates(reading, reading)
