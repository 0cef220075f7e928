from __future__ import annotations

import pytest

from backends.sampling import check_token_ids, engine_sampling
from backends.types import SamplingParams
from native_engine import types as engine
from tests.backends.byte_tokenizer import EOS, EOS_ID, byte_tokenizer


def test_params_without_rules_give_the_engine_none() -> None:
    sampling = SamplingParams(
        temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, typical_p=0.8, seed=5, ignore_eos=True
    )
    assert engine_sampling(sampling, byte_tokenizer()) == engine.SamplingParams(
        max_tokens=1,
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        min_p=0.1,
        typical_p=0.8,
        seed=5,
        ignore_eos=True,
        eos_token_ids=(EOS_ID,),
    )


def test_every_rule_reaches_the_engine() -> None:
    sampling = SamplingParams(
        repetition_penalty=1.1,
        frequency_penalty=0.2,
        presence_penalty=0.3,
        logit_bias=((4, -5.0),),
        allowed_token_ids=(6, 7),
        bad_words=("a",),
        min_tokens=8,
    )
    assert engine_sampling(sampling, byte_tokenizer()).rules == engine.LogitRules(
        repetition_penalty=1.1,
        frequency_penalty=0.2,
        presence_penalty=0.3,
        logit_bias=((4, -5.0),),
        allowed_token_ids=(6, 7),
        bad_words=((97,), (32, 97)),
        min_tokens=8,
    )


@pytest.mark.parametrize(
    ("words", "spellings"),
    [
        (("ab",), ((97, 98), (32, 97, 98))),
        ((" a", "a"), ((97,), (32, 97))),
        ((" ",), ((32,),)),
        (("\n",), ((10,), (32, 10))),
        ((EOS,), ((EOS_ID,), (32, EOS_ID))),
        (("é",), ((0xC3, 0xA9), (32, 0xC3, 0xA9))),
    ],
)
def test_a_bad_word_is_banned_as_it_is_and_after_a_space(
    words: tuple[str, ...], spellings: tuple[tuple[int, ...], ...]
) -> None:
    rules = engine_sampling(SamplingParams(bad_words=words), byte_tokenizer()).rules
    assert rules is not None
    assert rules.bad_words == spellings


def test_ids_of_the_vocabulary_pass() -> None:
    sampling = SamplingParams(
        stop_token_ids=(0, 9), allowed_token_ids=(9,), logit_bias=((0, 1.0), (9, 1.0))
    )
    check_token_ids(sampling, vocab_size=10)
