"""How many tokens a prompt may have when no tokenizer is at hand. Reads no configuration."""

from __future__ import annotations

import math

from backends.types import ChatPrompt, Prompt, TextPrompt

CHARACTERS_PER_TOKEN = 3.5
"""English prose in common vocabularies has about 4; code and other scripts have fewer."""

TOKENS_PER_MESSAGE = 4
"""What a chat template puts around one message, in common templates."""


def estimate_tokens(prompts: tuple[Prompt, ...]) -> int:
    """An estimate on the high side; token ids are counted exactly."""
    return sum(_estimate(prompt) for prompt in prompts)


def _estimate(prompt: Prompt) -> int:
    match prompt:
        case ChatPrompt(messages=messages):
            return sum(_of_text(message.content) + TOKENS_PER_MESSAGE for message in messages)
        case TextPrompt(text=text):
            return _of_text(text)
        case _:
            return len(prompt.token_ids)


def _of_text(text: str) -> int:
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)
