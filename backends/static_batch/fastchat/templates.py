"""Which conversation a worker tells FastChat's API server to write chats by.

FastChat renders chats in the API server, by a handful of strings that the worker gives it; the
model's own template is nowhere in it. Here one of a few known conversations is held against that
template, token for token, and taken only if every probe agrees. The system message that the model's
template puts where a chat has none is found the same way.

Source: FastChat 0.2.36, `conversation.py`, for the names of the fields and what the API server
makes of each `sep_style`.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Sequence

from backends.base import EncodedToken, Tokenizing
from backends.errors import BackendRejected
from backends.static_batch.fastchat.controller_protocol import ConversationJson
from backends.static_batch.fastchat.conversation import render_chat
from backends.types import ChatPrompt, Message, Role, TextPrompt

logger = logging.getLogger(__name__)


class TemplateError(ValueError):
    """No conversation can be told. The message says what to do."""


def _conversation(
    name: str,
    *,
    system_template: str,
    roles: tuple[str, str],
    sep_style: int,
    sep: str,
    sep2: str | None = None,
    stop_str: str | None = None,
) -> ConversationJson:
    return ConversationJson(
        name=name,
        system_template=system_template,
        system_message="",
        roles=roles,
        messages=(),
        sep_style=sep_style,
        sep=sep,
        sep2=sep2,
        stop_str=stop_str,
        stop_token_ids=None,
    )


ADD_COLON_SINGLE, ADD_COLON_TWO, NO_COLON_SINGLE, CHATML = 1, 2, 4, 9
"""FastChat's separator styles; `conversation` has what they do."""

CONVERSATIONS = (
    _conversation(
        "chatml",
        system_template="<|im_start|>system\n{system_message}",
        roles=("<|im_start|>user", "<|im_start|>assistant"),
        sep_style=CHATML,
        sep="<|im_end|>",
        stop_str="<|im_end|>",
    ),
    _conversation(
        "llama-3",
        system_template="<|start_header_id|>system<|end_header_id|>\n\n{system_message}<|eot_id|>",
        roles=(
            "<|start_header_id|>user<|end_header_id|>\n\n",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        sep_style=NO_COLON_SINGLE,
        sep="<|eot_id|>",
        stop_str="<|eot_id|>",
    ),
    _conversation(
        "zephyr",
        system_template="<|system|>\n{system_message}",
        roles=("<|user|>", "<|assistant|>"),
        sep_style=CHATML,
        sep="</s>",
        stop_str="</s>",
    ),
    _conversation(
        "vicuna_v1.1",
        system_template="{system_message}",
        roles=("USER", "ASSISTANT"),
        sep_style=ADD_COLON_TWO,
        sep=" ",
        sep2="</s>",
    ),
    _conversation(  # for models that were never taught to chat
        "zero_shot",
        system_template="{system_message}",
        roles=("Human", "Assistant"),
        sep_style=ADD_COLON_SINGLE,
        sep="\n### ",
        stop_str="###",
    ),
)
NAMES = tuple(conversation.name for conversation in CONVERSATIONS)

_SYSTEM = "Answer in verse."
_TURNS = ("Hi", "Hello, friend.", "Sing.")


def named(name: str) -> ConversationJson:
    """Raises: TemplateError: no conversation has this name."""
    for conversation in CONVERSATIONS:
        if conversation.name == name:
            return conversation
    close = difflib.get_close_matches(name, NAMES, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(NAMES)}"
    raise TemplateError(f"no conversation template is named {name!r}; {hint}")


async def choose(name: str | None, tokenizer: Tokenizing) -> ConversationJson:
    """The conversation of that name, or the one that says what the model's own template does.

    Raises:
        TemplateError: there is none.
    """
    if name is not None:
        conversation = named(name)
        fitted = await fit(conversation, tokenizer)
        if fitted is None:
            logger.warning(
                "conversation template %s does not give the tokens of the model's own chat "
                "template, if it has one; it is used all the same, as asked for",
                name,
            )
        return fitted or conversation
    for conversation in CONVERSATIONS:
        if fitted := await fit(conversation, tokenizer):
            return fitted
    raise TemplateError(
        "none of FastChat's conversations gives the tokens of this model's own chat template, if "
        "it has one (most often because a conversation always begins with a system message, and "
        f"the template does not); choose the nearest with --conv-template: {', '.join(NAMES)}"
    )


async def fit(conversation: ConversationJson, tokenizer: Tokenizing) -> ConversationJson | None:
    """With the model's own system message, if all tokens are those of the model's own template;
    None if they are not, or if it has none.
    """
    try:
        default = await _default_system_message(conversation, tokenizer)
        for system in (None, _SYSTEM):
            said = _with_system(conversation, default if system is None else system)
            for turns in (_TURNS[:1], _TURNS):
                own = await tokenizer.encode(_chat(system, turns))
                ours = await tokenizer.encode(TextPrompt(text=_rendered(said, turns)))
                if _ids(own) != _ids(ours):
                    return None
    except BackendRejected:  # it takes no system message, or no messages at all
        return None
    return _with_system(conversation, default)


async def _default_system_message(conversation: ConversationJson, tokenizer: Tokenizing) -> str:
    """What stands where the system message would, in a chat without one; empty if unlike."""
    text = _text_of(await tokenizer.encode(_chat(None, _TURNS[:1])))
    mark = "\N{INVISIBLE SEPARATOR}"
    rendered = _rendered(_with_system(conversation, mark), _TURNS[:1])
    head, _, tail = rendered.partition(mark)
    start, stop = text.find(head) + len(head), text.rfind(tail)
    return text[start:stop] if head in text else ""


def _with_system(conversation: ConversationJson, message: str) -> ConversationJson:
    return conversation.model_copy(update={"system_message": message})


def _rendered(conversation: ConversationJson, turns: Sequence[str]) -> str:
    return render_chat(conversation, _chat(None, turns), worker="here").prompt


def _chat(system: str | None, turns: Sequence[str]) -> ChatPrompt:
    roles: tuple[Role, Role] = ("user", "assistant")
    messages = [Message(role=roles[i % 2], content=turn) for i, turn in enumerate(turns)]
    if system is not None:
        messages.insert(0, Message(role="system", content=system))
    return ChatPrompt(messages=tuple(messages))


def _ids(tokens: Iterable[EncodedToken]) -> list[int]:
    return [token.token_id for token in tokens]


def _text_of(tokens: Iterable[EncodedToken]) -> str:
    """Spans may leave out white space, and the tokens of one character all span it."""
    text = ""
    for token in tokens:
        text += " " * (token.start - len(text)) + token.text[max(len(text) - token.start, 0) :]
    return text
