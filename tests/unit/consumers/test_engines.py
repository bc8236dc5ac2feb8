"""What engines say about themselves, and that silence is not a zero."""

import pytest

from consumers.gpu.engines import DIALECTS, UNKNOWN, Bounds, Facts, bounds, facts, recognised
from policies.fleets import Engine

VLLM = """
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a}b 9"} 3.0
vllm:num_requests_running{engine="1",model_name="a}b 9"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:prefix_cache_hits_total{engine="0"} 30.0
vllm:prefix_cache_queries_total{engine="0"} 120.0
vllm:generation_tokens_total{engine="0"} 5e3
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="1000"} 1.0
"""
SGLANG = """
sglang:num_running_reqs{model_name="m"} 4.0
sglang:num_queue_reqs{model_name="m"} 2.0
sglang:token_usage{model_name="m"} 0.28
sglang:generation_tokens_total{model_name="m"} 7.5e+06
"""
TGI = """
tgi_batch_current_size 5
tgi_queue_size 0
tgi_request_generated_tokens_sum 42
"""
LLAMACPP = """
llamacpp:prompt_tokens_total 300
llamacpp:prompt_tokens_cached_total 100
llamacpp:tokens_predicted_total 77
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
"""


@pytest.mark.parametrize(
    ("engine", "text", "expected"),
    [
        (Engine.VLLM, VLLM, Facts(5, 1, 0.75, 30.0, 120.0, 5000.0)),
        (Engine.SGLANG, SGLANG, Facts(4, 2, 0.28, None, None, 7.5e6)),
        (Engine.TGI, TGI, Facts(5, 0, None, None, None, 42.0)),
        (Engine.LLAMACPP, LLAMACPP, Facts(2, 1, None, 100.0, 400.0, 77.0)),
        (Engine.OPENAI, "process_cpu_seconds_total 3", UNKNOWN),
    ],
)
def test_each_engine_is_recognised_and_read(engine: Engine, text: str, expected: Facts) -> None:
    assert recognised(text) is engine
    assert facts(engine, text) == expected


@pytest.mark.parametrize("engine", list(Engine))
def test_what_an_engine_does_not_say_is_unknown_and_not_zero(engine: Engine) -> None:
    assert facts(engine, "") == UNKNOWN
    assert bounds(engine, "", b"{}") == Bounds()


@pytest.mark.parametrize("nonsense", ["NaN", "+Inf", "", "many", "1e999"])
def test_a_value_that_is_no_number_is_unknown(nonsense: str) -> None:
    assert facts(Engine.VLLM, f'vllm:num_requests_running{{a="b"}} {nonsense}').running is None


def test_a_metric_under_its_old_name_is_read_where_the_new_one_is_missing() -> None:
    assert facts(Engine.VLLM, 'vllm:gpu_cache_usage_perc{m="a"} 0.5').kv_use == 0.5
    both = 'vllm:gpu_cache_usage_perc{m="a"} 0.5\nvllm:kv_cache_usage_perc{m="a"} 0.4'
    assert facts(Engine.VLLM, both).kv_use == 0.4


@pytest.mark.parametrize(
    ("engine", "metrics", "about", "expected"),
    [
        (Engine.VLLM, VLLM, b"", Bounds(None, 16_000)),
        (Engine.LLAMACPP, "", b'{"total_slots": 4}', Bounds(4, None)),
        (Engine.SGLANG, "", b'{"max_running_requests": 48, "max_total_num_tokens": 9000}', Bounds(48, 9000)),
        (Engine.TGI, "", b'{"max_concurrent_requests": 128, "max_batch_total_tokens": null}', Bounds(128, None)),
        (Engine.TGI, "", b"<html>", Bounds()),
        (Engine.TGI, "", b"[" * 100_000, Bounds()),
        (Engine.LLAMACPP, "", b'{"total_slots": true}', Bounds()),
        (Engine.LLAMACPP, "", b'{"total_slots": 0}', Bounds()),
    ],
)
def test_what_an_engine_takes_at_most(engine: Engine, metrics: str, about: bytes, expected: Bounds) -> None:
    assert bounds(engine, metrics, about) == expected


def test_every_engine_has_a_dialect() -> None:
    assert set(DIALECTS) == set(Engine)
