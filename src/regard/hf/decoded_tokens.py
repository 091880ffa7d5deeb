"""Token ids that a model wrote, as tokens that can be displayed: their text, and the characters of each.

    ids of " A", " dog", "</s>"   ->   text "A dog", spans (0, 1), (2, 5), (5, 5)

A span is found by decoding longer and longer beginnings of the ids, which works for any tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers

from regard.view.read import spans_without_spaces
from regard.view.reading import Tokens


def ids_to_tokens(decoder: tokenizers.Tokenizer, ids: Sequence[int], *, special_ids: frozenset[int]) -> Tokens:
    """Convert ids to tokens. Special ones, those of ``special_ids`` and of the tokenizer, have no characters."""
    special = special_ids | {number for number, token in decoder.get_added_tokens_decoder().items() if token.special}
    text = decoder.decode([one for one in ids if one not in special])
    spans, plain, start = [], [], 0
    for one in ids:
        stop = start
        if one not in special:
            plain.append(one)
            stop = max(start, _count_equal(decoder.decode(plain), text))
        spans.append((start, stop))
        start = stop
    return Tokens(
        text,
        tuple(decoder.id_to_token(one) or f"<{one}>" for one in ids),
        spans_without_spaces(text, spans),
        tuple(one in special for one in ids),
    )


def _count_equal(start: str, text: str) -> int:
    """Number of characters at the beginning that are the same."""
    return next((at for at, (one, other) in enumerate(zip(start, text, strict=False)) if one != other), len(start))
