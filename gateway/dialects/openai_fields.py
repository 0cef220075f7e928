"""What chat and text completions share on the way in: fields, limits, and what is not built.

Every field of the OpenAI API (spec 2.3.0) and of vLLM's extensions falls in one of four classes:
read (`GenerationFields`), read by neither but harmless (`IGNORED`), refused unless it asks for
nothing (`UNBUILT`), or unknown, which is passed on as `extra`. Knows neither dialect's own fields.
"""

from __future__ import annotations

import re
from typing import Annotated, cast

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from backends.types import BeamParams, SamplingParams
from gateway.dialects.fields import Body, Unbuilt
from gateway.errors import InvalidRequest

# Caps on what one request may fan out to (vLLM and OpenAI have comparable ones).
MAX_CHOICES = 128
MAX_STOP_STRINGS = 16  # OpenAI says 4; vLLM's clients send more
MAX_STOP_CHARS = 1024
MAX_STOP_TOKEN_IDS = 128
MAX_BAD_WORDS = 128
MAX_RULED_TOKEN_IDS = 1024  # biased or allowed; so many cost 0.5 ms at each token
MAX_TOP_LOGPROBS = 20
MAX_CACHE_SALT_CHARS = 1024
MAX_MODEL_CHARS = 1024  # some clients send their endpoint's URL as the model
_MAX_INT32 = 2**31 - 1

TokenId = Annotated[int, Field(ge=0, le=_MAX_INT32)]

IGNORED = frozenset(
    {
        # Bookkeeping of OpenAI's platform; this server keeps nothing.
        "user", "store", "service_tier", "safety_identifier", "moderation",
        "prompt_cache_retention", "prompt_cache_options", "request_id",
        "session_id",
        # Hints that a model or scheduler may follow or not; priority is the tenant's plan's.
        "parallel_tool_calls", "verbosity", "prediction", "reasoning_effort", "include_reasoning",
        "priority", "stream_interval", "tool_prompt",
    }
)  # fmt: skip

UNBUILT: Unbuilt = {
    # OpenAI's
    "response_format": ({"type": "text"},),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    # vLLM's
    "early_stopping": (False,),
    "logprob_token_ids": ([],),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False,),
    "return_prompt_text": (False,),
    "kv_transfer_params": (),
    "thinking_token_budget": (),
    "repetition_detection": (),
    "mm_processor_kwargs": ({},),
}


def _as_list(value: object) -> object:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return cast("list[object]", value)
    raise PydanticCustomError("stop_type", "a string or an array of strings")


def _bias_by_id(value: object) -> object:
    """OpenAI's `{"50256": -100}` with its keys as numbers. JSON can only spell them as texts."""
    if not isinstance(value, dict):
        raise PydanticCustomError("bias_type", "an object of token ids and biases")
    members = cast("dict[str, object]", value)
    wrong = [key for key in members if not _TOKEN_ID_KEY.fullmatch(key)]
    if wrong:
        raise PydanticCustomError(
            "bias_key", "an object whose keys are token ids, not '{key}'", {"key": wrong[0][:40]}
        )
    return {int(key): bias for key, bias in members.items()}


_TOKEN_ID_KEY = re.compile(r"0|[1-9][0-9]{0,9}")  # one spelling for each id

LogitBias = Annotated[
    dict[TokenId, Annotated[float, Field(ge=-100, le=100)]],
    Field(max_length=MAX_RULED_TOKEN_IDS),
    BeforeValidator(_bias_by_id),
]

StopStrings = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]],
    Field(max_length=MAX_STOP_STRINGS, fail_fast=True),
    BeforeValidator(_as_list),
]


# OpenAI's own bounds. They are kept from backends: policies may match them.
Tags = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
]


class StreamOptions(Body):
    """`stream_options`; without `stream` it means nothing and is accepted, as by OpenAI's SDK."""

    include_usage: bool = False
    # Accepted for load generators that send it; no backend knows the figures before the end.
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False  # accepted; this server pads nothing


class GenerationFields(Body):
    """The fields both dialects read."""

    temperature: Annotated[float, Field(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=-1, le=_MAX_INT32)] = 0  # 0 and -1: off
    min_p: Annotated[float, Field(ge=0, le=1)] = 0.0
    typical_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] = 1.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] = 0.0
    logit_bias: LogitBias = Field(default_factory=dict[int, float])
    allowed_token_ids: Annotated[list[TokenId], Field(max_length=MAX_RULED_TOKEN_IDS)] = Field(
        default_factory=list[int]
    )  # empty: all
    bad_words: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]],
        Field(max_length=MAX_BAD_WORDS),
    ] = Field(default_factory=list[str])
    min_tokens: Annotated[int, Field(ge=0, le=_MAX_INT32)] = 0
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    stop: StopStrings = Field(default_factory=list)
    stop_token_ids: Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS)] = Field(
        default_factory=list[int]
    )
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT_CHARS)] | None = None
    prompt_cache_key: Annotated[str, Field(max_length=MAX_CACHE_SALT_CHARS)] = ""
    metadata: Tags = Field(default_factory=dict[str, str])
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    use_beam_search: bool = False
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = 1.0
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()

    def sampling(
        self,
        *,
        drawn_seed: int,
        logprobs: bool = False,
        top_logprobs: int = 0,
        prompt_logprobs: int | None = None,
    ) -> SamplingParams:
        """The sampling params; a negative seed is folded to 64 bits, a missing one is the drawn."""
        return SamplingParams(
            temperature=self.temperature,
            top_k=max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            typical_p=self.typical_p,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias=tuple(self.logit_bias.items()),
            allowed_token_ids=tuple(self.allowed_token_ids),
            bad_words=tuple(self.bad_words),
            min_tokens=self.min_tokens,
            seed=drawn_seed if self.seed is None else self.seed % 2**64,
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            top_logprobs=top_logprobs,
            prompt_logprobs=prompt_logprobs,
        )


def check_min_tokens(min_tokens: int, max_tokens: int) -> None:
    """Raises:
    InvalidRequest: more tokens are wanted than may come.
    """
    if min_tokens > max_tokens:
        raise InvalidRequest(
            f"min_tokens must be at most max_tokens, which is {max_tokens}, got {min_tokens}.",
            param="min_tokens",
            code="integer_above_max_value",
        )


def check_prompt_logprobs(fields: GenerationFields) -> None:
    """Raises:
    InvalidRequest: they are to be streamed, for which vLLM has no shape.
    """
    if fields.prompt_logprobs is not None and fields.stream:
        raise InvalidRequest(
            "`prompt_logprobs` are not available when `stream=True`.", param="prompt_logprobs"
        )


def beams(fields: GenerationFields, width: int) -> BeamParams | None:
    """What is asked for, if beams are.

    Raises:
        InvalidRequest: it is asked for together with what only means something for drawn tokens or
            for streams, or the other way round.
    """
    if not fields.use_beam_search:
        if fields.length_penalty != 1.0:
            raise InvalidRequest(
                "length_penalty is for requests with `use_beam_search`; add that, or remove it.",
                param="length_penalty",
            )
        return None
    for name in _NOT_WITH_BEAMS:
        if name in fields.model_fields_set and getattr(fields, name) not in _NEUTRAL.get(
            name, (type(fields).model_fields[name].get_default(call_default_factory=True),)
        ):
            raise InvalidRequest(
                f"{name} cannot be combined with `use_beam_search`: nothing is drawn, and the best "
                "answers are known at the end only. Remove one of them.",
                param=name,
            )
    return BeamParams(width=width, length_penalty=fields.length_penalty)


_NEUTRAL: dict[str, tuple[object, ...]] = {"temperature": (0, 1), "top_k": (0, -1)}
_NOT_WITH_BEAMS = (
    "temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty",
    "frequency_penalty", "presence_penalty", "logit_bias", "allowed_token_ids", "bad_words", "stop",
    "prompt_logprobs", "stream",
)  # fmt: skip


def check_fan_out(num_prompts: int, num_each: int, *, param: str) -> None:
    """`param` is the field that asks for `num_each` choices of each prompt.

    Raises:
        InvalidRequest: together they are more than one request may ask for.
    """
    if num_prompts * num_each > MAX_CHOICES:
        most = MAX_CHOICES // num_prompts
        raise InvalidRequest(
            f"{param} must be at most {most} for {num_prompts} prompts, got {num_each}.",
            param=param,
            code="integer_above_max_value",
        )
