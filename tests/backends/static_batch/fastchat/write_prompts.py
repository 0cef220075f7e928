"""Writes prompts as FastChat itself renders them, one JSON object a line, for `test_conversation`.

Runs in FastChat's own environment. The templates and chats are made up here; each separator style
is tried with and without a system message, with examples, and with texts that are hard on it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from fastchat.conversation import (  # type: ignore[import-not-found]
    Conversation,
    SeparatorStyle,
)

NUM_STYLES = 18  # the next one, YUAN2, is not supported

CHATS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("user", "Where do {swifts} sleep?"),),
    (("system", "Answer in rhyme."), ("user", "Hm?"), ("assistant", "Hm!"), ("user", "And?")),
    (("system", ""), ("user", "a\r\n\r\nb\n\nc"), ("assistant", "d\n\n\ne"), ("user", " f ")),
    (("user", ""), ("assistant", "said first"), ("user", "Ünï ￥ 字")),
    (("user", "one"), ("user", "two, out of turn")),
)
TEMPLATES: tuple[dict[str, Any], ...] = (
    {"name": "harbour", "system_template": "{system_message}", "system_message": ""},
    {
        "name": "chatglm2",  # the one name that changes a style: it counts rounds from 1
        "system_template": "<rules>{system_message}</rules>\n",
        "system_message": "You keep a lighthouse.",
        "messages": [["KEEPER", "Light on?"], ["LAMP", "On."]],
    },
)


def lines() -> Iterator[str]:
    for style in range(1, NUM_STYLES + 1):
        for template in TEMPLATES:
            fields = {"messages": (), "roles": ("KEEPER", "LAMP"), "sep": "|~", "sep2": "~#\n"}
            for chat in CHATS:
                conversation = Conversation(
                    **{**fields, **template}, sep_style=SeparatorStyle(style), stop_str="~~"
                )
                yield json.dumps(_rendered(conversation, chat), ensure_ascii=False)


def _rendered(conversation: Any, chat: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    conversation.messages = [list(turn) for turn in conversation.messages]
    template = dict(vars(conversation), sep_style=int(conversation.sep_style))
    template["messages"] = [list(turn) for turn in conversation.messages]
    for role, text in chat:
        if role == "system":
            conversation.set_system_message(text)
        else:
            conversation.append_message(conversation.roles[role == "assistant"], text)
    conversation.append_message(conversation.roles[1], None)
    return {"conv": template, "chat": chat, "prompt": conversation.get_prompt()}


if __name__ == "__main__":
    sys.stdout.buffer.writelines(f"{line}\n".encode() for line in lines())
