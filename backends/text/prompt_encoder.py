"""Prompts into token ids, with everything that can be wrong with a prompt said here.

* A chat is rendered by the model's template and encoded as it is: the template writes the BOS, or
  nobody does.
* Text gets the model's BOS if it asks for it and the model has the habit.
* Token ids are used as they are, if the vocabulary has them.
* A prompt of no tokens is refused: there would be nothing to compute. An empty text is fine for a
  model that adds a BOS.

Synchronous and thread-safe; run long prompts in a thread. Knows nothing of engines: whether a
prompt fits the context is theirs to say.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

from backends.base import EncodedToken
from backends.errors import BackendRejected, NoChatTemplate
from backends.text.tokenizer import Tokenizer
from backends.types import ChatPrompt, Prompt, TextPrompt, TokenPrompt

MEMO_BYTES = 64_000_000
"""Memory for remembered prompts: about a million tokens with their text."""


class PromptEncoder:
    """Encodes prompts with one model's tokenizer.

    Remembers the last ones, so that counting a prompt and then generating from it encode it once.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, now: Callable[[], datetime], memo_bytes: int = MEMO_BYTES
    ) -> None:
        """`now` is the local time that templates may write; `memo_bytes` bounds the memory."""
        self._tokenizer = tokenizer
        self._now = now
        self._memo = _Memo(memo_bytes)

    def ids(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt's token ids, at least one.

        Raises:
            BackendRejected: no chat template, or it refuses the messages; text that is no valid
            Unicode; an id outside the vocabulary; no tokens at all.
        """
        if isinstance(prompt, TokenPrompt):
            return self._checked(prompt.token_ids)
        key = self._key(prompt)
        known = self._memo.get(key)
        if known is not None:
            return known
        text, add_special_tokens = self._text(prompt)
        ids = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        checked = self._checked(tuple(ids[-_kept(prompt) :]))
        self._memo.put(key, checked, num_chars=len(text))
        return checked

    def tokens(self, prompt: Prompt) -> tuple[EncodedToken, ...]:
        """The prompt's tokens with their places in its text; see `render` for a chat's text.

        Token ids have no text of their own: each then shows as its entry decoded alone.

        Raises:
            BackendRejected: as `ids`.
        """
        if isinstance(prompt, TokenPrompt):
            return self._tokens_of_ids(self._checked(prompt.token_ids))
        text, add_special_tokens = self._text(prompt)
        spans = self._tokenizer.encode_with_offsets(text, add_special_tokens=add_special_tokens)
        kept = spans[-_kept(prompt) :]
        self._checked(tuple(token_id for token_id, _, _ in kept))
        return tuple(
            EncodedToken(
                token_id=token_id,
                text=text[start:stop] or self._tokenizer.token_text(token_id),
                start=start,
                stop=stop,
            )
            for token_id, start, stop in kept
        )

    def starts(self, prompt: Prompt) -> tuple[int, ...]:
        """Where the text of each token starts in the prompt's, in characters, never going back.

        Tokens that the tokenizer adds have no text; those inside a character start at that one.
        The text of token ids, and of a chat, is that of all its entries.

        Raises:
            BackendRejected: as `ids`.
        """
        if isinstance(prompt, TextPrompt):
            return tuple(_starts_of_spans(self.tokens(prompt)))
        return tuple(_starts_of_bytes(map(self._tokenizer.token_bytes, self.ids(prompt))))

    def render(self, prompt: ChatPrompt) -> str:
        """A chat's text, before it is encoded.

        Raises:
            NoChatTemplate: the model has none.
            BackendRejected: the template refuses the messages.
        """
        template = self._tokenizer.chat_template
        if template is None:
            raise NoChatTemplate
        return template.render(prompt, now=self._now)

    def _text(self, prompt: ChatPrompt | TextPrompt) -> tuple[str, bool]:
        """(the text to encode, whether the tokenizer may add its BOS)."""
        if isinstance(prompt, ChatPrompt):
            text, add_special_tokens, param = self.render(prompt), False, "messages"
        else:
            text, add_special_tokens, param = prompt.text, prompt.add_special_tokens, "prompt"
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BackendRejected(
                f"the text holds a lone surrogate (U+{ord(text[error.start]):04X}), which is no "
                "character; send valid Unicode",
                param=param,
            ) from error
        return text, add_special_tokens

    def _checked(self, token_ids: tuple[int, ...]) -> tuple[int, ...]:
        if not token_ids:
            raise BackendRejected(
                "the prompt has no tokens, and this model adds none of its own; send some text",
                param="prompt",
            )
        num_token_ids = self._tokenizer.num_token_ids
        for token_id in (min(token_ids), max(token_ids)):
            if not 0 <= token_id < num_token_ids:
                raise BackendRejected(
                    f"token id {token_id} is out of range: the vocabulary has {num_token_ids} "
                    "entries",
                    param="prompt",
                )
        return token_ids

    def _tokens_of_ids(self, token_ids: tuple[int, ...]) -> tuple[EncodedToken, ...]:
        tokens: list[EncodedToken] = []
        start = 0
        for token_id in token_ids:
            text = self._tokenizer.token_text(token_id)
            stop = start + len(text)
            tokens.append(EncodedToken(token_id=token_id, text=text, start=start, stop=stop))
            start = stop
        return tuple(tokens)

    def _key(self, prompt: ChatPrompt | TextPrompt) -> object:
        if isinstance(prompt, TextPrompt):
            return prompt
        # True, 1 and 1.0 are equal, but a template writes each its own way; and it may write the
        # date.
        kinds = tuple(type(value) for _, value in prompt.template_kwargs)
        return prompt, kinds, self._now().date()


def _starts_of_spans(tokens: Sequence[EncodedToken]) -> Iterator[int]:
    """Spans may leave out the white space in front of a word, which is the word's."""
    stop_before = tokens[0].start
    for token in tokens:
        yield min(token.start, stop_before) if token.start < token.stop else stop_before
        stop_before = max(stop_before, token.stop)


def _starts_of_bytes(entries: Iterable[bytes]) -> Iterator[int]:
    num_chars = 0
    for raw in entries:
        starts_inside = bool(raw) and raw[0] & 0xC0 == 0x80
        yield max(num_chars - starts_inside, 0)
        num_chars += sum(byte & 0xC0 != 0x80 for byte in raw)


def _kept(prompt: ChatPrompt | TextPrompt) -> int:
    """How many of the last tokens to keep; 0 keeps all, as in `ids[-0:]`."""
    return prompt.truncate if isinstance(prompt, TextPrompt) else 0


class _Memo:
    """The last prompts' ids, up to so many bytes in all; least recently used go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._entries: OrderedDict[object, tuple[tuple[int, ...], int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: object) -> tuple[int, ...] | None:
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: object, ids: tuple[int, ...], *, num_chars: int) -> None:
        # An id takes 36 bytes, a character up to 4, an entry with its key some 500.
        size_bytes = 36 * len(ids) + 4 * num_chars + 500
        with self._lock:
            # Another thread may have encoded the same prompt meanwhile.
            _, replaced_bytes = self._entries.pop(key, ((), 0))
            self._entries[key] = ids, size_bytes
            self._num_bytes += size_bytes - replaced_bytes
            while self._num_bytes > self._max_bytes:
                _, (_, dropped_bytes) = self._entries.popitem(last=False)
                self._num_bytes -= dropped_bytes
