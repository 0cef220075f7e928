from __future__ import annotations

import pytest

from gateway.dialects.fields import Document, validate
from gateway.dialects.tgi_fields import GenerateBody, check
from gateway.errors import InvalidRequest, UnsupportedValue


def accept(document: Document, *, streaming: bool = False) -> GenerateBody:
    fields = validate(GenerateBody, document)
    check(fields, document, streaming=streaming)
    return fields


def refusal(document: Document, *, streaming: bool = False) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        accept(document, streaming=streaming)
    return caught.value


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"best_of": 3, "do_sample": True}, "`best_of` must be > 0 and <= 2. Given: 3"),
        ({"best_of": 0}, "`best_of` must be > 0 and <= 2. Given: 0"),
        ({"best_of": 2}, "you must use sampling when `best_of` is > 1"),
        (
            {"best_of": 2, "temperature": 0.5, "seed": 1},
            "`seed` must not be set when `best_of` > 1",
        ),
        ({"temperature": 0.0}, "`temperature` must be strictly positive"),
        ({"temperature": -1}, "`temperature` must be strictly positive"),
        ({"repetition_penalty": -1}, "`repetition_penalty` must be strictly positive"),
        ({"repetition_penalty": 0}, "`repetition_penalty` must be strictly positive"),
        ({"frequency_penalty": -2.5}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
        ({"top_p": 1.0}, "`top_p` must be > 0.0 and < 1.0"),
        ({"top_p": 0}, "`top_p` must be > 0.0 and < 1.0"),
        ({"typical_p": 1.0}, "`typical_p` must be > 0.0 and < 1.0"),
        ({"top_k": 0}, "`top_k` must be strictly positive"),
        ({"top_k": -1}, "`top_k` must be strictly positive"),
        ({"max_new_tokens": 0}, "`max_new_tokens` must be strictly positive"),
        ({"stop": ["a"] * 5}, "`stop` supports up to 4 stop sequences. Given: 5"),
        ({"stop": [""]}, "`stop` sequences must have 1 to 1024 characters"),
        ({"stop": ["x" * 1025]}, "`stop` sequences must have 1 to 1024 characters"),
        ({"top_n_tokens": 6}, "`top_n_tokens` must be >= 0 and <= 5. Given: 6"),
        (
            {"truncate": 0},
            "`truncate` must be strictly positive and less than the model's context. Given: 0",
        ),
    ],
)
def test_values_out_of_range_have_tgi_s_messages(
    parameters: dict[str, object], message: str
) -> None:
    """G-PARAM-EDGE, G-TOP-N-TOKENS, G-TRUNCATE, G-BEST-OF."""
    assert refusal({"inputs": "x", "parameters": parameters}).message == message


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"best_of": 2}, "`best_of` != 1 is not supported when streaming tokens"),
        ({"best_of": 0}, "`best_of` != 1 is not supported when streaming tokens"),
        (
            {"decoder_input_details": True},
            "`decoder_input_details` == true is not supported when streaming tokens",
        ),
    ],
)
def test_streams_refuse_two_more(parameters: dict[str, object], message: str) -> None:
    assert refusal({"inputs": "x", "parameters": parameters}, streaming=True).message == message


def test_empty_inputs_are_refused() -> None:
    """I-EMPTY-PROMPT."""
    assert refusal({"inputs": ""}).message == "`inputs` cannot be empty"


@pytest.mark.parametrize(
    ("document", "param"),
    [
        ({}, "inputs"),
        ({"inputs": None}, "inputs"),
        ({"inputs": 5}, "inputs"),
        ({"inputs": "x", "parameters": []}, "parameters"),
        ({"inputs": "x", "parameters": {"stop": "a"}}, "parameters.stop"),
        ({"inputs": "x", "parameters": {"best_of": -1}}, "parameters.best_of"),
        ({"inputs": "x", "parameters": {"max_new_tokens": 2**32}}, "parameters.max_new_tokens"),
        ({"inputs": "x", "parameters": {"max_new_tokens": 1.5}}, "parameters.max_new_tokens"),
        ({"inputs": "x", "parameters": {"seed": -1}}, "parameters.seed"),
        ({"inputs": "x", "parameters": {"temperature": "1"}}, "parameters.temperature"),
        ({"inputs": "x", "parameters": {"temperature": 1e9}}, "parameters.temperature"),
        ({"inputs": "x", "parameters": {"typical_p": "1"}}, "parameters.typical_p"),
        (
            {"inputs": "x", "parameters": {"repetition_penalty": 1e9}},
            "parameters.repetition_penalty",
        ),
        ({"inputs": "x", "parameters": {"do_sample": 1}}, "parameters.do_sample"),
        ({"inputs": "x", "parameters": {"truncate": -1}}, "parameters.truncate"),
    ],
)
def test_names_a_field_of_the_wrong_type(document: Document, param: str) -> None:
    """I-SAMPLING-RANGE, I-MAX-TOKENS-ZERO."""
    assert refusal(document).param == param


@pytest.mark.parametrize(
    ("name", "neutral", "asking"),
    [
        ("watermark", False, True),
        ("grammar", None, {"type": "regex", "value": "a"}),
        ("adapter_id", None, "a"),
    ],
)
def test_what_is_not_built_may_ask_for_nothing(name: str, neutral: object, asking: object) -> None:
    accept({"inputs": "x", "parameters": {name: neutral}})
    error = refusal({"inputs": "x", "parameters": {name: asking}})
    assert isinstance(error, UnsupportedValue)
    assert "is not supported by this server" in error.message


def test_every_parameter_may_be_null() -> None:
    names = (
        "best_of temperature repetition_penalty frequency_penalty top_k top_p typical_p do_sample "
        "max_new_tokens return_full_text stop truncate watermark details decoder_input_details "
        "seed top_n_tokens grammar adapter_id"
    )
    fields = accept({"inputs": "x", "parameters": dict.fromkeys(names.split())})
    assert fields.parameters == validate(GenerateBody, {"inputs": "x", "parameters": {}}).parameters
