"""What a FastChat worker is sent and answers with: generate params, frames, error codes.

A frame is a JSON object and a NUL byte. Errors are frames as well, with a number in place of an
HTTP status. Pure: knows no engine, no socket and no clock; what is in a frame, `worker_frames` has.

Source: FastChat 0.2.36, `serve/inference.py`, `serve/base_model_worker.py` and `constants.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from backends.errors import (
    BackendError,
    BackendOverloaded,
    BackendRejected,
    BackendTimeout,
    BackendUnavailable,
    DeadlineExceeded,
    PromptTooLong,
)
from backends.static_batch.fastchat.error_codes import ErrorCode
from backends.types import UNLIMITED_TOKENS, GenerationRequest, SamplingParams, TextPrompt

BODY_LIMIT_BYTES = 2_000_000
"""As of the gateway."""

MAX_LOGPROBS = 20
GREEDY_TEMPERATURE, GREEDY_TOP_P = 1e-5, 1e-8
"""Below one of these nothing is drawn: the likeliest token is taken."""

Frame = dict[str, object]


class WorkerError(Exception):
    """A request that the worker itself refuses."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


_CODES: tuple[tuple[type[BackendError], ErrorCode], ...] = (  # the first that fits
    (PromptTooLong, ErrorCode.CONTEXT_OVERFLOW),
    (BackendRejected, ErrorCode.PARAM_OUT_OF_RANGE),
    (BackendOverloaded, ErrorCode.ENGINE_OVERLOADED),
    (BackendUnavailable, ErrorCode.NO_WORKER),
    (BackendTimeout, ErrorCode.WORKER_TIMEOUT),
    (DeadlineExceeded, ErrorCode.WORKER_TIMEOUT),
)


def error_frame(error: WorkerError | BackendError) -> Frame:
    """An error as FastChat's clients read it."""
    if isinstance(error, WorkerError):
        code = error.code
    else:
        fitting = (code for kind, code in _CODES if isinstance(error, kind))
        code = next(fitting, ErrorCode.INTERNAL_ERROR)
    return {"text": error.message, "error_code": code.value}


def encode_frame(frame: Frame) -> bytes:
    """One frame of a stream. A NUL inside a text is escaped, so that the last byte is the only."""
    return encode_json(frame) + b"\0"


encode_json = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateParams:
    """FastChat's generate params, checked and complete."""

    model: str  # empty: the client named none
    prompt: str
    sampling: SamplingParams
    max_new_tokens: int
    stop: tuple[str, ...]
    echo: bool  # the prompt's text comes in front of the answer's
    logprobs: int | None  # so many of the likeliest beside each token; None: no log-probabilities
    unknown: tuple[str, ...]  # names of fields that nothing reads

    def request(
        self, request_id: str, *, truncate: int, wants_the_rest: bool = False
    ) -> GenerationRequest:
        """The same for a backend. truncate: keep so many of the prompt's last tokens; 0: all.
        wants_the_rest: `max_new_tokens` is all that is left of the context.

        That is what FastChat's API server asks for if its client asked for nothing: a backend that
        gives less for one answer is to give that, then.
        """
        return GenerationRequest(
            request_id=request_id,
            model=self.model,
            prompts=(TextPrompt(text=self.prompt, truncate=truncate),),
            sampling=self.sampling,
            max_tokens=UNLIMITED_TOKENS if wants_the_rest else self.max_new_tokens,
            clamp_max_tokens=False,
            stop=self.stop,
        )


class _GenerateBody(msgspec.Struct, frozen=True, kw_only=True):
    """The fields as they come; null is as good as absent, but for `echo`."""

    prompt: str
    model: str | None = None
    temperature: float | None = None
    repetition_penalty: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_new_tokens: int | None = None
    logprobs: int | None = None
    echo: bool | None = True  # null is false, as in FastChat
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    # what nothing here does, refused if it asks for anything
    best_of: int | None = None
    use_beam_search: bool | None = None
    images: list[object] | None = None


class CountBody(msgspec.Struct, frozen=True, kw_only=True):
    """What `/count_token` is sent."""

    prompt: str
    model: str | None = None


Body = TypeVar("Body", bound=msgspec.Struct)


def read_body(kind: type[Body], body: bytes) -> Body:
    """Raises: WorkerError: it is no JSON object of this kind; names the field."""
    return _convert(kind, _document(body))


def read_generate_params(body: bytes, *, draw_seed: Callable[[], int]) -> GenerateParams:
    """Parse and check. draw_seed: gives 64 bits, for a request that brings no seed.

    Raises:
        WorkerError: 40001 for what is no such object, 40302 for a value out of range.
    """
    document = _document(body)
    sent = _convert(_GenerateBody, document)
    _refuse_unbuilt(sent)
    logprobs, max_new_tokens = sent.logprobs, _or(sent.max_new_tokens, 256)
    if logprobs is not None and not 0 <= logprobs <= MAX_LOGPROBS:
        raise _out_of_range(f"logprobs must be in [0, {MAX_LOGPROBS}], got {logprobs}")
    if max_new_tokens < 0:
        raise _out_of_range(f"max_new_tokens must be at least 0, got {max_new_tokens}")
    stop = (sent.stop,) if isinstance(sent.stop, str) else tuple(sent.stop or ())
    echo = bool(sent.echo)
    return GenerateParams(
        model=sent.model or "",
        prompt=sent.prompt,
        sampling=_sampling(sent, echo=echo, draw_seed=draw_seed),
        max_new_tokens=max_new_tokens,
        stop=tuple(one for one in stop if one),  # an empty one stops nothing, as in FastChat
        echo=echo,
        logprobs=logprobs,
        unknown=tuple(name for name in document if name not in _GenerateBody.__struct_fields__),
    )


def _sampling(sent: _GenerateBody, *, echo: bool, draw_seed: Callable[[], int]) -> SamplingParams:
    temperature, top_p = _or(sent.temperature, 1.0), _or(sent.top_p, 1.0)
    is_greedy = 0.0 <= temperature < GREEDY_TEMPERATURE or 0.0 <= top_p < GREEDY_TOP_P
    asks_logprobs = sent.logprobs is not None
    try:
        return SamplingParams(
            temperature=0.0 if is_greedy else temperature,
            top_p=1.0 if is_greedy else top_p,
            top_k=max(_or(sent.top_k, -1), 0),
            repetition_penalty=_or(sent.repetition_penalty, 1.0),
            presence_penalty=_or(sent.presence_penalty, 0.0),
            frequency_penalty=_or(sent.frequency_penalty, 0.0),
            seed=draw_seed() if sent.seed is None else sent.seed,
            stop_token_ids=tuple(sent.stop_token_ids or ()),
            logprobs=asks_logprobs,
            top_logprobs=sent.logprobs or 0,
            prompt_logprobs=sent.logprobs if echo else None,
        )
    except ValueError as error:
        raise _out_of_range(str(error)) from None


def _refuse_unbuilt(sent: _GenerateBody) -> None:
    """What FastChat's workers for other engines do, or drop in silence. Raises WorkerError."""
    asks = {
        "best_of": _or(sent.best_of, 1) != 1,
        "use_beam_search": bool(sent.use_beam_search),
        "images": bool(sent.images),
    }
    for name, asks_for_it in asks.items():
        if asks_for_it:
            raise _out_of_range(f"this worker has no {name}; leave it out")


def _document(body: bytes) -> dict[str, object]:
    if len(body) > BODY_LIMIT_BYTES:
        raise WorkerError(
            ErrorCode.VALIDATION_TYPE_ERROR,
            f"the body is larger than {BODY_LIMIT_BYTES} bytes; send a smaller one",
        )
    try:
        return msgspec.json.decode(body, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise WorkerError(
            ErrorCode.VALIDATION_TYPE_ERROR, f"send one JSON object as the body: {error}"
        ) from None


def _convert(kind: type[Body], document: dict[str, object]) -> Body:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise WorkerError(ErrorCode.VALIDATION_TYPE_ERROR, str(error)) from None


def _out_of_range(message: str) -> WorkerError:
    return WorkerError(ErrorCode.PARAM_OUT_OF_RANGE, message)


Value = TypeVar("Value")


def _or(value: Value | None, default: Value) -> Value:
    return default if value is None else value


def num_kept(prompt_tokens: int, max_new_tokens: int, context_length: int) -> int:
    """How many of the prompt's last tokens are kept.

    All, if the answer fits behind them. If not, the context less the answer less one: FastChat's
    rule, which we follow only where something has to go.

    Raises:
        WorkerError: the answer alone fills the context.
    """
    if prompt_tokens + max_new_tokens <= context_length:
        return prompt_tokens
    kept = context_length - max_new_tokens - 1
    if kept < 1:
        raise WorkerError(
            ErrorCode.CONTEXT_OVERFLOW,
            f"max_new_tokens is {max_new_tokens}, which leaves no room for the prompt in a context "
            f"of {context_length} tokens; ask for at most {context_length - 2}",
        )
    return kept
