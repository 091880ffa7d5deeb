"""Attention written by hand in many ways: orders of axes, multi-query products, no ``softmax``, scores of one column.

Each form keeps the weights (batch, heads, queries, keys) that it multiplies the values by, in ``kept``.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import regard
from regard.errors import RefusedError
from regard.mechanisms.dot_product import DotProduct

HEADS, SIZE, QUERIES, KEYS = 3, 5, 7, 11


class Layer(nn.Module):
    """A layer whose ``form`` (layer, queries, keys, values) -> outputs is attention by hand."""

    def __init__(self, form):
        super().__init__()
        self.num_heads, self.form = HEADS, form

    def forward(self, query, key, value):
        return self.form(self, query, key, value)


def scaled(query):
    return query * SIZE**-0.5


def multi_query(asked, returned, pairs="bhij"):
    """One head of keys, in the orders of axes that einsum is told: queries, outputs and scores."""

    def attend(layer, query, key, value):
        query, key, value = query.movedim(1, asked.index("h")), key[:, 0], value[:, 0]
        scores = torch.einsum(f"{asked},bjd->{pairs}", scaled(query), key)
        weights = scores.softmax(pairs.index("j"))
        layer.kept = torch.einsum(f"{pairs}->bhij", weights)
        return torch.einsum(f"{pairs},bjd->{returned}", weights, value)

    attend.__name__ = f"{asked}->{pairs}->{returned}"
    return attend


def tokens_first(pairs):
    """Queries (batch, tokens, heads, size), and scores with the heads in any place."""

    def attend(layer, query, key, value):
        query, key, value = (side.transpose(1, 2) for side in (query, key, value))
        scores = torch.einsum(f"bihd,bjhd->{pairs}", scaled(query), key)
        weights = scores.softmax(pairs.index("j"))
        layer.kept = torch.einsum(f"{pairs}->bhij", weights)
        return torch.einsum(f"{pairs},bjhd->bihd", weights, value)

    attend.__name__ = f"tokens first, {pairs}"
    return attend


def keys_on_the_left(layer, query, key, value):
    weights = (key @ scaled(query).mT).softmax(-2)
    layer.kept = weights.mT
    return weights.mT @ value


def values_on_the_left(layer, query, key, value):
    weights = (key @ scaled(query).mT).softmax(2)
    layer.kept = weights.mT
    return (value.mT @ weights).mT


EINSUMS = [
    *(multi_query(asked, returned) for asked in ("bhid", "bihd") for returned in ("bhid", "bihd", "bidh")),
    multi_query("bihd", "bihd", "bihj"),
    multi_query("bhid", "bihd", "bijh"),
    tokens_first("bhij"),
    tokens_first("bijh"),
    tokens_first("bihj"),
]


def summed(layer, query, key, value):
    layer.kept = (scaled(query) @ key.mT).softmax(-1)
    return (layer.kept[..., None] * value[:, :, None]).sum(-2)


LAYOUTS = [*EINSUMS, keys_on_the_left, values_on_the_left, summed]


def divided(layer, query, key, value):
    scores = scaled(query) @ key.mT
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    layer.kept = powers / powers.sum(-1, keepdim=True)
    return layer.kept @ value


def masked_and_divided(layer, query, key, value):
    powers = (scaled(query) @ key.mT).exp() * (torch.arange(KEYS) < 8)
    layer.kept = powers / powers.sum(-1, keepdim=True)
    return layer.kept @ value


def log_sum_exp(layer, query, key, value):
    scores = scaled(query) @ key.mT
    layer.kept = torch.exp(scores - scores.logsumexp(-1, keepdim=True))
    return layer.kept @ value


def log_softmax(layer, query, key, value):
    layer.kept = (scaled(query) @ key.mT).log_softmax(-1).exp()
    return layer.kept @ value


def sparsemax(layer, query, key, value):
    """Martins and Astudillo 2016: the nearest distribution, with weights that are 0."""
    scores = 3 * scaled(query) @ key.mT
    ordered = scores.sort(-1, descending=True).values
    sums, counts = ordered.cumsum(-1) - 1, torch.arange(1, KEYS + 1)
    support = (ordered * counts > sums).sum(-1, keepdim=True)
    layer.kept = (scores - sums.gather(-1, support - 1) / support).clamp(min=0)
    return layer.kept @ value


def summed_scores(layer, query, key, value):
    """Scores that are a sum of two parts, along an axis of its own."""
    parts = torch.stack((scaled(query) @ key.mT, torch.zeros(2, HEADS, QUERIES, KEYS)))
    layer.kept = parts.sum(0).exp() / parts.sum(0).exp().sum(-1, keepdim=True)
    return layer.kept @ value


NORMALISED = [summed_scores, divided, masked_and_divided, log_sum_exp, log_softmax, sparsemax]


def make_inputs(key_heads=HEADS, keys=KEYS):
    torch.manual_seed(3)
    return (
        torch.randn(2, HEADS, QUERIES, SIZE),
        torch.randn(2, key_heads, keys, SIZE),
        torch.randn(2, key_heads, keys, SIZE + 1),
    )


def record(layer, *inputs):
    with torch.no_grad():
        plain = layer(*inputs)
        with regard.record(layer) as seen:
            assert torch.equal(layer(*inputs), plain)
    return seen


@pytest.mark.parametrize("keys", [QUERIES, KEYS])
@pytest.mark.parametrize("form", LAYOUTS, ids=lambda form: form.__name__)
def test_orders_of_axes(form, keys):
    key_heads = 1 if form in EINSUMS[:8] else HEADS
    query, key, value = make_inputs(key_heads, keys)
    layer = Layer(form)
    (call,) = record(layer, query, key, value)
    assert_close(call.weights(), layer.kept, atol=1e-6, rtol=0)
    assert isinstance(call.mechanism, DotProduct)  # queries, keys and values are known: no weights are kept
    assert_close(call.query * call.mechanism.scale, scaled(query))
    assert_close(call.key, key)
    assert_close(call.value, value)


@pytest.mark.parametrize("form", [*EINSUMS[:3], *EINSUMS[8:10]], ids=lambda form: form.__name__)
def test_weights_that_are_kept_have_their_order_too(form):
    """In bfloat16 nothing is computed again."""
    query, key, value = (side.bfloat16() for side in make_inputs(1 if form in EINSUMS[:8] else HEADS))
    layer = Layer(form)
    (call,) = record(layer, query, key, value)
    assert torch.equal(call.weights(), layer.kept.float())
    assert_close(call.query, scaled(query))
    assert_close(call.key, key)


def test_two_products_of_weights_with_keys_on_the_left():
    """The second one finds weights that were let go, and the same queries and keys."""

    def attend(layer, query, key, value):
        weights = (key @ scaled(query).mT).softmax(-2)
        layer.kept = weights.mT
        return weights.mT @ value + weights.mT @ value.flip(2)

    query, key, value = make_inputs(keys=QUERIES)
    layer = Layer(attend)
    first, second = record(layer, query, key, value)
    for call, values in ((first, value), (second, value.flip(2))):
        assert_close(call.weights(), layer.kept, atol=1e-6, rtol=0)
        assert_close(call.key, key)
        assert_close(call.value, values)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("returned", ["bhid", "bihd"])
def test_dropout_between(returned, training):
    def attend(layer, query, key, value):
        layer.kept = torch.einsum("bhid,bjd->bhij", scaled(query), key[:, 0]).softmax(-1)
        dropped = nn.functional.dropout(layer.kept, 0.4, layer.training)
        return torch.einsum(f"bhij,bjd->{returned}", dropped, value[:, 0])

    layer, inputs = Layer(attend).train(training), make_inputs(1)
    with torch.no_grad(), regard.record(layer) as seen:
        layer(*inputs)
    assert_close(seen[0].weights(), layer.kept, atol=1e-6, rtol=0)


@pytest.mark.parametrize("form", NORMALISED, ids=lambda form: form.__name__)
def test_weights_without_a_softmax(form):
    query, key, value = make_inputs()
    layer = Layer(form)
    (call,) = record(layer, query, key, value)
    assert torch.equal(call.weights(), layer.kept)
    assert call.mechanism.weights_are == "distribution"
    assert_close(call.query, scaled(query) if form is not sparsemax else 3 * scaled(query))
    assert_close(call.key, key)


class Additive(nn.Module):
    """Bahdanau et al. 2015: score_ij = v^T tanh(W q_i + U k_j), with the steps that ``finish`` takes."""

    def __init__(self, finish, bias=True):
        super().__init__()
        self.of_query, self.of_key = nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)
        self.column, self.finish = nn.Linear(SIZE, 1, bias=bias), finish

    def forward(self, query, key, value):
        pairs = torch.tanh(self.of_query(query)[:, :, None] + self.of_key(key)[:, None])
        scores = self.column(pairs)[..., 0]
        scores = scores.masked_fill(torch.arange(KEYS) >= 8, -torch.inf)
        self.kept = scores.softmax(-1)
        return self.finish(self.kept, value)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("queries", [1, QUERIES])
def test_additive_attention(queries, bias):
    torch.manual_seed(4)
    layer = Additive(torch.bmm, bias)
    query, key, value = torch.randn(2, queries, SIZE), torch.randn(2, KEYS, SIZE), torch.randn(2, KEYS, SIZE + 1)
    (call,) = record(layer, query, key, value)
    assert torch.equal(call.weights(), layer.kept[:, None])
    assert torch.equal(call.value[:, 0], value)
    assert call.query.isnan().all()  # there are none
    assert call.key.isnan().all()
    observation = call.observe(top=2)
    assert_close(observation.output[:, 0], layer.kept @ value)
    assert_close(observation.max_score.isnan(), torch.zeros(2, 1, queries, dtype=torch.bool))


@pytest.mark.parametrize("form", ["squeezed", "column", "vector", "matrix of one column", "summed", "weights last"])
def test_scores_of_tokens(form):
    """A decoder's step with one query, and pooling by a learned vector: weights (batch, keys), as in many tutorials."""

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.column, self.vector = nn.Linear(SIZE, 1), nn.Parameter(torch.randn(SIZE))

        def forward(self, state, tokens):
            hidden = torch.tanh(tokens + state[:, None])
            if form == "squeezed":
                weights = self.column(hidden).squeeze(-1).softmax(-1)
                self.kept = weights
                return torch.bmm(weights[:, None], tokens)[:, 0]
            if form == "column":
                weights = self.column(hidden).softmax(1)
                self.kept = weights[..., 0]
                return torch.bmm(weights.mT, tokens)[:, 0]
            if form in ("summed", "weights last"):
                weights = self.column(hidden).softmax(1)
                self.kept = weights[..., 0]
                return (weights * tokens if form == "summed" else tokens * weights).sum(dim=1)
            scores = hidden @ (self.vector if form == "vector" else self.vector[:, None])
            weights = scores.reshape(len(tokens), 1, -1).softmax(-1)
            self.kept = weights[:, 0]
            return (weights @ tokens)[:, 0]

    torch.manual_seed(5)
    layer = Step()
    (call,) = record(layer, torch.randn(2, SIZE), torch.randn(2, KEYS, SIZE))
    assert torch.equal(call.weights(), layer.kept[:, None, None])


def test_one_query_by_products():
    """Luong et al. 2015, "dot": the scores of a step (batch, keys) lose the axis of the query before the softmax."""

    class Step(nn.Module):
        def forward(self, state, tokens):
            self.kept = torch.bmm(tokens, state[..., None])[..., 0].softmax(1)
            return torch.bmm(self.kept[:, None], tokens)[:, 0]

    layer, state, tokens = Step(), torch.randn(3, SIZE), torch.randn(3, KEYS, SIZE)
    (call,) = record(layer, state, tokens)
    assert_close(call.weights(), layer.kept[:, None, None], atol=1e-6, rtol=0)
    assert torch.equal(call.query[:, 0, 0], state)
    assert torch.equal(call.key[:, 0], tokens)


class TestWhatIsNotAttention:
    def test_sums_along_other_axes_and_gates_are_not_recorded(self):
        class Gates(nn.Module):
            def __init__(self):
                super().__init__()
                self.column = nn.Linear(SIZE, 1)

            def forward(self, tokens):
                weighted = self.column(tokens).softmax(1) * tokens
                return weighted.sum(-1), weighted.sum(0), weighted.sum((0, 1)), weighted.mean(1)

        layer = Gates()
        with torch.no_grad(), pytest.raises(RefusedError, match="no attention was seen"), regard.record(layer):
            layer(torch.randn(2, KEYS, SIZE))

    @pytest.mark.parametrize("form", ["features of queries", "features of keys", "both"])
    def test_linear_attention_by_softmax_is_not_recorded(self, form):
        """Shen et al. 2021, "Efficient attention": softmax over features, or along the tokens of keys."""

        class Efficient(nn.Module):
            def forward(self, query, key, value):
                query = query.softmax(-1) if form != "features of keys" else query
                key = key.softmax(-2) if form != "features of queries" else key
                return query @ (key.mT @ value)

        layer = Efficient()
        with torch.no_grad(), pytest.raises(RefusedError, match="no attention was seen"), regard.record(layer):
            layer(*make_inputs())

    def test_experts_are_not_recorded(self):
        """A router's softmax over experts, whose outputs are mixed by a product."""

        class Mixture(nn.Module):
            def __init__(self):
                super().__init__()
                self.router = nn.Linear(SIZE, 4)
                self.experts = nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(4))

            def forward(self, tokens):
                outputs = torch.stack([expert(tokens) for expert in self.experts], dim=-2)
                return (self.router(tokens).softmax(-1)[..., None, :] @ outputs)[..., 0, :]

        layer = Mixture()
        with torch.no_grad(), pytest.raises(RefusedError, match="no attention was seen"), regard.record(layer):
            layer(torch.randn(2, KEYS, SIZE))
