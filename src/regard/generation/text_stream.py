"""The text of tokens that arrive one by one, up to a stop string.

    tokens   "Hel"  "lo\\nUs"  "er: x"      stop string "\\nUser:"
    text     "Hel"  "lo"       ""           and then nothing: the stop string is not part of the text

A token may hold some of the bytes of a character, so a text that ends in an incomplete one is held back; and so is a
text that may be the beginning of a stop string. Decoders drop the space that begins a text, so each token is decoded
behind the last one with text, the first one behind the end of the prompt that it continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from regard.text.tokenizer import Tokenizer

_INCOMPLETE = "\ufffd"
_MAX_PENDING = 16
"""Tokens after which a replacement character is taken for invalid bytes, and not for an incomplete character."""


@final
class TextStream:
    """Decodes the tokens of a text as they arrive, which continues the tokens ``before``.

    ``stopped_by`` is the stop string that ended it, else None.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, before: Sequence[int] = ()) -> None:
        self.stopped_by: str | None = None
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._context = _find_last_text(tokenizer, before)
        self._pending: list[int] = []
        self._held = ""

    def push(self, token: int) -> str:
        """Add a token, and return the text that is certain to be part of the result."""
        self._pending.append(token)
        before = self._tokenizer.decode(self._context)
        after = self._tokenizer.decode(self._context + self._pending)
        if after.endswith(_INCOMPLETE) and len(self._pending) < _MAX_PENDING:
            return ""
        text = after[len(before) :]
        if text:  # a special token has none
            self._context = self._pending
        self._pending = []
        return self._release(text)

    def close(self) -> str:
        """Return the text that was held back, at the end of the tokens."""
        before = self._tokenizer.decode(self._context)
        rest = self._release(self._tokenizer.decode(self._context + self._pending)[len(before) :])
        self._context, self._pending = [], []
        rest, self._held = rest + self._held, ""
        return rest

    def _release(self, text: str) -> str:
        """Add decoded text; return what can be part of no stop string."""
        if self.stopped_by is not None:
            return ""
        text = self._held + text
        found = [(text.index(one), one) for one in self._stop if one in text]
        if found:
            end, self.stopped_by = min(found, key=lambda one: (one[0], -len(one[1])))
            self._held = ""
            return text[:end]
        longest = max((_overlap(text, one) for one in self._stop), default=0)
        self._held = text[len(text) - longest :]
        return text[: len(text) - longest]


def _find_last_text(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """The fewest tokens at the end of ``ids`` that have text, or about so many; none if there are none."""
    size = 1
    while size < 2 * len(ids):
        last = list(ids[-size:])
        if tokenizer.decode(last):
            return last
        size *= 2
    return []


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of the text that begins the stop string."""
    sizes = range(min(len(text), len(stop) - 1), 0, -1)
    return next((size for size in sizes if text.endswith(stop[:size])), 0)
