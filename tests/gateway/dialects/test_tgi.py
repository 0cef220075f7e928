from __future__ import annotations

import json

import pytest
from huggingface_hub import TextGenerationOutput, TextGenerationStreamOutput
from huggingface_hub.inference._common import _stream_text_generation_response

from backends.types import (
    UNLIMITED_TOKENS,
    Event,
    FinishReason,
    SamplingParams,
    TextPrompt,
    child_seed,
)
from gateway.dialects.tgi import Tgi, TgiExchange, TgiRoute
from gateway.errors import InvalidRequest, UpstreamFailed
from tests.gateway.dialects.events import (
    STAMP,
    TIMINGS,
    body,
    data_lines,
    end_of_turn,
    entry,
    finished,
    streamed,
    token,
    told,
)

EVENTS: list[Event] = [
    token("Hé", chosen=entry("Hé", token_id=9)),
    token("", chosen=entry("\ufffd", token_id=8)),
    token(" x", chosen=entry(" x", token_id=7)),
    end_of_turn(),
    finished(completion_tokens=4),
]


def exchange(
    route: TgiRoute = TgiRoute.GENERATE, *, stream: bool | None = None, **parameters: object
) -> TgiExchange:
    document = body(inputs="Hello", parameters=parameters, stream=stream)
    return Tgi(route).parse(document, STAMP)


def test_parameters_that_say_nothing_mean_greedy_to_the_end_of_the_context() -> None:
    request = exchange().request
    assert request.prompts == (TextPrompt(text="Hello"),)
    assert request.sampling == SamplingParams(temperature=0.0, seed=STAMP.seed)
    assert (request.max_tokens, request.clamp_max_tokens) == (UNLIMITED_TOKENS, True)
    assert (request.model, request.stop, request.include_stop_str) == ("", (), True)


@pytest.mark.parametrize("document", [{"inputs": "a"}, {"inputs": "a", "parameters": None}])
def test_absent_parameters_mean_sampling(document: dict[str, object]) -> None:
    sampling = Tgi(TgiRoute.GENERATE).parse(body(**document), STAMP).request.sampling
    assert sampling.temperature == 1.0


@pytest.mark.parametrize(
    ("parameters", "sampling"),
    [
        ({"do_sample": True}, SamplingParams(seed=7)),
        ({"temperature": 0.5}, SamplingParams(temperature=0.5, seed=7)),
        ({"top_k": 3}, SamplingParams(top_k=3, seed=7)),
        ({"top_p": 0.9}, SamplingParams(top_p=0.9, seed=7)),
        ({"typical_p": 0.9}, SamplingParams(typical_p=0.9, seed=7)),
        (
            {"repetition_penalty": 1.1, "frequency_penalty": -2},
            SamplingParams(
                temperature=0.0,
                repetition_penalty=1.1,
                frequency_penalty=-2,
                seed=7,
            ),
        ),
        (
            {"do_sample": True, "seed": 2**64 - 1},
            SamplingParams(seed=2**64 - 1),
        ),
        (
            {"top_n_tokens": 5, "details": True},
            SamplingParams(temperature=0.0, seed=7, logprobs=True, top_logprobs=5),
        ),
    ],
)
def test_any_sampling_parameter_means_sampling(
    parameters: dict[str, object], sampling: SamplingParams
) -> None:
    document = body(inputs="Hello", parameters=parameters)
    assert Tgi(TgiRoute.GENERATE).parse(document, STAMP).request.sampling == sampling


@pytest.mark.parametrize(
    ("route", "parameters", "asks"),
    [
        (TgiRoute.GENERATE, {}, False),
        (TgiRoute.GENERATE, {"top_n_tokens": 2}, False),
        (TgiRoute.GENERATE, {"details": True}, True),
        (TgiRoute.GENERATE, {"decoder_input_details": True}, True),
        (TgiRoute.GENERATE, {"best_of": 2, "do_sample": True}, True),
        (TgiRoute.GENERATE_STREAM, {}, True),
    ],
)
def test_logprobs_are_asked_for_only_where_they_are_needed(
    route: TgiRoute, parameters: dict[str, object], asks: bool
) -> None:
    """So that a backend that has none can give a plain text."""
    document = body(inputs="Hello", parameters=parameters)
    sampling = Tgi(route).parse(document, STAMP).request.sampling
    assert sampling.logprobs is asks
    assert sampling.top_logprobs == 0


def best_of_events(*logprobs: float) -> list[Event]:
    """Sequences of one token and the end; the first and the last are the worst."""
    events: list[Event] = []
    for index, logprob in enumerate(logprobs):
        events.append(token(f"t{index}", index=index, chosen=entry(f"t{index}", logprob)))
    events += [end_of_turn(index) for index in range(len(logprobs))]
    return [*events, finished(*[FinishReason.EOS] * len(logprobs), completion_tokens=4)]


def test_best_of_answers_with_the_likelier_and_shows_the_other() -> None:
    """G-BEST-OF: its seed is the one that gives it alone."""
    made = exchange(best_of=2, do_sample=True, details=True, return_full_text=True)
    reply = made.collect("m", best_of_events(-2.0, -1.0), TIMINGS)
    answer = json.loads(reply.body)
    TextGenerationOutput.parse_obj_as_instance(answer)
    assert answer["generated_text"] == "Hellot1"
    (other,) = answer["details"]["best_of_sequences"]
    assert sorted(other) == [
        "finish_reason", "generated_text", "generated_tokens", "prefill", "seed", "tokens"
    ]  # fmt: skip
    assert (other["generated_text"], other["generated_tokens"]) == ("Hellot0", 2)
    assert answer["details"]["generated_tokens"] == 2
    assert dict(reply.headers)["x-generated-tokens"] == "2"
    assert answer["details"]["seed"] == child_seed(STAMP.seed, 1)
    assert other["seed"] == child_seed(STAMP.seed, 0)


def test_best_of_without_details_is_the_text_alone() -> None:
    made = exchange(best_of=2, do_sample=True)
    answer = json.loads(made.collect("m", best_of_events(-1.0, -1.0), TIMINGS).body)
    assert answer == {"generated_text": "t0"}


def test_best_of_one_shows_no_other_sequences() -> None:
    made = exchange(best_of=1, details=True)
    answer = json.loads(made.collect("m", EVENTS, TIMINGS).body)
    assert "best_of_sequences" not in answer["details"]


def test_a_limit_the_client_gave_is_not_cut_down() -> None:
    request = exchange(max_new_tokens=10_000).request
    assert (request.max_tokens, request.clamp_max_tokens) == (10_000, False)


def test_truncate_reaches_the_prompt() -> None:
    """G-TRUNCATE."""
    assert exchange(truncate=64).request.prompts == (TextPrompt(text="Hello", truncate=64),)


@pytest.mark.parametrize(
    ("route", "in_body", "streams"),
    [
        (TgiRoute.GENERATE, True, False),
        (TgiRoute.GENERATE_STREAM, None, True),
        (TgiRoute.ROOT, None, False),
        (TgiRoute.ROOT, True, True),
    ],
)
def test_the_route_decides_whether_to_stream(
    route: TgiRoute, in_body: bool | None, streams: bool
) -> None:
    assert exchange(route, stream=in_body).request.stream is streams


@pytest.mark.parametrize(
    ("route", "full_text", "text"),
    [
        (TgiRoute.GENERATE, None, "Hé x"),
        (TgiRoute.GENERATE, True, "HelloHé x"),
        (TgiRoute.GENERATE_STREAM, None, "Hé x"),
        (TgiRoute.ROOT, None, "HelloHé x"),
        (TgiRoute.ROOT, False, "Hé x"),
    ],
)
def test_the_prompt_comes_back_where_tgi_gives_it_back(
    route: TgiRoute, full_text: bool | None, text: str
) -> None:
    made = exchange(route, return_full_text=full_text)
    answer = json.loads(made.collect("m", EVENTS, TIMINGS).body)
    assert (answer[0] if route is TgiRoute.ROOT else answer)["generated_text"] == text
    last = json.loads(data_lines(streamed(made.stream("m"), EVENTS))[-1])
    assert last["generated_text"] == text


def test_unknown_fields_of_both_objects_are_passed_on() -> None:
    document = body(inputs="a", parameters={"foo": 1, "details": None}, bar=2, baz=None)
    assert Tgi(TgiRoute.GENERATE).parse(document, STAMP).request.extra == {"foo": 1, "bar": 2}


def test_golden_answer_without_details() -> None:
    assert exchange().collect("m", EVENTS, TIMINGS).body == '{"generated_text":"Hé x"}'.encode()


def test_golden_answer_with_details() -> None:
    made = exchange(details=True, do_sample=True, seed=42, top_n_tokens=1)
    top = (entry("a", -0.25, token_id=3),)
    events: list[Event] = [
        token("a", chosen=top[0], top=top),
        token("b", chosen=entry("b"), top=top, finish=FinishReason.LENGTH),
        finished(FinishReason.LENGTH),
    ]
    reply = made.collect("m", events, TIMINGS)
    TextGenerationOutput.parse_obj_as_instance(json.loads(reply.body))
    assert reply.body == (
        b'{"generated_text":"ab","details":{"finish_reason":"length","generated_tokens":2,'
        b'"seed":42,"prefill":[],"tokens":['
        b'{"id":3,"text":"a","logprob":-0.25,"special":false},'
        b'{"id":5,"text":"b","logprob":-0.5,"special":false}],"top_tokens":['
        b'[{"id":3,"text":"a","logprob":-0.25,"special":false}],'
        b'[{"id":3,"text":"a","logprob":-0.25,"special":false}]],"input_length":3}}'
    )


def test_decoder_input_details_imply_details() -> None:
    reply = exchange(decoder_input_details=True).collect("m", EVENTS, TIMINGS)
    details = json.loads(reply.body)["details"]
    assert details["prefill"] == []  # of an upstream that tells nothing
    assert details["seed"] is None
    assert [one["text"] for one in details["tokens"]] == ["Hé", "", " x", "<|im_end|>"]


def test_decoder_input_details_show_the_prompt_the_first_token_without_logprob() -> None:
    """E-PREFIX-PROMPT-LOGPROBS: for every sequence of `best_of`."""
    made = exchange(decoder_input_details=True, best_of=2, do_sample=True)
    assert made.request.sampling.prompt_logprobs == 0
    assert exchange(details=True).request.sampling.prompt_logprobs is None
    events = [told("Hel", "lo"), *best_of_events(-2.0, -1.0)]
    answer = json.loads(made.collect("m", events, TIMINGS).body)
    TextGenerationOutput.parse_obj_as_instance(answer)
    prefill = [
        {"id": 10, "text": "Hel", "logprob": None},
        {"id": 11, "text": "lo", "logprob": -1.0},
    ]
    assert answer["details"]["prefill"] == prefill
    assert answer["details"]["best_of_sequences"][0]["prefill"] == prefill


def test_headers_say_where_the_time_went() -> None:
    reply = exchange().collect("m", EVENTS, TIMINGS)
    assert dict(reply.headers) == {
        "x-compute-type": "cpu",
        "x-compute-characters": "5",
        "x-compute-time": "1.500000",
        "x-total-time": "1500",
        "x-validation-time": "1",
        "x-queue-time": "250",
        "x-inference-time": "1200",
        "x-time-per-token": "300",
        "x-prompt-tokens": "3",
        "x-generated-tokens": "4",
    }


def test_a_stream_has_the_two_headers_known_before_it() -> None:
    made = Tgi(TgiRoute.ROOT, compute_type="gpu").parse(body(inputs="Hé"), STAMP)
    assert made.stream_headers == (("x-compute-type", "gpu"), ("x-compute-characters", "2"))


def test_golden_stream() -> None:
    made = exchange(TgiRoute.GENERATE_STREAM, details=True)
    assert (
        streamed(made.stream("m"), EVENTS)
        == (
            'data: {"index":1,"token":{"id":9,"text":"Hé","logprob":-0.5,"special":false},'
            '"generated_text":null,"details":null}\n\n'
            'data: {"index":2,"token":{"id":8,"text":"","logprob":-0.5,"special":false},'
            '"generated_text":null,"details":null}\n\n'
            'data: {"index":3,"token":{"id":7,"text":" x","logprob":-0.5,"special":false},'
            '"generated_text":null,"details":null}\n\n'
            'data: {"index":4,"token":{"id":2,"text":"<|im_end|>","logprob":-0.125,'
            '"special":true},"generated_text":"Hé x","details":{"finish_reason":"eos_token",'
            '"generated_tokens":4,"seed":null,"input_length":3}}\n\n'
        ).encode()
    )


def test_golden_event_with_alternatives() -> None:
    """G-TOP-N-TOKENS."""
    top = (entry("a", -0.25, token_id=3), entry("b", -2.0, token_id=4))
    made = exchange(TgiRoute.GENERATE_STREAM, top_n_tokens=2)
    assert made.stream("m").feed(token("a", chosen=top[0], top=top)) == (
        b'data: {"index":1,"token":{"id":3,"text":"a","logprob":-0.25,"special":false},'
        b'"top_tokens":[{"id":3,"text":"a","logprob":-0.25,"special":false},'
        b'{"id":4,"text":"b","logprob":-2.0,"special":false}],'
        b'"generated_text":null,"details":null}\n\n'
    )


def test_a_stop_sequence_is_a_reason_of_its_own() -> None:
    events: list[Event] = [token("a\n", finish=FinishReason.STOP), finished(FinishReason.STOP)]
    made = exchange(TgiRoute.GENERATE_STREAM, details=True, stop=["\n"])
    (line,) = data_lines(streamed(made.stream("m"), events))
    assert json.loads(line)["details"]["finish_reason"] == "stop_sequence"
    assert json.loads(line)["generated_text"] == "a\n"


def test_a_stream_without_tokens_ends_in_an_event_with_its_text() -> None:
    made = exchange(TgiRoute.GENERATE_STREAM, return_full_text=True)
    (line,) = data_lines(streamed(made.stream("m"), [finished(FinishReason.LENGTH)]))
    assert json.loads(line)["generated_text"] == "Hello"


def test_huggingface_hub_reads_the_stream() -> None:
    made = exchange(TgiRoute.GENERATE_STREAM, details=True)
    lines = streamed(made.stream("m"), EVENTS).decode().split("\n")
    outputs = list(_stream_text_generation_response(lines, True))
    assert all(isinstance(output, TextGenerationStreamOutput) for output in outputs)
    last = outputs[-1]
    assert isinstance(last, TextGenerationStreamOutput)
    assert last.details
    assert last.details.generated_tokens == 4


def test_a_stream_that_fails_ends_in_an_error_event() -> None:
    encoder = exchange(TgiRoute.GENERATE_STREAM).stream("m")
    stream = encoder.feed(EVENTS[0]) + encoder.fail(UpstreamFailed("gone"))
    assert json.loads(data_lines(stream)[-1]) == {
        "error": "Request failed during generation: gone",
        "error_type": "generation",
    }


@pytest.mark.parametrize("route", TgiRoute)
def test_a_bad_request_is_refused_before_the_stream(route: TgiRoute) -> None:
    """G-STREAM-STATUS: 422 on every route, streamed or not."""
    with pytest.raises(InvalidRequest) as caught:
        exchange(route, stream=True, temperature=0.0)
    reply = Tgi(route).error(caught.value)
    assert reply.status == 422
    assert json.loads(reply.body) == {
        "error": "Input validation error: `temperature` must be strictly positive",
        "error_type": "validation",
    }
