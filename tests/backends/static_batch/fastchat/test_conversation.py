"""Prompts against those that FastChat itself renders: `prompts.jsonl`, by `write_prompts.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backends.errors import UnsupportedFeature
from backends.static_batch.fastchat.controller_protocol import (
    BadJson,
    ConversationJson,
    ConversationReply,
    parse,
)
from backends.static_batch.fastchat.conversation import RenderedChat, render_chat
from backends.types import ChatPrompt, Message

CASES: list[dict[str, Any]] = [
    json.loads(line)
    for line in Path(__file__).with_name("prompts.jsonl").read_text("utf-8").splitlines()
]
STYLES = sorted({case["conv"]["sep_style"] for case in CASES})


def template(**changes: object) -> ConversationJson:
    conv = {**CASES[0]["conv"], **changes}
    return parse(ConversationReply, json.dumps({"conv": conv}).encode()).conv


def chat(*turns: tuple[Any, str], **fields: Any) -> ChatPrompt:
    messages = tuple(Message(role=role, content=content) for role, content in turns)
    return ChatPrompt(messages=messages, **fields)


def render(conversation: ConversationJson, prompt: ChatPrompt) -> RenderedChat:
    return render_chat(conversation, prompt, worker="http://localhost:21002")


@pytest.mark.parametrize("style", STYLES)
def test_writes_a_chat_as_fastchat_does(style: int) -> None:
    cases = [case for case in CASES if case["conv"]["sep_style"] == style]
    assert len(cases) == 10
    for case in cases:
        rendered = render(template(**case["conv"]), chat(*case["chat"]))
        assert rendered.prompt == case["prompt"]


def test_all_styles_but_one_are_held_against_fastchat() -> None:
    assert list(range(1, 19)) == STYLES


def test_says_what_ends_an_answer() -> None:
    both = render(template(stop_str=["###", ""], stop_token_ids=[2, 7]), chat(("user", "x")))
    one = render(template(stop_str="</s>"), chat(("user", "x")))
    none = render(template(stop_str=None, stop_token_ids=None), chat(("user", "x")))

    assert (both.stop, both.stop_token_ids) == (("###",), (2, 7))
    assert (one.stop, one.stop_token_ids) == (("</s>",), ())
    assert (none.stop, none.stop_token_ids) == ((), ())


def test_a_prompt_may_end_without_an_open_turn() -> None:
    assert render(
        template(sep_style=1, sep="\n", system_message="Hi."),
        chat(("user", "x"), add_generation_prompt=False),
    ).prompt == ("Hi.\nKEEPER: x\n")


@pytest.mark.parametrize("style", [19, 0, 400])
def test_another_style_is_refused_with_its_number_and_the_worker(style: int) -> None:
    with pytest.raises(
        UnsupportedFeature,
        match=f"worker at http://localhost:21002 writes chats in separator style {style} ",
    ) as caught:
        render(template(sep_style=style), chat(("user", "x")))
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("prompt", "param", "what"),
    [
        (chat(("user", "x"), ("tool", "y")), "messages", "messages.1: the answer of a tool"),
        (chat(("user", "x"), ("system", "y")), "messages", "messages.1: a system message behind"),
        (
            ChatPrompt(messages=(Message(role="user", content="x", name="Ann"),)),
            "messages",
            "messages.0: the name of a speaker",
        ),
        (
            chat(("user", "x"), continue_final_message=True, add_generation_prompt=False),
            "continue_final_message",
            "leave the last message open",
        ),
        (
            chat(("user", "x"), template_kwargs=(("thinking", True),)),
            "chat_template_kwargs",
            "take no arguments",
        ),
    ],
)
def test_what_a_template_cannot_express_is_refused_by_name(
    prompt: ChatPrompt, param: str, what: str
) -> None:
    with pytest.raises(UnsupportedFeature, match=what) as caught:
        render(template(), prompt)
    assert caught.value.param == param


def test_a_workers_template_is_no_format_string() -> None:
    """It comes from another process: it may not read what is ours."""
    odd = "{system_message.__class__} {0} {system_message}"

    assert render(template(sep_style=4, system_template=odd), chat(("user", "x"))).prompt == (
        "{system_message.__class__} {0} KEEPERx|~LAMP"
    )


@pytest.mark.parametrize(
    ("changes", "member"),
    [
        ({"roles": ["USER"]}, "conv.roles"),
        ({"sep_style": "LLAMA2"}, "conv.sep_style"),
        ({"messages": [["USER"]]}, "conv.messages.0"),
        ({"stop_token_ids": [1.5]}, "conv.stop_token_ids.0"),
    ],
)
def test_a_template_that_is_none_is_refused_with_the_member(
    changes: dict[str, object], member: str
) -> None:
    with pytest.raises(BadJson, match=f"^{member}"):
        template(**changes)
