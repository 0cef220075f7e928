"""Messages into text by the model's own chat template, as Hugging Face renders it.

* A template comes from the model's files only, never from a request; names that would change the
  rendering itself are refused among a request's `template_kwargs`. The sandbox keeps a template
  from the interpreter and from changing the messages; the text it may write is bounded. It is not
  held to a time limit: run it in a thread, and load models you trust.
* The text is encoded with special tokens parsed, in the client's content too, as Hugging Face and
  vLLM do: the ids are then those of the reference, and a client who may write a prompt may write
  these tokens anyway. Whoever composes messages from several parties' text must strip them first.
* No BOS is added to rendered text: it starts with one if the template writes one.

Knows no tokenizer. Source: `apply_chat_template` of transformers 5.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from backends.errors import BackendRejected
from backends.types import ChatPrompt, Message
from native_engine.errors import ModelFileError

MAX_RENDERED_CHARS = 8_000_000
"""More than the longest contexts hold: a million tokens are about 4 million characters."""

_SENTINEL = "\u2063end of the message to go on with\u2063 "
"""Marks where the open message ends. Its trailing space shows whether the template trims."""

_RESERVED_NAMES = frozenset(
    (
        *("messages", "tools", "documents", "raise_exception", "strftime_now"),
        *("bos_token", "eos_token", "unk_token", "pad_token"),
        # arguments of `apply_chat_template`, which would change the rendering itself
        *("add_generation_prompt", "continue_final_message", "chat_template", "conversation"),
        *("tokenize", "tokenizer_kwargs", "padding", "truncation", "max_length"),
        *("return_assistant_tokens_mask", "return_dict", "return_tensors"),
    )
)

_TEMPLATE_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What running a template's code over messages it was not written for can raise."""


class ChatTemplate:
    """One compiled template. Thread-safe."""

    def __init__(self, source: str, *, origin: str, special_tokens: Mapping[str, str]) -> None:
        """Compile `source`; `origin` says in messages where it stands.

        Raises:
            ModelFileError: it is no valid template; names the origin and the line.
        """
        self.source = source
        self._special_tokens = special_tokens
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        environment.filters["tojson"] = _to_json
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelFileError(
                f"{origin}: line {error.lineno}: not a valid template: {error.message}"
            ) from error
        self._reserved_names = _RESERVED_NAMES | environment.globals.keys()

    def render(self, prompt: ChatPrompt, *, now: Callable[[], datetime]) -> str:
        """The prompt's text. `now` is what the template's `strftime_now` reads.

        Raises:
            BackendRejected: the template refuses the messages, cannot handle them, or writes more
            than `MAX_RENDERED_CHARS`; or a template argument has a reserved name.
        """
        for name, _ in prompt.template_kwargs:
            if name in self._reserved_names:
                raise BackendRejected(
                    f"the template argument {name!r} is reserved; leave it out",
                    param="chat_template_kwargs",
                )
        if not prompt.continue_final_message:
            return self._run(prompt, prompt.messages, now, prompt.add_generation_prompt)
        *earlier, last = prompt.messages
        marked = Message(role=last.role, content=last.content + _SENTINEL, name=last.name)
        return _cut(self._run(prompt, [*earlier, marked], now, False))

    def text_after_reply(self) -> str:
        """What the template writes after an assistant's message that ends a conversation.

        The token that ends turns stands first in it. Empty if the template refuses such messages.
        """
        reply = "the reply to look for"
        messages = (Message(role="user", content="Hi"), Message(role="assistant", content=reply))
        prompt = ChatPrompt(messages=messages, add_generation_prompt=False)
        try:
            text = self.render(prompt, now=lambda: datetime(2000, 1, 1, tzinfo=UTC))
        except BackendRejected:
            return ""
        return text.rpartition(reply)[2] if reply in text else ""

    def _run(
        self,
        prompt: ChatPrompt,
        messages: Sequence[Message],
        now: Callable[[], datetime],
        add_generation_prompt: bool,
    ) -> str:
        def strftime_now(pattern: str) -> str:
            return now().strftime(pattern)

        context: dict[str, object] = {
            **self._special_tokens,
            **dict(prompt.template_kwargs),
            "messages": [_as_dict(message) for message in messages],
            "tools": None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            "raise_exception": _raise_exception,
            "strftime_now": strftime_now,
        }
        pieces: list[str] = []
        num_chars = 0
        try:
            for piece in self._template.generate(context):
                num_chars += len(piece)
                if num_chars > MAX_RENDERED_CHARS:
                    raise BackendRejected(
                        f"the messages make more than {MAX_RENDERED_CHARS} characters; "
                        "shorten them",
                        param="messages",
                    )
                pieces.append(piece)
        except _TEMPLATE_FAILURES as error:
            raise BackendRejected(
                f"the model's chat template does not take these messages: {error}",
                param="messages",
            ) from error
        return "".join(pieces)


def _cut(text: str) -> str:
    """Everything before the sentinel; trimmed where the template trims messages."""
    kept, found, rest = text.rpartition(_SENTINEL.rstrip())
    if not found:
        raise BackendRejected(
            "the model's chat template does not show the last message as it is, so that it cannot "
            "be continued",
            param="continue_final_message",
        )
    return kept if rest.startswith(" ") else kept.rstrip()


def _as_dict(message: Message) -> dict[str, str]:
    named = {} if message.name is None else {"name": message.name}
    return {"role": message.role, "content": message.content, **named}


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which a model has never seen."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here it is only let through."""

    tags = {"generation"}  # noqa: RUF012 - the name and type are jinja's

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
