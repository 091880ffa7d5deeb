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


def draw_samples(following, *, most, **options):
    found = Sampling(best=DRAWS, **options).search(TableModel(following, VOCABULARY), SOURCE, LENGTH, most=most)[0]
    return Counter((*one.ids, *([END] if one.finished else [])) for one in found)


def chi_square(counts, probability):
    """Chi-square statistic for cells of at least 5; with k degrees of freedom: mean k, standard deviation sqrt(2k)."""
    cells = [(counts[cell], DRAWS * share) for cell, share in probability.items() if DRAWS * share >= 5]
    return sum((count - wanted) ** 2 / wanted for count, wanted in cells), len(cells) - 1


def renormalised(log_probability, temperature=1.0):
    shares = {token: math.exp(log_probability[token] / temperature) for token in WRITABLE_IDS}
    return {token: share / sum(shares.values()) for token, share in shares.items()}


def fits(counts, probability):
    statistic, freedom = chi_square(counts, probability)
    assert statistic <= freedom + 4 * math.sqrt(2 * freedom)
    assert set(counts) <= {cell for cell, share in probability.items() if share > 0}
    assert sum(counts.values()) == DRAWS


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_tokens_come_as_often_as_the_model_says(temperature):
    following = random_table(VOCABULARY, 11, spread=1.0)
    shares = renormalised(bind_source(following, (5, 6, 4, 3))(()), temperature)
    counts = draw_samples(following, most=1, seed=5, temperature=temperature)
    fits(counts, {(token,): share for token, share in shares.items()})


def test_places_are_drawn_independently():
    following = random_table(VOCABULARY, 12, spread=1.0)
    known = bind_source(following, (5, 6, 4, 3))
    first, targets = renormalised(known(())), {}
    for token, share in first.items():
        if token == END:
            targets[(END,)] = share
        else:
            targets |= {(token, other): share * more for other, more in renormalised(known((token,))).items()}
    fits(draw_samples(following, most=2, seed=6), targets)


def test_top_k_leaves_the_rest_out():
    following = random_table(VOCABULARY, 13, spread=1.0)
    shares = renormalised(bind_source(following, (5, 6, 4, 3))(()))
    kept = sorted(shares, key=shares.get)[-3:]
    whole = sum(shares[token] for token in kept)
    fits(draw_samples(following, most=1, seed=7, top_k=3), {(token,): shares[token] / whole for token in kept})


@pytest.mark.parametrize(("top_p", "kept"), [(0.49, 1), (0.51, 2), (0.55, 2), (0.79, 2), (0.81, 3), (0.999, 5)])
def test_top_p_keeps_the_fewest_that_have_it_together(top_p, kept):
    shares = dict(zip(WRITABLE_IDS, [0.5, 0.3, 0.1, 0.06, 0.04], strict=True))

    def following(source, target):
        logits = np.full(VOCABULARY, -np.inf)
        for token, share in shares.items():
            logits[token] = math.log(share)
        return logits

    best = sorted(shares, key=shares.get)[-kept:]
    whole = sum(shares[token] for token in best)
    fits(draw_samples(following, most=1, seed=8, top_p=top_p), {(token,): shares[token] / whole for token in best})


def test_log_probabilities_are_the_models_and_order_the_targets():
    following = random_table(VOCABULARY, 14)
    known = bind_source(following, (5, 6, 4, 3))
    model = TableModel(following, VOCABULARY)
    found = Sampling(seed=1, best=50, temperature=2.0, top_k=4).search(model, SOURCE, LENGTH, most=3)[0]
    for one in found:
        ids = (*one.ids, *([END] if one.finished else []))
        total = sum(known(ids[:place])[token] for place, token in enumerate(ids))
        assert one.log_probability == one.score == pytest.approx(total)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


class TestSeed:
    SOURCES = torch.tensor([[5, 6, 4, 3], [6, 4, 3, 0], [5, 6, 4, 3]])
    LENGTHS = torch.tensor([4, 3, 4])

    def table(self):
        """A table in which the end token is rare."""
        table, end = random_table(VOCABULARY, 15, spread=0.5), np.eye(VOCABULARY)[END]
        return lambda source, target: table(source, target) - 3 * end

    def search(self, seed, rows=slice(None), best=4):
        model = TableModel(self.table(), VOCABULARY)
        return Sampling(seed=seed, best=best).search(model, self.SOURCES[rows], self.LENGTHS[rows], most=9)

    def test_the_same_gives_the_same_whatever_was_drawn_before(self):
        first = self.search(1)
        torch.rand(7)
        assert self.search(1) == first
        state = torch.get_rng_state()
        self.search(1)
        assert torch.equal(torch.get_rng_state(), state)

    def test_another_gives_others(self):
        assert len({self.search(seed)[0][0].ids for seed in range(8)}) > 4

    def test_a_source_has_its_own_numbers_wherever_it_stands(self):
        together = self.search(2)
        assert self.search(2, [1, 0]) == [together[1], together[0]]
        assert together[0] == together[2]

    def test_padding_does_not_change_what_is_drawn(self):
        model = TableModel(self.table(), VOCABULARY)
        alone = Sampling(seed=2, best=4).search(model, self.SOURCES[1:2, :3], self.LENGTHS[1:2], most=9)
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
def test_options_outside_of_their_range_are_refused(options, facts):
    with pytest.raises(OptionError, match=f"(?s){facts}"):
        Sampling(**options)


def test_rows_that_ended_are_asked_no_more():
    def following(source, target):
        logits = np.full(VOCABULARY, -np.inf)
        logits[END if len(target) == len(source) - 1 else 4] = 0.0
        return logits

    model = TableModel(following, VOCABULARY)
    found = Sampling(seed=1, best=2).search(model, TestSeed.SOURCES, TestSeed.LENGTHS)
    assert [[len(one.ids) for one in those] for those in found] == [[3, 3], [2, 2], [3, 3]]
    assert model.rows == [6, 6, 6, 4]


def test_log_softmax_of_the_table_is_one():
    assert np.exp(log_softmax(np.array([1.0, 2.0, 3.0]))).sum() == pytest.approx(1)
