"""What OpenAI's own client makes of an error: its exception, what it sent again, how long it waits.

The client's sleep is openai's, not ours, and is replaced by a recorder, so that nobody waits. What
it waited for, and every answer that came over the wire, is kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI

MAX_RETRIES = 2  # openai's own default

Ask = Callable[[OpenAI], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One call that failed."""

    error: openai.APIStatusError
    answers: list[httpx2.Response]  # one for each request that the client sent
    waits_s: list[float]

    @property
    def headers(self) -> httpx2.Headers:
        """Those of the last answer."""
        return self.answers[-1].headers

    @property
    def body(self) -> dict[str, Any]:
        """The whole last body, as it came."""
        document = json.loads(self.answers[-1].content)
        assert isinstance(document, dict)
        return document

    @property
    def waits_asked_for_s(self) -> list[float]:
        """What our headers asked the client to wait before each of its retries."""
        return [int(one.headers["retry-after-ms"]) / 1000 for one in self.answers[:-1]]


def refusal(base_url: str, key: str, ask: Ask) -> Refusal:
    """Ask as a client with openai's defaults does, and be refused."""
    answers: list[httpx2.Response] = []
    waits_s: list[float] = []

    def keep(answer: httpx2.Response) -> None:
        answer.read()
        answers.append(answer)

    with (
        httpx2.Client(trust_env=False, event_hooks={"response": [keep]}) as transport,
        OpenAI(base_url=f"{base_url}/v1", api_key=key, http_client=transport) as client,
        pytest.MonkeyPatch.context() as patch,
    ):
        assert client.max_retries == MAX_RETRIES
        patch.setattr("openai._base_client.time.sleep", waits_s.append)
        with pytest.raises(openai.APIStatusError) as caught:
            ask(client)
    return Refusal(error=caught.value, answers=answers, waits_s=waits_s)
