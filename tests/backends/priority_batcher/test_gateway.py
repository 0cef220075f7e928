"""The whole way: a TGI request through the gateway to an engine process, and its metrics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from backends.registry import BackendSpec, host_command, open_backend
from gateway.app import tgi_backends
from gateway.policy.load import parse
from gateway.telemetry.metrics import Metrics
from tests.backends.conftest import MODEL, EngineProcess
from tests.gateway.serving import gateway_over

POLICY = """
version: 1
backends:
  tgi: {engine: priority_batcher, model: smollm2-135m-instruct}
  other: {engine: echo}
models: {chat: {}}
plans: {demo: {models: "*"}}
routes: [{name: all, use: tgi}]
defaults:
  model: chat
  timeout: {first_token: 60s, between_tokens: 60s, total: 120s}
"""


@pytest.mark.weights
async def test_a_scrape_shows_the_passes_of_the_engine_and_the_request_it_served(
    tmp_path: Path,
) -> None:
    names = tgi_backends(parse(POLICY, "policy.yaml"))
    assert names == {"tgi"}
    spec = BackendSpec(
        name="tgi",
        engine="priority_batcher",
        model="smollm2-135m-instruct",
        options={"max_model_len": 128, "start_timeout_s": 120.0},
        model_path=MODEL,
        socket_path=tmp_path / "tgi.sock",
    )
    command = host_command(spec)
    assert command is not None
    process = EngineProcess(command)
    try:
        backends = {"tgi": await open_backend(spec)}
        async with gateway_over(tmp_path, backends, policy=POLICY) as gateway:
            metrics = Metrics(tgi_backends=names)
            gateway = replace(gateway, services=replace(gateway.services, metrics=metrics))
            body = {"inputs": "Once upon a time", "parameters": {"max_new_tokens": 4}}
            answer = await gateway.call("/generate", body)
            assert answer.status == 200, answer.text
            text = (await gateway.call("/metrics", b"", method="GET")).text
    finally:
        process.kill()

    found = {
        (one.name, *one.labels.values()): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }
    assert found["tgi_batch_inference_success", "tgi", "prefill"] == 1
    assert found["tgi_batch_inference_success", "tgi", "decode"] == 3
    assert found["tgi_batch_max_total_tokens", "tgi"] > 128
    assert found["tgi_request_success", "tgi"] == 1
    assert found["tgi_request_generated_tokens_sum", "tgi"] == 4
