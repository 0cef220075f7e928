from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from backends.errors import BackendRejected
from backends.text.chat_template import MAX_RENDERED_CHARS, ChatTemplate
from backends.types import ChatPrompt, Message
from native_engine.errors import ModelFileError
from tests.backends.text.tiny import CHATML

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

DEFAULT_SYSTEM = """
{%- if messages[0].role != 'system' %}
    {{- '<|system|>You are helpful.<|end|>' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|' ~ message.role ~ '|>' ~ message.content | trim ~ '<|end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}
"""

INSTRUCT = """{{ bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}{% continue %}{% endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + message['content'] + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {% generation %}{{ message['content'] + eos_token }}{% endgeneration %}
    {%- else %}
        {{- raise_exception('only user and assistant turns, not ' + message['role']) }}
    {%- endif %}
{%- endfor %}
"""

JSON_AND_MACROS = """{% macro turn(message) %}{{ message | tojson }}{% endmacro %}
{% set ns = namespace(count=0) %}
{% for message in messages %}
    {% set ns.count = ns.count + 1 %}
{{ ns.count }}. {{ turn(message) }}{% if message.name is defined %} by {{ message.name }}{% endif %}

{% endfor %}
{% if tools is not none %}tools{% endif %}
{% if documents is defined and documents %}documents{% endif %}
{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}
{{ unknown_token }}{# the reference looks for the word "content" in here #}
"""

TEMPLATES = {
    "chatml": CHATML,
    "default system": DEFAULT_SYSTEM,
    "instruct": INSTRUCT,
    "json and macros": JSON_AND_MACROS,
}


def midnight() -> datetime:
    return datetime(2026, 7, 26, tzinfo=UTC)


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, origin="model: chat_template", special_tokens=SPECIAL_TOKENS)


def turn(content: str, **options: object) -> ChatPrompt:
    return ChatPrompt(messages=(Message(role="user", content=content),), **options)  # type: ignore[arg-type]


CHATS = (
    (Message(role="user", content="Hi"),),
    (
        Message(role="system", content="Be <brief> & 'kind'."),
        Message(role="user", content="  漢字 \n", name="ann"),
        Message(role="assistant", content=""),
        Message(role="user", content="{{ 1 + 1 }} <|im_end|>"),
        Message(role="assistant", content="Well, "),
    ),
)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize("mode", ["ask", "plain", "continue"])
def test_renders_what_transformers_renders(
    name: str, messages: tuple[Message, ...], mode: str
) -> None:
    prompt = ChatPrompt(
        messages=messages,
        add_generation_prompt=mode == "ask",
        continue_final_message=mode == "continue",
        template_kwargs=(("enable_thinking", False),),
    )
    plain = [
        {"role": m.role, "content": m.content} | ({"name": m.name} if m.name else {})
        for m in messages
    ]
    options: dict[str, Any] = {"enable_thinking": False, **SPECIAL_TOKENS}
    rendered: Any = render_jinja_template(
        [plain],
        chat_template=TEMPLATES[name],
        add_generation_prompt=mode == "ask",
        continue_final_message=mode == "continue",
        **options,
    )
    assert template(TEMPLATES[name]).render(prompt, now=midnight) == rendered[0][0]


def test_the_clock_is_the_callers() -> None:
    source = "{% macro day() %}{{ strftime_now('%d %b %Y') }}{% endmacro %}{{ day() }}"
    assert template(source).render(turn("x"), now=midnight) == "26 Jul 2026"


def test_says_what_the_template_said() -> None:
    prompt = ChatPrompt(messages=(Message(role="tool", content="x"),))
    with pytest.raises(BackendRejected, match="only user and assistant turns, not tool") as caught:
        template(INSTRUCT).render(prompt, now=midnight)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[0].no_such.attribute }}",
        "{{ messages[7].content.x }}",
        "{{ 1 // 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ '%d' | format('x') }}",
        "{{ messages | map('no_such_filter') | list }}",
    ],
)
def test_a_template_that_fails_refuses_the_messages(source: str) -> None:
    """I-CHAT-TEMPLATE-DOS: nor does it get out of the sandbox."""
    with pytest.raises(BackendRejected, match="chat template does not take these messages"):
        template(source).render(turn("x"), now=midnight)


def test_bounds_what_a_template_writes() -> None:
    """I-CHAT-TEMPLATE-DOS"""
    loop = "{%% for i in range(%d) %%}{{ 'x' * 1000 }}{%% endfor %%}"
    with pytest.raises(BackendRejected, match=f"more than {MAX_RENDERED_CHARS} characters"):
        template(loop % 100_000).render(turn("x"), now=midnight)
    most = template(loop % (MAX_RENDERED_CHARS // 1000)).render(turn("x"), now=midnight)
    assert len(most) == MAX_RENDERED_CHARS


@pytest.mark.parametrize(
    "name",
    [
        "chat_template",
        "tokenize",
        "messages",
        "add_generation_prompt",
        "padding",
        "bos_token",
        "range",
        "raise_exception",
        "tools",
    ],
)
def test_refuses_template_arguments_that_would_change_the_rendering(name: str) -> None:
    """I-CHAT-TEMPLATE-DOS"""
    prompt = turn("x", template_kwargs=((name, "{{ 1 }}"),))
    with pytest.raises(BackendRejected, match=f"'{name}' is reserved") as caught:
        template(CHATML).render(prompt, now=midnight)
    assert caught.value.param == "chat_template_kwargs"


def test_a_message_is_never_a_template() -> None:
    """I-CHAT-TEMPLATE-DOS"""
    text = template(CHATML).render(turn("{{ 7 * 7 }}{% for %}"), now=midnight)
    assert "{{ 7 * 7 }}{% for %}" in text


def test_refuses_a_broken_template_naming_origin_and_line() -> None:
    """L-TEMPLATE-FILE"""
    with pytest.raises(ModelFileError, match="model: chat_template: line 2: "):
        template("fine\n{% if %}")


def test_continuing_leaves_the_last_message_open() -> None:
    messages = (Message(role="user", content="Hi"), Message(role="assistant", content="Well, "))
    prompt = ChatPrompt(messages=messages, continue_final_message=True)
    assert template(CHATML).render(prompt, now=midnight).endswith("<|im_start|>assistant\nWell, ")
    trimming = template(DEFAULT_SYSTEM).render(prompt, now=midnight)
    assert trimming.endswith("<|assistant|>Well,")


def test_cannot_continue_a_message_that_the_template_drops() -> None:
    prompt = turn("Hi", continue_final_message=True)
    with pytest.raises(BackendRejected, match="cannot be continued") as caught:
        template("no messages at all").render(prompt, now=midnight)
    assert caught.value.param == "continue_final_message"


def test_finds_what_follows_a_reply() -> None:
    assert template(CHATML).text_after_reply() == "<|im_end|>\n"
    assert template(INSTRUCT).text_after_reply() == "</s>"
    assert template("{{ raise_exception('no') }}").text_after_reply() == ""
    assert template("no messages").text_after_reply() == ""
