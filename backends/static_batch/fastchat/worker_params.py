"""A request in the words of FastChat's workers, and what they have no words for.

Nothing is left out in silence: a field that changes the answer and has no place in the protocol is
refused by name. Sampling params that have one are sent to every worker; which of FastChat's own
heed which is in `docs/fastchat.md`. A seed is sent as well: Turnout's workers take it, FastChat's
draw from one generator for all requests. Source: FastChat 0.2.36. Knows no connections.
"""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from backends.errors import UnsupportedFeature
from backends.types import (
    GenerationRequest,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
    child_seed,
)

DEFAULT_MAX_NEW_TOKENS = 256
"""What a worker takes if none is said, as when neither client nor worker knows a limit."""


def check_supported(request: GenerationRequest, name: str) -> None:
    """Raises: UnsupportedFeature: the first field that workers cannot heed; `name` is a backend."""
    for prompt in request.prompts:
        if isinstance(prompt, TokenPrompt):
            raise _refusal(name, "token ids as a prompt", "prompt", "send text")
        if isinstance(prompt, TextPrompt) and prompt.truncate:
            raise _refusal(name, "truncate", "truncate", "remove it")
        if isinstance(prompt, TextPrompt) and not prompt.add_special_tokens:
            raise _refusal(name, "add_special_tokens: false", "add_special_tokens", "remove it")
    for param, is_asked in _unheard_of(request):
        if is_asked:
            raise _refusal(name, param, param, "remove it")


def worker_params(
    request: GenerationRequest,
    prompt: str,
    *,
    model: str,
    choice: int,
    max_new_tokens: int,
    stop: tuple[str, ...],
    stop_token_ids: tuple[int, ...],
) -> bytes:
    """The body of `/worker_generate_stream` for one choice, as JSON.

    model: as workers call it. stop, stop_token_ids: the template's; the client's ids are added.
    """
    sampling = request.sampling
    seed = sampling.seed if request.num_choices == 1 else child_seed(sampling.seed, choice)
    return orjson.dumps(
        {
            "model": model,
            "prompt": prompt,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k or -1,
            "repetition_penalty": sampling.repetition_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "presence_penalty": sampling.presence_penalty,
            "max_new_tokens": max_new_tokens,
            "stop": stop,
            "stop_token_ids": tuple(dict.fromkeys((*stop_token_ids, *sampling.stop_token_ids))),
            "echo": False,
            "seed": seed,
        }
    )


def _unheard_of(request: GenerationRequest) -> Iterator[tuple[str, bool]]:
    """Fields that the protocol lacks, and whether they are asked for."""
    sampling, plain = request.sampling, SamplingParams()
    for param in (
        "logprobs",
        "prompt_logprobs",
        "logit_bias",
        "allowed_token_ids",
        "bad_words",
        "min_tokens",
        "ignore_eos",
        "min_p",
        "typical_p",
    ):
        yield param, getattr(sampling, param) != getattr(plain, param)
    yield "use_beam_search", request.beams is not None


def _refusal(name: str, what: str, param: str, remedy: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"the backend {name} (fastchat) cannot do {what}: FastChat's workers have no such "
        f"parameter; {remedy}",
        param=param,
    )
