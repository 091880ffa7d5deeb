"""Findings: effects of position are excluded, and the word that explains the numbers comes first."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from layer_readings import layer_reading
from regard.view.findings import findings, strongest_finding_per_word, strongest_pieces, weight_of_pair
from regard.view.layer_reading import LayerReading
from regard.view.layer_weights import LayerWeights
from regard.view.page_data import attention_data, findings_data
from regard.view.reading import Reading, Tokens
from regard.view.word_pairs import word_pairs

WORDS = ["Mia", "fed", "the", "old", "dog", "since", "it", "was", "hungry"]
N = len(WORDS) + 2


def tokens() -> Tokens:
    text, spans = " ".join(WORDS), [(0, 0)]
    for word in WORDS:
        start = text.index(word, spans[-1][1])
        spans.append((start, start + len(word)))
    return Tokens(text, ("[CLS]", *WORDS, "[SEP]"), (*spans, (0, 0)), (True, *[False] * len(WORDS), True))


def layer_with_weights(*heads: np.ndarray) -> LayerReading:
    """Heads with given weights: key = identity and query = ln(weights) give exactly these."""
    eye = np.repeat(np.eye(N, dtype=np.float32)[None], len(heads), axis=0)
    return layer_reading("one", np.log(np.stack(heads)).astype(np.float32), eye, eye, scale=1.0)


def uniform_weights() -> np.ndarray:
    return np.full((N, N), 1 / N)


def previous_token_weights() -> np.ndarray:
    weights = np.full((N, N), 0.01)
    weights[np.arange(N), np.maximum(np.arange(N) - 1, 0)] = 1
    return weights / weights.sum(1, keepdims=True)


def weights_of_query_on_key(query_word: str, key_word: str, share: float) -> np.ndarray:
    weights = uniform_weights()
    query, key = WORDS.index(query_word) + 1, WORDS.index(key_word) + 1
    weights[query] = (1 - share) / (N - 1)
    weights[query, key] = share
    return weights


def make_reading(*layers: LayerReading) -> Reading:
    return Reading(tokens(), layers, np.zeros((len(layers) + 1, N, 3), dtype=np.float32))


def test_findings_of_two_heads_come_before_those_of_one() -> None:
    reading = make_reading(
        layer_with_weights(
            previous_token_weights(),
            weights_of_query_on_key("it", "dog", 0.6),
            weights_of_query_on_key("was", "Mia", 0.8),
        ),
        layer_with_weights(uniform_weights(), weights_of_query_on_key("it", "dog", 0.7), previous_token_weights()),
    )
    first, second = findings(word_pairs(reading))[:2]
    assert (WORDS[first.query_word], WORDS[first.key_word]) == ("it", "dog")
    assert [(look.layer, look.head) for look in first.looks] == [(1, 1), (0, 1)]
    assert [look.weight for look in first.looks] == pytest.approx([0.7, 0.6])
    assert [look.usual for look in first.looks] == pytest.approx([1 / N, 1 / N])
    assert first.surprise == pytest.approx(0.65 - 1 / N)
    assert (WORDS[second.query_word], WORDS[second.key_word]) == ("was", "Mia")
    assert first.first_choice >= 2
    assert first.heads == 6


@pytest.mark.parametrize(("words", "names"), [(40, {(3, 20), (5, 30)}), (90, {(5, 30)})])
def test_in_a_long_text_the_second_head_must_agree(words: int, names: set[tuple[int, int]]) -> None:
    """One head alone has 3 -> 20, two have 5 -> 30."""
    text = [f"word{number}" for number in range(words)]
    starts = np.cumsum([0, *(len(word) + 1 for word in text[:-1])]).tolist()
    spans = tuple((start, start + len(word)) for start, word in zip(starts, text, strict=True))
    matrices = torch.full((2, words, words), 1 / words)
    for head, query, key in ((0, 3, 20), (0, 5, 30), (1, 5, 30)):
        matrices[head, query] = 0.1 / (words - 1)
        matrices[head, query, key] = 0.9
    layer = LayerWeights("one", matrices, "distribution", "")
    reading = Reading(Tokens(" ".join(text), tuple(text), spans, (False,) * words), (layer,))
    assert {(one.query_word, one.key_word) for one in findings(word_pairs(reading))} == names


def test_effects_of_position_are_no_findings() -> None:
    assert (
        findings(word_pairs(make_reading(layer_with_weights(previous_token_weights(), previous_token_weights())))) == ()
    )


def test_strongest_finding_of_every_word() -> None:
    reading = make_reading(
        layer_with_weights(
            weights_of_query_on_key("it", "dog", 0.6),
            previous_token_weights(),
            weights_of_query_on_key("old", "dog", 0.5),
        )
    )
    best = {WORDS[one.query_word]: WORDS[one.key_word] for one in strongest_finding_per_word(word_pairs(reading))}
    assert set(best) == set(WORDS)
    assert best["it"] == "dog"
    assert best["old"] == "dog", "a neighbour counts here"


def test_word_that_sees_no_other_has_no_finding() -> None:
    causal = np.tril(np.ones((N, N), dtype=bool))
    unmasked = layer_with_weights(weights_of_query_on_key("it", "dog", 0.6), previous_token_weights())
    masked = layer_reading("one", unmasked.query, unmasked.key, unmasked.value, 1.0, causal)
    best = {
        WORDS[one.query_word]: WORDS[one.key_word]
        for one in strongest_finding_per_word(word_pairs(make_reading(masked)))
    }
    assert set(best) == set(WORDS[1:])
    assert all(WORDS.index(key_word) < WORDS.index(query_word) for query_word, key_word in best.items())


def test_tokens_are_averaged_for_the_query_and_summed_for_the_key() -> None:
    pieces = Tokens(
        "unaffable seafarers rest",
        ("un", "affable", "sea", "farers", "rest"),
        ((0, 2), (2, 9), (10, 13), (13, 19), (20, 24)),
        (False,) * 5,
    )
    weights = np.array([[1, 1, 6, 1, 1], [1, 1, 2, 4, 2], [2, 2, 2, 2, 2], [1, 2, 3, 2, 2], [2, 5, 1, 1, 1]]) / 10
    eye = np.eye(5, dtype=np.float32)[None]
    seen = layer_reading("one", np.log(weights)[None].astype(np.float32), eye, eye, 1.0)
    reading = Reading(pieces, (seen,), np.zeros((2, 5, 3), dtype=np.float32))
    pairs = word_pairs(reading)
    assert [word.text for word in pairs.query_words] == ["unaffable", "seafarers", "rest"]
    expected = ((0.6 + 0.1) + (0.2 + 0.4)) / 2
    assert pairs.weight[0, 0, 1] == pytest.approx(expected, abs=1e-6)
    assert weight_of_pair(reading, pairs.query_words[0], pairs.key_words[1], 0, 0) == pytest.approx(expected, abs=1e-6)
    # un gives sea and farers 0.6 + 0.1, affable 0.2 + 0.4; the share of sea is the larger of un's two.
    assert strongest_pieces(reading, pairs.query_words[0], pairs.key_words[1], 0, 0) == (0, 2)
    # rest -> unaffable, distances -4 and -3. No other pair has distance -4: an even share, 1/5.
    # One other pair has distance -3, farers -> un: 0.1.
    assert pairs.usual[0, 2, 0] == pytest.approx(1 / 5 + 0.1, abs=1e-6)
    # rest -> seafarers. 2 back: sea -> un 0.2, farers -> affable 0.2. 1 back: affable -> un 0.1, sea -> affable 0.2,
    # farers -> sea 0.3.
    assert pairs.usual[0, 2, 1] == pytest.approx((0.2 + 0.2) / 2 + (0.1 + 0.2 + 0.3) / 3, abs=1e-6)


def test_a_text_of_one_word_has_no_findings() -> None:
    one = Tokens("hi", ("[CLS]", "hi", "[SEP]"), ((0, 0), (0, 2), (0, 0)), (True, False, True))
    eye = np.eye(3, dtype=np.float32)[None]
    pairs = word_pairs(Reading(one, (layer_reading("one", eye, eye, eye, 1.0),), np.zeros((2, 3, 3), dtype=np.float32)))
    assert findings(pairs) == ()
    assert strongest_finding_per_word(pairs) == ()


def test_unknown_words_give_no_findings() -> None:
    known = make_reading(
        layer_with_weights(
            weights_of_query_on_key("it", "dog", 0.6),
            weights_of_query_on_key("it", "dog", 0.7),
            weights_of_query_on_key("was", "Mia", 0.8),
        )
    )
    pieces = tuple("[UNK]" if piece in ("dog", "was") else piece for piece in known.tokens.pieces)
    reading = Reading(replace(known.tokens, pieces=pieces), known.layers, known.hidden)
    pairs = word_pairs(reading)
    assert findings(pairs) == ()
    met = {WORDS[number] for one in strongest_finding_per_word(pairs) for number in (one.query_word, one.key_word)}
    assert met <= set(WORDS) - {"dog", "was"}


def test_a_last_token_that_is_kept_apart_has_no_later_queries() -> None:
    reading = make_reading(layer_with_weights(weights_of_query_on_key("it", "dog", 0.7)))
    pairs = word_pairs(replace(reading, sink=N - 1))
    assert pairs.share_of_sink is None
    assert [WORDS[one.key_word] for one in findings(pairs)] == ["dog"]


def test_pairs_are_collected_once_for_each_reading() -> None:
    reading = make_reading(layer_with_weights(uniform_weights()))
    assert word_pairs(reading) is word_pairs(reading)


def test_a_token_that_is_kept_apart_hides_no_pair() -> None:
    """Every head gives 95 % to the first word; what is left of "it" goes to "dog"."""
    shares = uniform_weights()
    shares[WORDS.index("it") + 1] = weights_of_query_on_key("it", "dog", 0.7)[WORDS.index("it") + 1]
    weights = 0.05 * shares
    weights[:, 1] += 0.95
    reading = make_reading(layer_with_weights(weights, weights))
    assert {WORDS[one.key_word] for one in findings(word_pairs(reading))} <= {"Mia"}
    apart = word_pairs(replace(reading, sink=1))
    assert apart.share_of_sink == pytest.approx(0.95 + 0.05 * shares[2:, 1].mean())
    (found,) = findings(apart)
    assert (WORDS[found.query_word], WORDS[found.key_word]) == ("it", "dog")
    assert found.looks[0].weight == pytest.approx(0.05 * 0.7)
    assert found.looks[0].usual == pytest.approx(0.05 / N)
    assert "Mia" not in {WORDS[one.key_word] for one in strongest_finding_per_word(apart)}


def test_the_page_has_the_weight_of_a_finding_in_other_texts() -> None:
    """It is that of the strongest head: of the finding's first look."""
    readings = [
        make_reading(
            layer_with_weights(
                uniform_weights(),
                weights_of_query_on_key("it", "dog", weak),
                weights_of_query_on_key("it", "dog", strong),
            )
        )
        for weak, strong in ((0.5, 0.7), (0.2, 0.4))
    ]
    texts = {number: (reading, word_pairs(reading)) for number, reading in enumerate(readings)}
    (first, *_) = findings_data(0, texts)
    assert (first["from"], first["to"]) == ("it", "dog")
    assert [look["head"] for look in first["looks"]] == [2, 1]
    assert first["elsewhere"] == [{"text": 1, "weight": pytest.approx(0.4, abs=1e-5)}]


def test_the_page_marks_special_tokens() -> None:
    first, second, *_, last = attention_data(make_reading(layer_with_weights(uniform_weights())), 2)["tokens"]
    assert first == {"surface": "[CLS]", "special": 1}
    assert last == {"surface": "[SEP]", "gap": 1, "special": 1}
    assert second == "Mia"
