"""``torch.compile`` without graph breaks, and ``torch.export``, of every mechanism: the same bits as without them."""

import pytest

import regard
from script_process import run_script

IN_EVERY_RUN = ("top_k",)
"""With an operator of its own; ``test_operators.py`` compiles exact attention, and the slow tests all others."""
OPTIONS = {"reformer, chunks": {"chunk": 4}, "reformer, own projections": {"shared": False}}
NAMES = [*(row.name for row in regard.catalogue()), *OPTIONS]


@pytest.mark.parametrize(
    "name", [name if name in IN_EVERY_RUN else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]
)
def test_compiled_and_exported_mechanisms_give_the_same_bits(name: str) -> None:
    """In another process, since torch cannot trace through the suite's shape checks."""
    done = run_script(_SCRIPT.format(name=name.split(",")[0], options=OPTIONS.get(name, {})))
    assert done.returncode == 0, done.stdout + done.stderr


_SCRIPT = """
import warnings
import torch
import regard
from regard.conformance.mechanism_oracles import ORACLES
from regard import masks
from regard.errors import RefusedError

warnings.simplefilter("ignore")
NAME, BATCH, HEADS = "{name}", 2, 3
oracle = ORACLES[NAME]
head_dim = 5 * oracle.head_parts
torch.manual_seed(1)
mechanism = regard.mechanism(NAME, heads=HEADS, head_dim=head_dim, **(dict(oracle.options) | {options}))


class Layer(torch.nn.Module):
    def __init__(self, causal):
        super().__init__()
        self.mechanism, self.causal = mechanism, causal

    def forward(self, lengths, tokens, extra):
        mask = masks.causal() & masks.padding(lengths) if self.causal else masks.padding(lengths)
        return self.mechanism(*tokens, mask, **extra)


def make_inputs(length):
    tokens = [torch.randn(BATCH, HEADS, length, size).requires_grad_() for size in (head_dim, head_dim, 7)]
    extra = {{
        one.name: torch.randn(BATCH, one.heads, length, one.size).requires_grad_()
        for one in mechanism.extra_inputs
        if one.projected
    }}
    return torch.tensor([length, length - 4]), tokens, extra


def compute(function, lengths, tokens, extra):
    output = function(lengths, tokens, extra)
    leaves = [*tokens, *extra.values(), *mechanism.parameters()]
    return output, *torch.autograd.grad(output.square().sum(), leaves, allow_unused=True, materialize_grads=True)


def assert_same(function, layer, *inputs):
    for one, other in zip(compute(function, *inputs), compute(layer, *inputs), strict=True):
        assert torch.equal(one, other), float((one - other).abs().max())


layer = Layer(causal=True)
try:
    layer(*make_inputs(13))
except RefusedError:
    layer = Layer(causal=False)
compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
for length in (13, 11):
    assert_same(compiled, layer, *make_inputs(length))
inputs = make_inputs(13)
exported = torch.export.export(layer, inputs).module()
for lengths in (inputs[0], torch.tensor([5, 12])):
    assert torch.equal(exported(lengths, *inputs[1:]), layer(lengths, *inputs[1:]))
"""
