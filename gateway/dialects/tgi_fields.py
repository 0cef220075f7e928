"""The request of text-generation-inference v3.3 (frozen), and its checks in its own words.

First the types (TGI's deserializer), then the values in TGI's order, each with TGI's message: its
clients' tests compare them. What TGI had and this server has not is let through when it asks for
nothing. Knows nothing of answers.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.dialects.fields import (
    Body,
    Document,
    Unbuilt,
    nested_object,
    refuse_unbuilt,
    unknown_fields,
)
from gateway.errors import InvalidRequest

MAX_BEST_OF = 2
MAX_STOP_SEQUENCES = 4
MAX_STOP_CHARS = 1024
MAX_TOP_N_TOKENS = 5

_U32 = Annotated[int, Field(ge=0, le=2**32 - 1)]
_U64 = Annotated[int, Field(ge=0, le=2**64 - 1)]
_I32 = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]

_UNBUILT: Unbuilt = {
    "watermark": (False,),
    "grammar": (),
    "adapter_id": (),
}


class Parameters(Body):
    """`parameters`. Their defaults are null where TGI tells "unset" from a value."""

    best_of: _U32 | None = None
    temperature: Annotated[float, Field(le=100)] | None = None
    repetition_penalty: Annotated[float, Field(le=100)] | None = None
    frequency_penalty: float | None = None
    top_k: _I32 | None = None
    top_p: float | None = None
    typical_p: float | None = None
    do_sample: bool = False
    max_new_tokens: _U32 | None = None  # null: as many as the context holds
    return_full_text: bool | None = None  # null: the route decides
    stop: list[str] = Field(default_factory=list)
    truncate: _U32 | None = None
    watermark: bool = False
    details: bool = False
    decoder_input_details: bool = False
    seed: _U64 | None = None
    top_n_tokens: _U32 = 0
    grammar: object = None
    adapter_id: str | None = None

    @property
    def num_sequences(self) -> int:
        """How many are generated, of which the best is the answer."""
        return 1 if self.best_of is None else self.best_of

    @property
    def has_details(self) -> bool:
        """Whether the answer tells of its tokens."""
        return self.details or self.decoder_input_details

    @property
    def is_sampling(self) -> bool:
        """Whether tokens are drawn; otherwise the likeliest is taken."""
        given = (self.temperature, self.top_k, self.top_p, self.typical_p)
        return self.do_sample or any(value is not None for value in given)


class GenerateBody(Body):
    """The body of `/generate`, `/generate_stream` and `/`.

    TGI draws tokens when `parameters` are absent altogether, and takes the likeliest when they are
    there and say nothing.
    """

    inputs: str
    parameters: Parameters = Parameters(do_sample=True)
    stream: bool = False  # heard on `/` only


def check(body: GenerateBody, document: Document, *, streaming: bool) -> None:
    """Hold the values against TGI's rules, in TGI's order.

    Raises:
        InvalidRequest: TGI's message, without its prefix.
    """
    parameters = body.parameters
    for breaks, message, param in (
        *(_stream_rules(parameters) if streaming else ()),
        *_sampling_rules(parameters),
        *_length_rules(parameters),
        (not body.inputs, "`inputs` cannot be empty", "inputs"),
    ):
        if breaks:
            raise InvalidRequest(message, param=param)
    refuse_unbuilt(nested_object(document, "parameters"), _UNBUILT, where="parameters.")


def extra_fields(document: Document) -> Document:
    """What TGI would ignore, of the body and of its parameters."""
    inner = nested_object(document, "parameters")
    return unknown_fields(document, GenerateBody) | unknown_fields(inner, Parameters)


_Rules = tuple[tuple[bool, str, str], ...]


def _stream_rules(parameters: Parameters) -> _Rules:
    return (
        (
            parameters.best_of not in (None, 1),
            "`best_of` != 1 is not supported when streaming tokens",
            "best_of",
        ),
        (
            parameters.decoder_input_details,
            "`decoder_input_details` == true is not supported when streaming tokens",
            "decoder_input_details",
        ),
    )


def _sampling_rules(p: Parameters) -> _Rules:
    return (
        (
            p.best_of is not None and not 1 <= p.best_of <= MAX_BEST_OF,
            f"`best_of` must be > 0 and <= {MAX_BEST_OF}. Given: {p.best_of}",
            "best_of",
        ),
        (
            p.num_sequences > 1 and not p.is_sampling,
            "you must use sampling when `best_of` is > 1",
            "best_of",
        ),
        (_le_zero(p.temperature), "`temperature` must be strictly positive", "temperature"),
        (
            _le_zero(p.repetition_penalty),
            "`repetition_penalty` must be strictly positive",
            "repetition_penalty",
        ),
        (
            not -2.0 <= (p.frequency_penalty or 0.0) <= 2.0,
            "`frequency_penalty` must be >= -2.0 and <= 2.0",
            "frequency_penalty",
        ),
        (_outside_unit(p.top_p), "`top_p` must be > 0.0 and < 1.0", "top_p"),
        (_outside_unit(p.typical_p), "`typical_p` must be > 0.0 and < 1.0", "typical_p"),
        (_le_zero(p.top_k), "`top_k` must be strictly positive", "top_k"),
    )


def _length_rules(p: Parameters) -> _Rules:
    return (
        (
            p.max_new_tokens == 0,
            "`max_new_tokens` must be strictly positive",
            "max_new_tokens",
        ),
        (
            len(p.stop) > MAX_STOP_SEQUENCES,
            f"`stop` supports up to {MAX_STOP_SEQUENCES} stop sequences. Given: {len(p.stop)}",
            "stop",
        ),
        (
            not all(0 < len(stop) <= MAX_STOP_CHARS for stop in p.stop),
            f"`stop` sequences must have 1 to {MAX_STOP_CHARS} characters",
            "stop",
        ),
        (
            p.num_sequences > 1 and p.seed is not None,
            "`seed` must not be set when `best_of` > 1",
            "seed",
        ),
        (
            p.top_n_tokens > MAX_TOP_N_TOKENS,
            f"`top_n_tokens` must be >= 0 and <= {MAX_TOP_N_TOKENS}. Given: {p.top_n_tokens}",
            "top_n_tokens",
        ),
        (
            p.truncate == 0,
            "`truncate` must be strictly positive and less than the model's context. Given: 0",
            "truncate",
        ),
    )


def _le_zero(value: float | None) -> bool:
    return value is not None and value <= 0


def _outside_unit(value: float | None) -> bool:
    return value is not None and not 0.0 < value < 1.0
