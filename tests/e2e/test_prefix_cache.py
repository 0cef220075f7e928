"""Who finds what in the prefix cache of a real server."""

from __future__ import annotations

from tests.e2e.running import Server

REST = "keeps what has been computed, block by block. " * 8


def ask(server: Server, key: str, prompt: str, **fields: object) -> tuple[str, int]:
    """The answer, and how many of the prompt's tokens were found in the cache."""
    body = {"model": "smollm2", "prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
    with server.client(key=key) as client:
        answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
    assert 0 <= cached_tokens < usage["prompt_tokens"]
    return answer.json()["choices"][0]["text"], cached_tokens


def test_a_tenant_finds_its_own_prompts_and_nobody_else_s(server: Server) -> None:
    """Cold, warm, by another tenant and under a salt: one text, and cached only when warm."""
    another = server.new_key("another", "demo")
    prompt = f"The cache of tenants {REST}"
    asked = [
        ask(server, server.key, prompt),
        ask(server, server.key, prompt),
        ask(server, another, prompt),
        ask(server, another, prompt),
        ask(server, another, prompt, cache_salt="mine"),
    ]
    assert len({text for text, _ in asked}) == 1
    assert [cached > 0 for _, cached in asked] == [False, True, False, True, False]
    assert asked[1][1] == asked[3][1] >= 64


def test_the_metrics_count_what_was_looked_for_and_found(server: Server) -> None:
    def counters() -> list[float]:
        with server.client() as client:
            lines = client.get("/metrics").text.splitlines()
        return [
            float(line.split()[-1])
            for name in ("queries", "hits")
            for line in lines
            if line.startswith(f"vllm:prefix_cache_{name}_total{{")
        ]

    prompt = f"The cache of metrics {REST}"
    ask(server, server.key, prompt)
    queries, hits = counters()
    _, cached = ask(server, server.key, prompt)
    more_queries, more_hits = counters()
    assert more_hits - hits == cached > 0
    assert more_queries - queries > cached
