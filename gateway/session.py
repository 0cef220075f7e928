"""What ties requests together that had better go to one backend, where their prefix is cached.

The client's word first, `prompt_cache_key` before a header; without one, how the prompt begins: the
turns of a conversation differ in their ends only. Pure. Knows no backend.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from backends.types import ChatPrompt, GenerationRequest, Prompt, TextPrompt
from gateway.policy.match import SESSION_HEADERS

MAX_CHARS = 1024
"""Of a plain prompt, how much is its beginning: about 16 blocks of a prefix cache."""

MAX_TOKENS = 256


def session_of(request: GenerationRequest, headers: Mapping[str, str]) -> str:
    """The session of a request; requests that begin alike have the same."""
    named = request.session or next(
        (headers[name] for name in SESSION_HEADERS if name in headers), ""
    )
    if named:
        return f"named:{named}"
    return hashlib.blake2b(_beginning(request.prompts[0]), digest_size=16).hexdigest()


def _beginning(prompt: Prompt) -> bytes:
    match prompt:
        case ChatPrompt():  # what no later turn changes: all up to the first that the user said
            texts: list[str] = []
            for message in prompt.messages:
                texts += (message.role, message.content)
                if message.role == "user":
                    break
            return "\0".join(texts).encode("utf-8", "surrogatepass")
        case TextPrompt():
            return prompt.text[:MAX_CHARS].encode("utf-8", "surrogatepass")
        case _:
            return repr(prompt.token_ids[:MAX_TOKENS]).encode()
