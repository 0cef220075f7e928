"""Conversations held against chat templates of models that are made here, byte by byte."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from backends.base import EncodedToken
from backends.echo import EchoBackend
from backends.static_batch.fastchat.conversation import render_chat
from backends.static_batch.fastchat.templates import (
    CONVERSATIONS,
    TemplateError,
    choose,
    named,
)
from backends.text.prompt_encoder import PromptEncoder
from backends.types import ChatPrompt, Message, Prompt, Role
from tests.backends.byte_tokenizer import byte_tokenizer

DEFAULT_SYSTEM = "You are a {parrot}, Ünlü 🦜."
REFUSING = "{{ raise_exception('no') if m.role == 'system' else m.role }}"
CHATML = """\
{% if messages[0].role != 'system' %}<|im_start|>system
SYSTEM<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
LLAMA_3 = """\
{% if messages[0].role != 'system' %}<|start_header_id|>system<|end_header_id|>

SYSTEM<|eot_id|>{% endif %}\
{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{{ m.content }}<|eot_id|>{% endfor %}\
{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""


class Model:
    """What a backend with this chat template says of its tokens."""

    def __init__(self, chat_template: str | None) -> None:
        tokenizer = byte_tokenizer(
            chat_template and chat_template.replace("SYSTEM", DEFAULT_SYSTEM)
        )
        self._encoder = PromptEncoder(tokenizer, now=lambda: datetime(2026, 1, 1, tzinfo=UTC))

    async def count_tokens(self, prompts: tuple[Prompt, ...]) -> int:
        return sum(len(self._encoder.ids(prompt)) for prompt in prompts)

    async def encode(self, prompt: Prompt) -> tuple[EncodedToken, ...]:
        return self._encoder.tokens(prompt)


@pytest.mark.parametrize(("template", "name"), [(CHATML, "chatml"), (LLAMA_3, "llama-3")])
async def test_recognises_a_models_template_and_its_system_message(
    template: str, name: str
) -> None:
    conversation = await choose(None, Model(template))

    assert conversation.name == name
    assert conversation.system_message == DEFAULT_SYSTEM


@pytest.mark.parametrize(
    "template",
    [
        None,
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        CHATML.replace("{{ m.content }}", "{{ m.content | upper }}"),
        CHATML.replace("<|im_end|>\n{% endfor %}", "{% endfor %}"),
        # writes nothing where a chat has no system message; FastChat would
        CHATML.replace("<|im_start|>system\nSYSTEM<|im_end|>\n", ""),
        CHATML.replace("{{ m.role }}", REFUSING),
    ],
)
async def test_a_template_that_no_conversation_agrees_with_is_an_error_with_a_way_out(
    template: str | None,
) -> None:
    with pytest.raises(TemplateError, match="--conv-template: chatml, llama-3, "):
        await choose(None, Model(template))


async def test_a_backend_without_chats_has_none() -> None:
    with pytest.raises(TemplateError):
        await choose(None, EchoBackend("echo"))


async def test_one_asked_for_that_fits_brings_the_models_system_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert (await choose("chatml", Model(CHATML))).system_message == DEFAULT_SYSTEM
    assert not caplog.records


async def test_one_asked_for_that_does_not_fit_is_used_and_said_to_be_wrong(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await choose("zephyr", Model(CHATML)) == named("zephyr")
    assert "zephyr does not give the tokens" in caplog.text


def test_a_name_that_is_none_is_answered_with_the_nearest() -> None:
    with pytest.raises(TemplateError, match="did you mean 'chatml'"):
        named("chatmll")
    with pytest.raises(TemplateError, match="there are chatml, "):
        named("x")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "chatml",
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
            "<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        (
            "llama-3",
            "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nc<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            "zephyr",
            "<|system|>\nS</s>\n<|user|>\na</s>\n<|assistant|>\nb</s>\n<|user|>\nc</s>\n"
            "<|assistant|>\n",
        ),
        ("vicuna_v1.1", "S USER: a ASSISTANT: b</s>USER: c ASSISTANT:"),
        ("zero_shot", "S\n### Human: a\n### Assistant: b\n### Human: c\n### Assistant:"),
    ],
)
def test_renders_what_fastchat_renders(name: str, text: str) -> None:
    """The texts are those that FastChat 0.2.36 gave for the same dictionaries."""
    turns: tuple[tuple[Role, str], ...] = (("user", "a"), ("assistant", "b"), ("user", "c"))
    chat = ChatPrompt(
        messages=(
            Message(role="system", content="S"),
            *(Message(role=role, content=content) for role, content in turns),
        )
    )
    assert render_chat(named(name), chat, worker="here").prompt == text


def test_names_are_unique() -> None:
    assert len({conversation.name for conversation in CONVERSATIONS}) == len(CONVERSATIONS)
