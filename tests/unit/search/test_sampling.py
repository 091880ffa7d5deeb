"""Sampling: its tokens, their frequencies, and reproducibility."""

import math
from collections import Counter

import numpy as np
import pytest
import torch

from regard.errors import OptionError
from regard.search import Sampling
from table_model import BANNED_IDS, END, TableModel, bind_source, log_softmax, random_table

VOCABULARY = 8
WRITABLE_IDS = [token for token in range(VOCABULARY) if token not in BANNED_IDS]
SOURCE, LENGTH = torch.tensor([[5, 6, 4, 3]]), torch.tensor([4])
DRAWS = 4000


def draw_samples(next_logits, *, most, **options):
    hypotheses = Sampling(best=DRAWS, **options).search(
        TableModel(next_logits, VOCABULARY), SOURCE, LENGTH, max_tokens=most
    )[0]
    return Counter((*one.ids, *([END] if one.finished else [])) for one in hypotheses)


def chi_square(counts, probability):
    """Chi-square statistic for cells of at least 5; with k degrees of freedom: mean k, standard deviation sqrt(2k)."""
    cells = [(counts[cell], DRAWS * share) for cell, share in probability.items() if DRAWS * share >= 5]
    return sum((count - expected) ** 2 / expected for count, expected in cells), len(cells) - 1


def renormalised_probabilities(log_probability, temperature=1.0):
    shares = {token: math.exp(log_probability[token] / temperature) for token in WRITABLE_IDS}
    return {token: share / sum(shares.values()) for token, share in shares.items()}


def assert_distribution(counts, probability):
    statistic, freedom = chi_square(counts, probability)
    assert statistic <= freedom + 4 * math.sqrt(2 * freedom)
    assert set(counts) <= {cell for cell, share in probability.items() if share > 0}
    assert sum(counts.values()) == DRAWS


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_token_frequencies_equal_the_probabilities(temperature):
    next_logits = random_table(VOCABULARY, 11, deviation=1.0)
    shares = renormalised_probabilities(bind_source(next_logits, (5, 6, 4, 3))(()), temperature)
    counts = draw_samples(next_logits, most=1, seed=5, temperature=temperature)
    assert_distribution(counts, {(token,): share for token, share in shares.items()})


def test_tokens_are_drawn_from_conditional_probabilities():
    next_logits = random_table(VOCABULARY, 12, deviation=1.0)
    next_log_probs = bind_source(next_logits, (5, 6, 4, 3))
    first, targets = renormalised_probabilities(next_log_probs(())), {}
    for token, share in first.items():
        if token == END:
            targets[(END,)] = share
        else:
            targets |= {
                (token, other): share * more
                for other, more in renormalised_probabilities(next_log_probs((token,))).items()
            }
    assert_distribution(draw_samples(next_logits, most=2, seed=6), targets)


def test_top_k_keeps_the_likeliest_tokens():
    next_logits = random_table(VOCABULARY, 13, deviation=1.0)
    shares = renormalised_probabilities(bind_source(next_logits, (5, 6, 4, 3))(()))
    best = sorted(shares, key=shares.get)[-3:]
    total = sum(shares[token] for token in best)
    assert_distribution(
        draw_samples(next_logits, most=1, seed=7, top_k=3), {(token,): shares[token] / total for token in best}
    )


@pytest.mark.parametrize(("top_p", "count"), [(0.49, 1), (0.51, 2), (0.55, 2), (0.79, 2), (0.81, 3), (0.999, 5)])
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p, count):
    shares = dict(zip(WRITABLE_IDS, [0.5, 0.3, 0.1, 0.06, 0.04], strict=True))

    def next_logits(source, target):
        logits = np.full(VOCABULARY, -np.inf)
        for token, share in shares.items():
            logits[token] = math.log(share)
        return logits

    best = sorted(shares, key=shares.get)[-count:]
    total = sum(shares[token] for token in best)
    assert_distribution(
        draw_samples(next_logits, most=1, seed=8, top_p=top_p), {(token,): shares[token] / total for token in best}
    )


def test_log_probabilities_are_the_models_and_targets_are_sorted():
    next_logits = random_table(VOCABULARY, 14)
    known = bind_source(next_logits, (5, 6, 4, 3))
    model = TableModel(next_logits, VOCABULARY)
    hypotheses = Sampling(seed=1, best=50, temperature=2.0, top_k=4).search(model, SOURCE, LENGTH, max_tokens=3)[0]
    for one in hypotheses:
        ids = (*one.ids, *([END] if one.finished else []))
        total = sum(known(ids[:place])[token] for place, token in enumerate(ids))
        assert one.log_probability == one.score == pytest.approx(total)
    assert [one.score for one in hypotheses] == sorted((one.score for one in hypotheses), reverse=True)


class TestSeed:
    SOURCES = torch.tensor([[5, 6, 4, 3], [6, 4, 3, 0], [5, 6, 4, 3]])
    LENGTHS = torch.tensor([4, 3, 4])

    def table(self):
        """A table in which the end token is rare."""
        table, end = random_table(VOCABULARY, 15, deviation=0.5), np.eye(VOCABULARY)[END]
        return lambda source, target: table(source, target) - 3 * end

    def search(self, seed, rows=slice(None), best=4):
        model = TableModel(self.table(), VOCABULARY)
        return Sampling(seed=seed, best=best).search(model, self.SOURCES[rows], self.LENGTHS[rows], max_tokens=9)

    def test_same_seed_gives_the_same_targets(self):
        first = self.search(1)
        torch.rand(7)
        assert self.search(1) == first
        state = torch.get_rng_state()
        self.search(1)
        assert torch.equal(torch.get_rng_state(), state)

    def test_different_seeds_give_different_targets(self):
        assert len({self.search(seed)[0][0].ids for seed in range(8)}) > 4

    def test_targets_are_independent_of_the_order_of_sources(self):
        together = self.search(2)
        assert self.search(2, [1, 0]) == [together[1], together[0]]
        assert together[0] == together[2]

    def test_targets_are_independent_of_padding(self):
        model = TableModel(self.table(), VOCABULARY)
        alone = Sampling(seed=2, best=4).search(model, self.SOURCES[1:2, :3], self.LENGTHS[1:2], max_tokens=9)
        assert alone[0] == self.search(2)[1]

    def test_targets_of_one_source_differ(self):
        assert len({one.ids for one in self.search(3, best=8)[0]}) > 4


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"seed": -1}, r"wrong seed.*0 or more"),
        ({"seed": 1, "temperature": 0}, r"wrong temperature.*finite number above 0.*Greedy\(\)"),
        ({"seed": 1, "temperature": math.inf}, r"temperature"),
        ({"seed": 1, "temperature": "hot"}, r"temperature"),
        ({"seed": 1, "top_p": 0.0}, r"wrong top_p.*0 < top_p <= 1"),
        ({"seed": 1, "top_p": 1.5}, r"top_p"),
        ({"seed": 1, "top_k": -1}, r"wrong top_k"),
        ({"seed": 1, "best": 0}, r"wrong best"),
    ],
)
def test_options_out_of_range_are_refused(options, facts):
    with pytest.raises(OptionError, match=f"(?s){facts}"):
        Sampling(**options)


def test_finished_rows_are_not_computed():
    def next_logits(source, target):
        logits = np.full(VOCABULARY, -np.inf)
        logits[END if len(target) == len(source) - 1 else 4] = 0.0
        return logits

    model = TableModel(next_logits, VOCABULARY)
    hypotheses = Sampling(seed=1, best=2).search(model, TestSeed.SOURCES, TestSeed.LENGTHS)
    assert [[len(one.ids) for one in those] for those in hypotheses] == [[3, 3], [2, 2], [3, 3]]
    assert model.rows == [6, 6, 6, 4]


def test_log_softmax_sums_to_1():
    assert np.exp(log_softmax(np.array([1.0, 2.0, 3.0]))).sum() == pytest.approx(1)
