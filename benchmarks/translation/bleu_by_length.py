"""BLEU by the length of the source: where a model that keeps a sentence in one vector falls behind.

Bahdanau et al. 2015, "Neural machine translation by jointly learning to align and translate", figure 2.
"""

from __future__ import annotations

from typing import Any

from regard.translation import score

NUM_PARTS = 4


def bleu_by_length(sources: list[str], texts: list[str], references: list[str], language: str) -> list[dict[str, Any]]:
    """sacreBLEU of the quarters of the sentences, the shortest first; words are what white space parts."""
    lengths = [len(source.split()) for source in sources]
    order = sorted(range(len(sources)), key=lengths.__getitem__)
    found = []
    for part in range(NUM_PARTS):
        chosen = order[part * len(order) // NUM_PARTS : (part + 1) * len(order) // NUM_PARTS]
        scores = score([texts[at] for at in chosen], [references[at] for at in chosen], language=language)
        words = [lengths[chosen[0]], lengths[chosen[-1]]]
        found.append({"words": words, "sentences": len(chosen), "sacrebleu": round(scores.bleu, 2)})
    return found
