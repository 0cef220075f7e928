from __future__ import annotations

from backends.base import BackendState, BackendStatus
from gateway.telemetry.metrics import Metrics


def shown(statuses: dict[str, BackendStatus]) -> list[str]:
    metrics = Metrics()
    metrics.show(statuses, num_active=0, num_unwritten=0)
    return metrics.render().decode().splitlines()


def test_shows_an_engine_s_cache_and_counts_cached_blocks_as_free() -> None:
    status = BackendStatus(
        state=BackendState.READY,
        kv_blocks_total=10,
        kv_blocks_free=10,
        prefix_cache_queries=60,
        prefix_cache_hits=28,
    )
    lines = shown({"m": status})
    assert 'vllm:prefix_cache_queries_total{model_name="m"} 60.0' in lines
    assert 'vllm:prefix_cache_hits_total{model_name="m"} 28.0' in lines
    assert 'vllm:kv_cache_usage_perc{model_name="m"} 0.0' in lines


def test_shows_how_many_guessed_tokens_an_engine_accepted() -> None:
    status = BackendStatus(state=BackendState.READY, num_draft_tokens=40, num_accepted_tokens=31)
    lines = shown({"m": status})
    assert 'vllm:spec_decode_num_draft_tokens_total{model_name="m"} 40.0' in lines
    assert 'vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 31.0' in lines
