"""Output formats of translations: plain text, TSV rows, Pharaoh word alignments, or JSON lines."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regard.translation import Aligned, Rendering, Translation

FORMATS = ("text", "tsv", "jsonl", "pharaoh")
_MIN_WEIGHT, _MAX_SOURCE_WORDS = 0.05, 5
"""Source words listed for a target word: their minimum attention weight and maximum number."""


def format_translation(found: Translation, words: Aligned | None, number: int, form: str) -> str:
    """Format a translation in one of ``FORMATS``, line endings included."""
    if form == "text":
        return to_one_line(found.text) + "\n"
    if form == "tsv":
        return "".join(
            f"{number}\t{rendering.score:.4f}\t{to_one_line(rendering.text)}\n" for rendering in found.renderings
        )
    if form == "pharaoh":
        return ("" if words is None else words.token_alignment.text()) + "\n"
    return json.dumps(_to_json_fields(found, words), ensure_ascii=False) + "\n"


def remarks(source: str, rendering: Rendering) -> list[str]:
    """Problems of a translation of ``source``, as predicates: "is empty", "lacks ...", "was cut after ..."."""
    found = ["is empty"] if source.strip() and not rendering.text.strip() else []
    found += [f"lacks {' '.join(rendering.missing)}"] if rendering.missing else []
    if not rendering.finished:
        found.append(f"was cut after {len(rendering.ids)} subwords, before the model ended it")
    return found


def to_one_line(text: str) -> str:
    """Replace tabs and line separators by spaces; the strings restored for placeholders may contain them."""
    from regard.text.line import LINE_SEPARATORS

    return re.sub(f"[{LINE_SEPARATORS}]", " ", text)


def _to_json_fields(found: Translation, words: Aligned | None) -> dict[str, Any]:
    """Collect the JSON fields of a translation."""
    renderings = [
        {
            "text": rendering.text,
            "score": round(rendering.score, 6),
            "log_probability": round(rendering.log_probability, 6),
            "finished": rendering.finished,
            **({"missing": list(rendering.missing)} if rendering.missing else {}),
        }
        for rendering in found.renderings
    ]
    record: dict[str, Any] = {"source": found.source, "translations": renderings}
    return record if words is None else record | {"words": _source_words_by_weight(words)}


def _source_words_by_weight(aligned: Aligned) -> list[dict[str, Any]]:
    """List for each target word the source words it attends to most, by descending weight."""
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
