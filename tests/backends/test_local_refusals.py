"""What a local backend refuses, cuts, or gives as much as there is of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backends.errors import (
    BackendRejected,
    PromptTooLong,
)
from backends.types import (
    FinishReason,
    SamplingParams,
    TokenPrompt,
)
from tests.backends.byte_tokenizer import VOCAB_SIZE
from tests.backends.reciting import (
    Reciter,
    events_of,
    request,
    run,
    text_of,
)


async def test_refuses_more_log_probabilities_than_one_request_may_ask_for(
    reciter: Reciter,
) -> None:
    """I-FANOUT."""
    backend = reciter.open()
    sampling = SamplingParams(temperature=0.0, prompt_logprobs=20)
    prompts = [TokenPrompt(token_ids=(97,) * 5_000)] * 2

    with pytest.raises(BackendRejected, match="more than the 200000") as caught:
        await events_of(backend, request(*prompts, max_tokens=0, sampling=sampling))

    assert caught.value.param == "prompt_logprobs"
    few = replace(sampling, prompt_logprobs=0)
    assert len(await events_of(backend, request(*prompts, max_tokens=0, sampling=few))) == 3


async def test_cuts_max_tokens_to_the_context(reciter: Reciter) -> None:
    tokens, finished = await run(reciter.open(max_model_len=10), request("abc", max_tokens=100))

    assert text_of(tokens) == "defghij"
    assert finished.reasons == (FinishReason.LENGTH,)


async def test_refuses_what_does_not_fit_the_context_when_it_may_not_cut(reciter: Reciter) -> None:
    backend = reciter.open(max_model_len=10)

    with pytest.raises(PromptTooLong) as caught:
        await run(backend, request("abc", max_tokens=8, clamp_max_tokens=False))

    error = caught.value
    assert (error.prompt_tokens, error.max_tokens, error.max_total_tokens) == (3, 8, 10)
    tokens, _ = await run(backend, request("abc", clamp_max_tokens=False))
    assert text_of(tokens) == "defghij", "no max_tokens at all means what fits"


async def test_refuses_a_prompt_that_fills_the_context(reciter: Reciter) -> None:
    with pytest.raises(PromptTooLong) as caught:
        await run(reciter.open(max_model_len=10), request("abcdefghij", max_tokens=1))

    assert (caught.value.prompt_tokens, caught.value.max_tokens) == (10, 0)


async def test_refuses_a_prompt_longer_than_the_engine_takes(reciter: Reciter) -> None:
    backend = reciter.open(max_input_tokens=3)
    with pytest.raises(PromptTooLong) as caught:
        await run(backend, request("abcd", max_tokens=1))
    error = caught.value
    assert (error.prompt_tokens, error.max_tokens, error.max_total_tokens) == (4, 0, 3)
    tokens, _ = await run(backend, request("abc", max_tokens=1))
    assert text_of(tokens) == "d"


async def test_refuses_a_longer_answer_than_the_engine_gives(reciter: Reciter) -> None:
    """And does not cut it in silence: a policy can send it elsewhere."""
    backend = reciter.open(max_model_len=10, max_new_tokens=4)
    with pytest.raises(BackendRejected, match="backend reciter draws at most 4 for one") as caught:
        await run(backend, request("abc", max_tokens=5))
    assert caught.value.param == "max_tokens"
    tokens, _ = await run(backend, request("abc"))
    assert text_of(tokens) == "defg", "no max_tokens at all means what it gives"
    tokens, _ = await run(backend, request("abcdefgh", max_tokens=5))
    assert text_of(tokens) == "ij", "the context leaves less"


async def test_refuses_more_choices_than_can_ever_be_queued(reciter: Reciter) -> None:
    with pytest.raises(BackendRejected, match="at most 3 fit") as caught:
        await run(reciter.open(max_num_seqs=1, max_waiting=2), request("a", n=4))

    assert caught.value.param == "n"


async def test_names_the_prompt_when_a_token_id_is_unknown(reciter: Reciter) -> None:
    with pytest.raises(BackendRejected) as caught:
        await run(reciter.open(), request(TokenPrompt(token_ids=(1, 257))))

    assert caught.value.param == "prompt"


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE, 2**31, 2**63])
@pytest.mark.parametrize("param", ["stop_token_ids", "allowed_token_ids", "logit_bias"])
async def test_names_the_field_and_the_vocabulary_when_a_token_id_is_unknown(
    reciter: Reciter, param: str, token_id: int
) -> None:
    """I-STOP-IDS-OOV."""
    sampling = SamplingParams(
        temperature=0.0,
        min_tokens=5,
        stop_token_ids=(1, token_id if param == "stop_token_ids" else 2),
        allowed_token_ids=(1, token_id if param == "allowed_token_ids" else 2),
        logit_bias=((token_id if param == "logit_bias" else 2, 1.0),),
    )
    with pytest.raises(BackendRejected, match=f"{token_id} is out of range.* {VOCAB_SIZE} ") as got:
        await run(reciter.open(), request("abc", sampling=sampling))
    assert got.value.param == param
