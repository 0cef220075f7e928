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
import enum
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from backends.base import EncodedToken, Tokenizing
from backends.errors import BackendRejected
from backends.types import ChatPrompt, Message, Role, TextPrompt

logger = logging.getLogger(__name__)


class SepStyle(enum.IntEnum):
    """How separators are put between turns: FastChat's numbers, those used here."""

    ADD_COLON_SINGLE = 1
    ADD_COLON_TWO = 2
    NO_COLON_SINGLE = 4
    CHATML = 9


class TemplateError(ValueError):
    """No conversation can be told. The message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """FastChat's `Conversation`, field by field as it goes over the wire."""

    name: str
    system_template: str
    system_message: str = ""
    roles: tuple[str, str]
    messages: tuple[tuple[str, str], ...] = ()
    offset: int = 0
    sep_style: SepStyle
    sep: str
    sep2: str | None = None
    stop_str: str | None = None
    stop_token_ids: tuple[int, ...] | None = None

    def render(self, turns: Sequence[str]) -> str:
        """The prompt that FastChat makes of a chat: user and assistant by turns, and then open."""
        system = self.system_template.format(system_message=self.system_message)
        after_system, before, after, opened = self._separators()
        text = system + after_system
        for number, turn in enumerate(turns):
            text += self.roles[number % 2] + before + turn + after[number % 2]
        return text + self.roles[1] + opened

    def _separators(self) -> tuple[str, str, tuple[str, str], str]:
        """After the system message; before and after a turn; after the role whose turn is open."""
        match self.sep_style:
            case SepStyle.ADD_COLON_SINGLE:
                return self.sep, ": ", (self.sep, self.sep), ":"
            case SepStyle.ADD_COLON_TWO:
                return self.sep, ": ", (self.sep, self.sep2 or ""), ":"
            case SepStyle.NO_COLON_SINGLE:
                return "", "", (self.sep, self.sep), ""
            case SepStyle.CHATML:
                return f"{self.sep}\n", "\n", (f"{self.sep}\n", f"{self.sep}\n"), "\n"


CONVERSATIONS = (
    Conversation(
        name="chatml",
        system_template="<|im_start|>system\n{system_message}",
        roles=("<|im_start|>user", "<|im_start|>assistant"),
        sep_style=SepStyle.CHATML,
        sep="<|im_end|>",
        stop_str="<|im_end|>",
    ),
    Conversation(
        name="llama-3",
        system_template="<|start_header_id|>system<|end_header_id|>\n\n{system_message}<|eot_id|>",
        roles=(
            "<|start_header_id|>user<|end_header_id|>\n\n",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        sep_style=SepStyle.NO_COLON_SINGLE,
        sep="<|eot_id|>",
        stop_str="<|eot_id|>",
    ),
    Conversation(
        name="zephyr",
        system_template="<|system|>\n{system_message}",
        roles=("<|user|>", "<|assistant|>"),
        sep_style=SepStyle.CHATML,
        sep="</s>",
        stop_str="</s>",
    ),
    Conversation(
        name="vicuna_v1.1",
        system_template="{system_message}",
        roles=("USER", "ASSISTANT"),
        sep_style=SepStyle.ADD_COLON_TWO,
        sep=" ",
        sep2="</s>",
    ),
    Conversation(  # for models that were never taught to chat
        name="zero_shot",
        system_template="{system_message}",
        roles=("Human", "Assistant"),
        sep_style=SepStyle.ADD_COLON_SINGLE,
        sep="\n### ",
        stop_str="###",
    ),
)
NAMES = tuple(conversation.name for conversation in CONVERSATIONS)

_SYSTEM = "Answer in verse."
_TURNS = ("Hi", "Hello, friend.", "Sing.")


def named(name: str) -> Conversation:
    """Raises: TemplateError: no conversation has this name."""
    for conversation in CONVERSATIONS:
        if conversation.name == name:
            return conversation
    close = difflib.get_close_matches(name, NAMES, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(NAMES)}"
    raise TemplateError(f"no conversation template is named {name!r}; {hint}")


async def choose(name: str | None, tokenizer: Tokenizing) -> Conversation:
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


async def fit(conversation: Conversation, tokenizer: Tokenizing) -> Conversation | None:
    """With the model's own system message, if all tokens are those of the model's own template;
    None if they are not, or if it has none.
    """
    try:
        default = await _default_system_message(conversation, tokenizer)
        for system in (None, _SYSTEM):
            said = replace(conversation, system_message=default if system is None else system)
            for turns in (_TURNS[:1], _TURNS):
                own = await tokenizer.encode(_chat(system, turns))
                ours = await tokenizer.encode(TextPrompt(text=said.render(turns)))
                if _ids(own) != _ids(ours):
                    return None
    except BackendRejected:  # it takes no system message, or no messages at all
        return None
    return replace(conversation, system_message=default)


async def _default_system_message(conversation: Conversation, tokenizer: Tokenizing) -> str:
    """What stands where the system message would, in a chat without one; empty if unlike."""
    text = _text_of(await tokenizer.encode(_chat(None, _TURNS[:1])))
    mark = "\N{INVISIBLE SEPARATOR}"
    rendered = replace(conversation, system_message=mark).render(_TURNS[:1])
    head, _, tail = rendered.partition(mark)
    start, stop = text.find(head) + len(head), text.rfind(tail)
    return text[start:stop] if head in text else ""


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
