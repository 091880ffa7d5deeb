"""Effect of context on a word: the cosine of its vectors in two texts, layer by layer, the embedding first.

    cosine(a, b) = a . b / (|a| |b|)

A word's vector is the mean of its pieces' vectors. Only the context differs between the two, so the cosine falls
where the layers mix it in (Ethayarajh 2019). Function words, which occur in nearly every English text, are left out,
and so are words outside the vocabulary, which the model cannot tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import final

import numpy as np
from jaxtyping import Float64

from regard.view.reading import Reading
from regard.view.words_from_tokens import Word, words_of

_FUNCTION_WORD_TEXT = """a an the this that these those and or but nor so if because as than then when while
    i me my you your he him his she her hers it its we us our they them their who which what
    is are was were be been being am do does did has have had will would can could may might must shall should
    not no of to in on at by for with from into onto about over under up down out off there here"""
_FUNCTION_WORDS = frozenset(_FUNCTION_WORD_TEXT.split())


@final
@dataclass(frozen=True)
class SharedWord:
    """A word found in two texts (numbers into the readings) and its cosine after the embedding and each layer."""

    word: str
    first: int
    second: int
    cosines: tuple[float, ...]


def shared_words(readings: list[Reading]) -> tuple[SharedWord, ...]:
    """Compare every word that two texts share, by its first occurrence in each; lowest final cosine first.

    Texts without recorded hidden states are skipped.
    """
    vectors: dict[str, dict[int, Float64[np.ndarray, "layers_and_embedding width"]]] = {}
    for number, reading in enumerate(readings):
        for name, word in ({} if reading.hidden is None else _first_occurrences(reading)).items():
            vectors.setdefault(name, {})[number] = _unit_vectors(reading, word)
    shared = [
        SharedWord(name, first, second, tuple(cosines))
        for name, of_texts in vectors.items()
        for (first, second), cosines in _cosines(of_texts).items()
    ]
    return tuple(sorted(shared, key=lambda word: (word.cosines[-1], word.first, word.second)))


def _first_occurrences(reading: Reading) -> dict[str, Word]:
    found: dict[str, Word] = {}
    for word in words_of(reading.tokens):
        if word.is_word and word.is_known and word.text.casefold() not in _FUNCTION_WORDS:
            found.setdefault(word.text.casefold(), word)
    return found


def _unit_vectors(reading: Reading, word: Word) -> Float64[np.ndarray, "layers_and_embedding width"]:
    """The word's vectors, normalised to length 1; a vector of zeros stays zero."""
    assert reading.hidden is not None
    vectors = reading.hidden[:, list(word.pieces)].astype(np.float64).mean(axis=1)
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0))


def _cosines(of_texts: Mapping[int, Float64[np.ndarray, "layers width"]]) -> dict[tuple[int, int], list[float]]:
    """Cosines of each pair of texts, layer by layer, computed in one matrix product."""
    numbers = list(of_texts)
    if len(numbers) < 2:
        return {}
    stacked = np.stack(list(of_texts.values()), axis=1)
    products = (stacked @ stacked.transpose(0, 2, 1)).transpose(1, 2, 0).tolist()
    return {
        (numbers[first], numbers[other]): products[first][other]
        for first, other in combinations(range(len(numbers)), 2)
    }
