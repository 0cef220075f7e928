"""The values that cross the seam between gateway and backends: requests in, events out.

Everything is frozen and complete: a `GenerationRequest` cannot be built illegal, and no `None`
stands for "the default". Knows nothing of HTTP, JSON spellings, tenants' limits, tokenizers or
engines.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Role = Literal["system", "user", "assistant", "tool"]

UNLIMITED_TOKENS = 2**31 - 1
"""`max_tokens` of a client that asked for none: as many as the context holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a chat. Content parts have been joined; images never get this far."""

    role: Role
    content: str
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """Messages for a chat template; whoever owns the tokenizer applies it.

    With `continue_final_message` the last message is left open for the model to go on with, in
    place of a new turn.
    """

    messages: tuple[Message, ...]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    template_kwargs: tuple[tuple[str, str | int | float | bool], ...] = ()

    def __post_init__(self) -> None:
        if not self.messages:
            raise ValueError("messages must not be empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextPrompt:
    """Plain text; `add_special_tokens` lets the tokenizer put its BOS in front if it has that
    habit.

    `truncate` > 0 keeps only the last so many tokens (TGI's rule); 0 keeps all.
    """

    text: str
    add_special_tokens: bool = True
    truncate: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrompt:
    """Token ids, used as they are; the backend checks them against its vocabulary."""

    token_ids: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How tokens are chosen.

    Ranges are checked here, so no engine ever sees a value it cannot handle.
    """

    temperature: float = 1.0  # 0 means greedy
    top_k: int = 0  # 0 means off
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0  # over prompt and answer
    frequency_penalty: float = 0.0  # over the answer
    presence_penalty: float = 0.0  # over the answer
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, what is added)
    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    bad_words: tuple[str, ...] = ()  # none of these is generated, as it is or after a space
    min_tokens: int = 0  # neither the model nor a stop of the client's ends so many tokens
    seed: int = 0  # 64 bits, never absent: the dialect draws one when the client gave none
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: bool = False  # report the log-probability of each generated token
    top_logprobs: int = 0  # and of so many most likely alternatives
    prompt_logprobs: int | None = (
        None  # report those of the prompt's tokens, and of so many most likely; None: do not
    )

    def __post_init__(self) -> None:
        checks = (
            (0.0 <= self.temperature <= 100.0, "temperature must be in [0, 100]"),
            (self.top_k >= 0, "top_k must be 0 (off) or at least 1"),
            (0.0 < self.top_p <= 1.0, "top_p must be in (0, 1]"),
            (0.0 <= self.min_p <= 1.0, "min_p must be in [0, 1]"),
            (0.0 < self.typical_p <= 1.0, "typical_p must be in (0, 1]"),
            (0.0 < self.repetition_penalty <= 100.0, "repetition_penalty must be in (0, 100]"),
            (-2.0 <= self.frequency_penalty <= 2.0, "frequency_penalty must be in [-2, 2]"),
            (-2.0 <= self.presence_penalty <= 2.0, "presence_penalty must be in [-2, 2]"),
            (
                all(-100.0 <= bias <= 100.0 for _, bias in self.logit_bias),
                "logit_bias must be in [-100, 100]",
            ),
            ("" not in self.bad_words, "bad_words must not contain an empty string"),
            (self.min_tokens >= 0, "min_tokens must be at least 0"),
            (0 <= self.seed < 2**64, "seed must fit 64 bits"),
            (0 <= self.top_logprobs <= 20, "top_logprobs must be in [0, 20]"),
            (self.logprobs or not self.top_logprobs, "top_logprobs needs logprobs"),
            (0 <= (self.prompt_logprobs or 0) <= 20, "prompt_logprobs must be in [0, 20]"),
        )
        for holds, message in checks:
            if not holds:
                raise ValueError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamParams:
    """How many partial answers are kept, and how long ones compare with short ones."""

    width: int
    length_penalty: float = 1.0  # above 0 for longer answers, below for shorter ones

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError("width must be at least 1")
        if not -10.0 <= self.length_penalty <= 10.0:  # beyond, powers of long answers overflow
            raise ValueError("length_penalty must be in [-10, 10]")


class FinishReason(enum.Enum):
    """Why a choice ended. Dialects spell it their own way."""

    EOS = "eos"  # the model ended its turn
    STOP = "stop"  # a stop string or stop token id of the client
    LENGTH = "length"  # max_tokens, or the context is full
    DEADLINE = "deadline"  # the request's time was over: the answer is what had come until then


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceSoFar:
    """What the client has of one choice, from a backend that can give no more of it."""

    text: str = ""
    token_ids: tuple[int, ...] | None = ()  # all that were drawn; None: it did not say
    finish_reason: FinishReason | None = None  # set: the choice has ended, and stays as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """An answer that has begun elsewhere, to be gone on with."""

    choices: tuple[ChoiceSoFar, ...]
    vocabulary: str = ""  # what the ids mean, as `Resuming.vocabulary` has it; "" if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One request, ready to run: `len(prompts) * n` choices.

    Choice `i * n + j` is child j of prompt i.
    """

    request_id: str  # our own and unique; a client's id is only echoed
    model: str  # as the client wrote it; the policy resolves aliases and placeholders
    prompts: tuple[Prompt, ...]
    sampling: SamplingParams
    max_tokens: int = UNLIMITED_TOKENS  # 0: nothing is generated
    clamp_max_tokens: bool = True  # beyond the context: cut down (OpenAI) or refuse (TGI)
    n: int = 1
    stop: tuple[str, ...] = ()
    include_stop_str: bool = False
    beams: BeamParams | None = None  # the choices are the best a search finds, nothing is drawn
    stream: bool = False
    tenant: str = ""  # whose it is; no other tenant may share or time what is cached for it
    weight: float = 1.0  # of the tenant's share of the engine, against others that wait as well
    priority: int = 0  # who waits with a higher one goes first
    timeout_s: float = math.inf  # from `generate` on: what is not done by then ends as it stands
    cache_salt: str = ""  # the client's own: who sends another shares nothing with this request
    resume: Resumption | None = None  # only for backends that are `Resuming`, and can
    session: str = ""  # the client's name for requests that have much of their prompts in common
    tags: Mapping[str, str] = field(default_factory=dict[str, str])  # the client's own, for routing
    extra: Mapping[str, object] = field(
        default_factory=dict[str, object]
    )  # fields no dialect knows

    def __post_init__(self) -> None:
        if not self.prompts:
            raise ValueError("prompts must not be empty")
        if self.max_tokens < 0:
            raise ValueError("max_tokens must be at least 0")
        if self.sampling.min_tokens > self.max_tokens:
            raise ValueError("min_tokens must be at most max_tokens")
        if self.n < 1:
            raise ValueError("n must be at least 1")
        if self.beams is not None and not (self.n <= self.beams.width and self.max_tokens):
            raise ValueError("a beam search needs n of at most its width, and max_tokens")
        if self.resume is not None and len(self.resume.choices) != self.num_choices:
            raise ValueError("resume must have an entry for each choice")
        if "" in self.stop:
            raise ValueError("stop must not contain an empty string")
        if not 0.0 < self.weight < math.inf:
            raise ValueError("weight must be above 0 and finite")
        if not self.timeout_s > 0.0:
            raise ValueError("timeout_s must be above 0")

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One vocabulary entry with its raw log-probability (before temperature and filters)."""

    token_id: int
    text: str  # the entry decoded alone; a piece of a character shows as U+FFFD
    raw: bytes  # its exact bytes
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptToken:
    """One token of a prompt, with its raw log-probability given those before it."""

    token_id: int
    text: str  # as that of `TokenLogprob`
    raw: bytes
    start: int  # of its text in the prompt's, in characters
    logprob: float | None  # None: of the first nothing is known
    rank: int | None  # 1 is the likeliest; None: as above
    top_logprobs: tuple[TokenLogprob, ...] = ()  # most likely first


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLogprobs:
    """All tokens of one prompt, if asked for; comes before the first `Token` of its choices."""

    prompt: int  # of the request's prompts, from 0
    tokens: tuple[PromptToken, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One generated token of one choice, in generation order.

    `text` is what the answer grows by: complete code points only, nothing a stop string might still
    take back, nothing for special tokens. It may be empty. The last token of a choice, and only
    that, carries `finish_reason`; a choice whose time was over has no such token.
    """

    index: int
    text: str
    token_id: int | None = None  # None: the upstream does not say
    special: bool = False
    logprob: TokenLogprob | None = None  # set when asked for
    top_logprobs: tuple[TokenLogprob, ...] = ()  # most likely first
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Exact counts over all choices, unless `estimated`.

    Prompt tokens count once per prompt, not per choice.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end of a request: the finish reason of every choice in order, and the usage.

    `tails` has what was held back of each choice's text when its time was over; empty if nothing
    was. A choice without tokens has no tail.
    """

    reasons: tuple[FinishReason, ...]
    usage: Usage
    tails: tuple[str, ...] = ()
    queue_s: float = (
        0.0  # from submission until the step that computed the first prompt token began
    )


Event = PromptLogprobs | Token | Finished


def child_seed(seed: int, index: int) -> int:
    """The seed of choice `index` of several: `index` steps on in SplitMix64 from `seed`.

    A choice alone keeps the seed itself. Source: Steele, Lea and Flood, Fast splittable
    pseudorandom number generators, OOPSLA 2014.
    """
    mask = 2**64 - 1
    mixed = (seed + (index + 1) * 0x9E3779B97F4A7C15) & mask
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & mask
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & mask
    return mixed ^ (mixed >> 31)
