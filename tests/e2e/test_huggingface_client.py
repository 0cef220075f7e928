"""Hugging Face's own client against a real server and a real model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import ValidationError

from tests.e2e.running import Server

PROMPT = "The capital of France is"


@pytest.fixture
def client(server: Server) -> Iterator[InferenceClient]:
    with InferenceClient(server.base_url, token=server.key) as client:
        yield client


def test_chats(client: InferenceClient) -> None:
    answer = client.chat_completion(
        [{"role": "user", "content": "What is the capital of France?"}],
        max_tokens=24,
        temperature=0,
    )
    assert "Paris" in (answer.choices[0].message.content or "")


def test_streams_a_chat(client: InferenceClient) -> None:
    stream = client.chat_completion(
        [{"role": "user", "content": "What is the capital of France?"}],
        max_tokens=24,
        temperature=0,
        stream=True,
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert "Paris" in text


def test_generates_text_with_details(client: InferenceClient) -> None:
    answer = client.text_generation(PROMPT, max_new_tokens=6, details=True, return_full_text=False)
    assert "Paris" in answer.generated_text
    assert answer.details is not None
    assert answer.details.generated_tokens == 6
    assert answer.details.finish_reason == "length"
    assert "".join(token.text for token in answer.details.tokens) == answer.generated_text
    assert all(token.logprob <= 0 for token in answer.details.tokens)


def test_answers_with_the_prompt_in_front_unless_told_not_to(client: InferenceClient) -> None:
    assert client.text_generation(PROMPT, max_new_tokens=2).startswith(PROMPT)


def test_streams_text_with_details(client: InferenceClient) -> None:
    whole = client.text_generation(PROMPT, max_new_tokens=6, return_full_text=False)
    events = list(
        client.text_generation(
            PROMPT, max_new_tokens=6, details=True, stream=True, return_full_text=False
        )
    )
    assert "".join(event.token.text for event in events) == whole
    assert [event.generated_text for event in events[:-1]] == [None] * 5
    assert events[-1].generated_text == whole
    assert events[-1].details is not None
    assert events[-1].details.generated_tokens == 6


def test_a_validation_error_has_a_class_of_its_own(client: InferenceClient) -> None:
    with pytest.raises(ValidationError) as caught:
        client.text_generation(PROMPT, max_new_tokens=100_000)
    assert "max_new_tokens" in str(caught.value)
