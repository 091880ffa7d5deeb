"""Properties of all strategies, on a table and on a Transformer; greedy search."""

import math

import numpy as np
import pytest
import torch

from regard.errors import DtypeError, OptionError, RefusedError, ShapeError
from regard.models import Transformer, TransformerConfig
from regard.search import Beam, Greedy, Sampling
from regard.search.blockwise_topk import blockwise_topk
from table_model import BANNED_IDS, END, START, TableModel, bind_source, log_softmax, random_table

VOCABULARY = 11
SOURCES = torch.tensor([[5, 6, 4, 9, 3], [4, 3, 0, 0, 0], [8, 6, 3, 0, 0]])
LENGTHS = torch.tensor([5, 2, 3])
STRATEGIES = [
    Greedy(),
    Beam(3, best=3),
    Beam(2, length_penalty=0.0, coverage_penalty=0.3),
    Sampling(seed=3, best=2),
    Sampling(seed=3, top_k=3, top_p=0.8, temperature=0.7),
]


def sources():
    return [tuple(ids[:length]) for ids, length in zip(SOURCES.tolist(), LENGTHS.tolist(), strict=True)]


def transformer(**options):
    """A Transformer in float64 whose tokens differ in probability."""
    torch.manual_seed(7)
    numbers = {"vocabulary": VOCABULARY, "width": 12, "layers": 2, "heads": 3, "inner": 17, "dropout": 0.3}
    model = Transformer(TransformerConfig(**{**numbers, **options})).double().eval()
    torch.nn.init.normal_(model.output.weight, std=0.5)
    return model


def log_probability_of(model, source, one):
    """log P of a given target, by teacher forcing."""
    target = torch.tensor([[model.start_id, *one.ids, *([model.end_id] if one.finished else [])]])
    log_probs = model(torch.tensor([source]), target[:, :-1]).logits.log_softmax(-1)
    return log_probs.gather(2, target[:, 1:, None]).sum().item()


@pytest.mark.parametrize(
    ("search", "position"),
    [
        *((search, "sinusoidal") for search in STRATEGIES),
        (STRATEGIES[1], "rotary"),  # all in slow tests: another state, which the search knows how to reorder
        *(pytest.param(search, "rotary", marks=pytest.mark.slow) for search in (STRATEGIES[0], *STRATEGIES[2:])),
    ],
    ids=repr,
)
class TestTransformer:
    def test_log_probabilities_equal_teacher_forcing(self, search, position):
        model = transformer(position=position)
        for source, those in zip(sources(), search.search(model, SOURCES, LENGTHS, max_tokens=5), strict=True):
            assert len(those) == getattr(search, "best", 1)
            for one in those:
                assert one.log_probability == pytest.approx(log_probability_of(model, source, one), abs=1e-11)
                assert len(one.ids) == 5 or one.finished
                assert not set(one.ids) & {*BANNED_IDS, END}

    def test_targets_are_independent_of_other_sources(self, search, position):
        model = transformer(position=position)
        together = search.search(model, SOURCES, LENGTHS, max_tokens=5)
        for source, those in zip(sources(), together, strict=True):
            alone = search.search(model, torch.tensor([source]), torch.tensor([len(source)]), max_tokens=5)[0]
            assert [one.ids for one in alone] == [one.ids for one in those]
            assert [one.score for one in alone] == pytest.approx([one.score for one in those], abs=1e-11)


@pytest.mark.parametrize("search", STRATEGIES, ids=repr)
class TestEveryStrategy:
    def test_model_is_in_eval_mode_during_the_search(self, search):
        model = transformer()
        expected = search.search(model, SOURCES, LENGTHS, max_tokens=5)
        model.train()
        model.encoder[1].eval()
        modes = [module.training for module in model.modules()]
        assert search.search(model, SOURCES, LENGTHS, max_tokens=5) == expected
        assert [module.training for module in model.modules()] == modes
        assert 0 < sum(modes) < len(modes)

    def test_no_gradients_are_kept(self, search):
        model = TableModel(
            random_table(VOCABULARY, 1), VOCABULARY, attention_weights=lambda source, target: 1 / len(source)
        )
        enabled, step = [], model.step
        model.step = lambda tokens, state: enabled.append(torch.is_grad_enabled()) or step(tokens, state)
        assert len(search.search(model, SOURCES, LENGTHS)) == 3
        assert set(enabled) == {False}
        assert torch.is_grad_enabled()

    def test_no_sources_give_no_targets(self, search):
        assert search.search(transformer(), SOURCES[:0], LENGTHS[:0]) == []

    def test_invalid_sources_are_refused(self, search):
        model = transformer()
        for source, lengths, error, facts in (
            (SOURCES[0], LENGTHS, ShapeError, r"do not fit each other.*source \(5,\), lengths \(3,\)"),
            (SOURCES, LENGTHS[:2], ShapeError, r"do not fit each other.*lengths \(2,\)"),
            (SOURCES, LENGTHS.double(), DtypeError, r"not integers.*float64"),
            (SOURCES, LENGTHS - 2, ShapeError, r"lengths from 1 to 5.*got: +0 to 3"),
            (SOURCES, LENGTHS + 1, ShapeError, r"lengths from 1 to 5.*got: +3 to 6"),
        ):
            with pytest.raises(error, match=f"(?s){facts}"):
                search.search(model, source, lengths)
        with pytest.raises(OptionError, match="wrong max_tokens"):
            search.search(model, SOURCES, LENGTHS, max_tokens=0)
        assert not model.training

    def test_nan_logits_are_refused(self, search):
        def next_logits(source, target):
            return np.full(VOCABULARY, np.nan if source == sources()[1] else 0.0)

        model = TableModel(next_logits, VOCABULARY, attention_weights=lambda source, target: 1 / len(source))
        with pytest.raises(RefusedError, match=r"(?s)no token a finite log-probability, for source 2 of the 3.*NaN"):
            search.search(model, SOURCES, LENGTHS)


class TestGreedy:
    @pytest.mark.parametrize("seed", range(5))
    def test_takes_the_likeliest_token_at_each_step(self, seed):
        next_logits = random_table(VOCABULARY, seed)
        hypotheses = Greedy().search(TableModel(next_logits, VOCABULARY), SOURCES, LENGTHS, max_tokens=6)
        for source, [one] in zip(sources(), hypotheses, strict=True):
            ids, total, next_log_probs = [], 0.0, bind_source(next_logits, source)
            while len(ids) < 6 and END not in ids:
                row = next_log_probs(tuple(ids))
                ids.append(max(set(range(VOCABULARY)) - set(BANNED_IDS), key=lambda token: row[token]))
                total += row[ids[-1]]
            assert one.finished == (END in ids)
            assert list(one.ids) == [token for token in ids if token != END]
            assert one.log_probability == pytest.approx(total)
            assert one.score == one.log_probability

    def test_finished_rows_are_not_computed(self):
        def next_logits(source, target):
            logits = np.zeros(VOCABULARY)
            logits[END if len(target) == len(source) else 4] = 60.0
            return logits

        model = TableModel(next_logits, VOCABULARY)
        assert [len(one.ids) for [one] in Greedy().search(model, SOURCES, LENGTHS)] == [5, 2, 3]
        assert model.rows == [3, 3, 3, 2, 1, 1]

    def test_stops_at_the_maximum_number_of_tokens(self):
        model = TableModel(lambda source, target: np.arange(VOCABULARY) * 9.0, VOCABULARY)
        hypotheses = Greedy().search(model, SOURCES, LENGTHS)
        assert [(len(one.ids), one.finished) for [one] in hypotheses] == [(20, False), (14, False), (16, False)]
        assert model.rows == [3] * 14 + [2] * 2 + [1] * 4

    def test_banned_tokens_keep_their_probability(self):
        logits = np.zeros(VOCABULARY)
        logits[[0, 1, START]], logits[END] = 5.0, 4.0
        [[one], *_] = Greedy().search(TableModel(lambda source, target: logits, VOCABULARY), SOURCES, LENGTHS)
        assert (one.ids, one.finished) == ((), True)
        assert one.log_probability == pytest.approx(log_softmax(logits)[END])


@pytest.mark.parametrize("search", STRATEGIES, ids=repr)
@pytest.mark.parametrize("token", [0, 1])
def test_ids_0_and_1_may_be_ordinary_tokens(search, token):
    model = transformer(pad_id=4, start_id=5, end_id=2, shared="none")
    assert model.unknown_id is None
    with torch.no_grad():
        model.output.weight.zero_()
    bias = torch.zeros(VOCABULARY, dtype=torch.float64)
    bias[token], bias[[model.pad_id, model.start_id]] = 40.0, 80.0
    model.output.bias = torch.nn.Parameter(bias)
    hypotheses = search.search(model, torch.tensor([[0, 1, 3, 2]]), torch.tensor([4]), max_tokens=9)
    assert hypotheses[0][0].ids == (token,) * 9


@pytest.mark.parametrize("vocabulary", [5, 63, 640, 1280, 1283, 8009])
@pytest.mark.parametrize("count", [1, 4, 9, 700])
def test_blockwise_topk_equals_sorting(vocabulary, count):
    values = torch.randn(7, vocabulary)
    values[2, : vocabulary // 2] = -math.inf
    values[3] = values[3].sort(descending=True).values  # all in the first blocks
    values[4] = values[4].sort().values  # and in the last
    top, ids = blockwise_topk(values, count)
    order = np.argsort(-values.numpy(), axis=1)[:, :count]
    assert np.array_equal(top.numpy(), np.take_along_axis(values.numpy(), order, axis=1))
    assert torch.equal(values.gather(1, ids), top)
    assert all(len(set(row)) == len(row) for row in ids.tolist())


def test_positions_limit_the_number_of_tokens():
    from regard.models import Transformer, TransformerConfig

    torch.manual_seed(3)
    model = Transformer(
        TransformerConfig(vocabulary=23, width=8, layers=1, heads=2, inner=7, position="learned", max_length=11)
    ).eval()
    with torch.no_grad():
        model.output.weight[model.end_id] = 0  # so that the end is unlikely
    source = torch.tensor([[5, 6, 7, 8, 9, 10, 3]])
    for search in (Greedy(), Beam(width=3)):
        (hypotheses,) = search.search(model, source, torch.tensor([7]))
        assert len(hypotheses[0].ids) <= 11
