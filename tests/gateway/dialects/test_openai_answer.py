from __future__ import annotations

from backends.types import FinishReason, Usage
from gateway.dialects.openai_answer import Chunks, finish_json, identity, usage_object

HEAD: dict[str, object] = {"id": "a"}


def test_the_fingerprint_tells_models_apart_and_stays() -> None:
    first, again, other = (
        identity(id="a", object="o", created_s=0, model=model)["system_fingerprint"]
        for model in ("m", "m", "n")
    )
    assert first == again != other


def test_usage_adds_up() -> None:
    usage = usage_object(Usage(prompt_tokens=3, completion_tokens=4, cached_tokens=2))
    assert usage["total_tokens"] == 7


def test_a_chunk_is_the_head_around_one_choice() -> None:
    chunks = Chunks(HEAD, member="text", num_choices=2, include_usage=False)
    assert chunks.chunk(1, b'"x"', finish=finish_json(FinishReason.LENGTH)) == (
        b'data: {"id":"a","choices":[{"index":1,"text":"x","logprobs":null,'
        b'"finish_reason":"length"}]}\n\n'
    )


def test_closing_without_usage_is_the_end_alone() -> None:
    usage = Usage(prompt_tokens=1, completion_tokens=1)
    chunks = Chunks(HEAD, member="text", num_choices=1, include_usage=False)
    assert chunks.closing(usage) == b"data: [DONE]\n\n"
