"""Words outside a model's vocabulary. All of them become one unknown token, so the model cannot tell them apart.

"苹果很贵。" and "股票跌停。"  ->  [UNK] [UNK] [UNK] [UNK] 。  for both, so their vectors are equal
"""

from __future__ import annotations

from collections.abc import Sequence
from unicodedata import category

from regard.language import count_noun
from regard.text.tokenizer import TokenizedText
from regard.text.words import word_spans

UNKNOWN_WORDS_ADVICE = (
    "Use a model that knows the language: a BERT trained on it, or a multilingual one such as "
    "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2."
)
"""Advice on the kind of model to use instead."""


def is_mostly_unknown(text: TokenizedText) -> bool:
    """Whether the vocabulary lacks more than half of the words, or, in a text without words, every token."""
    if not any(text.unknown):
        return False
    words = _select_alphanumeric(text.text, word_spans(text.text))
    spans = _select_alphanumeric(
        text.text, [span for is_unknown, span in zip(text.unknown, text.spans, strict=True) if is_unknown]
    )
    if not words:
        return all(is_unknown or special for is_unknown, special in zip(text.unknown, text.special, strict=True))
    lacking = sum(any(start < stop and begin < end for begin, stop in spans) for start, end in words)
    return 2 * lacking > len(words)


def unknown_words_warning(texts: int, where: str) -> str:
    """Format the warning that most words of some texts are unknown, with advice; ``where`` names the texts."""
    return (
        f"most words of {count_noun(texts, 'text')} ({where}) are not in this model's vocabulary: "
        f"the model reads them all as one unknown token, so a vector of such words tells little. {UNKNOWN_WORDS_ADVICE}"
    )


def _select_alphanumeric(text: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Select the spans that contain a letter or a digit."""
    return [
        (start, end) for start, end in spans if any(category(character)[0] in "LN" for character in text[start:end])
    ]
