"""text-generation-inference's native wire: `POST /generate`, `/generate_stream` and `/`.

Streams: an event for each token from `index` 1, special ones with their own text; the last carries
the whole text and the details. No `[DONE]`. A stop sequence stays at the end of the text, unlike
OpenAI's. Joined texts of tokens that are not special are the generated text.

Source: TGI's OpenAPI document, v3.3. Knows nothing of tenants' limits and backends.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson

from backends.types import (
    UNLIMITED_TOKENS,
    Event,
    GenerationRequest,
    SamplingParams,
    TextPrompt,
    child_seed,
)
from gateway.dialects.base import Reply, Stamp, Timings
from gateway.dialects.fields import Document, read_object, validate
from gateway.dialects.gather import best_first, gather, gather_prompts
from gateway.dialects.tgi_answer import TgiStream, WholeSequence, timing_headers, whole_details
from gateway.dialects.tgi_errors import tgi_error_reply
from gateway.dialects.tgi_fields import GenerateBody, Parameters, check, extra_fields
from gateway.errors import GatewayError


class TgiRoute(enum.Enum):
    """The three doors to the same generation."""

    GENERATE = "generate"  # an object
    GENERATE_STREAM = "generate_stream"  # a stream
    ROOT = "root"  # as `stream` in the body says: a stream, or a list of one object


class Tgi:
    """The dialect, on one of its routes.

    `compute_type` is the `x-compute-type` header: what the operator runs on.
    """

    name = "generate"

    def __init__(self, route: TgiRoute, *, compute_type: str = "cpu") -> None:
        self._route = route
        self._compute_type = compute_type

    def parse(self, body: bytes, stamp: Stamp) -> TgiExchange:
        """See `Dialect.parse`."""
        document = read_object(body)
        fields = validate(GenerateBody, document)
        streaming = self._route is TgiRoute.GENERATE_STREAM or (
            self._route is TgiRoute.ROOT and fields.stream
        )
        check(fields, document, streaming=streaming)
        parameters = fields.parameters
        full_text = parameters.return_full_text
        if full_text is None:
            full_text = self._route is TgiRoute.ROOT
        return TgiExchange(
            request=_request(fields, document, stamp, streaming=streaming),
            inputs=fields.inputs,
            prefix=fields.inputs if full_text else "",
            details=parameters.has_details,
            seed=_seed(parameters, stamp.seed) if parameters.is_sampling else None,
            as_list=self._route is TgiRoute.ROOT,
            compute_type=self._compute_type,
        )

    def error(self, error: GatewayError) -> Reply:
        """See `Dialect.error`."""
        return tgi_error_reply(error)


def _request(
    fields: GenerateBody, document: Document, stamp: Stamp, *, streaming: bool
) -> GenerationRequest:
    parameters = fields.parameters
    return GenerationRequest(
        request_id=stamp.request_id,
        model="",  # this wire has none: the default
        prompts=(TextPrompt(text=fields.inputs, truncate=parameters.truncate or 0),),
        sampling=_sampling(parameters, stamp.seed, streaming=streaming),
        max_tokens=min(parameters.max_new_tokens or UNLIMITED_TOKENS, UNLIMITED_TOKENS),
        clamp_max_tokens=parameters.max_new_tokens is None,
        n=parameters.num_sequences,
        stop=tuple(parameters.stop),
        include_stop_str=True,
        stream=streaming,
        extra=extra_fields(document),
    )


def _sampling(parameters: Parameters, drawn_seed: int, *, streaming: bool) -> SamplingParams:
    # Every token that is told of has one, and the best of several sequences is found by them.
    needs_logprobs = streaming or parameters.has_details or parameters.num_sequences > 1
    temperature = 1.0 if parameters.temperature is None else parameters.temperature
    return SamplingParams(
        temperature=temperature if parameters.is_sampling else 0.0,
        top_k=parameters.top_k or 0,
        top_p=parameters.top_p or 1.0,
        typical_p=parameters.typical_p or 1.0,
        repetition_penalty=parameters.repetition_penalty or 1.0,
        frequency_penalty=parameters.frequency_penalty or 0.0,
        seed=_seed(parameters, drawn_seed),
        logprobs=needs_logprobs,
        top_logprobs=parameters.top_n_tokens if needs_logprobs else 0,
        prompt_logprobs=0 if parameters.decoder_input_details else None,
    )


def _seed(parameters: Parameters, drawn_seed: int) -> int:
    return drawn_seed if parameters.seed is None else parameters.seed


@dataclass(frozen=True, slots=True, kw_only=True)
class TgiExchange:
    """One request. `prefix` goes before the generated text; `seed` is null unless it was used."""

    request: GenerationRequest
    inputs: str
    prefix: str
    details: bool
    seed: int | None
    as_list: bool
    compute_type: str

    @property
    def stream_headers(self) -> tuple[tuple[str, str], ...]:
        """See `Exchange.stream_headers`."""
        return (
            ("x-compute-type", self.compute_type),
            ("x-compute-characters", str(len(self.inputs))),
        )

    def stream(self, model: str) -> TgiStream:
        """See `Exchange.stream`. TGI's wire does not name the model."""
        return TgiStream(prefix=self.prefix, details=self.details, seed=self.seed)

    def collect(self, model: str, events: Sequence[Event], timings: Timings) -> Reply:
        """See `Exchange.collect`."""
        choices, finished = gather(events, self.request.n)
        best, *others = [
            WholeSequence(
                text=self.prefix + "".join(token.text for token in choices[index]),
                tokens=choices[index],
                reason=finished.reasons[index],
                seed=self._seed_of(index),
            )
            for index in best_first(choices)
        ]
        answer: dict[str, object] = {"generated_text": best.text}
        if self.details:
            answer["details"] = whole_details(
                best,
                others,
                prompt_tokens=finished.usage.prompt_tokens,
                prefill=gather_prompts(events).get(0, ()),
                with_top_tokens=self.request.sampling.top_logprobs > 0,
            )
        usage = replace(finished.usage, completion_tokens=len(best.tokens))
        return Reply(
            body=orjson.dumps([answer] if self.as_list else answer),
            headers=self.stream_headers + timing_headers(timings, usage),
        )

    def _seed_of(self, index: int) -> int | None:
        """The seed that gives the sequence when it is sent alone."""
        if self.seed is None or self.request.n == 1:
            return self.seed
        return child_seed(self.seed, index)
