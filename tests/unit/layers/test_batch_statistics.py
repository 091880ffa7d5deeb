"""Batch norms whose batch is shared by two processes, beside torch's batch norm of the joint batch."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import distributed, nn

from regard.errors import OptionError, ShapeError
from regard.layers import MaskedBatchNorm
from regard.layers.batch_norm_2d import BatchNorm2d


@pytest.fixture
def in_two_processes(monkeypatch):
    """Return a function that runs work on two parts at once, in threads whose tensors ``all_reduce`` adds up."""
    barrier, shares = threading.Barrier(2), {}

    def all_reduce(tensor):
        shares[threading.get_ident()] = tensor.clone()
        barrier.wait(60)
        total = sum(shares.values())
        barrier.wait(60)
        tensor.copy_(total)

    def run(work, parts):
        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(work, parts))

    monkeypatch.setattr(distributed, "all_reduce", all_reduce)
    return run


NORMS = {
    "maps": (BatchNorm2d, nn.BatchNorm2d, (5, 3, 7, 2), "running_var"),
    "tokens": (MaskedBatchNorm, nn.BatchNorm1d, (5, 7, 3), "running_variance"),
}


@pytest.mark.parametrize("kind", NORMS)
def test_two_processes_learn_what_one_learns(in_two_processes, kind):
    """Outputs, gradients of inputs, running averages; parameters have the sum of both gradients."""
    make, make_peer, shape, variance = NORMS[kind]
    whole = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weights, direction = torch.randn(2, 3, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    peer = make_peer(3).double()
    norms = [make(3).double() for _ in range(2)]
    for norm in (peer, *norms):
        norm.weight.data, norm.bias.data = weights.clone()
    expected = peer(whole) if kind == "maps" else peer(whole.mT).mT
    (expected * direction).sum().backward()

    def train(norm, part, along):
        norm.shared = True
        part = part.detach().requires_grad_()
        output = norm(part)
        (output * along).sum().backward()
        return output, part.grad

    cut = [2, 3]
    parts = zip(norms, whole.split(cut), direction.split(cut), strict=True)
    outputs, gradients = zip(*in_two_processes(lambda one: train(*one), parts), strict=True)
    torch.testing.assert_close(torch.cat(outputs), expected)
    torch.testing.assert_close(torch.cat(gradients), whole.grad)
    torch.testing.assert_close(norms[0].weight.grad + norms[1].weight.grad, peer.weight.grad)
    torch.testing.assert_close(norms[0].bias.grad + norms[1].bias.grad, peer.bias.grad)
    for norm in norms:
        torch.testing.assert_close(norm.running_mean, peer.running_mean)
        torch.testing.assert_close(getattr(norm, variance), peer.running_var)


@pytest.mark.parametrize("shape", [(2, 7, 4), (2, 3), (2, 7, 5, 3)])
def test_tokens_of_another_width_or_dimension_are_refused(without_shape_checks, shape):
    with pytest.raises(ShapeError, match=r"\(batch, length, 3\)"):
        MaskedBatchNorm(3)(torch.ones(shape))


@pytest.mark.parametrize(
    ("option", "value"), [("momentum", 1.5), ("momentum", -0.1), ("epsilon", -1e-5), ("momentum", "0.1")]
)
def test_options_out_of_range_are_refused(option, value):
    """A running average gives a batch a weight from 0 to 1."""
    with pytest.raises(OptionError, match=option):
        MaskedBatchNorm(3, **{option: value})
