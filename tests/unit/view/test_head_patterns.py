"""Named patterns: heads that follow one rule exactly have its name and a score of 1, and uniform heads have none."""

import numpy as np
import pytest
import torch

from regard.view import LayerWeights, Reading, Tokens, statistics_of

WORDS = ["a", "dog", ",", "a", "cat", ",", "a", "dog"]
N = len(WORDS) + 2


def tokens() -> Tokens:
    """[CLS] a dog , a cat , a dog [SEP]."""
    starts = np.cumsum([0, *(len(word) + 1 for word in WORDS[:-1])]).tolist()
    spans = [(start, start + len(word)) for start, word in zip(starts, WORDS, strict=True)]
    special = (True, *[False] * len(WORDS), True)
    return Tokens(" ".join(WORDS), ("[CLS]", *WORDS, "[SEP]"), ((0, 0), *spans, (0, 0)), special)


def head_attending_to(keys: dict[int, int], otherwise: str = "uniform") -> np.ndarray:
    """A head whose query i attends to keys[i] alone, and others to all tokens alike or, "causal", to earlier ones."""
    weights = np.ones((N, N)) if otherwise == "uniform" else np.tril(np.ones((N, N)))
    weights /= weights.sum(axis=1, keepdims=True)
    for query, key in keys.items():
        weights[query] = np.eye(N)[key]
    return weights


def reading_of(*heads: np.ndarray) -> Reading:
    matrices = torch.tensor(np.stack(heads), dtype=torch.float32)
    return Reading(tokens(), (LayerWeights("one", matrices, "distribution", ""),))


RULES = {
    "previous token": {at: at - 1 for at in range(1, N)},
    "next token": {at: at + 1 for at in range(N - 1)},
    "two before": {at: at - 2 for at in range(2, N)},
    "two after": {at: at + 2 for at in range(N - 2)},
    "itself": {at: at for at in range(N)},
    "duplicate token": {4: 1, 6: 3, 7: 4, 8: 2},  # a dog , [a] cat [,] [a] [dog]
    "induction": {4: 2, 6: 4, 7: 5, 8: 3},
    "first token": dict.fromkeys(range(N), 0),
    "separators": dict.fromkeys(range(N), N - 1),
    "punctuation": dict.fromkeys(range(N), 3),
}


@pytest.mark.parametrize("name", list(RULES))
def test_a_head_that_follows_a_rule_has_its_name(name: str) -> None:
    (statistics,) = statistics_of(reading_of(head_attending_to(RULES[name])))
    found = statistics.pattern
    assert found is not None
    assert found.name == name
    assert found.score == pytest.approx(1)
    assert (statistics.layer, statistics.head) == (0, 0)


def test_uniform_heads_have_chance_scores_and_no_name() -> None:
    for otherwise in ("uniform", "causal"):
        (statistics,) = statistics_of(reading_of(head_attending_to({}, otherwise)))
        for pattern in statistics.patterns:
            assert pattern.score == pytest.approx(pattern.chance, abs=1e-6), pattern.name
        assert statistics.pattern is None


def test_chance_counts_the_visible_keys_of_the_queries_for_which_the_pattern_is_possible() -> None:
    ((*encoder,), (*decoder,)) = (
        {one.name: one for one in statistics_of(reading_of(head_attending_to({}, otherwise)))[0].patterns}.values()
        for otherwise in ("uniform", "causal")
    )
    before, first = encoder[0], decoder[0]
    assert (before.name, before.queries, before.chance) == ("previous token", 8, pytest.approx(1 / N))
    assert (first.name, first.chance) == (
        "previous token",
        pytest.approx(np.mean([1 / (at + 1) for at in range(1, 9)])),
    )
    assert "next token" not in {one.name for one in decoder}, "no token sees a later one"
    induction = next(one for one in decoder if one.name == "induction")
    assert induction.queries == 4
    expected = np.mean([1 / 5, 1 / 7, 2 / 8, 1 / 9])  # the third "a" has two earlier ones
    assert induction.chance == pytest.approx(expected)


def test_tokens_of_one_word() -> None:
    pieces = Tokens("walking talking sing", ("walk", "##ing", "talk", "##ing", "sing"),
                    ((0, 4), (4, 7), (8, 12), (12, 15), (16, 20)), (False,) * 5)  # fmt: skip
    weights = torch.tensor(np.eye(5)[[1, 0, 3, 2, 4]][None], dtype=torch.float32)
    (statistics,) = statistics_of(Reading(pieces, (LayerWeights("one", weights, "distribution", ""),)))
    found = statistics.pattern
    assert found is not None
    assert (found.name, found.score, found.queries, found.chance) == ("same word", 1, 4, pytest.approx(1 / 5))


def test_too_few_queries_name_no_head_and_cross_attention_has_no_patterns() -> None:
    weights = torch.tensor(np.eye(2)[[1, 0]][None], dtype=torch.float32)
    pair = Tokens("a b", ("a", "b"), ((0, 1), (2, 3)), (False, False))
    reading = Reading(pair, (LayerWeights("one", weights, "distribution", ""),))
    (statistics,) = statistics_of(reading)
    assert max(one.score for one in statistics.patterns) == 1
    assert statistics.pattern is None
    (across,) = statistics_of(Reading(pair, reading.layers, keys=pair))
    assert across.patterns == ()
