"""How a translation is written: a line of text, rows of a table, links of words, or a line of JSON with all of it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.translation import Aligned, Rendering, Translation

FORMATS = ("text", "tsv", "jsonl", "pharaoh")
_MIN_WEIGHT, _MAX_SOURCE_WORDS = 0.05, 5
"""Of the source words that a word was found by: the least weight that is told, and how many at most."""


def format_translation(found: Translation, words: Aligned | None, number: int, form: str) -> str:
    """What is written of a translation, line ends included."""
    if form == "text":
        return to_one_line(found.text) + "\n"
    if form == "tsv":
        return "".join(f"{number}\t{one.score:.4f}\t{to_one_line(one.text)}\n" for one in found.renderings)
    if form == "pharaoh":
        return ("" if words is None else words.token_alignment.text()) + "\n"
    return json.dumps(_to_json_fields(found, words), ensure_ascii=False) + "\n"


def remarks(rendering: Rendering) -> list[str]:
    """What is wrong with a translation, to be said behind its name."""
    found = [f"lacks {' '.join(rendering.missing)}"] if rendering.missing else []
    if not rendering.finished:
        found.append(f"was cut after {len(rendering.ids)} subwords, where the model had not ended it")
    return found


def to_one_line(text: str) -> str:
    """The text with each tab and each line's end a space: what a placeholder stands for may have them."""
    from regard.text.line_separators import LINE_SEPARATORS

    return re.sub(f"[{LINE_SEPARATORS}]", " ", text)


def _to_json_fields(found: Translation, words: Aligned | None) -> dict[str, Any]:
    """All that is known of a translation."""
    renderings = [
        {
            "text": one.text,
            "score": round(one.score, 6),
            "log_probability": round(one.log_probability, 6),
            "finished": one.finished,
            **({"missing": list(one.missing)} if one.missing else {}),
        }
        for one in found.renderings
    ]
    record: dict[str, Any] = {"source": found.source, "translations": renderings}
    return record if words is None else record | {"words": _source_words_by_weight(words)}


def _source_words_by_weight(aligned: Aligned) -> list[dict[str, Any]]:
    """Each target word, and the source words it was found by, the heaviest first."""
    rows = []
    for word, weights in zip(aligned.target_words, aligned.weights, strict=True):
        heaviest, order = weights.sort(descending=True)
        known = [
            {"source": aligned.source_words[index], "index": index, "weight": round(weight, 4)}
            for index, weight in zip(order.tolist(), heaviest.tolist(), strict=True)
            if weight >= _MIN_WEIGHT
        ]
        rows.append({"word": word, "found_by": known[:_MAX_SOURCE_WORDS]})
    return rows
