"""Two readings compared: alignment of words, the share of attention that moved, and which heads are compared."""

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import regard
from regard.comparison import mass_kept, parse_choices
from regard.errors import DataError, OptionError
from regard.view import (
    LayerWeights,
    PairReading,
    Reading,
    ReadingComparison,
    Tokens,
    compare_pairs,
    compare_readings,
    print_readings,
    read,
    read_side_by_side,
    without_marks,
    write_page,
)
from regard.view.reading_comparison import align_words, all_words

TIRED = "The animal didn't cross the street because it was too tired."
WIDE = TIRED.replace("tired", "wide")


def reading_of(text: str, *, layers: int = 2, heads: int = 3, seed: int = 0, causal: bool = False) -> Reading:
    """A reading of random weights: [CLS], and a token for each word."""
    words = text.split()
    starts = np.cumsum([0, *(len(word) + 1 for word in words[:-1])]).tolist()
    spans = ((0, 0), *((start, start + len(word)) for start, word in zip(starts, words, strict=True)))
    tokens = Tokens(text, ("[CLS]", *words), spans, (True, *[False] * len(words)))
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(layers, heads, len(tokens), len(tokens), generator=generator)
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    return Reading(
        tokens,
        tuple(
            LayerWeights(f"layers.{at}", torch.softmax(some, -1), "distribution", "") for at, some in enumerate(scores)
        ),
    )


def weights(reading: Reading, layer: int, head: int) -> np.ndarray:
    return reading.layers[layer].weights()[head]


def names_of(comparison: ReadingComparison) -> list[str]:
    return [comparison.name_of(place) for place in range(len(comparison.places))]


def test_the_same_words_move_by_the_total_variation_of_their_rows() -> None:
    first, second = reading_of("a b c", seed=1), reading_of("a b c", seed=2)
    comparison = compare_readings(first, second)
    assert comparison.places == ((0, 0), (1, 1), (2, 2), (3, 3))
    for change, moved in zip(comparison.heads, comparison.moved, strict=True):
        assert (change.layer, change.head) == (change.other_layer, change.other_head)
        rows = [weights(reading, change.layer, change.head) for reading in (first, second)]
        expected = [np.maximum(a - b, 0).sum() for a, b in zip(*rows, strict=True)]  # what the second one lacks
        np.testing.assert_allclose(moved, expected, rtol=1e-5)
        assert change.change == pytest.approx(np.mean(expected), rel=1e-5)
        assert change.outside == (0, 0)
    changes = [head.change for head in comparison.heads]
    assert changes == sorted(changes, reverse=True)


def test_a_word_that_only_one_text_has_is_a_key_without_a_share_in_the_other() -> None:
    first, second = reading_of("a b", seed=1, layers=1, heads=1), reading_of("a new b", seed=2, layers=1, heads=1)
    comparison = compare_readings(first, second)
    assert comparison.places == ((0, 0), (1, 1), (None, 2), (2, 3))
    (change,) = comparison.heads
    before, after = weights(first, 0, 0), weights(second, 0, 0)
    same = [0, 1, 3]
    expected = (np.abs(before - after[same][:, same]).sum(axis=1) + after[same, 2]) / 2
    np.testing.assert_allclose(comparison.moved[0, same], expected, rtol=1e-5)
    assert np.isnan(comparison.moved[0, 2])
    assert change.outside == (0, pytest.approx(after[same, 2].mean()))


def test_words_that_stand_in_for_others_share_a_place_and_are_no_queries_of_the_mean() -> None:
    comparison = compare_readings(reading_of("a tired dog", seed=1), reading_of("a wide dog", seed=2))
    assert names_of(comparison) == ["[CLS]", "a", "tired / wide", "dog"]
    assert set(comparison.same_words) == {0, 1, 3}
    for change, moved in zip(comparison.heads, comparison.moved, strict=True):
        assert change.change == pytest.approx(moved[[0, 1, 3]].mean(), rel=1e-5)
    means = comparison.moved.mean(axis=0)
    assert list(comparison.same_words) == sorted({0, 1, 3}, key=lambda place: -means[place])


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("a b c", "a b c", [(0, 0), (1, 1), (2, 2)]),
        ("a b", "b", [(0, None), (1, 0)]),
        ("b", "a b", [(None, 0), (0, 1)]),
        ("a b c", "a x c", [(0, 0), (1, 1), (2, 2)]),
        ("a b c", "a x y c", [(0, 0), (1, None), (None, 1), (None, 2), (2, 3)]),
        ("a b a", "a", [(0, 0), (1, None), (2, None)]),
    ],
)
def test_alignment(first: str, second: str, expected: list[tuple[int | None, int | None]]) -> None:
    words = [all_words(reading_of(text).tokens)[1:] for text in (first, second)]
    assert list(align_words(*words)) == expected


def test_tokenizers_that_cut_words_in_other_ways_are_compared_by_words() -> None:
    whole = reading_of("walking dogs", layers=1, heads=1, seed=3)
    pieces = Tokens(
        "walking dogs",
        ("[CLS]", "walk", "##ing", "dogs"),
        ((0, 0), (0, 4), (4, 7), (8, 12)),
        (True, False, False, False),
    )
    cut = torch.softmax(torch.randn(1, 4, 4, generator=torch.Generator().manual_seed(4)), -1)
    comparison = compare_readings(whole, Reading(pieces, (LayerWeights("one", cut, "distribution", ""),)))
    other = cut[0].double().numpy()
    joined = np.stack([other[:, 0], other[:, 1] + other[:, 2], other[:, 3]], axis=1)
    joined = np.stack([joined[0], (joined[1] + joined[2]) / 2, joined[3]])
    np.testing.assert_allclose(comparison.shares_of(1, 0, 0), joined, rtol=1e-6)
    np.testing.assert_allclose(comparison.moved[0], np.abs(weights(whole, 0, 0) - joined).sum(1) / 2, rtol=1e-5)


def test_models_of_other_sizes_and_one_reading_are_compared_with_the_nearest_heads() -> None:
    first, second = reading_of("a b c", layers=2, heads=2, seed=1), reading_of("a b c", layers=1, heads=3, seed=2)
    for one, other in ((first, second), (first, first)):
        comparison = compare_readings(one, other)
        assert len(comparison.heads) == 4
        for change in comparison.heads:
            mine = weights(one, change.layer, change.head)
            distances = {
                (layer, head): np.abs(mine - weights(other, layer, head)).sum() / 2 / 4
                for layer in range(len(other.layers))
                for head in range(other.layers[layer].heads)
                if one is not other or (layer, head) != (change.layer, change.head)
            }
            nearest = min(distances, key=lambda head: distances[head])
            assert (change.other_layer, change.other_head) == nearest
            assert change.change == pytest.approx(distances[nearest], rel=1e-5)


def test_one_changed_word_is_found_in_minilm() -> None:
    model = regard.load("minilm")
    comparison = compare_readings(read(model, TIRED), read(model, WIDE))
    assert names_of(comparison)[11] == "tired / wide"
    it = comparison.listed_words[0]
    assert {comparison.name_of(place) for place in comparison.same_words} - {"[CLS]", "[SEP]", "."} == {
        comparison.name_of(place) for place in comparison.listed_words
    }
    move = comparison.move_of_word(it)
    assert (comparison.name_of(it), comparison.name_of(move.lost)) == ("it", "animal")
    assert (move.change.layer, move.change.head) == (3, 1)
    assert move.lost_shares == (
        pytest.approx(0.677, abs=1e-3),
        pytest.approx(0.281, abs=1e-3),
    )


def test_a_mechanism_moves_what_it_does_not_keep() -> None:
    side = read_side_by_side(regard.load("minilm"), TIRED, parse_choices("longformer:window=4,additive"))
    (comparison,) = side.comparisons
    assert comparison.names == ("dot_product", "longformer:window=4")
    words = all_words(side.exact.tokens)
    for change in comparison.heads[::9]:
        sides = [torch.from_numpy(comparison.shares_of(at, change.layer, change.head)) for at in (0, 1)]
        assert len(sides[0]) == len(words)
        assert change.change == pytest.approx(1 - float(mass_kept(*sides).mean()), abs=1e-6)


def pair_of(target: str, source: str, seed: int) -> PairReading:
    """A translation of random weights, whose target attends to its source and to itself."""
    asks, gets = (reading_of(text, seed=seed) for text in (target, source))
    scores = torch.randn(2, 3, len(asks.tokens), len(gets.tokens), generator=torch.Generator().manual_seed(seed))
    layers = tuple(
        LayerWeights(f"cross.{at}", torch.softmax(some, -1), "distribution", "") for at, some in enumerate(scores)
    )
    return PairReading(Reading(asks.tokens, layers, keys=gets.tokens), 1, None, asks, forced=True)


def test_translations_are_compared_by_the_words_of_both_sides() -> None:
    pairs = pair_of("the dog runs", "der Hund läuft", 1), pair_of("the big dog runs", "der Hund rennt", 2)
    across, target = compare_pairs(*pairs, names=("one", "other"))
    assert across.title == "Cross-attention: der Hund läuft → the dog runs | der Hund rennt → the big dog runs"
    assert target.title == "Target self-attention: the dog runs | the big dog runs"
    assert across.places == ((0, 0), (1, 1), (None, 2), (2, 3), (3, 4))
    assert [across.name_of_key(place) for place in across.differing_key_words] == ["läuft / rennt"]
    before, after = (pair.alignment.layers[1].weights()[2] for pair in pairs)
    expected = np.abs(before - after[[0, 1, 3, 4]]).sum(axis=1) / 2
    number = next(at for at, head in enumerate(across.heads) if (head.layer, head.head) == (1, 2))
    np.testing.assert_allclose(across.moved[number, [0, 1, 3, 4]], expected, rtol=1e-5)
    console = Console(width=100, record=True, file=StringIO())
    print_readings([across, target], console)
    said = console.export_text()
    assert "Different: +big, läuft / rennt." in said
    assert "Target self-attention" in said


def test_causal_readings_and_readings_without_marks_compare() -> None:
    readings = [reading_of("a b c", seed=seed, causal=True) for seed in (1, 2)]
    assert np.isfinite(compare_readings(*readings).moved).all()
    assert names_of(compare_readings(*map(without_marks, readings))) == ["a", "b", "c"]


def test_what_cannot_be_compared_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = reading_of("a b")
    across = Reading(reading.tokens, reading.layers, keys=reading.tokens)
    with pytest.raises(OptionError, match="one text to another"):
        compare_readings(across, reading)
    with pytest.raises(OptionError, match="pair"):
        compare_pairs(across, across)
    with pytest.raises(DataError, match="no word in common"):
        compare_readings(*(without_marks(reading_of(text)) for text in ("a b", "c d e")))
    monkeypatch.setattr("regard.view.reading_comparison.MAX_SHARES", 10)
    with pytest.raises(DataError, match="too many tokens"):
        compare_readings(reading, reading)


def test_terminal_says_what_changed_and_where(tmp_path: Path) -> None:
    model = regard.load("minilm")
    comparison = compare_readings(read(model, TIRED), read(model, WIDE), names=("text 1", "text 2"))
    console = Console(width=100, record=True, file=StringIO())
    print_readings(comparison, console)
    said = console.export_text()
    assert "Different: tired / wide." in said
    assert "it" in said
    assert "animal 67.7 → 28.1 %" in said
    assert max(map(len, said.splitlines())) <= 100
    assert write_page(comparison, tmp_path / "page.html").stat().st_size < 2**20


def test_terminal_says_how_much_goes_to_words_that_only_one_text_has() -> None:
    comparison = compare_readings(reading_of("a b", seed=1), reading_of("a new b", seed=2))
    outside = 100 * np.mean([head.outside[1] for head in comparison.heads])
    console = Console(width=200, record=True, file=StringIO())
    print_readings(comparison, console)
    assert f"get 0.0 % of the attention in the first and {outside:.1f} % in the second" in console.export_text()
