"""Chat messages as the OpenAI API and its imitators write them, made into a `ChatPrompt`.

Roles and content forms are brought to one shape; the text-only rule lives here. Knows no template
and no sampling.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from backends.types import ChatPrompt, Message, Role
from gateway.dialects.fields import Body
from gateway.errors import InvalidRequest, UnsupportedValue

MAX_MESSAGES = 4096

_ROLES: dict[str, Role] = {"developer": "system", "function": "tool"}  # others keep their name
_NON_TEXT_PARTS = {
    "image_url", "image", "input_image", "input_audio", "audio_url", "video_url", "file",
}  # fmt: skip
# A template's own arguments and the tokenizer's: not the client's to set.
_RESERVED_KWARGS = {
    "chat_template", "messages", "conversation", "tools", "documents", "tokenize", "padding",
    "truncation", "max_length", "return_tensors", "return_dict", "add_generation_prompt",
    "continue_final_message", "bos_token", "eos_token",
}  # fmt: skip


class ContentPart(Body):
    """One part of a message; only text (and an assistant's refusal, which is text) is built."""

    type: str
    text: str | None = None
    refusal: str | None = None


def _content_form(value: object) -> str | None:
    if isinstance(value, str):
        return "text"
    return "parts" if isinstance(value, list) else None


Content = Annotated[
    Annotated[str, Tag("text")] | Annotated[list[ContentPart], Tag("parts")],
    Discriminator(
        _content_form,
        custom_error_type="content_type",
        custom_error_message="a string or an array of parts",
    ),
]


class ChatMessage(Body):
    """One message. `tool_call_id` and an assistant's annotations mean nothing to a template."""

    role: Literal["developer", "system", "user", "assistant", "tool", "function"]
    content: Content | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: list[object] = Field(default_factory=list[object])
    function_call: object = None
    audio: object = None


class ChatFields(Body):
    """The messages and how the template ends them; `/tokenize` reads the same."""

    messages: Annotated[
        list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    ]
    add_generation_prompt: bool | None = None  # unless told, exactly when no message is continued
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, object] = Field(default_factory=dict)

    def chat_prompt(self) -> ChatPrompt:
        """Raises:
        InvalidRequest: a message without text, or template arguments that contradict each other.
        """
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequest(
                "Cannot set both `continue_final_message` and `add_generation_prompt` to true; "
                "send `add_generation_prompt`: false.",
                param="continue_final_message",
            )
        adds_prompt = self.add_generation_prompt
        return ChatPrompt(
            messages=tuple(_message(i, message) for i, message in enumerate(self.messages)),
            add_generation_prompt=(
                not self.continue_final_message if adds_prompt is None else adds_prompt
            ),
            continue_final_message=self.continue_final_message,
            template_kwargs=tuple(
                _template_kwarg(name, value)
                for name, value in self.chat_template_kwargs.items()
                if value is not None
            ),
        )


def _message(position: int, message: ChatMessage) -> Message:
    where = f"messages[{position}]"
    for field in ("tool_calls", "function_call", "audio"):
        if getattr(message, field):
            raise UnsupportedValue(
                f"`{where}.{field}` is not supported by this server; remove it.",
                param=f"{where}.{field}",
            )
    return Message(
        role=_ROLES.get(message.role) or message.role,  # type: ignore[arg-type]
        content=_content(where, message),
        name=message.name,
    )


def _content(where: str, message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    if message.content is not None:
        parts = enumerate(message.content)
        return "".join(_part_text(f"{where}.content[{i}]", part) for i, part in parts)
    if message.role == "assistant":
        return message.refusal or ""
    raise InvalidRequest(
        f"{where}.content must be a string or an array of parts.",
        param=f"{where}.content",
        code="missing_required_parameter",
    )


def _part_text(where: str, part: ContentPart) -> str:
    if part.type in _NON_TEXT_PARTS:
        raise UnsupportedValue(
            f"{where} is an image, audio, video or file part ('{part.type}'), and the model is "
            "text-only, not multimodal; send text parts.",
            param=where,
        )
    text = {"text": part.text, "refusal": part.refusal}.get(part.type)
    if text is None:
        raise InvalidRequest(
            f"{where} must be a part of type 'text' with a `text`.", param=f"{where}.type"
        )
    return text


def _template_kwarg(name: str, value: object) -> tuple[str, str | int | float | bool]:
    param = f"chat_template_kwargs.{name}"
    if name in _RESERVED_KWARGS:
        raise InvalidRequest(
            f"{param} is not for a client to set; remove it.", param="chat_template_kwargs"
        )
    if not isinstance(value, str | int | float | bool):
        raise InvalidRequest(
            f"{param} must be a string, a number or a boolean.", param="chat_template_kwargs"
        )
    return name, value
