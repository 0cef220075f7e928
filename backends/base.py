"""The backend protocol: the one seam between the gateway and whatever makes tokens.

The event contract of `generate`: zero or more `Token`, the last of each choice with its finish
reason, then exactly one `Finished`; or a `BackendError` is raised and nothing follows. When
`timeout_s` is over, choices that have not ended do so without another token; if there has been none
at all, `DeadlineExceeded` is raised. Tokens of one choice come in generation order; choices may
interleave. If asked for, one `PromptLogprobs` of each prompt comes before the tokens of its
choices. Nothing is yielded before the backend has accepted the request. **Closing the generator is
the abort** and reaches the engine in under 100
ms; whoever iterates it therefore owns it with `contextlib.aclosing`.

Knows nothing of HTTP, tenants or policies.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from backends.types import Event, GenerationRequest, Prompt
from native_engine.batch_stats import SECONDS_EDGES, SIZE_EDGES, BatchStats, Distribution

__all__ = [
    "SECONDS_EDGES",
    "SIZE_EDGES",
    "Backend",
    "BackendState",
    "BackendStatus",
    "BatchStats",
    "Distribution",
    "EncodedToken",
    "Resuming",
    "Tokenizing",
]


class BackendState(enum.Enum):
    """Whether a backend can be sent work: now, in a moment, or not."""

    READY = "ready"
    STARTING = (
        "starting"  # loading, or restarting after a crash: a request waits a bounded time for it
    )
    DOWN = "down"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendStatus:
    """What a backend says of itself, without I/O of its own: the last it heard from its engine."""

    state: BackendState
    detail: str = ""  # why it is not ready, for a human
    model_id: str = ""  # the model's own name
    max_model_len: int = 0  # tokens of context; 0 when unknown
    max_concurrent_requests: int = 0
    num_running: int = 0
    num_waiting: int = 0
    kv_blocks_total: int = 0
    kv_blocks_free: int = 0
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    prefix_cache_queries: int = 0  # prompt tokens looked for in the prefix cache
    prefix_cache_hits: int = 0  # and found
    num_draft_tokens: int = 0  # guessed ahead and verified
    num_accepted_tokens: int = 0  # and found right
    batches: BatchStats | None = None  # of an engine that batches by TGI's rule
    engine: str = ""  # one line for a human: kind, dtype, device, determinism
    deterministic: bool = False  # the same request yields the same tokens; false if unknown


class Backend(Protocol):
    """Where tokens come from. Created once, used concurrently, closed once."""

    @property
    def name(self) -> str: ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Event, None]:
        """Run one request. See the event contract above.

        Raises:
            BackendError: a subclass says whether another attempt may help.
        """
        ...

    async def status(self) -> BackendStatus:
        """Never raises and never waits for the engine."""
        ...

    async def aclose(self) -> None:
        """End every request with an error and free what the backend holds. Idempotent."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedToken:
    """One token of a tokenized text; `start` and `stop` are character offsets into it."""

    token_id: int
    text: str
    start: int
    stop: int


@runtime_checkable
class Tokenizing(Protocol):
    """What a backend with its own tokenizer can do besides.

    Exact counts before admission, and `/tokenize`.
    """

    async def count_tokens(self, prompts: tuple[Prompt, ...]) -> int:
        """Exact number of prompt tokens, templates applied.

        Raises:
            BackendRejected: the prompt cannot be encoded (template error, token id out of range,
            nothing to encode).
        """
        ...

    async def encode(self, prompt: Prompt) -> tuple[EncodedToken, ...]:
        """The tokens themselves. Raises as `count_tokens`."""
        ...


@runtime_checkable
class Resuming(Protocol):
    """What a backend can do that is able to go on with an answer that another has begun.

    It then yields what comes after `GenerationRequest.resume`, nothing of it again, and its
    `Finished` is that of the whole answer: all choices' reasons, all tokens' usage.
    """

    @property
    def vocabulary(self) -> str:
        """A name for what its token ids mean: equal names, equal ids. "" if it does not know."""
        ...

    def can_resume(self, request: GenerationRequest) -> bool:
        """Whether it would go on with `request.resume`. Says nothing of whether it is up."""
        ...
