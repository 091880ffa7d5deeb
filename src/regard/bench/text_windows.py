"""``TextWindows``: a text as sequences of one length, each with the special tokens that the model expects."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor

from regard.errors import DataError, OptionError
from regard.models.base import Encoder
from regard.text.tokenizer import iterate_texts

MAX_TOKENS = 2**22
"""Maximum number of tokens that are read from a text."""
_LINES_AT_ONCE = 1000


@final
class TextWindows:
    """The tokens of joined lines, at most the first ``MAX_TOKENS``.

    Raises CheckpointError for a model without a tokenizer, DataError for a text without words, and OptionError for
    lines that are not strings.
    """

    def __init__(self, lines: Iterable[str], model: Encoder) -> None:
        tokenizer = model.require_tokenizer()
        (probe,) = tokenizer.tokenize("a")
        ids, special = probe.ids, probe.special
        first = special.index(False)
        last = len(special) - special[::-1].index(False)
        self._before, self._after = ids[:first], ids[last:]
        self._ids = array("q")
        for some in _chunks(iterate_texts(lines)):
            for row in tokenizer.ids(some):
                self._ids.extend(row[len(self._before) : len(row) - len(self._after)])
            if len(self._ids) >= MAX_TOKENS:
                del self._ids[MAX_TOKENS:]
                break
        if not self._ids:
            raise DataError(
                "the text has no words", expected="a text of one or more words", got="blank lines", do="check the file"
            )

    def __len__(self) -> int:
        """The number of tokens, special ones excluded."""
        return len(self._ids)

    def count(self, length: int) -> int:
        """Count the windows of ``length`` tokens. Raises as ``cut`` does."""
        return len(self) // self._inner(length)

    def cut(self, length: int, limit: int) -> Int[Tensor, "windows length"]:
        """Return up to ``limit`` windows of ``length`` tokens, evenly spaced in the text.

        Windows do not overlap, and the rest at the end is left out. Raises DataError for a text shorter than a window,
        OptionError for a length without room for text.
        """
        inner, count = self._inner(length), self.count(length)
        if count == 0:
            special = length - inner
            raise DataError(
                f"the text is shorter than a window of {length:,} tokens",
                expected=f"{inner:,} tokens or more" + (f", to which the model adds {special}" if special else ""),
                got=f"{len(self):,} tokens",
                do="use a longer text, or shorter windows (`length=...`)",
            )
        chosen = min(limit, count)
        starts = [index * count // chosen * inner for index in range(chosen)]
        rows = [(*self._before, *self._ids[start : start + inner], *self._after) for start in starts]
        return torch.tensor(rows)

    def _inner(self, length: int) -> int:
        """Number of tokens of the text in a window."""
        special = len(self._before) + len(self._after)
        if length <= special:
            raise OptionError(
                f"a window of {length} tokens has no room for text",
                expected=f"more than the {special} special tokens of each window",
                got=f"length={length}",
                do="use longer windows (`length=...`)",
            )
        return length - special


def _chunks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of lines."""
    source = iter(lines)
    while some := list(islice(source, _LINES_AT_ONCE)):
        yield some
