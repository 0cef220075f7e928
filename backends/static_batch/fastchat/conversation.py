"""From a worker's conversation template and a chat to the prompt, and what ends its answer.

A template names one of FastChat's separator styles by number. Each style is a row of `_STYLES`: how
the head is written, and a turn that was said or is still open, the user's and the assistant's. As
in FastChat, a turn without text counts as open, and a client's system message takes the place of
the template's.

The numbers are those of FastChat 0.2.36, the last release; its later source counts differently from
8 on. Knows no HTTP and no tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from backends.errors import UnsupportedFeature
from backends.static_batch.fastchat.controller_protocol import ConversationJson
from backends.types import ChatPrompt, Message

_SYSTEM = "{system_message}"

Turns = tuple[str, str]
"""Of the user, of the assistant. The first turn is a user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedChat:
    """A prompt as text, and what ends its answer besides the model's own end."""

    prompt: str
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Style:
    """Formats over {system}, {role}, {text}, {sep}, {sep2}, {round} and {tag}.

    A round is two turns; a tag is the role whose turn it should be.
    """

    name: str
    said: Turns
    open: Turns
    head: str = "{system}"
    head_if: Literal["always", "prompt", "message"] = "always"  # what must not be empty for it
    no_head: str = ""  # in its place
    first: str = ""  # a first turn that was said, if it differs
    flattens: bool = False  # empty lines within a text are taken out


def _alike(turn: str) -> Turns:
    return turn, turn


def _in_turn(turn: str) -> Turns:
    """The user's turns end with `sep`, the assistant's with `sep2`."""
    return turn + "{sep}", turn + "{sep2}"


_STYLES = {
    1: _Style(
        name="ADD_COLON_SINGLE",
        head="{system}{sep}",
        said=_alike("{role}: {text}{sep}"),
        open=_alike("{role}:"),
    ),
    2: _Style(
        name="ADD_COLON_TWO",
        head="{system}{sep}",
        said=_in_turn("{role}: {text}"),
        open=_alike("{role}:"),
    ),
    3: _Style(
        name="ADD_COLON_SPACE_SINGLE",
        head="{system}{sep}",
        said=_alike("{role}: {text}{sep}"),
        open=_alike("{role}: "),
    ),
    4: _Style(name="NO_COLON_SINGLE", said=_alike("{role}{text}{sep}"), open=_alike("{role}")),
    5: _Style(name="NO_COLON_TWO", said=_in_turn("{role}{text}"), open=_alike("{role}")),
    6: _Style(
        name="ADD_NEW_LINE_SINGLE",
        head="{system}{sep}",
        head_if="prompt",
        said=_alike("{role}\n{text}{sep}"),
        open=_alike("{role}\n"),
    ),
    7: _Style(
        name="LLAMA2",
        head_if="message",
        no_head="[INST] ",
        first="{text} ",
        said=_in_turn("{tag} {text}"),
        open=_alike("{tag}"),
    ),
    8: _Style(
        name="CHATGLM",
        head="{system}{sep}",
        head_if="prompt",
        said=("[Round {round}]{sep}{role}\uff1a{text}{sep}", "{role}\uff1a{text}{sep}"),
        open=("[Round {round}]{sep}{role}\uff1a", "{role}\uff1a"),
    ),
    9: _Style(
        name="CHATML",
        head="{system}{sep}\n",
        head_if="prompt",
        said=_alike("{role}\n{text}{sep}\n"),
        open=_alike("{role}\n"),
    ),
    10: _Style(
        name="CHATINTERN",
        said=("<s>{role}:{text}{sep}\n", "{role}:{text}{sep2}\n"),
        open=("<s>{role}:", "{role}:"),
    ),
    11: _Style(
        name="DOLLY",
        said=("{role}:\n{text}{sep}", "{role}:\n{text}{sep2}\n\n"),
        open=_alike("{role}:\n"),
    ),
    12: _Style(
        name="RWKV", said=_alike("{role}: {text}\n\n"), open=_alike("{role}:"), flattens=True
    ),
    13: _Style(name="PHOENIX", said=_alike("{role}: <s>{text}</s>"), open=_alike("{role}: <s>")),
    14: _Style(
        name="ROBIN",
        head="{system}{sep}",
        said=_alike("{role}:\n{text}{sep}"),
        open=_alike("{role}:\n"),
    ),
    15: _Style(
        name="FALCON_CHAT",
        head="{system}{sep}",
        head_if="message",
        said=_alike("{role}: {text}{sep}"),
        open=_alike("{role}:"),
    ),
    16: _Style(
        name="CHATGLM3",
        head_if="message",
        said=_alike("{role}\n{text}"),
        open=_alike("{role}"),
    ),
    17: _Style(name="DEEPSEEK_CHAT", said=_in_turn("{role}: {text}"), open=_alike("{role}:")),
    18: _Style(
        name="METAMATH",
        head="{system}{sep}",
        head_if="prompt",
        said=("{role}:\n{text}{sep}", "{role}: {sep2}{text}"),
        open=("{role}:\n", "{role}: {sep2}"),
    ),
}  # 19, YUAN2, strips characters off its own text and is left out


def render_chat(conversation: ConversationJson, chat: ChatPrompt, *, worker: str) -> RenderedChat:
    """The prompt of a chat; `worker` is the worker's address, for messages.

    Raises:
        UnsupportedFeature: a message, or the way to write them, that the template cannot express.
    """
    style = _STYLES.get(conversation.sep_style)
    if style is None:
        raise UnsupportedFeature(
            f"the worker at {worker} writes chats in separator style {conversation.sep_style} "
            f"(template {conversation.name!r}), which is not supported; send a plain prompt in "
            "place of messages",
            param="messages",
        )
    system_message, turns = _turns(conversation, chat)
    stop = conversation.stop_str or ()
    return RenderedChat(
        prompt=_head(style, conversation, system_message)
        + "".join(_written(style, conversation, turns)),
        stop=(stop,) if isinstance(stop, str) else tuple(filter(None, stop)),
        stop_token_ids=conversation.stop_token_ids or (),
    )


Turn = tuple[str, str]
"""Who, and what: nothing yet in an open turn."""


def _turns(conversation: ConversationJson, chat: ChatPrompt) -> tuple[str, list[Turn]]:
    """The system message, and all turns: the template's own first."""
    _check(chat)
    system_message = conversation.system_message
    messages = chat.messages
    if messages[0].role == "system":
        system_message, messages = messages[0].content, messages[1:]
    user, assistant = conversation.roles[:2]
    turns = [(role, text or "") for role, text in conversation.messages]
    turns += [(user if m.role == "user" else assistant, m.content) for m in messages]
    if chat.add_generation_prompt:
        turns.append((assistant, ""))
    return system_message, turns


def _check(chat: ChatPrompt) -> None:
    for place, message in enumerate(chat.messages):
        if wrong := _why_not(message, is_first=not place):
            raise UnsupportedFeature(
                f"messages.{place}: {wrong}; FastChat's templates cannot express it",
                param="messages",
            )
    if chat.continue_final_message:
        raise UnsupportedFeature(
            "FastChat's templates cannot leave the last message open",
            param="continue_final_message",
        )
    if chat.template_kwargs:
        raise UnsupportedFeature(
            "FastChat's templates take no arguments", param="chat_template_kwargs"
        )


def _why_not(message: Message, *, is_first: bool) -> str:
    if message.role == "tool":
        return "the answer of a tool"
    if message.role == "system" and not is_first:
        return "a system message behind another message"
    if message.name is not None:
        return "the name of a speaker"
    return ""


def _head(style: _Style, conversation: ConversationJson, system_message: str) -> str:
    # not str.format: the template is a worker's, and a format may read attributes
    system = conversation.system_template.replace(_SYSTEM, system_message)
    needed = {"always": "-", "prompt": system, "message": system_message}[style.head_if]
    if not needed:
        return style.no_head
    return style.head.format(system=system, sep=conversation.sep or "")


def _written(style: _Style, conversation: ConversationJson, turns: list[Turn]) -> Iterator[str]:
    first_round = 1 if conversation.name == "chatglm2" else 0
    for place, (role, text) in enumerate(turns):
        form = (style.said if text else style.open)[place % 2]
        if text and not place and style.first:
            form = style.first
        if style.flattens:
            text = text.replace("\r\n", "\n").replace("\n\n", "\n")
        yield form.format(
            role=role,
            tag=conversation.roles[place % 2],
            text=text,
            sep=conversation.sep or "",
            sep2=conversation.sep2 or "",
            round=place // 2 + first_round,
        )
