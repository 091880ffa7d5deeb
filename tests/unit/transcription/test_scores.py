"""Error rates of texts: by hand, and by the recurrence of the edit distance."""

import numpy as np
import pytest

from regard.errors import DataError, OptionError
from regard.transcription import ErrorRate, score_transcriptions


def edit_distance(one, other):
    """Levenshtein 1966, by the recurrence of Wagner and Fischer 1974."""
    table = np.zeros((len(one) + 1, len(other) + 1), dtype=int)
    table[:, 0], table[0] = np.arange(len(one) + 1), np.arange(len(other) + 1)
    for i in range(1, len(one) + 1):
        for j in range(1, len(other) + 1):
            changed = table[i - 1, j - 1] + (one[i - 1] != other[j - 1])
            table[i, j] = min(changed, table[i - 1, j] + 1, table[i, j - 1] + 1)
    return int(table[-1, -1])


def test_error_rates_by_hand():
    """cat -> bat is one substitution, of a word and a character; " down" is one word and five characters."""
    scores = score_transcriptions(["the bat sat down", "", "Yes"], ["the cat sat", "a b", "Yes"])
    assert scores.words == ErrorRate(4 / 6, substitutions=1, insertions=1, deletions=2, length=6)
    assert scores.characters == ErrorRate(9 / 17, substitutions=1, insertions=5, deletions=3, length=17)
    assert (scores.texts, scores.exact, scores.errors) == (3, 1, (6, 3, 0))
    assert score_transcriptions(["a b c"], ["x"]).words.rate == 3.0
    assert score_transcriptions(["yes"], ["Yes"]).characters.rate == pytest.approx(1 / 3)


def test_error_rates_are_edit_distances():
    numbers = np.random.default_rng(5)
    texts = ["".join(numbers.choice(list("ab "), size=numbers.integers(3, 12))).strip() or "a" for _ in range(60)]
    texts = [" ".join(text.split()) for text in texts]
    references, hypotheses = texts[:30], texts[30:]
    scores = score_transcriptions(hypotheses, references)
    pairs = list(zip(references, hypotheses, strict=True))
    assert list(scores.errors) == [edit_distance(one, other) for one, other in pairs]
    of_words = sum(edit_distance(one.split(), other.split()) for one, other in pairs)
    assert scores.words.rate == pytest.approx(of_words / sum(len(one.split()) for one in references))
    assert scores.characters.rate == pytest.approx(sum(scores.errors) / sum(map(len, references)))


def test_what_has_no_error_rate():
    with pytest.raises(OptionError, match="one hypothesis for each reference"):
        score_transcriptions(["a"], ["a", "b"])
    for references in ([], [" "]):
        with pytest.raises(DataError, match="no error rate without words"):
            score_transcriptions(["a"] * len(references), references)
