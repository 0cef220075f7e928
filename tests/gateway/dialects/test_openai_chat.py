from __future__ import annotations

import json
import re

import pytest
from openai.types.chat import ChatCompletion

from backends.types import (
    UNLIMITED_TOKENS,
    ChatPrompt,
    Event,
    FinishReason,
    GenerationRequest,
    Message,
    SamplingParams,
)
from gateway.dialects.openai_chat import ChatExchange, OpenAIChat
from gateway.errors import InvalidRequest, UnsupportedValue
from tests.gateway.dialects.events import (
    STAMP,
    TIMINGS,
    body,
    chat_body,
    finished,
    token,
    told,
)

DIALECT = OpenAIChat()


def exchange(**fields: object) -> ChatExchange:
    return DIALECT.parse(chat_body(**fields), STAMP)


def request(**fields: object) -> GenerationRequest:
    return exchange(**fields).request


def refusal(**fields: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        exchange(**fields)
    return caught.value


def test_defaults_are_openai_s() -> None:
    made = request()
    assert made.sampling == SamplingParams(temperature=1.0, top_p=1.0, seed=STAMP.seed)
    assert made.max_tokens == UNLIMITED_TOKENS
    assert made.clamp_max_tokens
    assert (made.n, made.stop, made.stream, made.include_stop_str) == (1, (), False, False)
    assert (made.model, made.extra) == ("m", {})


def test_reads_every_field_the_engine_can_follow() -> None:
    made = request(
        temperature=0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        typical_p=0.9,
        repetition_penalty=1.1,
        frequency_penalty=-2,
        presence_penalty=2,
        logit_bias={"5": -100, "0": 0.5},
        allowed_token_ids=[5, 6],
        bad_words=["foo", "a b"],
        min_tokens=4,
        seed=-1,
        n=2,
        stop=["a", "b"],
        stop_token_ids=[7],
        ignore_eos=True,
        include_stop_str_in_output=True,
        max_tokens=10**12,
        logprobs=True,
        top_logprobs=3,
        stream=True,
        cache_salt="s",
    )
    assert made.sampling == SamplingParams(
        temperature=0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        typical_p=0.9,
        repetition_penalty=1.1,
        frequency_penalty=-2,
        presence_penalty=2,
        logit_bias=((5, -100), (0, 0.5)),
        allowed_token_ids=(5, 6),
        bad_words=("foo", "a b"),
        min_tokens=4,
        seed=2**64 - 1,
        stop_token_ids=(7,),
        ignore_eos=True,
        logprobs=True,
        top_logprobs=3,
    )
    assert (made.n, made.stop, made.include_stop_str, made.stream) == (2, ("a", "b"), True, True)
    assert (made.cache_salt, made.extra) == ("s", {})
    assert made.max_tokens == UNLIMITED_TOKENS


def test_every_optional_field_may_be_null() -> None:
    names = (
        "temperature top_p top_k min_p n stop seed stream stream_options max_tokens logprobs "
        "max_completion_tokens top_logprobs stop_token_ids ignore_eos tools tool_choice logit_bias "
        "frequency_penalty presence_penalty response_format user metadata add_generation_prompt "
        "chat_template_kwargs continue_final_message echo min_tokens best_of functions typical_p "
        "repetition_penalty allowed_token_ids bad_words"
    )
    assert request(**dict.fromkeys(names.split())) == request()


@pytest.mark.parametrize("model", ["", "tgi", "dummy", "http://127.0.0.1:8000"])
def test_placeholder_models_are_the_policy_s_business(model: str) -> None:
    assert request(model=model).model == model


@pytest.mark.parametrize("fields", [{}, {"model": None}])
def test_asks_for_a_model(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest, match="you must provide a model parameter"):
        DIALECT.parse(body(**fields), STAMP)


def test_max_completion_tokens_wins_over_max_tokens() -> None:
    assert request(max_tokens=9, max_completion_tokens=2).max_tokens == 2


@pytest.mark.parametrize(("top_k", "kept"), [(0, 0), (-1, 0), (1, 1)])
def test_top_k_of_zero_and_minus_one_is_off(top_k: int, kept: int) -> None:
    assert request(top_k=top_k).sampling.top_k == kept


@pytest.mark.parametrize(("stop", "kept"), [("a", ("a",)), ([], ()), (["a", "b"], ("a", "b"))])
def test_stop_is_a_string_or_a_list(stop: object, kept: tuple[str, ...]) -> None:
    assert request(stop=stop).stop == kept


@pytest.mark.parametrize(
    "fields",
    [
        {"top_p": 1.0},
        {"temperature": 0},
        {"temperature": -0.0},
        {"temperature": 0, "n": 2},
        {"repetition_penalty": 1e-9},
        {"logit_bias": {}},
        {"allowed_token_ids": []},
        {"min_tokens": 9, "max_tokens": 9},
    ],
)
def test_accepts_what_openai_accepts_at_the_edges(fields: dict[str, object]) -> None:
    """G-PARAM-EDGE: stricter ranges are TGI's own wire's."""
    assert request(**fields).num_choices >= 1


@pytest.mark.parametrize(
    ("param", "values"),
    [
        ("temperature", [-1, 2.1, 5, True, "0.5", [], 10**30]),
        ("top_p", [0, -0.1, 1.1, True, "1"]),
        ("top_k", [-5, 1.5, 2**31, True]),
        ("min_p", [-0.1, 2]),
        ("typical_p", [0, 1.1]),
        ("repetition_penalty", [0, -1, 100.5, True, "1.1"]),
        ("frequency_penalty", [-2.5, 2.5, 100, True, "0"]),
        ("presence_penalty", [-2.1, 10**30, []]),
        ("logit_bias", [[], 5, {"foo": 0}, {"-1": 0}, {str(i): 1 for i in range(1025)}]),
        ("logit_bias", [{"5": 101}, {"5": -100.5}, {"5": "1"}, {"5": True}]),
        ("allowed_token_ids", [5, "5", [1] * 1025]),
        ("allowed_token_ids[0]", [[-1], [2**31], [1.5], [True]]),
        ("bad_words", ["foo", ["a"] * 129]),
        ("bad_words[0]", [[""], [5], ["x" * 1025]]),
        ("min_tokens", [-1, 1.5, "5", True, 2**31, 10**30]),
        ("n", [0, -1, 129, 10**6, True, "1", 1.0]),
        ("seed", [2**63, -(2**63) - 1, 1.5, "1"]),
        ("max_tokens", [0, -5, 1.5, "5", True]),
        ("max_completion_tokens", [0, -1]),
        ("top_logprobs", [-1, 21, 50000]),
        ("logprobs", [1, "true"]),
        ("stream", [1, "true"]),
        ("stop", [4, {}, ["a"] * 17, ["a"] * 100_000]),
        ("stop[0]", [[""], [5], ["x" * 1025]]),
        ("stop", ["", "x" * 10**6]),
        ("stop_token_ids", [5, [1] * 129]),
        ("model", [5, "m" * 1025]),
        ("stream_options", [5]),
    ],
)
def test_refuses_values_out_of_range_naming_the_parameter(param: str, values: list[object]) -> None:
    """I-SAMPLING-RANGE, I-FANOUT, I-MAX-TOKENS-ZERO."""
    for value in values:
        error = refusal(**{re.split(r"[.[]", param)[0]: value})
        assert error.param == param, value
        assert param in error.message


@pytest.mark.parametrize("token_id", [-1, 2**31, 2**63])
def test_refuses_stop_token_ids_no_vocabulary_has(token_id: int) -> None:
    """I-STOP-IDS-OOV: the vocabulary itself is the backend's to check."""
    assert refusal(stop_token_ids=[token_id]).param == "stop_token_ids[0]"


def test_min_tokens_beyond_max_tokens_are_refused() -> None:
    """E-MIN-TOKENS."""
    for fields in ({"max_tokens": 4}, {"max_completion_tokens": 4, "max_tokens": 100}):
        error = refusal(min_tokens=5, **fields)
        assert (error.param, "which is 4" in error.message) == ("min_tokens", True)


def test_top_logprobs_need_logprobs() -> None:
    assert "`logprobs` must be set to true" in refusal(top_logprobs=2).message
    assert request(top_logprobs=0).sampling.top_logprobs == 0


def test_prompt_logprobs_are_told_once_for_all_choices_in_vllm_s_shape() -> None:
    made = exchange(prompt_logprobs=2, n=2)
    assert made.request.sampling.prompt_logprobs == 2
    events: list[Event] = [told("p", "q")]
    events += [token("a", index=index, finish=FinishReason.LENGTH) for index in range(2)]
    events.append(finished(*[FinishReason.LENGTH] * 2))
    answer = json.loads(made.collect("m", events, TIMINGS).body)
    ChatCompletion.model_validate(answer, strict=True)
    assert answer["prompt_logprobs"] == [
        None,
        {
            "11": {"logprob": -1.0, "rank": 2, "decoded_token": "q"},
            "7": {"logprob": -0.25, "rank": 1, "decoded_token": "x"},
            "8": {"logprob": -0.5, "rank": 2, "decoded_token": "y"},
        },
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt_logprobs": -1},
        {"prompt_logprobs": 21},
        {"stream": True, "prompt_logprobs": 1},
        {"stream": True, "prompt_logprobs": 0},
    ],
)
def test_prompt_logprobs_are_few_and_not_streamed(fields: dict[str, object]) -> None:
    """I-FANOUT."""
    assert refusal(**fields).param == "prompt_logprobs"


@pytest.mark.parametrize(
    ("name", "neutral", "asking"),
    [
        ("response_format", {"type": "text"}, {"type": "json_object"}),
        ("tools", [], [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "none", "auto"),
        ("best_of", 1, 2),
        ("echo", False, True),
        ("return_token_ids", False, True),
        ("modalities", ["text"], ["text", "audio"]),
    ],
)
def test_fields_that_are_not_built_may_ask_for_nothing(
    name: str, neutral: object, asking: object
) -> None:
    assert request(**{name: neutral}) == request()
    error = refusal(**{name: asking})
    assert isinstance(error, UnsupportedValue)
    assert error.param == name
    assert "remove it" in error.message


@pytest.mark.parametrize(
    "name",
    ["structured_outputs", "guided_json", "audio", "chat_template"],
)
def test_fields_that_are_not_built_and_never_ask_for_nothing(name: str) -> None:
    """I-CHAT-TEMPLATE-DOS among them: a client's template is never run."""
    assert refusal(**{name: "x"}).param == name


def test_tools_the_client_forbids_to_call_are_not_shown() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert request(tools=tools, tool_choice="none") == request()
    assert request(functions=[{"name": "f"}], function_call="none") == request()


def test_bookkeeping_is_ignored_and_unknown_fields_are_passed_on() -> None:
    made = request(user="u", store=True, metadata={"k": "v"}, verbosity="low", num_ctx=4096)
    assert made.extra == {"num_ctx": 4096}


@pytest.mark.parametrize("name", ["model", "user", "stop"])
def test_a_lone_surrogate_is_refused(name: str) -> None:
    """I-SURROGATE."""
    with pytest.raises(InvalidRequest):
        DIALECT.parse(chat_body(**{name: "a\udc00b"}), STAMP)


def test_a_null_character_is_text() -> None:
    message = Message(role="user", content="a\x00b")
    made = DIALECT.parse(chat_body("a\x00b"), STAMP).request
    assert made.prompts == (ChatPrompt(messages=(message,)),)
