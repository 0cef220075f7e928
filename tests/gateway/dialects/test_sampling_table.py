"""`docs/sampling.md` and the dialects agree, edge by edge."""

from __future__ import annotations

import pytest

from gateway.dialects.base import Dialect
from gateway.dialects.openai_chat import OpenAIChat
from gateway.dialects.openai_completions import OpenAICompletions
from gateway.dialects.tgi import Tgi, TgiRoute
from gateway.errors import InvalidRequest
from tests.gateway.dialects.events import STAMP, body, chat_body

OPENAI = {
    "temperature": ([0, 0.0, 1e-9, 2.0], [-0.1, 2.1]),
    "top_p": ([1.0, 0.999, None], [0, 1.001]),
    "top_k": ([0, -1, 1, None], [-2]),
    "min_p": ([0, 1], [-0.1, 1.1]),
    "typical_p": ([1.0, 0.5], [0, 1.1]),
    "repetition_penalty": ([1.0, 0.01, 100], [0, 100.1]),
    "frequency_penalty": ([-2, 2], [-2.1, 2.1]),
    "presence_penalty": ([-2, 2], [-2.1, 2.1]),
    "logit_bias": ([{"0": -100, "1": 100}], [{"0": 100.1}]),
    "allowed_token_ids": ([[], [0]], [[-1]]),
    "bad_words": ([[], ["a"]], [[""]]),
    "min_tokens": ([0, 7], [-1, 8]),
    "stop_token_ids": ([[], [1] * 128], [[1] * 129]),
    "n": ([1, 128, None], [0, 129]),
    "seed": ([-(2**63), 2**63 - 1], [2**63]),
}
TGI = {
    "temperature": ([1e-9, 2.0, 100, None], [0, 0.0, -1, 100.1]),
    "top_p": ([0.999, None], [1.0, 0]),
    "top_k": ([1, None], [0, -1]),
    "typical_p": ([0.999, None], [1.0, 0]),
    "repetition_penalty": ([1.0, 0.01, 100], [0, 100.1]),
    "frequency_penalty": ([-2, 2], [-2.1, 2.1]),
    "best_of": ([1, 2, None], [0, 3]),
    "seed": ([0, 2**64 - 1], [-1, 2**64]),
}
CHAT, COMPLETIONS, GENERATE = OpenAIChat(), OpenAICompletions(), Tgi(TgiRoute.GENERATE)


def parse(dialect: Dialect, name: str, value: object) -> None:
    if dialect is CHAT:
        made = chat_body(max_tokens=7, **{name: value})
    elif dialect is COMPLETIONS:
        made = body(prompt="a", max_tokens=7, **{name: value})
    else:
        made = body(inputs="a", parameters={"do_sample": True, name: value})
    dialect.parse(made, STAMP)


@pytest.mark.parametrize(
    ("dialect", "name", "accepted", "refused"),
    [
        *((CHAT, name, *values) for name, values in OPENAI.items()),
        *((COMPLETIONS, name, *values) for name, values in OPENAI.items()),
        *((GENERATE, name, *values) for name, values in TGI.items()),
    ],
)
def test_edges_are_where_the_document_says(
    dialect: Dialect, name: str, accepted: list[object], refused: list[object]
) -> None:
    """G-PARAM-EDGE, I-SAMPLING-RANGE."""
    for value in accepted:
        parse(dialect, name, value)
    for value in refused:
        with pytest.raises(InvalidRequest) as caught:
            parse(dialect, name, value)
        assert name in (caught.value.param or "")
