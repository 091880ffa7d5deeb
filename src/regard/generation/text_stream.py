"""The text of tokens that arrive one by one, up to a stop string.

    tokens   "Hel"  "lo\\nUs"  "er: x"      stop string "\\nUser:"
    text     "Hel"  "lo"       ""           and then nothing: the stop string is not part of the text

A token may hold some of the bytes of a character, so an incomplete one at the end, which is decoded as U+FFFD, is held
back; and so is a text that may be the beginning of a stop string. Decoders drop the space that begins a text, so tokens
are decoded behind the last ones with text, the first behind the end of the prompt that they continue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from regard.text.tokenizer import Tokenizer

_INCOMPLETE = "\ufffd"
_MAX_WINDOW = 32
"""Tokens that are decoded together, if each of them ends in the middle of a character; four hold any character."""


@final
class TextStream:
    """Decodes the tokens of a text as they arrive, which continues the tokens ``before``.

    ``stopped_by`` is the stop string that ended it, else None.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), *, before: Sequence[int] = ()) -> None:
        self.stopped_by: str | None = None
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._window = _find_last_text(tokenizer, before)
        self._num_returned = len(tokenizer.decode(self._window))
        self._num_pending = 0
        self._held = ""

    def push(self, token: int) -> str:
        """Add a token, and return the text that is certain to be part of the result."""
        if token in self._tokenizer.skipped_ids:
            return ""
        self._window.append(token)
        self._num_pending += 1
        text = self._tokenizer.decode(self._window)
        certain = len(text) - text.endswith(_INCOMPLETE)
        part, self._num_returned = text[self._num_returned : certain], max(self._num_returned, certain)
        if certain == len(text):
            self._end_character(has_text=bool(part))
        elif len(self._window) > _MAX_WINDOW:
            self._window = self._window[-_MAX_WINDOW // 2 :]
            self._num_returned = len(self._tokenizer.decode(self._window)) - 1
        return self._release(part)

    def _end_character(self, *, has_text: bool) -> None:
        """Keep the pending tokens as the context of the next one, or the context before if they have no text."""
        if has_text:
            self._window = self._window[-self._num_pending :]
            self._num_returned = len(self._tokenizer.decode(self._window))
        else:
            del self._window[-self._num_pending :]
        self._num_pending = 0

    def close(self) -> str:
        """Return the text that was held back, at the end of the tokens."""
        rest = self._release(self._tokenizer.decode(self._window)[self._num_returned :])
        self._window, self._num_returned, self._num_pending = [], 0, 0
        rest, self._held = rest + self._held, ""
        return rest

    def _release(self, text: str) -> str:
        """Add decoded text; return what can be part of no stop string."""
        if self.stopped_by is not None:
            return ""
        text = self._held + text
        found = [(text.index(string), string) for string in self._stop if string in text]
        if found:
            end, self.stopped_by = min(found, key=lambda place: (place[0], -len(place[1])))
            self._held = ""
            return text[:end]
        longest = max((_overlap(text, string) for string in self._stop), default=0)
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
