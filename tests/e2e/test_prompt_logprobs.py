"""Log-probabilities of prompts over a socket, held against transformers' on the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from huggingface_hub import InferenceClient
from openai import OpenAI
from openai.types import CompletionChoice

from backends.text.tokenizer import Tokenizer, load_tokenizer
from native_engine.config import EngineConfig
from native_engine.model_runner import build_runner
from tests.e2e.running import MODEL_FILE, Server
from tests.native_engine.reference import prompt_logits, transformers_model

TEXT = (
    "The capital of France is Paris. Die Hauptstadt von Österreich heißt Wien — 日本語: ウィーン."
)
LONG = [504, 3575, 282, 4649, 314, 7042, 30, 657, 314, 253] * 10
TOLERANCE = 1e-4  # of a token's: of 205 here the largest difference is 2.8e-5
SUM_TOLERANCE = 1e-3  # of a text's: 3.9e-5 here

Score = Callable[[Sequence[int]], list[float]]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(MODEL_FILE)


@pytest.fixture(scope="module")
def score() -> Score:
    """transformers' log-probabilities of all tokens but the first."""
    runner = build_runner(EngineConfig(model=MODEL_FILE, max_model_len=256, cpu_threads=1))
    model = transformers_model(runner._model)

    def scored(token_ids: Sequence[int]) -> list[float]:
        logprobs = torch.log_softmax(prompt_logits(model, token_ids), dim=-1)
        following = torch.tensor(token_ids[1:])[:, None]
        return [float(one) for one in logprobs[:-1].gather(1, following)]

    return scored


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.base_url}/v1", api_key=server.key, max_retries=0) as client:
        yield client


@pytest.fixture
def hugging_face(server: Server) -> Iterator[InferenceClient]:
    with InferenceClient(server.base_url, token=server.key) as client:
        yield client


def echoed(client: OpenAI, prompt: str | list[int], max_tokens: int) -> CompletionChoice:
    """The only choice; that nothing of the prompt was cached is part of it."""
    answer = client.completions.create(
        model="smollm2", prompt=prompt, max_tokens=max_tokens, temperature=0, echo=True, logprobs=2
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == max_tokens
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    (choice,) = answer.choices
    return choice


def logprobs_of(choice: CompletionChoice) -> list[float]:
    """Of all tokens but the first, of which nothing is known."""
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    first, *others = choice.logprobs.token_logprobs
    assert first is None
    return others


def test_a_text_is_as_likely_as_transformers_says(
    client: OpenAI, tokenizer: Tokenizer, score: Score
) -> None:
    """I-MAX-TOKENS-ZERO: a text is scored and nothing drawn; its sum is what evaluations use."""
    token_ids = tokenizer.encode(TEXT, add_special_tokens=True)
    expected = score(token_ids)

    choice = echoed(client, TEXT, max_tokens=0)

    assert (choice.text, choice.finish_reason) == (TEXT, "length")
    assert sum(logprobs_of(choice)) == pytest.approx(sum(expected), abs=SUM_TOLERANCE)
    assert logprobs_of(choice) == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("max_tokens", [0, 4])
def test_a_streamed_prompt_comes_first_and_is_the_whole_one_s(
    client: OpenAI, max_tokens: int
) -> None:
    whole = echoed(client, TEXT, max_tokens)
    with client.completions.create(
        model="smollm2",
        prompt=TEXT,
        max_tokens=max_tokens,
        temperature=0,
        echo=True,
        logprobs=2,
        stream=True,
    ) as stream:
        chunks = [chunk.choices[0] for chunk in stream]
    assert chunks[0].text.startswith(TEXT)
    assert "".join(chunk.text for chunk in chunks) == whole.text
    told = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
    assert whole.logprobs is not None
    assert [one for part in told for one in part.tokens or ()] == whole.logprobs.tokens
    assert [one for part in told for one in part.token_logprobs or ()] == [
        None,
        *logprobs_of(whole),
    ]
    assert [one for part in told for one in part.text_offset or ()] == whole.logprobs.text_offset


def test_a_prompt_of_100_tokens_has_100_entries_however_warm_it_is(
    client: OpenAI, score: Score
) -> None:
    """E-PREFIX-PROMPT-LOGPROBS: three times, the same numbers to the last bit."""
    first, *others = [echoed(client, LONG, max_tokens=1) for _ in range(3)]
    assert first.logprobs is not None
    assert first.logprobs.tokens is not None
    assert len(first.logprobs.tokens) == 101
    assert [other.logprobs for other in others] == [first.logprobs] * 2
    assert logprobs_of(first)[:99] == pytest.approx(score(LONG), abs=TOLERANCE)
    plain = client.completions.create(model="smollm2", prompt=LONG, max_tokens=1)
    assert plain.usage is not None
    assert plain.usage.prompt_tokens_details is not None
    assert plain.usage.prompt_tokens_details.cached_tokens == 96, "it was warm, then"


def test_a_chat_s_prompt_is_told_in_vllm_s_shape(
    client: OpenAI, tokenizer: Tokenizer, score: Score
) -> None:
    """Its first token, which the template writes, begins the turn."""
    answer = client.chat.completions.create(
        model="smollm2",
        messages=[{"role": "user", "content": "Name a bird."}],
        max_tokens=1,
        extra_body={"prompt_logprobs": 2},
    )
    assert answer.model_extra is not None
    first, *others = answer.model_extra["prompt_logprobs"]
    assert first is None
    own = [next(iter(entries.items())) for entries in others]
    token_ids = [
        *tokenizer.encode("<|im_start|>", add_special_tokens=False),
        *(int(token_id) for token_id, _ in own),
    ]
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(token_ids)
    assert "Name a bird." in "".join(entry["decoded_token"] for _, entry in own)
    logprobs = [entry["logprob"] for _, entry in own]
    assert logprobs == pytest.approx(score(token_ids), abs=TOLERANCE)
    for (_, entry), entries in zip(own, others, strict=True):
        assert len(entries) == (2 if entry["rank"] <= 2 else 3)
        assert {1, 2} <= {one["rank"] for one in entries.values()}


def test_decoder_input_details_are_transformers_s_however_warm_the_prompt_is(
    hugging_face: InferenceClient, tokenizer: Tokenizer, score: Score
) -> None:
    """E-PREFIX-PROMPT-LOGPROBS: TGI's clients ask for them so."""
    token_ids = tokenizer.encode(TEXT, add_special_tokens=True)
    for _ in range(2):
        answer = hugging_face.text_generation(
            TEXT, max_new_tokens=1, details=True, decoder_input_details=True
        )
        assert answer.details is not None
        first, *others = answer.details.prefill
        assert [first.id, *(one.id for one in others)] == token_ids
        assert first.logprob is None
        assert [one.logprob for one in others] == pytest.approx(score(token_ids), abs=TOLERANCE)


def test_a_truncated_prompt_shows_what_was_kept_of_it(
    hugging_face: InferenceClient, tokenizer: Tokenizer, score: Score
) -> None:
    """G-TRUNCATE: the last 64 tokens, scored as if there had been no others."""
    text = "how are you? " * 1000
    kept = tokenizer.encode(text, add_special_tokens=True)[-64:]

    answer = hugging_face.text_generation(
        text, max_new_tokens=1, truncate=64, details=True, decoder_input_details=True
    )

    assert answer.details is not None
    assert [one.id for one in answer.details.prefill] == kept
    _, *logprobs = [one.logprob for one in answer.details.prefill]
    assert logprobs == pytest.approx(score(kept), abs=TOLERANCE)


@pytest.mark.parametrize(
    ("path", "fields", "status", "param"),
    [
        (
            "/generate_stream",
            {"inputs": TEXT, "parameters": {"decoder_input_details": True}},
            422,
            "decoder_input_details",
        ),
        ("/v1/completions", {"prompt": TEXT, "prompt_logprobs": -1}, 400, "prompt_logprobs"),
        (
            "/v1/completions",
            {"prompt": TEXT, "prompt_logprobs": 0, "stream": True},
            400,
            "prompt_logprobs",
        ),
        ("/v1/completions", {"prompt": TEXT, "max_tokens": 0}, 400, "max_tokens"),
        ("/v1/completions", {"prompt": LONG, "echo": True}, 400, "echo"),
    ],
)
def test_what_cannot_be_told_is_refused_by_name(
    server: Server, path: str, fields: dict[str, Any], status: int, param: str
) -> None:
    """I-FANOUT, I-MAX-TOKENS-ZERO."""
    with server.client() as client:
        answer = client.post(path, json=fields)
    assert answer.status_code == status
    assert param in str(answer.json()["error"])
