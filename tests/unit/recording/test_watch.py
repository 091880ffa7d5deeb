"""``regard.watch``: statistics of layers in training, from their weights, with the bits of the model unchanged."""

from __future__ import annotations

import copy
import csv
import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import regard
from regard import masks
from regard.errors import DivergenceError, OptionError, RefusedError
from unit.recording.test_any_module import HEADS, LENGTH, WIDTH, Model, einsum, fused, matmul


class Ours(nn.Module):
    """Two layers of regard with dropout, causal."""

    def __init__(self, **options):
        super().__init__()
        self.layers = nn.ModuleList(regard.MultiHeadAttention(WIDTH, HEADS, dropout=0.1, **options) for _ in range(2))

    def forward(self, tokens):
        for layer in self.layers:
            tokens = tokens + layer(tokens, mask=masks.causal())
        return tokens


MODELS = {
    "ours": Ours,
    "fused": lambda: Model(fused),
    "by hand": lambda: Model(matmul),
    "einsum": lambda: Model(einsum),
    "torch": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True), 2),
}


def train(model, tokens, steps=3, autocast=False):
    """The gradients and losses of some steps of plain gradient descent, and the state of the random numbers."""
    torch.manual_seed(7)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.01), []
    for _ in range(steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(tokens).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(parameter.grad for parameter in model.parameters()), torch.get_rng_state()]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_training_keeps_its_bits(name, autocast):
    model, tokens = MODELS[name]().train(), torch.randn(2, LENGTH, WIDTH)
    plain = train(copy.deepcopy(model), tokens, autocast=autocast)
    with regard.watch(model, every=2) as watcher:
        watched = train(model, tokens, autocast=autocast)
    for expected, found in zip(plain, watched, strict=True):
        assert torch.equal(expected, found)
    assert [row.step for row in watcher.rows] == [1, 1, 2, 2]
    assert len({row.layer for row in watcher.rows}) == 2
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert len(watcher.rows) == 4
    model(tokens)
    assert len(watcher.rows) == 4


@pytest.mark.parametrize("name", ["ours", "fused", "by hand"])
def test_statistics_of_the_weights(name):
    model, tokens = MODELS[name]().train(), 3 * torch.randn(2, LENGTH, WIDTH)
    torch.manual_seed(3)
    with regard.record(model) as recording:
        model(tokens)
    torch.manual_seed(3)
    with regard.watch(model, sink_keys=(0, 2, 99)) as watcher:
        model(tokens)
    for call, row in zip(recording, watcher.rows, strict=True):
        weights = call.weights()
        assert row.layer == call.name
        assert math.isclose(row.entropy, -torch.xlogy(weights, weights).sum(-1).mean(), rel_tol=1e-5)
        scores = (call.query @ call.key.mT * call.query.shape[-1] ** -0.5)[(weights > 0)]
        assert math.isclose(row.max_score, scores.max(), rel_tol=1e-5)
        assert len(row.head_scores) == HEADS
        assert max(row.head_scores) == row.max_score
        assert math.isclose(row.sink_mass, weights[..., [0, 2]].sum(-1).mean(), rel_tol=1e-5)
        norms = (weights @ call.value).norm(dim=-1).mean((0, 2))
        assert math.isclose(row.dead_heads, (norms <= 0.1 * norms.mean()).float().mean(), rel_tol=1e-6)
        on_itself = (weights.argmax(-1) == torch.arange(LENGTH)).float().mean((0, 2))
        assert math.isclose(row.diagonal_heads, (on_itself >= 0.9).float().mean(), rel_tol=1e-6)


def test_dead_and_diagonal_heads():
    layer = regard.MultiHeadAttention(WIDTH, HEADS, bias=False)
    with torch.no_grad():
        layer.value_projection.weight[: WIDTH // HEADS] = 0.0
        layer.query_projection.weight.copy_(30 * torch.eye(WIDTH))
        layer.key_projection.weight.copy_(torch.eye(WIDTH))
    with regard.watch(layer) as watcher:
        layer(torch.eye(4).repeat(1, 1, 3))
    (row,) = watcher.rows
    assert math.isclose(row.dead_heads, 1 / 3, rel_tol=1e-6)
    assert row.diagonal_heads == 1.0
    assert row.max_score == 15.0  # 30 / sqrt(4)
    assert row.head_scores == (15.0,) * HEADS


def test_evaluation_is_no_step():
    model, tokens = Model(fused), torch.randn(2, LENGTH, WIDTH)
    with regard.watch(model, every=1) as watcher:
        model.eval()(tokens)
        model.train()(tokens)
        copy.deepcopy(model)(tokens)
    assert [row.step for row in watcher.rows] == [1, 1]


def test_steps_of_several_forward_passes():
    model, tokens = Model(fused).train(), torch.randn(2, 2, LENGTH, WIDTH)
    with regard.watch(model, every=3, count="step", first_step=2) as watcher:
        for _ in range(3):
            for batch in tokens:
                model(batch)
            watcher.step()
    assert [row.step for row in watcher.rows] == [3, 3]
    single = []
    for batch in tokens:
        with regard.watch(model) as alone:
            model(batch)
        single.append(alone.rows[0])
    assert math.isclose(watcher.rows[0].entropy, (single[0].entropy + single[1].entropy) / 2, rel_tol=1e-6)
    assert watcher.rows[0].max_score == max(row.max_score for row in single)
    with regard.watch(model) as watcher, pytest.raises(OptionError, match="forward passes"):
        watcher.step()


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_checkpointed_layers_are_measured_once(is_reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = Model(fused)

        def forward(self, tokens):
            for layer in self.model.layers:
                tokens = tokens + checkpoint(layer, tokens, use_reentrant=is_reentrant)
            return tokens

    model = Checkpointed()
    with regard.watch(model, every=1) as watcher:
        model(torch.randn(2, LENGTH, WIDTH, requires_grad=True)).sum().backward()
    assert [row.layer for row in watcher.rows] == ["model.layers.0", "model.layers.1"]


@pytest.mark.usefixtures("without_shape_checks")
@pytest.mark.parametrize("name", ["ours", "fused"])
def test_a_compiled_model(name):
    model, tokens = MODELS[name]().train(), torch.randn(2, LENGTH, WIDTH)
    compiled = torch.compile(model, backend="eager")
    with regard.watch(compiled, every=2) as watcher:
        for _ in range(4):
            compiled(tokens).sum().backward()
    assert [row.step for row in watcher.rows] == [1, 1, 2, 2, 4, 4]


@pytest.mark.parametrize("name", ["ours", "fused"])
def test_exploding_scores_stop_the_training(name):
    model, tokens = MODELS[name]().train(), torch.randn(2, LENGTH, WIDTH)
    kept = []
    watcher = regard.watch(model, stop_above=20.0, callback=kept.extend)
    model(tokens)
    watcher.close()
    with torch.no_grad():
        parameter = next(iter(model.layers[1].parameters()))
        parameter.mul_(1000)
    with (
        regard.watch(model, stop_above=20.0, callback=kept.extend, first_step=9, every=3) as watcher,
        pytest.raises(DivergenceError, match=r"(?s)layer layers\.1 explode.*at most 20 .*in head \d at step 9"),
    ):
        model(tokens)
    assert kept[3].max_score > 20.0
    assert watcher.rows == kept[2:]
    with torch.no_grad():
        parameter.fill_(math.nan)
    with regard.watch(model, stop_above=20.0), pytest.raises(DivergenceError, match="nan in head"):
        model(tokens)


def test_layers_without_scores():
    layer, tokens = regard.MultiHeadAttention(WIDTH, HEADS, mechanism="linear"), torch.randn(2, LENGTH, WIDTH)
    with regard.watch(layer) as watcher:
        layer(tokens)
    assert watcher.rows[0].max_score is None
    assert watcher.rows[0].entropy is not None
    with regard.watch(layer, stop_above=1.0), pytest.raises(RefusedError, match="has no scores"):
        layer(tokens)


def test_padding_does_not_count():
    layer, tokens = regard.MultiHeadAttention(WIDTH, HEADS), torch.randn(2, LENGTH, WIDTH)
    with regard.watch(layer) as watcher:
        layer(tokens, mask=masks.padding([3, 7], side="left") & masks.causal())
    with regard.record(layer) as recording:
        layer(tokens, mask=masks.padding([3, 7], side="left") & masks.causal())
    weights = recording[0].weights()
    real = torch.cat((weights[0, :, 4:, 4], weights[1, :, :, 0]), dim=1)
    assert_close(watcher.rows[0].sink_mass, real.mean().item(), rtol=1e-5, atol=0)


def test_an_error_of_the_model_passes_through():
    model = Model(fused).train()
    with regard.watch(model, every=1) as watcher:
        with pytest.raises(RuntimeError, match="shape"):
            model(torch.randn(2, LENGTH, WIDTH + 1))
        model(torch.randn(2, LENGTH, WIDTH))
    assert [row.step for row in watcher.rows] == [2, 2]
    assert torch._C._len_torch_dispatch_stack() == 0


class Board:
    def __init__(self):
        self.scalars = []

    def add_scalar(self, tag, scalar_value, global_step):
        self.scalars.append((tag, scalar_value, global_step))


def test_results_go_to_a_board_and_a_file(tmp_path):
    model, board = Model(fused).train(), Board()
    with regard.watch(model, writer=board) as watcher:
        model(torch.randn(2, LENGTH, WIDTH))
    assert ("attention/entropy/layers.0", watcher.rows[0].entropy, 1) in board.scalars
    assert len(board.scalars) == 10
    watcher.save(tmp_path / "watched.csv")
    with (tmp_path / "watched.csv").open(encoding="utf-8") as file:
        lines = list(csv.DictReader(file))
    assert [line["layer"] for line in lines] == ["layers.0", "layers.1"]
    assert float(lines[1]["max_score"]) == watcher.rows[1].max_score
    assert tuple(map(float, lines[0]["head_scores"].split())) == watcher.rows[0].head_scores


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "wrong every"),
        ({"count": "epoch"}, "count"),
        ({"sink_keys": 3}, "wrong sink_keys"),
        ({"sink_keys": [-1]}, "a key of sink_keys"),
        ({"stop_above": math.nan}, "wrong stop_above"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(OptionError, match=message):
        regard.watch(Model(fused), **options)


def test_models_without_attention():
    with pytest.raises(OptionError, match="Linear has no attention layer"):
        regard.watch(nn.Linear(2, 2))
    with pytest.raises(OptionError, match="a module that calls a mechanism"):
        regard.watch(regard.mechanism("dot_product", heads=2, head_dim=4))
