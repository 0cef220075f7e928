from __future__ import annotations

import json

import pytest

from backends.base import EncodedToken
from backends.types import ChatPrompt, Message, TextPrompt
from gateway.dialects.tokenize import parse_tokenize, tokenize_error
from gateway.errors import InvalidRequest
from tests.gateway.dialects.events import body

TOKENS = (
    EncodedToken(token_id=3, text="H", start=0, stop=1),
    EncodedToken(token_id=4, text="é!", start=1, stop=3),
)


def test_tgi_s_form_is_a_list_with_offsets_in_bytes() -> None:
    query = parse_tokenize(body(inputs="Hé!", parameters={"max_new_tokens": 1}))
    assert query.prompt == TextPrompt(text="Hé!")
    assert json.loads(query.reply(TOKENS, max_model_len=8).body) == [
        {"id": 3, "text": "H", "start": 0, "stop": 1},
        {"id": 4, "text": "é!", "start": 1, "stop": 4},
    ]


def test_vllm_s_form_counts() -> None:
    query = parse_tokenize(body(model="m", prompt="Hé!", add_special_tokens=False))
    assert query.model == "m"
    assert query.prompt == TextPrompt(text="Hé!", add_special_tokens=False)
    assert json.loads(query.reply(TOKENS, max_model_len=8).body) == {
        "count": 2,
        "max_model_len": 8,
        "tokens": [3, 4],
        "token_strs": None,
    }


def test_token_strings_come_when_asked_for() -> None:
    query = parse_tokenize(body(prompt="Hé!", return_token_strs=True))
    assert json.loads(query.reply(TOKENS, max_model_len=8).body)["token_strs"] == ["H", "é!"]


def test_messages_are_tokenized_as_chat_would() -> None:
    query = parse_tokenize(body(messages=[{"role": "user", "content": "x"}]))
    assert query.prompt == ChatPrompt(messages=(Message(role="user", content="x"),))


@pytest.mark.parametrize(
    ("document", "param"),
    [
        ({}, "prompt"),
        ({"inputs": 5}, "inputs"),
        ({"prompt": ["a"]}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}], "chat_template": "y"}, "chat_template"),
    ],
)
def test_names_what_is_wrong(document: dict[str, object], param: str) -> None:
    """I-CHAT-TEMPLATE-DOS among them."""
    with pytest.raises(InvalidRequest) as caught:
        parse_tokenize(body(**document))
    assert caught.value.param == param


def test_errors_have_the_form_of_the_question() -> None:
    error = InvalidRequest("m", param="p")
    assert tokenize_error(error, b'{"inputs": 5}').status == 422
    assert tokenize_error(error, b'{"prompt": 5}').status == 400
    assert tokenize_error(error, b"{").status == 400
