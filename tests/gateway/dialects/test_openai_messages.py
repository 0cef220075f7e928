from __future__ import annotations

from typing import Any

import pytest

from backends.types import ChatPrompt, Message
from gateway.dialects.fields import validate
from gateway.dialects.openai_messages import MAX_MESSAGES, ChatFields
from gateway.errors import InvalidRequest, UnsupportedValue


def prompt(*messages: dict[str, Any], **fields: object) -> ChatPrompt:
    return validate(ChatFields, {"messages": list(messages), **fields}).chat_prompt()


def refusal(*messages: dict[str, Any], **fields: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        prompt(*messages, **fields)
    return caught.value


USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("written", "role"),
    [
        ("developer", "system"),
        ("system", "system"),
        ("user", "user"),
        ("assistant", "assistant"),
        ("tool", "tool"),
        ("function", "tool"),
    ],
)
def test_every_role_has_its_place(written: str, role: str) -> None:
    messages = prompt({"role": written, "content": "x", "name": "n"}).messages
    assert [(message.role, message.content, message.name) for message in messages] == [
        (role, "x", "n")
    ]


def test_text_parts_are_joined_with_nothing_between() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    assert prompt({"role": "user", "content": parts}).messages[0].content == "a b"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant"},
        {"role": "assistant", "content": None, "tool_calls": None},
        {"role": "assistant", "content": None, "tool_calls": []},
    ],
)
def test_an_assistant_may_have_said_nothing(message: dict[str, Any]) -> None:
    assert prompt(message).messages == (Message(role="assistant", content=""),)


def test_a_refusal_is_what_the_assistant_said() -> None:
    part = [{"type": "refusal", "refusal": "no"}]
    told = prompt(
        {"role": "assistant", "refusal": "no"}, {"role": "assistant", "content": part}
    ).messages
    assert [message.content for message in told] == ["no", "no"]


def test_an_empty_content_is_content() -> None:
    """I-EMPTY-PROMPT."""
    assert prompt({"role": "user", "content": ""}).messages[0].content == ""


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
def test_a_text_only_model_refuses_other_parts(kind: str) -> None:
    error = refusal(USER, {"role": "user", "content": [{"type": kind, kind: {"url": "x"}}]})
    assert isinstance(error, UnsupportedValue)
    assert error.param == "messages[1].content[0]"
    assert "text-only" in error.message


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "tool", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": {"type": "text"}}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"type": "x", "text": "a"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": [{"text": "a"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": ["a"]}, "messages[0].content[0]"),
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"content": "x"}, "messages[0].role"),
        ({"role": "user", "content": "x", "name": 3}, "messages[0].name"),
    ],
)
def test_names_what_is_wrong_with_a_message(message: dict[str, Any], param: str) -> None:
    assert refusal(message).param == param


@pytest.mark.parametrize("field", ["tool_calls", "function_call", "audio"])
def test_refuses_what_would_be_lost_from_a_message(field: str) -> None:
    error = refusal({"role": "assistant", "content": "x", field: [{"id": "call_1"}]})
    assert isinstance(error, UnsupportedValue)
    assert error.param == f"messages[0].{field}"


def test_messages_are_at_least_one_and_not_too_many() -> None:
    """I-FANOUT."""
    assert refusal().param == "messages"
    assert refusal(*([USER] * (MAX_MESSAGES + 1))).param == "messages"
    assert len(prompt(*([USER] * MAX_MESSAGES)).messages) == MAX_MESSAGES


@pytest.mark.parametrize(
    ("fields", "adds", "continues"),
    [
        ({}, True, False),
        ({"add_generation_prompt": False}, False, False),
        ({"continue_final_message": True}, False, True),
        ({"continue_final_message": True, "add_generation_prompt": False}, False, True),
    ],
)
def test_the_template_opens_a_turn_or_continues_one(
    fields: dict[str, object], adds: bool, continues: bool
) -> None:
    made = prompt(USER, **fields)
    assert (made.add_generation_prompt, made.continue_final_message) == (adds, continues)


def test_a_turn_cannot_be_opened_and_continued() -> None:
    error = refusal(USER, continue_final_message=True, add_generation_prompt=True)
    assert error.param == "continue_final_message"


def test_scalars_reach_the_template() -> None:
    kwargs = {"enable_thinking": False, "depth": 2, "style": "short", "ratio": 0.5, "none": None}
    assert prompt(USER, chat_template_kwargs=kwargs).template_kwargs == (
        ("enable_thinking", False),
        ("depth", 2),
        ("style", "short"),
        ("ratio", 0.5),
    )


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "padding"])
def test_a_client_cannot_set_the_template_s_own_arguments(name: str) -> None:
    """I-CHAT-TEMPLATE-DOS."""
    assert name in refusal(USER, chat_template_kwargs={name: "x"}).message


def test_template_arguments_are_scalars() -> None:
    assert refusal(USER, chat_template_kwargs={"a": [1]}).param == "chat_template_kwargs"
