"""Token ids into text as they come, complete code points only.

Keeps the bytes of an unfinished character back until it is whole, so that the pieces joined are
exactly what decoding all the answer's tokens at once gives. The prompt is not looked at: what an
answer begins with is a function of the answer's own tokens, so an unfinished character at the end
of a prompt can neither leak into the answer nor delay it (its continuation bytes show as U+FFFD).
Entries carry their own leading spaces, and an answer keeps that of its first: it continues the
prompt, so that both joined are the text of all tokens.
"""

from __future__ import annotations

import codecs

from backends.text.tokenizer import Tokenizer

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one choice."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decode = _Utf8Decoder("replace").decode

    def push(self, token_id: int) -> str:
        """What the text grows by: possibly nothing. Special tokens contribute nothing."""
        if self._tokenizer.is_special(token_id):
            return ""
        return self._decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """What is left at the end: an unfinished character as U+FFFD."""
        return self._decode(b"", True)
