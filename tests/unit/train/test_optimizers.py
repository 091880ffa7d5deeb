"""AdamW and Muon: orthogonalization against the singular value decomposition, steps against NumPy and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import regard.train
from every_model import EXAMPLES, make_example
from regard.errors import RefusedError
from regard.layers.activation_checkpoint import CheckpointedBlock
from regard.models import Recurrent
from regard.train import state_dicts
from regard.train.optimizers import check_optimizer, find_matrices, make_optimizer, orthogonalize, step_if_finite

RATE, DECAY = 0.03, 0.1
SHAPES = [(7, 13), (13, 7), (11, 11), (1, 5)]


class Block(CheckpointedBlock):
    def __init__(self, rows=37, columns=16):
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(columns), nn.Linear(columns, rows)

    def forward(self, tokens):
        return self.layer(self.norm(tokens))


def polynomial(values):
    """The five iterations on singular values: a s + b s^3 + c s^5, Jordan et al. 2024."""
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return values


def orthogonalized(matrix):
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    return left @ np.diag(polynomial(values / np.linalg.norm(matrix))) @ right


@pytest.mark.parametrize("shape", SHAPES)
def test_orthogonalization_agrees_with_singular_values(shape):
    matrix = torch.randn(shape, dtype=torch.float64)
    np.testing.assert_allclose(orthogonalize(matrix, torch.float64), orthogonalized(matrix.numpy()), atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_orthogonalized_matrices_have_singular_values_near_one(dtype):
    values = torch.linalg.svdvals(orthogonalize(torch.randn(67, 131), dtype).float())
    assert values.min() > 0.6
    assert values.max() < 1.3


def test_orthogonalized_zeros_are_zeros():
    assert not orthogonalize(torch.zeros(3, 5), torch.float32).any()


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_of_a_matrix_are_those_of_the_equation(shape):
    block = Block(*shape).double()
    layer = block.layer
    optimizer = make_optimizer("muon", block, weight_decay=DECAY, dtype=torch.float64)
    expected, momentum = layer.weight.detach().numpy().copy(), np.zeros(shape)
    for step in range(3):
        gradient = torch.randn(shape, dtype=torch.float64)
        layer.weight.grad = gradient.clone()
        for group in optimizer.param_groups:
            group["lr"] = RATE / (step + 1)
        optimizer.step()
        rate = RATE / (step + 1)
        momentum = 0.95 * momentum + 0.05 * gradient.numpy()
        update = orthogonalized(0.05 * gradient.numpy() + 0.95 * momentum)
        expected -= rate * (DECAY * expected + 0.2 * max(shape) ** 0.5 * update)
        np.testing.assert_allclose(layer.weight.detach(), expected, atol=1e-11)


def test_steps_of_matrices_are_those_of_torch_and_others_those_of_adamw():
    theirs, ours = (nn.Sequential(nn.Embedding(5, 16), Block()) for _ in range(2))
    theirs.load_state_dict(ours.state_dict())
    matrices = find_matrices(theirs)
    others = [weight for weight in theirs.parameters() if all(weight is not one for one in matrices)]
    peers = [
        torch.optim.Muon(matrices, lr=RATE, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=RATE, betas=(0.9, 0.98), eps=1e-9, weight_decay=DECAY),
    ]
    optimizer = make_optimizer("muon", ours, weight_decay=DECAY, dtype=torch.bfloat16)
    for group in optimizer.param_groups:
        group["lr"] = RATE
    for _ in range(4):
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for peer in peers:
            peer.step()
        optimizer.step()
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        tolerance = 4e-3 if name == "1.layer.weight" else 1e-6  # torch divides by the norm in bfloat16
        torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance, msg=name)


def test_matrices_are_the_trained_weights_of_linear_layers_in_blocks():
    block = Block(7, 8)
    model = nn.Sequential(nn.Embedding(7, 8), block, nn.Linear(7, 5))
    assert [id(one) for one in find_matrices(model)] == [id(block.layer.weight)]
    block.layer.weight.requires_grad_(False)
    assert find_matrices(model) == []


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_a_step_changes_every_weight_of_every_model(kind):
    model, *_ = make_example(kind)
    if kind is Recurrent:
        with pytest.raises(RefusedError, match=r"Recurrent(.|\n)*adamw"):
            check_optimizer("muon", model)
        check_optimizer("adamw", model)
        return
    check_optimizer("muon", model)
    optimizer = make_optimizer("muon", model, weight_decay=0.0, dtype=torch.float32)
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    before = {name: weight.detach().clone() for name, weight in trained.items()}
    for weight in trained.values():
        weight.grad = torch.randn_like(weight)
    for group in optimizer.param_groups:
        group["lr"] = RATE
    optimizer.step()
    assert [name for name, weight in trained.items() if torch.equal(weight, before[name])] == []


def test_a_checkpoint_continues_with_the_same_bits():
    def make():
        model = nn.Sequential(nn.Embedding(5, 16), Block(16, 16), Block(16, 16))
        return model, make_optimizer("muon", model, weight_decay=DECAY, dtype=torch.float32)

    def train(model, optimizer, gradients):
        for seed in gradients:
            chance = torch.Generator().manual_seed(seed)
            for weight in model.parameters():
                weight.grad = torch.randn(weight.shape, generator=chance)
            for group in optimizer.param_groups:
                group["lr"] = RATE
            optimizer.step()
            optimizer.zero_grad()

    model, optimizer = make()
    train(model, optimizer, [1, 2, 3])
    weights, state = state_dicts.get_weights(model, {}), state_dicts.get_optimizer_state(model, optimizer)
    weights, state = ({name: one.clone() for name, one in kept.items()} for kept in (weights, state))
    assert {name for name in state if "1.layer" in name} == {
        "1.layer.weight|momentum", "1.layer.bias|exp_avg", "1.layer.bias|exp_avg_sq", "1.layer.bias|step"
    }  # fmt: skip
    train(model, optimizer, [4, 5])
    resumed, resumed_optimizer = make()
    state_dicts.set_weights(resumed, weights, {})
    state_dicts.set_optimizer_state(resumed, resumed_optimizer, state)
    train(resumed, resumed_optimizer, [4, 5])
    for one, other in zip(model.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_model_of_which_matrices_alone_are_trained():
    """As with adapters of LoRA."""
    block = Block(7, 8)
    for weight in (block.norm.weight, block.norm.bias, block.layer.bias):
        weight.requires_grad_(False)
    optimizer = make_optimizer("muon", block, weight_decay=0.0, dtype=torch.float32)
    optimizer.param_groups[0]["lr"] = RATE
    before = block.layer.weight.detach().clone()
    block(torch.randn(1, 3, 8)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(block.layer.weight, before)


def test_closures_are_computed_with_gradients():
    block = Block(7, 8)
    optimizer = make_optimizer("muon", block, weight_decay=0.0, dtype=torch.float32)

    def closure():
        loss = block(torch.randn(1, 3, 8)).square().sum()
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) > 0
    assert optimizer.state[find_matrices(block)[0]]["momentum"].any()


def test_unknown_optimizers_are_refused():
    with pytest.raises(regard.errors.OptionError, match=r"optimizer(.|\n)*adamw, muon(.|\n)*sgd"):
        regard.train.Settings(steps=1, optimizer="sgd")


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_step_without_waiting_is_skipped_where_the_gradient_is_not_finite(name):
    """torch's own step is the oracle: of two models with the same gradients, one is not given those that are bad."""
    torch.manual_seed(5)
    ahead, waiting = Block(), Block()
    waiting.load_state_dict(ahead.state_dict())
    optimizers = [make_optimizer(name, model, weight_decay=DECAY, dtype=torch.float32) for model in (ahead, waiting)]
    for group in (*optimizers[0].param_groups, *optimizers[1].param_groups):
        group["lr"] = RATE
    for bad in (np.inf, None, None, np.nan, -np.inf, None):
        for one, other in zip(ahead.parameters(), waiting.parameters(), strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        if bad is None:
            optimizers[1].step()
        else:
            ahead.layer.weight.grad[2, 3] = bad
        step_if_finite(optimizers[0], nn.utils.get_total_norm(part.grad for part in ahead.parameters()))
        for one, other in zip(ahead.parameters(), waiting.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    assert states[0].keys() == states[1].keys()
    for number, state in states[1].items():
        for part, value in state.items():
            torch.testing.assert_close(states[0][number][part], value, rtol=1e-6, atol=1e-7)
