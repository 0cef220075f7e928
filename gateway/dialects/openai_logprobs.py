"""Log-probabilities as OpenAI's completions and vLLM's extension write them.

Completions: parallel lists, of the prompt too if it is echoed, with null for the first token, of
which nothing is known. `text_offset` counts characters of the choice's text from 0. vLLM's
`prompt_logprobs`: a list of objects by token id, and null for the first. Knows no requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from backends.types import PromptToken, Token
from gateway.dialects.gather import finite

_Entry = dict[str, object]


class LogprobLists:
    """The `logprobs` object of one choice, in parallel lists, taken out piece by piece."""

    def __init__(self, top_logprobs: int) -> None:
        """`top_logprobs` of the likeliest are shown beside each token."""
        self._top_logprobs = top_logprobs
        self._num_chars = 0  # of the text before the next token
        self._lists = _empty_lists()

    def add_prompt(self, text: str, tokens: Sequence[PromptToken]) -> None:
        """Report a prompt, whose `text` the choice begins with. Before any `add`."""
        self._num_chars = len(text)
        for token in tokens:
            top: dict[str, float] | None = None
            if token.logprob is not None:
                shown = token.top_logprobs[: self._top_logprobs]
                top = _top(
                    [*((one.text, one.logprob) for one in shown), (token.text, token.logprob)]
                )
            self._append(token.text, token.logprob, top, token.start)

    def add(self, token: Token) -> None:
        """Report `token` with the next piece, if its log-probability is known."""
        chosen = token.logprob
        if chosen is None:
            return
        top = _top([(one.text, one.logprob) for one in (*token.top_logprobs, chosen)])
        offset = self._offset(b"" if token.special else chosen.raw)
        self._append(chosen.text, chosen.logprob, top, offset)

    def take(self) -> dict[str, list[object]]:
        """The tokens added since the last call."""
        taken, self._lists = self._lists, _empty_lists()
        return taken

    def _append(
        self, text: str, logprob: float | None, top: dict[str, float] | None, offset: int
    ) -> None:
        lists = self._lists
        lists["tokens"].append(text)
        lists["token_logprobs"].append(None if logprob is None else finite(logprob))
        lists["top_logprobs"].append(top)
        lists["text_offset"].append(offset)

    def _offset(self, raw: bytes) -> int:
        """Where in the text the token starts; one that goes on inside a character, at that one."""
        starts_inside = bool(raw) and raw[0] & 0xC0 == 0x80
        offset = self._num_chars - starts_inside
        self._num_chars += sum(byte & 0xC0 != 0x80 for byte in raw)
        return offset


def prompt_logprobs_list(
    tokens: Sequence[PromptToken], top_logprobs: int
) -> list[dict[str, _Entry] | None]:
    """vLLM's `prompt_logprobs`: of each token itself, then of so many of the likeliest."""
    return [_by_id(token, top_logprobs) for token in tokens]


def _by_id(token: PromptToken, top_logprobs: int) -> dict[str, _Entry] | None:
    if token.logprob is None:
        return None
    entries = {str(token.token_id): _entry(token.logprob, token.rank, token.text)}
    for rank, one in enumerate(token.top_logprobs[:top_logprobs], 1):
        entries[str(one.token_id)] = _entry(one.logprob, rank, one.text)
    return entries


def _entry(logprob: float, rank: int | None, text: str) -> _Entry:
    return {"logprob": finite(logprob), "rank": rank, "decoded_token": text}


def _top(entries: Sequence[tuple[str, float]]) -> dict[str, float]:
    """Two entries may look alike: the first, which is likelier, is shown."""
    top: dict[str, float] = {}
    for text, logprob in entries:
        top.setdefault(text, finite(logprob))
    return top


def _empty_lists() -> dict[str, list[object]]:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
