"""Beam search against all possible targets, against a beam that drops nothing, and against hand-computed scores."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some

from hypothesis_examples import examples
from oracles import search as oracle
from regard.errors import OptionError, RefusedError
from regard.search import Beam, Greedy
from table_model import BANNED_IDS, END, TableModel, bind_source, log_softmax, random_table

VOCABULARY = 7  # three tokens that can be written, and the end
A, B, C = 4, 5, 6
SOURCES = torch.tensor([[5, 6, 4, 3], [4, 3, 0, 0], [6, 6, 3, 0]])
LENGTHS = torch.tensor([4, 2, 3])


def sources():
    return [tuple(ids[:length]) for ids, length in zip(SOURCES.tolist(), LENGTHS.tolist(), strict=True)]


def assert_equal_hypotheses(hypotheses, expected):
    assert [one.ids for one in hypotheses] == [one.ids for one in expected]
    assert [one.finished for one in hypotheses] == [one.finished for one in expected]
    for name in ("score", "log_probability"):
        assert [getattr(one, name) for one in hypotheses] == pytest.approx(
            [getattr(one, name) for one in expected], rel=1e-12
        )


def scripted_model(probabilities, vocabulary=VOCABULARY, **options):
    """Build a model from {target: {token: probability}}; after any other target the end has probability 1."""

    def next_logits(source, target):
        del source
        logits = np.full(vocabulary, -np.inf)
        for token, probability in probabilities.get(target, {END: 1.0}).items():
            logits[token] = math.log(probability)
        return logits

    return TableModel(next_logits, vocabulary, **options)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_beam_as_wide_as_the_tree_equals_exhaustive_search(alpha, seed):
    next_logits, most = random_table(VOCABULARY, seed), 4
    width = 4 * 3 ** (most - 1)  # all continuations of all possible live hypotheses
    beam = Beam(width, length_penalty=alpha, best=width, patience=math.inf)
    actual = beam.search(TableModel(next_logits, VOCABULARY), SOURCES, LENGTHS, max_tokens=most)
    for source, hypotheses in zip(sources(), actual, strict=True):
        assert_equal_hypotheses(
            hypotheses, oracle.exhaustive(bind_source(next_logits, source), END, BANNED_IDS, most, alpha)[:width]
        )


@examples(60)
@given(
    seed=some.integers(0, 10**6),
    width=some.integers(1, 6),
    share=some.floats(0, 1),
    alpha=some.sampled_from([0.0, 0.3, 0.6, 1.0, 2.5]),
    most=some.integers(1, 7),
    deviation=some.sampled_from([0.5, 2.0, 6.0]),
)
def test_dropped_hypotheses_do_not_change_the_result(seed, width, share, alpha, most, deviation):
    next_logits, best = random_table(VOCABULARY, seed, deviation), 1 + int(share * (width - 1))
    model = TableModel(next_logits, VOCABULARY)
    beam = Beam(width, length_penalty=alpha, best=best, patience=math.inf)
    actual = beam.search(model, SOURCES, LENGTHS, max_tokens=most)
    for source, hypotheses in zip(sources(), actual, strict=True):
        assert_equal_hypotheses(
            hypotheses, oracle.beam(bind_source(next_logits, source), END, BANNED_IDS, most, width, alpha)[:best]
        )


@examples(60)
@given(
    seed=some.integers(0, 10**6),
    width=some.integers(1, 6),
    share=some.floats(0, 1),
    alpha=some.sampled_from([0.0, 0.6, 2.5]),
    most=some.integers(1, 7),
    deviation=some.sampled_from([0.5, 2.0, 6.0]),
    patience=some.sampled_from([0.1, 0.5, 1.0, 1.3, 2.0]),
)
def test_patience_decides_when_a_source_is_finished(seed, width, share, alpha, most, deviation, patience):
    next_logits, best = random_table(VOCABULARY, seed, deviation), 1 + int(share * (width - 1))
    model = TableModel(next_logits, VOCABULARY)
    beam = Beam(width, length_penalty=alpha, best=best, patience=patience)
    for source, hypotheses in zip(sources(), beam.search(model, SOURCES, LENGTHS, max_tokens=most), strict=True):
        expected = oracle.patient_beam(
            bind_source(next_logits, source), END, BANNED_IDS, most, width, alpha, best=best, patience=patience
        )
        assert_equal_hypotheses(hypotheses, expected)


@examples(30)
@given(seed=some.integers(0, 10**6), most=some.integers(1, 9))
def test_width_1_without_penalty_is_greedy(seed, most):
    model = TableModel(random_table(VOCABULARY, seed), VOCABULARY)
    searches = Beam(1, length_penalty=0.0), Greedy()
    for beam, greedy in zip(*(one.search(model, SOURCES, LENGTHS, max_tokens=most) for one in searches), strict=True):
        assert_equal_hypotheses(beam, greedy)


def test_large_vocabularies_are_searched_in_blocks():
    vocabulary, width, most = 2003, 3, 5
    next_logits = random_table(vocabulary, 8)
    beam = Beam(width, best=width, patience=math.inf)
    hypotheses = beam.search(TableModel(next_logits, vocabulary), SOURCES, LENGTHS, max_tokens=most)
    for source, those in zip(sources(), hypotheses, strict=True):
        assert_equal_hypotheses(
            those, oracle.beam(bind_source(next_logits, source), END, BANNED_IDS, most, width, 0.6)[:width]
        )


class TestScore:
    def test_length_penalty_by_hand(self):
        """P(end) = 0.4 at once; A then the end 0.6 * 0.5. |Y| = 1 and 2; lp(1) = 1, lp(2) = 7/6 at alpha = 1."""
        model = scripted_model({(): {END: 0.4, A: 0.6}, (A,): {END: 0.5, B: 0.5}, (A, B): {END: 1.0}})
        one = SOURCES[:1], LENGTHS[:1]
        hypotheses = Beam(3, length_penalty=0.0, best=3).search(model, *one, max_tokens=5)[0]
        assert [(h.ids, round(math.exp(h.score), 6)) for h in hypotheses] == [((), 0.4), ((A,), 0.3), ((A, B), 0.3)]
        hypotheses = Beam(3, length_penalty=1.0, best=3).search(model, *one, max_tokens=5)[0]
        scores = {(): math.log(0.4), (A,): math.log(0.3) * 6 / 7, (A, B): math.log(0.3) * 6 / 8}
        assert [h.ids for h in hypotheses] == [(A, B), (), (A,)]
        assert [h.score for h in hypotheses] == pytest.approx([scores[h.ids] for h in hypotheses])
        assert [math.exp(h.log_probability) for h in hypotheses] == pytest.approx([0.3, 0.4, 0.3])

    def test_coverage_penalty_by_hand(self):
        """The likelier target attends to only one of two tokens; the other attends to both."""
        weights = {(): [0.9, 0.1], (A,): [0.8, 0.2], (B,): [0.1, 0.9]}
        model = scripted_model({(): {A: 0.6, B: 0.4}}, attention_weights=lambda source, target: weights[target])
        one = torch.tensor([[4, 3, 0]]), torch.tensor([2])
        beta = 0.7
        cp = {(A,): beta * math.log(0.3), (B,): beta * (math.log(1.0) + math.log(1.0))}
        beam = Beam(2, length_penalty=0.0, coverage_penalty=beta, best=2)
        hypotheses = beam.search(model, *one, max_tokens=3)[0]
        assert [h.ids for h in hypotheses] == [(B,), (A,)]
        assert [h.score for h in hypotheses] == pytest.approx([math.log(0.4) + cp[(B,)], math.log(0.6) + cp[(A,)]])
        assert [h.log_probability for h in hypotheses] == pytest.approx([math.log(0.4), math.log(0.6)])
        without = Beam(2, length_penalty=0.0, best=2).search(model, *one, max_tokens=3)[0]
        assert [h.ids for h in without] == [(A,), (B,)]

    def test_coverage_is_reordered_with_its_hypothesis(self):
        """Beams are reordered at each step, and sources have different lengths."""
        next_logits = random_table(VOCABULARY, 5)

        def attention_weights(source, target):
            weights = np.random.default_rng([*source, 7, *target]).random(len(source))
            return weights / weights.sum()

        model, most = TableModel(next_logits, VOCABULARY, attention_weights=attention_weights), 4
        width = 4 * 3 ** (most - 1)
        beam = Beam(width, length_penalty=0.6, coverage_penalty=0.5, best=width, patience=math.inf)
        for source, hypotheses in zip(sources(), beam.search(model, SOURCES, LENGTHS, max_tokens=most), strict=True):
            expected = []
            for one in oracle.exhaustive(bind_source(next_logits, source), END, BANNED_IDS, most, 0.6):
                steps = len(one.ids) + one.finished
                covered = sum(attention_weights(source, one.ids[:place]) for place in range(steps))
                expected.append(one._replace(score=one.score + 0.5 * np.log(np.minimum(covered, 1)).sum()))
            assert_equal_hypotheses(hypotheses, oracle.sort_targets(expected)[:width])

    def test_source_token_without_attention_gives_a_finite_score(self):
        model = scripted_model({(): {A: 1.0}}, attention_weights=lambda source, target: [1.0, 0.0])
        hypotheses = Beam(2, coverage_penalty=0.2).search(
            model, torch.tensor([[4, 3]]), torch.tensor([2]), max_tokens=3
        )
        assert hypotheses[0][0].finished
        assert math.isfinite(hypotheses[0][0].score)


class TestRows:
    """Number of rows in each model call, which is the cost of a step."""

    def test_finished_hypotheses_are_not_computed(self):
        """A or B, 0.9 and 0.1; A ends, and B (at 0.1 < 0.9) can no longer overtake."""
        model = scripted_model({(): {A: 0.9, B: 0.1}})
        assert Beam(2, length_penalty=0.0).search(model, SOURCES, LENGTHS, max_tokens=9)[0][0].ids == (A,)
        assert model.rows == [3, 6]

    def test_finished_sources_are_not_computed(self):
        def next_logits(source, target):
            ends = len(target) == len(source)
            logits = np.full(VOCABULARY, -np.inf)
            logits[END if ends else A] = 0.0
            return logits

        model = TableModel(next_logits, VOCABULARY)
        hypotheses = Beam(1, length_penalty=0.0).search(model, SOURCES, LENGTHS, max_tokens=9)
        assert [one[0].ids for one in hypotheses] == [(A,) * 4, (A,) * 2, (A,) * 3]
        assert model.rows == [3, 3, 3, 2, 1]

    def test_hypotheses_that_cannot_win_are_dropped_one_by_one(self):
        """Width 3: C is dropped when A ends, while B lives on and wins."""
        script = {
            (): {A: 0.45, B: 0.5, C: 0.05},
            (A,): {END: 0.5, A: 0.5},
            (B,): {B: 1.0},
            (C,): {C: 1.0},
        }
        model = scripted_model(script)
        hypotheses = Beam(3, length_penalty=0.0).search(model, SOURCES[:1], LENGTHS[:1], max_tokens=9)[0]
        assert hypotheses[0].ids == (B, B)
        assert model.rows == [1, 3, 1]  # (B, B) at 0.5; (A, A) at 0.225 ties with (A) and cannot beat it

    def test_longer_hypothesis_may_overtake_with_a_length_penalty(self):
        """log P: (A) -1.2, (B x 5) -1.4, and lp(2) < lp(6): the longer wins at alpha 1, and not at 0."""
        script = {(): {A: math.exp(-1.2), B: math.exp(-1.4)}} | {(B,) * n: {B: 1.0} for n in range(1, 5)}
        for alpha, ids in ((0.0, (A,)), (1.0, (B,) * 5)):
            hypotheses = Beam(2, length_penalty=alpha).search(
                scripted_model(script), SOURCES[:1], LENGTHS[:1], max_tokens=20
            )[0]
            assert hypotheses[0].ids == ids

    def test_patience_ends_the_search_early(self):
        """A and B end after one token; with patience 1 the search stops before A A, which would win by its length."""
        script = {(): {A: 0.6, B: 0.4}, (A,): {A: 0.5, END: 0.5}, (B,): {END: 1.0}, (A, A): {END: 1.0}}
        for patience, ids, rows in ((1.0, (B,), [1, 2]), (1.5, (A, A), [1, 2, 1])):
            model = scripted_model(script)
            beam = Beam(2, length_penalty=3.0, patience=patience)
            assert beam.search(model, SOURCES[:1], LENGTHS[:1], max_tokens=9)[0][0].ids == ids
            assert model.rows == rows

    def test_states_are_reordered_only_if_rows_change(self, monkeypatch):
        calls = []
        model = scripted_model({(A,) * n: {A: 1.0} for n in range(4)})
        state = type(model.start(SOURCES, lengths=LENGTHS))
        reordered = state.reordered
        monkeypatch.setattr(state, "reordered", lambda self, rows: calls.append(rows) or reordered(self, rows))
        Beam(1, length_penalty=0.0).search(model, SOURCES, LENGTHS, max_tokens=9)
        assert model.rows == [3] * 5
        assert calls == []


class TestEnd:
    def test_maximum_number_of_tokens(self):
        model = scripted_model({(A,) * n: {A: 1.0} for n in range(50)})
        for most in (1, 2, 5):
            model.rows.clear()
            hypotheses = Beam(2).search(model, SOURCES, LENGTHS, max_tokens=most)
            assert [(one[0].ids, one[0].finished) for one in hypotheses] == [((A,) * most, False)] * 3
            assert len(model.rows) == most

    def test_default_maximum_depends_on_the_source_length(self):
        model = scripted_model({(A,) * n: {A: 1.0} for n in range(50)})
        hypotheses = Beam(2).search(model, SOURCES, LENGTHS)
        assert [len(one[0].ids) for one in hypotheses] == [2 * 4 + 10, 2 * 2 + 10, 2 * 3 + 10]

    def test_finished_hypotheses_come_before_truncated_ones(self):
        model = scripted_model({(): {A: 0.9, END: 0.1}, (A,): {A: 1.0}})
        hypotheses = Beam(2, length_penalty=0.0, best=2).search(model, SOURCES[:1], LENGTHS[:1], max_tokens=2)[0]
        assert [(one.ids, one.finished) for one in hypotheses] == [((), True), ((A, A), False)]
        assert hypotheses[0].score < hypotheses[1].score

    def test_fewer_hypotheses_than_requested(self):
        never = -math.inf
        model = TableModel(lambda source, target: np.array([never, never, never, 0.0, never]), 5)
        hypotheses = Beam(3, best=3).search(model, SOURCES[:, :1], torch.tensor([1, 1, 1]), max_tokens=4)
        assert [[(one.ids, one.finished) for one in those] for those in hypotheses] == [[((), True)]] * 3


def test_padding_unknown_and_start_are_never_generated():
    def next_logits(source, target):
        logits = random_table(VOCABULARY, 3)(source, target)
        logits[list(BANNED_IDS)] += 20
        return logits

    hypotheses = Beam(4, best=4).search(TableModel(next_logits, VOCABULARY), SOURCES, LENGTHS, max_tokens=5)
    assert {token for those in hypotheses for one in those for token in one.ids} == {A, B, C}
    best = oracle.beam(lambda target: log_softmax(next_logits(sources()[0], target)), END, BANNED_IDS, 5, 4, 0.6)
    assert_equal_hypotheses(
        hypotheses[0], best[:4]
    )  # log-probabilities are the model's: banned tokens keep their share


def test_coverage_penalty_without_attention_is_refused():
    with pytest.raises(RefusedError, match="no attention"):
        Beam(2, coverage_penalty=0.1).search(scripted_model({}), SOURCES, LENGTHS)


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"width": 0}, r"wrong width.*1 or more"),
        ({"width": 2.5}, r"wrong width"),
        ({"best": 0}, r"wrong best"),
        ({"width": 3, "best": 4}, r"wider|larger than the beam width.*best from 1 to 3.*best=4"),
        ({"length_penalty": -0.1}, r"wrong length_penalty.*0 or more.*-0\.1"),
        ({"length_penalty": math.nan}, r"wrong length_penalty"),
        ({"coverage_penalty": "much"}, r"wrong coverage_penalty"),
        ({"patience": 0}, r"wrong patience.*above 0"),
        ({"patience": math.nan}, r"wrong patience"),
    ],
)
def test_options_out_of_range_are_refused(options, facts):
    with pytest.raises(OptionError, match=f"(?s){facts}"):
        Beam(**options)


def test_repr_shows_the_options():
    assert repr(Beam(4, best=2)) == "Beam(width=4, length_penalty=0.6, coverage_penalty=0.0, best=2, patience=1.0)"
