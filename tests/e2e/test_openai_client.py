"""OpenAI's own client against a real server and a real model."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from tests.e2e.running import Server

QUESTION: list[ChatCompletionMessageParam] = [
    {"role": "user", "content": "What is the capital of France?"}
]


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.base_url}/v1", api_key=server.key, max_retries=0) as client:
        yield client


def test_chats(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smollm2", messages=QUESTION, temperature=0, max_tokens=24
    )
    choice = answer.choices[0]
    assert "Paris" in (choice.message.content or "")
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id


def test_streams_the_same_text_that_it_answers_whole(client: OpenAI) -> None:
    """stream-equals-nonstream, S-USAGE-OPT-IN, S-DELTA-ALWAYS."""
    whole = client.chat.completions.create(
        model="smollm2", messages=QUESTION, temperature=0, max_tokens=24
    )
    with client.chat.completions.create(
        model="smollm2",
        messages=QUESTION,
        temperature=0,
        max_tokens=24,
        stream=True,
        stream_options={"include_usage": True},
    ) as stream:
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    usage = chunks[-1].usage
    assert usage is not None
    assert whole.usage is not None
    assert usage.prompt_tokens == whole.usage.prompt_tokens
    assert usage.completion_tokens == whole.usage.completion_tokens
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens, "asked a second time"
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert len({chunk.id for chunk in chunks}) == 1


def test_reports_logprobs_of_raw_logits(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smollm2",
        messages=QUESTION,
        temperature=0,
        max_tokens=4,
        logprobs=True,
        top_logprobs=3,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 4
    for token in logprobs.content:
        assert token.logprob <= 0
        assert token.top_logprobs[0].logprob == token.logprob
        assert token.top_logprobs[0].token == token.token


def test_scores_a_prompt_as_it_scored_the_answer(client: OpenAI) -> None:
    """With `max_tokens` 0 nothing but the prompt; each number is the one it was drawn with."""
    prompt = "The capital of France is"
    drawn = client.completions.create(
        model="smollm2", prompt=prompt, temperature=0, max_tokens=8, echo=True, logprobs=0
    ).choices[0]
    assert drawn.text.startswith(f"{prompt} Paris")
    again = client.completions.create(
        model="smollm2", prompt=drawn.text, max_tokens=0, echo=True, logprobs=0
    ).choices[0]
    assert again.text == drawn.text
    assert drawn.logprobs is not None
    assert again.logprobs is not None
    assert again.logprobs == drawn.logprobs
    assert drawn.logprobs.token_logprobs is not None
    assert drawn.logprobs.token_logprobs[0] is None
    assert all(one < 0 for one in drawn.logprobs.token_logprobs[1:])


def test_the_same_seed_draws_the_same_text(client: OpenAI) -> None:
    """E-SEED: and another seed another one."""

    def draw(seed: int) -> str | None:
        answer = client.chat.completions.create(
            model="smollm2", messages=QUESTION, temperature=1.2, seed=seed, max_tokens=24
        )
        return answer.choices[0].message.content

    assert draw(42) == draw(42)
    assert len({draw(seed) for seed in (1, 2, 3)}) > 1


def test_several_choices_of_one_seed_differ(client: OpenAI) -> None:
    """E-SEED, S-DONE-ONCE."""
    with client.chat.completions.create(
        model="smollm2", messages=QUESTION, temperature=1.2, seed=5, n=3, max_tokens=12, stream=True
    ) as stream:
        texts = ["", "", ""]
        ends = [0, 0, 0]
        for chunk in stream:
            (choice,) = chunk.choices
            texts[choice.index] += choice.delta.content or ""
            ends[choice.index] += choice.finish_reason is not None
    assert len(set(texts)) == 3
    assert ends == [1, 1, 1]


def test_completes_a_batch_of_prompts(client: OpenAI) -> None:
    answer = client.completions.create(
        model="smollm2", prompt=["One, two,", "A, B,"], max_tokens=4, temperature=0
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert "three" in answer.choices[0].text
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


def test_completes_token_ids(client: OpenAI) -> None:
    answer = client.completions.create(
        model="smollm2", prompt=[504, 1343, 282], max_tokens=3, temperature=0
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 3


def test_stops_at_a_stop_string_and_leaves_it_out(client: OpenAI) -> None:
    """S-STOP-SPLIT: the stop string never shows, not even in part."""
    whole = client.completions.create(
        model="smollm2", prompt="One, two, three, four,", max_tokens=16, temperature=0
    )
    text = whole.choices[0].text
    stop = text[4:9]
    answer = client.completions.create(
        model="smollm2", prompt="One, two, three, four,", max_tokens=16, temperature=0, stop=stop
    )
    assert answer.choices[0].text == text[: text.index(stop)]
    assert answer.choices[0].finish_reason == "stop"


def test_lists_models(client: OpenAI) -> None:
    models = list(client.models.list())
    assert [model.id for model in models] == ["smollm2"]
    assert client.models.retrieve("smollm2").id == "smollm2"


def test_an_alias_reaches_the_model_it_stands_for(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="gpt-4o-mini", messages=QUESTION, max_tokens=1)
    assert answer.model == "smollm2"


def test_an_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="nope", messages=QUESTION)
    assert caught.value.code == "model_not_found"


def test_a_wrong_key_is_refused(server: Server) -> None:
    with (
        OpenAI(base_url=f"{server.base_url}/v1", api_key="to_live_wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        client.chat.completions.create(model="smollm2", messages=QUESTION)
    assert caught.value.code == "invalid_api_key"


def test_a_bad_field_is_named(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="smollm2", messages=QUESTION, temperature=7)
    assert caught.value.param == "temperature"


def test_a_prompt_that_cannot_fit_is_refused(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": "word " * 9000}], stream=True
        )
    assert caught.value.code == "context_length_exceeded"


def test_a_limit_is_reported_as_openai_does(server: Server) -> None:
    """Q-REJECT-CONSUMES and the table of gateway errors: class, code and headers."""
    key = server.new_key("tight-openai", "tight")
    with OpenAI(base_url=f"{server.base_url}/v1", api_key=key, max_retries=0) as client:
        for left in (2, 1, 0):
            raw = client.chat.completions.with_raw_response.create(
                model="smollm2", messages=QUESTION, max_tokens=2
            )
            assert raw.headers["x-ratelimit-remaining-requests"] == str(left)
            assert raw.headers["x-ratelimit-limit-requests"] == "3"
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=2)
    assert caught.value.code == "rate_limit_exceeded"
    assert 0 < float(caught.value.response.headers["retry-after"]) <= 120
