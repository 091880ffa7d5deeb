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


def agree(found, wanted):
    assert [one.ids for one in found] == [one.ids for one in wanted]
    assert [one.finished for one in found] == [one.finished for one in wanted]
    for name in ("score", "log_probability"):
        assert [getattr(one, name) for one in found] == pytest.approx([getattr(one, name) for one in wanted], rel=1e-12)


def scripted_model(probabilities, vocabulary=VOCABULARY, **options):
    """Build a model from {target: {token: probability}}; after any other target the end has probability 1."""

    def following(source, target):
        del source
        logits = np.full(vocabulary, -np.inf)
        for token, probability in probabilities.get(target, {END: 1.0}).items():
            logits[token] = math.log(probability)
        return logits

    return TableModel(following, vocabulary, **options)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_as_wide_as_the_tree_finds_the_best_of_all(alpha, seed):
    following, most = random_table(VOCABULARY, seed), 4
    width = 4 * 3 ** (most - 1)  # all continuations of all possible live hypotheses
    beam = Beam(width, length_penalty=alpha, best=width, patience=math.inf)
    found = beam.search(TableModel(following, VOCABULARY), SOURCES, LENGTHS, most=most)
    for source, those in zip(sources(), found, strict=True):
        agree(those, oracle.exhaustive(bind_source(following, source), END, BANNED_IDS, most, alpha)[:width])


@examples(60)
@given(
    seed=some.integers(0, 10**6),
    width=some.integers(1, 6),
    share=some.floats(0, 1),
    alpha=some.sampled_from([0.0, 0.3, 0.6, 1.0, 2.5]),
    most=some.integers(1, 7),
    spread=some.sampled_from([0.5, 2.0, 6.0]),
)
def test_dropping_what_cannot_win_changes_nothing(seed, width, share, alpha, most, spread):
    following, best = random_table(VOCABULARY, seed, spread), 1 + int(share * (width - 1))
    model = TableModel(following, VOCABULARY)
    beam = Beam(width, length_penalty=alpha, best=best, patience=math.inf)
    found = beam.search(model, SOURCES, LENGTHS, most=most)
    for source, those in zip(sources(), found, strict=True):
        agree(those, oracle.beam(bind_source(following, source), END, BANNED_IDS, most, width, alpha)[:best])


@examples(60)
@given(
    seed=some.integers(0, 10**6),
    width=some.integers(1, 6),
    share=some.floats(0, 1),
    alpha=some.sampled_from([0.0, 0.6, 2.5]),
    most=some.integers(1, 7),
    spread=some.sampled_from([0.5, 2.0, 6.0]),
    patience=some.sampled_from([0.1, 0.5, 1.0, 1.3, 2.0]),
)
def test_a_source_is_done_when_enough_have_ended(seed, width, share, alpha, most, spread, patience):
    following, best = random_table(VOCABULARY, seed, spread), 1 + int(share * (width - 1))
    model = TableModel(following, VOCABULARY)
    beam = Beam(width, length_penalty=alpha, best=best, patience=patience)
    for source, those in zip(sources(), beam.search(model, SOURCES, LENGTHS, most=most), strict=True):
        wanted = oracle.patient_beam(
            bind_source(following, source), END, BANNED_IDS, most, width, alpha, best=best, patience=patience
        )
        agree(those, wanted)


@examples(30)
@given(seed=some.integers(0, 10**6), most=some.integers(1, 9))
def test_width_1_without_penalty_is_greedy(seed, most):
    model = TableModel(random_table(VOCABULARY, seed), VOCABULARY)
    assert Beam(1, length_penalty=0.0).search(model, SOURCES, LENGTHS, most=most) == Greedy().search(
        model, SOURCES, LENGTHS, most=most
    )


def test_a_large_vocabulary_is_searched_by_blocks():
    vocabulary, width, most = 2003, 3, 5
    following = random_table(vocabulary, 8)
    beam = Beam(width, best=width, patience=math.inf)
    found = beam.search(TableModel(following, vocabulary), SOURCES, LENGTHS, most=most)
    for source, those in zip(sources(), found, strict=True):
        agree(those, oracle.beam(bind_source(following, source), END, BANNED_IDS, most, width, 0.6)[:width])


class TestScore:
    def test_the_penalty_of_length_by_hand(self):
        """P(end) = 0.4 at once; A then the end 0.6 * 0.5. |Y| = 1 and 2; lp(1) = 1, lp(2) = 7/6 at alpha = 1."""
        model = scripted_model({(): {END: 0.4, A: 0.6}, (A,): {END: 0.5, B: 0.5}, (A, B): {END: 1.0}})
        one = SOURCES[:1], LENGTHS[:1]
        found = Beam(3, length_penalty=0.0, best=3).search(model, *one, most=5)[0]
        assert [(h.ids, round(math.exp(h.score), 6)) for h in found] == [((), 0.4), ((A,), 0.3), ((A, B), 0.3)]
        found = Beam(3, length_penalty=1.0, best=3).search(model, *one, most=5)[0]
        scores = {(): math.log(0.4), (A,): math.log(0.3) * 6 / 7, (A, B): math.log(0.3) * 6 / 8}
        assert [h.ids for h in found] == [(A, B), (), (A,)]
        assert [h.score for h in found] == pytest.approx([scores[h.ids] for h in found])
        assert [math.exp(h.log_probability) for h in found] == pytest.approx([0.3, 0.4, 0.3])

    def test_coverage_by_hand(self):
        """The likelier target attends to only one of two tokens; the other attends to both."""
        weights = {(): [0.9, 0.1], (A,): [0.8, 0.2], (B,): [0.1, 0.9]}
        model = scripted_model({(): {A: 0.6, B: 0.4}}, attention_weights=lambda source, target: weights[target])
        one = torch.tensor([[4, 3, 0]]), torch.tensor([2])
        beta = 0.7
        cp = {(A,): beta * math.log(0.3), (B,): beta * (math.log(1.0) + math.log(1.0))}
        beam = Beam(2, length_penalty=0.0, coverage_penalty=beta, best=2)
        found = beam.search(model, *one, most=3)[0]
        assert [h.ids for h in found] == [(B,), (A,)]
        assert [h.score for h in found] == pytest.approx([math.log(0.4) + cp[(B,)], math.log(0.6) + cp[(A,)]])
        assert [h.log_probability for h in found] == pytest.approx([math.log(0.4), math.log(0.6)])
        without = Beam(2, length_penalty=0.0, best=2).search(model, *one, most=3)[0]
        assert [h.ids for h in without] == [(A,), (B,)]

    def test_coverage_belongs_to_the_hypothesis_and_not_to_its_place(self):
        """Beams are reordered at each step, and sources have different lengths."""
        following = random_table(VOCABULARY, 5)

        def weighed(source, target):
            weights = np.random.default_rng([*source, 7, *target]).random(len(source))
            return weights / weights.sum()

        model, most = TableModel(following, VOCABULARY, attention_weights=weighed), 4
        width = 4 * 3 ** (most - 1)
        beam = Beam(width, length_penalty=0.6, coverage_penalty=0.5, best=width, patience=math.inf)
        for source, those in zip(sources(), beam.search(model, SOURCES, LENGTHS, most=most), strict=True):
            wanted = []
            for one in oracle.exhaustive(bind_source(following, source), END, BANNED_IDS, most, 0.6):
                steps = len(one.ids) + one.finished
                covered = sum(weighed(source, one.ids[:place]) for place in range(steps))
                wanted.append(one._replace(score=one.score + 0.5 * np.log(np.minimum(covered, 1)).sum()))
            agree(those, oracle.sort_targets(wanted)[:width])

    def test_a_token_without_any_weight_does_not_make_the_score_infinite(self):
        model = scripted_model({(): {A: 1.0}}, attention_weights=lambda source, target: [1.0, 0.0])
        found = Beam(2, coverage_penalty=0.2).search(model, torch.tensor([[4, 3]]), torch.tensor([2]), most=3)
        assert found[0][0].finished
        assert math.isfinite(found[0][0].score)


class TestRows:
    """Number of rows in each model call, which is the cost of a step."""

    def test_what_is_finished_is_asked_no_more(self):
        """A or B, 0.9 and 0.1; A ends, and B (at 0.1 < 0.9) can no longer overtake."""
        model = scripted_model({(): {A: 0.9, B: 0.1}})
        assert Beam(2, length_penalty=0.0).search(model, SOURCES, LENGTHS, most=9)[0][0].ids == (A,)
        assert model.rows == [3, 6]

    def test_a_source_leaves_alone(self):
        def following(source, target):
            ends = len(target) == len(source)
            logits = np.full(VOCABULARY, -np.inf)
            logits[END if ends else A] = 0.0
            return logits

        model = TableModel(following, VOCABULARY)
        found = Beam(1, length_penalty=0.0).search(model, SOURCES, LENGTHS, most=9)
        assert [one[0].ids for one in found] == [(A,) * 4, (A,) * 2, (A,) * 3]
        assert model.rows == [3, 3, 3, 2, 1]

    def test_hypotheses_that_cannot_win_leave_one_by_one(self):
        """Width 3: C is dropped when A ends, while B lives on and wins."""
        script = {
            (): {A: 0.45, B: 0.5, C: 0.05},
            (A,): {END: 0.5, A: 0.5},
            (B,): {B: 1.0},
            (C,): {C: 1.0},
        }
        model = scripted_model(script)
        found = Beam(3, length_penalty=0.0).search(model, SOURCES[:1], LENGTHS[:1], most=9)[0]
        assert found[0].ids == (B, B)
        assert model.rows == [1, 3, 1]  # (B, B) at 0.5; (A, A) at 0.225 ties with (A) and cannot beat it

    def test_a_longer_one_may_overtake_where_length_is_rewarded(self):
        """log P: (A) -1.2, (B x 5) -1.4, and lp(2) < lp(6): the longer wins at alpha 1, and not at 0."""
        script = {(): {A: math.exp(-1.2), B: math.exp(-1.4)}} | {(B,) * n: {B: 1.0} for n in range(1, 5)}
        for alpha, ids in ((0.0, (A,)), (1.0, (B,) * 5)):
            found = Beam(2, length_penalty=alpha).search(scripted_model(script), SOURCES[:1], LENGTHS[:1], most=20)[0]
            assert found[0].ids == ids

    def test_patience_ends_the_search_before_the_best_is_certain(self):
        """A and B end after one token; with patience 1 the search stops before A A, which would win by its length."""
        script = {(): {A: 0.6, B: 0.4}, (A,): {A: 0.5, END: 0.5}, (B,): {END: 1.0}, (A, A): {END: 1.0}}
        for patience, ids, rows in ((1.0, (B,), [1, 2]), (1.5, (A, A), [1, 2, 1])):
            model = scripted_model(script)
            beam = Beam(2, length_penalty=3.0, patience=patience)
            assert beam.search(model, SOURCES[:1], LENGTHS[:1], most=9)[0][0].ids == ids
            assert model.rows == rows

    def test_states_are_reordered_only_where_rows_change(self, monkeypatch):
        calls = []
        model = scripted_model({(A,) * n: {A: 1.0} for n in range(4)})
        state = type(model.start(SOURCES, lengths=LENGTHS))
        reordered = state.reordered
        monkeypatch.setattr(state, "reordered", lambda self, rows: calls.append(rows) or reordered(self, rows))
        Beam(1, length_penalty=0.0).search(model, SOURCES, LENGTHS, most=9)
        assert model.rows == [3] * 5
        assert calls == []


class TestEnd:
    def test_a_target_has_at_most_so_many_tokens(self):
        model = scripted_model({(A,) * n: {A: 1.0} for n in range(50)})
        for most in (1, 2, 5):
            model.rows.clear()
            found = Beam(2).search(model, SOURCES, LENGTHS, most=most)
            assert [(one[0].ids, one[0].finished) for one in found] == [((A,) * most, False)] * 3
            assert len(model.rows) == most

    def test_the_default_goes_by_the_length_of_each_source(self):
        model = scripted_model({(A,) * n: {A: 1.0} for n in range(50)})
        found = Beam(2).search(model, SOURCES, LENGTHS)
        assert [len(one[0].ids) for one in found] == [2 * 4 + 10, 2 * 2 + 10, 2 * 3 + 10]

    def test_what_is_finished_comes_before_what_was_cut(self):
        model = scripted_model({(): {A: 0.9, END: 0.1}, (A,): {A: 1.0}})
        found = Beam(2, length_penalty=0.0, best=2).search(model, SOURCES[:1], LENGTHS[:1], most=2)[0]
        assert [(one.ids, one.finished) for one in found] == [((), True), ((A, A), False)]
        assert found[0].score < found[1].score

    def test_there_are_fewer_where_fewer_were_found(self):
        never = -math.inf
        model = TableModel(lambda source, target: np.array([never, never, never, 0.0, never]), 5)
        found = Beam(3, best=3).search(model, SOURCES[:, :1], torch.tensor([1, 1, 1]), most=4)
        assert [[(one.ids, one.finished) for one in those] for those in found] == [[((), True)]] * 3


def test_padding_unknown_and_start_are_never_written():
    def following(source, target):
        logits = random_table(VOCABULARY, 3)(source, target)
        logits[list(BANNED_IDS)] += 20
        return logits

    found = Beam(4, best=4).search(TableModel(following, VOCABULARY), SOURCES, LENGTHS, most=5)
    assert {token for those in found for one in those for token in one.ids} == {A, B, C}
    best = oracle.beam(lambda target: log_softmax(following(sources()[0], target)), END, BANNED_IDS, 5, 4, 0.6)
    agree(found[0], best[:4])  # log-probabilities are the model's: banned tokens keep their share


def test_a_model_without_attention_refuses_coverage():
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
def test_options_outside_of_their_range_are_refused(options, facts):
    with pytest.raises(OptionError, match=f"(?s){facts}"):
        Beam(**options)


def test_it_shows_its_options():
    assert repr(Beam(4, best=2)) == "Beam(width=4, length_penalty=0.6, coverage_penalty=0.0, best=2, patience=1.0)"
