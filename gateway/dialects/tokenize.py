"""`POST /tokenize`, which text-generation-inference and vLLM both serve: told apart by body key.

`inputs` is TGI's, answered with a list of tokens; `prompt` or `messages` is vLLM's, answered with
the ids. Knows no tokenizer: the tokens come from a backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import orjson

from backends.base import EncodedToken
from backends.types import Prompt, TextPrompt
from gateway.dialects.base import Reply
from gateway.dialects.fields import Body, Document, Unbuilt, read_object, refuse_unbuilt, validate
from gateway.dialects.openai_errors import openai_error_reply
from gateway.dialects.openai_messages import ChatFields
from gateway.dialects.tgi_errors import tgi_error_reply
from gateway.errors import GatewayError, InvalidRequest

_UNBUILT: Unbuilt = {"chat_template": (), "tools": ([],), "mm_processor_kwargs": ({},)}


class _TgiBody(Body):
    inputs: str
    add_special_tokens: bool = True


class _VllmBody(Body):
    model: str = ""
    return_token_strs: bool = False


class _TextBody(_VllmBody):
    prompt: str
    add_special_tokens: bool = True


class _ChatBody(_VllmBody, ChatFields):
    add_special_tokens: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeQuery:
    """A parsed request. `inputs` is set for TGI's form, which counts offsets in bytes of it."""

    model: str  # "" for the default
    prompt: Prompt
    inputs: str | None = None
    return_token_strs: bool = False

    def reply(self, tokens: Sequence[EncodedToken], *, max_model_len: int) -> Reply:
        """The answer in the form the question had."""
        if self.inputs is not None:
            return Reply(body=orjson.dumps(_token_objects(self.inputs, tokens)))
        strings = [token.text for token in tokens] if self.return_token_strs else None
        return Reply(
            body=orjson.dumps(
                {
                    "count": len(tokens),
                    "max_model_len": max_model_len,
                    "tokens": [token.token_id for token in tokens],
                    "token_strs": strings,
                }
            )
        )


def parse_tokenize(body: bytes) -> TokenizeQuery:
    """Read one request.

    Raises:
        InvalidRequest: with `param` naming the field.
    """
    document = read_object(body)
    if "inputs" in document:
        tgi = validate(_TgiBody, document)
        prompt = TextPrompt(text=tgi.inputs, add_special_tokens=tgi.add_special_tokens)
        return TokenizeQuery(model="", prompt=prompt, inputs=tgi.inputs)
    if "messages" in document:
        return _chat_query(document)
    if "prompt" in document:
        text = validate(_TextBody, document)
        return TokenizeQuery(
            model=text.model,
            prompt=TextPrompt(text=text.prompt, add_special_tokens=text.add_special_tokens),
            return_token_strs=text.return_token_strs,
        )
    raise InvalidRequest(
        "The body must have `inputs`, `prompt` or `messages`.",
        param="prompt",
        code="missing_required_parameter",
    )


def tokenize_error(error: GatewayError, body: bytes) -> Reply:
    """An error in the form of the client that sent `body`, which may be unreadable."""
    return tgi_error_reply(error) if b'"inputs"' in body else openai_error_reply(error)


def _chat_query(document: Document) -> TokenizeQuery:
    chat = validate(_ChatBody, document)
    refuse_unbuilt(document, _UNBUILT | {"add_special_tokens": (False,)})
    return TokenizeQuery(
        model=chat.model, prompt=chat.chat_prompt(), return_token_strs=chat.return_token_strs
    )


def _token_objects(inputs: str, tokens: Sequence[EncodedToken]) -> list[dict[str, object]]:
    """TGI's list. Its offsets count UTF-8 bytes, ours characters."""
    num_bytes = list(accumulate((len(char.encode()) for char in inputs), initial=0))
    return [
        {
            "id": token.token_id,
            "text": token.text,
            "start": num_bytes[token.start],
            "stop": num_bytes[token.stop],
        }
        for token in tokens
    ]
