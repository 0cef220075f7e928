"""The request of OpenAI's text completions, with vLLM's extensions, and its checks.

Source: OpenAI's OpenAPI document, 2.3.0. Knows nothing of answers.
"""

from __future__ import annotations

from typing import Annotated, cast

from pydantic import Discriminator, Field, Tag

from backends.types import Prompt, TextPrompt, TokenPrompt
from gateway.dialects.fields import Document, Unbuilt, refuse_unbuilt
from gateway.dialects.openai_fields import (
    MAX_CHOICES,
    MAX_MODEL_CHARS,
    MAX_TOP_LOGPROBS,
    UNBUILT,
    GenerationFields,
    TokenId,
    check_fan_out,
    check_min_tokens,
    check_prompt_logprobs,
)
from gateway.errors import InvalidRequest, UnsupportedValue

COMPLETIONS_UNBUILT: Unbuilt = {**UNBUILT, "suffix": (), "prompt_embeds": ()}


def _prompt_form(value: object) -> str | None:
    if isinstance(value, str):
        return "text"
    if not isinstance(value, list):
        return None
    match cast("list[object]", value):
        case [] | [str(), *_]:
            return "texts"
        case [list(), *_]:
            return "token_lists"
        case _:
            return "tokens"


_TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
_Prompts = Field(min_length=1, max_length=MAX_CHOICES, fail_fast=True)


class CompletionBody(GenerationFields):
    """The body, as far as it is read."""

    model: Annotated[str, Field(max_length=MAX_MODEL_CHARS)] = ""  # the default model
    prompt: Annotated[
        Annotated[str, Tag("text")]
        | Annotated[list[str], _Prompts, Tag("texts")]
        | Annotated[_TokenIds, Tag("tokens")]
        | Annotated[list[_TokenIds], _Prompts, Tag("token_lists")],
        Discriminator(
            _prompt_form,
            custom_error_type="prompt_type",
            custom_error_message="a string, an array of strings, of token ids, or of such arrays",
        ),
    ]
    max_tokens: Annotated[int, Field(ge=0)] = 16
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None  # null: as many as `n`
    echo: bool = False
    add_special_tokens: bool = True

    def prompts(self) -> tuple[Prompt, ...]:
        """One prompt for each text or list of token ids."""
        given = cast("list[object]", [self.prompt] if isinstance(self.prompt, str) else self.prompt)
        if isinstance(given[0], int):
            given = [given]
        return tuple(
            TextPrompt(text=prompt, add_special_tokens=self.add_special_tokens)
            if isinstance(prompt, str)
            else TokenPrompt(token_ids=tuple(cast("list[int]", prompt)))
            for prompt in given
        )

    @property
    def num_made(self) -> int:
        """How many choices are generated for each prompt, of which the best `n` are the answer."""
        return self.n if self.best_of is None else self.best_of

    @property
    def num_prompt_logprobs(self) -> int | None:
        """How many of the likeliest to tell beside each of the prompt's tokens, for either field
        that asks; None if neither does.
        """
        echoed = self.logprobs if self.echo else None
        asked = [number for number in (echoed, self.prompt_logprobs) if number is not None]
        return max(asked, default=None)


def check(body: CompletionBody, prompts: tuple[Prompt, ...], document: Document) -> None:
    """Hold the values against each other.

    Raises:
        InvalidRequest: names the field to change.
    """
    refuse_unbuilt(document, COMPLETIONS_UNBUILT)
    _check_best_of(body)
    param = "n" if body.num_made == body.n else "best_of"
    check_fan_out(len(prompts), body.num_made, param=param)
    _check_echo(body, is_text=isinstance(prompts[0], TextPrompt))
    check_prompt_logprobs(body)
    check_min_tokens(body.min_tokens, body.max_tokens)


def _check_best_of(body: CompletionBody) -> None:
    if body.num_made < body.n:
        raise InvalidRequest(
            f"best_of must be at least n, which is {body.n}, got {body.best_of}.",
            param="best_of",
            code="integer_below_min_value",
        )
    if body.num_made > body.n and body.stream:
        raise InvalidRequest(
            f"best_of must equal n when streaming, got {body.best_of} and {body.n}: which are best "
            "is known at the end only. Remove `best_of` or `stream`.",
            param="best_of",
        )


def _check_echo(body: CompletionBody, *, is_text: bool) -> None:
    if not body.max_tokens and not body.echo and body.prompt_logprobs is None:
        raise InvalidRequest(
            "max_tokens must be at least 1, got 0; 0 is for requests with `echo` or "
            "`prompt_logprobs`, which ask for the prompt alone.",
            param="max_tokens",
            code="integer_below_min_value",
        )
    if body.echo and body.logprobs is None and not is_text:  # their text is the backend's to tell
        raise UnsupportedValue(
            "`echo` of token ids is supported with `logprobs` only; send `logprobs`: 0, or remove "
            "`echo`.",
            param="echo",
        )
