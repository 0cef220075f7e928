from __future__ import annotations

import json

import pytest

from backends.errors import (
    BackendError,
    BackendOverloaded,
    BackendProtocolError,
    BackendRejected,
    BackendTimeout,
    BackendUnavailable,
    DeadlineExceeded,
    PromptTooLong,
    StreamInterrupted,
    UnsupportedFeature,
)
from backends.static_batch.fastchat.error_codes import ErrorCode
from backends.static_batch.fastchat.worker_protocol import (
    BODY_LIMIT_BYTES,
    GenerateParams,
    WorkerError,
    encode_frame,
    error_frame,
    num_kept,
    read_generate_params,
)
from backends.types import UNLIMITED_TOKENS, SamplingParams, TextPrompt


def read(seed: int = 7, /, **fields: object) -> GenerateParams:
    body = json.dumps({"prompt": "p", **fields}).encode()
    return read_generate_params(body, draw_seed=lambda: seed)


def refusal(**fields: object) -> WorkerError:
    with pytest.raises(WorkerError) as caught:
        read(**fields)
    return caught.value


def test_what_is_left_out_has_fastchats_defaults() -> None:
    assert read() == GenerateParams(
        model="",
        prompt="p",
        sampling=SamplingParams(temperature=1.0, top_p=1.0, top_k=0, seed=7),
        max_new_tokens=256,
        stop=(),
        echo=True,
        logprobs=None,
        unknown=(),
    )


def test_null_is_as_good_as_absent_but_for_echo() -> None:
    names = ("temperature", "repetition_penalty", "top_p", "top_k", "max_new_tokens", "logprobs")
    others = ("stop", "stop_token_ids", "presence_penalty", "frequency_penalty", "seed", "best_of")
    nulls = dict.fromkeys((*names, *others))

    assert read(**nulls) == read()
    assert read(echo=None).echo is False


def test_every_field_arrives() -> None:
    params = read(
        model="m",
        temperature=0.5,
        repetition_penalty=1.2,
        top_p=0.9,
        top_k=40,
        max_new_tokens=3,
        logprobs=2,
        echo=False,
        stop=["a", "b"],
        stop_token_ids=[5, 6],
        presence_penalty=0.25,
        frequency_penalty=-0.25,
        seed=11,
    )

    request = params.request("r", truncate=4)
    assert request.model == "m"
    assert request.prompts == (TextPrompt(text="p", truncate=4),)
    assert request.max_tokens == 3
    assert request.stop == ("a", "b")
    assert request.sampling == SamplingParams(
        temperature=0.5,
        repetition_penalty=1.2,
        top_p=0.9,
        top_k=40,
        logprobs=True,
        top_logprobs=2,
        stop_token_ids=(5, 6),
        presence_penalty=0.25,
        frequency_penalty=-0.25,
        seed=11,
    )


def test_whoever_asks_for_the_rest_of_the_context_gets_what_there_is() -> None:
    """FastChat's API server asks so for a client that asked for nothing."""
    params = read(max_new_tokens=90)
    assert params.request("r", truncate=0).max_tokens == 90
    assert params.request("r", truncate=0, wants_the_rest=True).max_tokens == UNLIMITED_TOKENS


def test_seeds_are_each_requests_own() -> None:
    """engine.md 4.2: a global seed is shared by concurrent requests."""
    assert read(1).sampling.seed == 1
    assert read(2).sampling.seed == 2
    assert read(1, seed=3).sampling.seed == 3


@pytest.mark.parametrize(
    ("fields", "is_greedy"),
    [
        ({"temperature": 0}, True),
        ({"temperature": 9.9e-6}, True),
        ({"temperature": 1e-5}, False),
        ({"top_p": 0}, True),
        ({"top_p": 9.9e-9}, True),
        ({"top_p": 1e-8}, False),
    ],
)
def test_is_greedy_below_either_threshold(fields: dict[str, object], is_greedy: bool) -> None:
    assert (read(**fields).sampling.temperature == 0.0) is is_greedy


@pytest.mark.parametrize("top_k", [-1, 0])
def test_a_top_k_that_is_not_positive_is_off(top_k: int) -> None:
    assert read(top_k=top_k).sampling.top_k == 0


def test_stop_is_a_text_or_several() -> None:
    assert read(stop="a").stop == ("a",)
    assert read(stop=["a", "b"]).stop == ("a", "b")


@pytest.mark.parametrize("stop", ["", [], [""]])
def test_an_empty_stop_stops_nothing(stop: object) -> None:
    assert read(stop=stop).stop == ()


def test_an_echo_with_logprobs_asks_for_those_of_the_prompt() -> None:
    assert read(logprobs=0).sampling.prompt_logprobs == 0
    assert read(logprobs=0, echo=False).sampling.prompt_logprobs is None


def test_a_field_that_nothing_reads_is_named() -> None:
    assert read(request_id="x", foo=None).unknown == ("request_id", "foo")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", 1000),
        ("top_p", 1.5),
        ("top_p", -0.5),
        ("repetition_penalty", 0),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("max_new_tokens", -1),
        ("logprobs", 21),
        ("logprobs", -1),
        ("seed", -1),
        ("seed", 2**64),
        ("best_of", 2),
        ("use_beam_search", True),
        ("images", ["x"]),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    error = refusal(**{field: value})

    assert error.code is ErrorCode.PARAM_OUT_OF_RANGE
    assert field in error.message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", 1),
        ("prompt", None),
        ("temperature", "0.5"),
        ("top_k", True),
        ("stop", 1),
        ("stop", [1]),
        ("stop_token_ids", ["a"]),
        ("echo", "yes"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(field: str, value: object) -> None:
    error = refusal(**{field: value})

    assert error.code is ErrorCode.VALIDATION_TYPE_ERROR
    assert field in error.message


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"prompt":"\\ud800"}', b"\x80\x04\x95", b" " * BODY_LIMIT_BYTES + b"{}"],
)
def test_what_is_no_object_of_bounded_size_is_refused(body: bytes) -> None:
    with pytest.raises(WorkerError) as caught:
        read_generate_params(body, draw_seed=lambda: 0)

    assert caught.value.code is ErrorCode.VALIDATION_TYPE_ERROR


def test_a_prompt_that_fits_with_its_answer_is_whole() -> None:
    """FastChat's API server asks for exactly what is left of the context, and its worker then drops
    the first token of the prompt.
    """
    assert num_kept(60, 40, 100) == 60


def test_a_prompt_that_does_not_fit_is_cut_by_fastchats_rule() -> None:
    assert num_kept(61, 40, 100) == 100 - 40 - 1
    assert num_kept(1000, 98, 100) == 1


def test_an_answer_that_fills_the_context_is_an_overflow() -> None:
    with pytest.raises(WorkerError, match="at most 98") as caught:
        num_kept(61, 99, 100)

    assert caught.value.code is ErrorCode.CONTEXT_OVERFLOW


def test_the_last_byte_of_a_frame_is_its_only_nul() -> None:
    frame = encode_frame({"text": "a\0b é 🙂"})

    assert frame.index(b"\0") == len(frame) - 1
    assert json.loads(frame[:-1]) == {"text": "a\0b é 🙂"}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WorkerError(ErrorCode.INVALID_MODEL, "why"), 40301),
        (PromptTooLong(prompt_tokens=9, max_tokens=0, max_total_tokens=8), 40303),
        (BackendRejected("why"), 40302),
        (UnsupportedFeature("why"), 40302),
        (BackendOverloaded("why"), 42903),
        (BackendUnavailable("why"), 50005),
        (BackendTimeout("why"), 50006),
        (DeadlineExceeded("why"), 50006),
        (BackendProtocolError("why"), 50001),
        (StreamInterrupted("why"), 50001),
    ],
)
def test_errors_have_fastchats_codes_and_their_own_words(
    error: WorkerError | BackendError, code: int
) -> None:
    assert error_frame(error) == {"text": error.message, "error_code": code}
