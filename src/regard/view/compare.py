"""How far context moves a word: the cosine of its vectors in two texts, layer by layer, the embedding first.

    cosine(a, b) = a . b / (|a| |b|)

A word's vector is the mean of its pieces' vectors. Context is what makes the two differ, so the cosine falls
where the layers mix it in (Ethayarajh 2019). Words that nearly every English text holds are left out, and so are
words outside the vocabulary, which the model cannot tell apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Float64

from regard.view.reading import Reading
from regard.view.words import Word, words_of

_ENGLISH = """a an the this that these those and or but nor so if because as than then when while
    i me my you your he him his she her hers it its we us our they them their who which what
    is are was were be been being am do does did has have had will would can could may might must shall should
    not no of to in on at by for with from into onto about over under up down out off there here"""
_FUNCTION_WORDS = frozenset(_ENGLISH.split())


@dataclass(frozen=True)
class SharedWord:
    """A word found in two texts (numbers into the readings) and its cosine after the embedding and each layer."""

    word: str
    first: int
    second: int
    cosines: tuple[float, ...]


def shared_words(readings: list[Reading]) -> tuple[SharedWord, ...]:
    """Every word that two texts share, by its first occurrence in each, the furthest apart at the end first.

    Texts whose hidden states were not kept share none.
    """
    vocabularies = [{} if reading.hidden is None else _first_occurrences(reading) for reading in readings]
    shared = [
        SharedWord(word, first, second, _cosines(readings[first], occurrence, readings[second], other))
        for (first, here), (second, there) in combinations(enumerate(vocabularies), 2)
        for word, occurrence in here.items()
        if (other := there.get(word)) is not None
    ]
    return tuple(sorted(shared, key=lambda one: one.cosines[-1]))


def _first_occurrences(reading: Reading) -> dict[str, Word]:
    found: dict[str, Word] = {}
    for word in words_of(reading.tokens):
        if word.is_word and word.known and word.text.casefold() not in _FUNCTION_WORDS:
            found.setdefault(word.text.casefold(), word)
    return found


def _vectors(reading: Reading, word: Word) -> Float64[np.ndarray, "layers_and_embedding width"]:
    assert reading.hidden is not None
    return np.asarray(reading.hidden[:, list(word.pieces)].astype(np.float64).mean(axis=1))


def _cosines(first: Reading, word: Word, second: Reading, other: Word) -> tuple[float, ...]:
    a, b = _vectors(first, word), _vectors(second, other)
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    products = (a * b).sum(axis=1)
    return tuple(float(value) for value in np.divide(products, lengths, out=products * 0, where=lengths > 0))
