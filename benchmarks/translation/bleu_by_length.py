"""BLEU by source length, which shows how a model with a fixed-size sentence vector falls behind on long sentences.

Bahdanau et al. 2015, "Neural machine translation by jointly learning to align and translate", figure 2.
"""

from __future__ import annotations

from typing import Any

from regard.translation import score

NUM_PARTS = 4


def bleu_by_length(sources: list[str], texts: list[str], references: list[str], language: str) -> list[dict[str, Any]]:
    """Return sacreBLEU of each quarter of the sentences, the shortest first; words are separated by white space."""
    lengths = [len(source.split()) for source in sources]
    order = sorted(range(len(sources)), key=lengths.__getitem__)
    found = []
    for part in range(NUM_PARTS):
        chosen = order[part * len(order) // NUM_PARTS : (part + 1) * len(order) // NUM_PARTS]
        scores = score([texts[at] for at in chosen], [references[at] for at in chosen], language=language)
        words = [lengths[chosen[0]], lengths[chosen[-1]]]
        found.append({"words": words, "sentences": len(chosen), "sacrebleu": round(scores.bleu, 2)})
    return found
