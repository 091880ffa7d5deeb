"""Promise 4 for training: gradients that are sums over many elements have the same bits in every run, on any threads.

torch adds up the gradient of indexing atomically, so its bits depend on the order of the threads.
"""

from collections.abc import Iterator

import pytest
import torch

import regard
from regard import masks, positions
from regard.models import Transformer, TransformerConfig
from regard.train.loss import smoothed_cross_entropy

LENGTH, HEAD_DIM, RUNS = 223, 4, 5  # LENGTH^2 numbers are enough for torch to use several threads
POSITIONS = {
    "T5, one head for all": lambda: positions.T5Buckets(1),
    "T5": lambda: positions.T5Buckets(2, bidirectional=False),
    "Shaw": lambda: positions.ShawRelative(HEAD_DIM, 3),
}
IMPLS = ("reference", "sdpa", "native", "observe")


@pytest.fixture(autouse=True)
def many_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(7)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("position", POSITIONS)
def test_gradients_of_positions(position, impl):
    bias = POSITIONS[position]()
    tokens = [torch.randn(1, 2, LENGTH, HEAD_DIM, requires_grad=True) for _ in range(3)]
    upstream = torch.randn(1, 2, LENGTH, HEAD_DIM)
    if isinstance(bias, positions.ShawRelative) and impl in ("sdpa", "native"):
        impl = "auto"
    runs = []
    for _ in range(RUNS):
        if impl == "observe":
            output = regard.observe(*tokens, mask=masks.causal(), bias=bias, impl="reference").output
        else:
            output = regard.attention(*tokens, mask=masks.causal(), bias=bias, impl=impl)
        runs.append(torch.autograd.grad(output, [*tokens, *bias.parameters()], upstream))
    assert all(torch.equal(one, other) for run in runs for one, other in zip(runs[0], run, strict=True))


@pytest.mark.parametrize("position", ["sinusoidal", "learned", "t5"])
def test_gradients_of_a_model(position):
    """Embeddings, with few words in many places; positions; the loss."""
    sizes = {"layers": 1, "width": 8, "heads": 2, "inner": 8, "dropout": 0.0, "max_length": LENGTH}
    model = Transformer(TransformerConfig(vocabulary=11, position=position, **sizes))
    source, target = torch.randint(1, 11, (2, 2, LENGTH))
    runs = []
    for _ in range(RUNS):
        loss = smoothed_cross_entropy(model(source, target).logits, target, smoothing=0.1)
        runs.append(torch.autograd.grad(loss, tuple(model.parameters())))
    assert all(torch.equal(one, other) for run in runs for one, other in zip(runs[0], run, strict=True))
