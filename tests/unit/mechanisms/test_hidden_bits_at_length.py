"""Numbers behind the mask change no bit at lengths beyond every internal border either, in any memory layout.

The promise is proved over the catalogue by tests/conformance, whose numbers are multiples of 1/16: their sums are often
exact, so they are equal in any order of addition. Here the numbers have all their bits, so that a sum in another order
would differ in the last one, and a text has 653 tokens: beyond a range of key tiles, a chunk of a scan and a block.
"""

import pytest
import torch

import regard
from memory_layouts import OWN_NUMBERS
from regard import masks
from regard.errors import RefusedError

BATCH, HEADS, HEAD_DIM, LENGTH, SEEN = 2, 2, 6, 653, 389
OPTIONS = {
    "dsa": {"keys": 31, "index_heads": 2, "index_dim": 5},
    "linformer": {"length": LENGTH, "projected": 31},
    "moba": {"block": 64, "chosen_blocks": 2},
    "nsa": {"block": 32, "chosen_blocks": 3, "compressed_block": 16, "stride": 8, "window": 33},
    "reformer": {"buckets": 8, "chunk": 32},
    "top_k": {"keys": 31},
}
NAMES = [row.name for row in regard.catalogue()]


def build(name: str) -> regard.mechanisms.Mechanism:
    torch.manual_seed(3)
    return regard.mechanism(name, heads=HEADS, head_dim=HEAD_DIM, **OPTIONS.get(name, {})).eval()


def make_inputs(mechanism: regard.mechanisms.Mechanism) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    shapes = dict.fromkeys(("query", "key", "value"), (HEADS, HEAD_DIM))
    shapes |= {one.name: (one.heads, one.size) for one in mechanism.extra_inputs if one.projected}
    return {
        name: torch.randn(BATCH, heads, LENGTH, size, generator=generator) for name, (heads, size) in shapes.items()
    }


def overwrite_hidden(inputs: dict[str, torch.Tensor], number: float) -> dict[str, torch.Tensor]:
    """Overwrite the tokens of the first text that its padding hides."""
    changed = {name: tensor.clone() for name, tensor in inputs.items()}
    for tensor in changed.values():
        tensor[0, :, SEEN:] = number
    return changed


def run(mechanism, inputs, mask, store):
    """Return the output and the gradients of visible tokens, then those of parameters."""
    leaves = {name: store(tensor).detach().requires_grad_() for name, tensor in inputs.items()}
    output = mechanism(**leaves, mask=mask)
    upstream = torch.randn(output.shape, generator=torch.Generator().manual_seed(13))
    upstream[0, :, SEEN:] = 0
    wanted = [*leaves.values(), *mechanism.parameters()]
    gradients = torch.autograd.grad(output, wanted, store(upstream), allow_unused=True, materialize_grads=True)
    of_tokens = (output.detach(), *gradients[: len(leaves)])
    seen = [part for one in of_tokens for part in (one[0, :, :SEEN], one[1])]
    return [*seen, *gradients[len(leaves) :]]


@pytest.mark.parametrize(
    "layout", [name if name == "by element" else pytest.param(name, marks=pytest.mark.slow) for name in OWN_NUMBERS]
)
@pytest.mark.parametrize("name", NAMES)
def test_hidden_numbers_change_no_bit(name: str, layout: str) -> None:
    mechanism, store = build(name), OWN_NUMBERS[layout]
    inputs, padding = make_inputs(mechanism), masks.padding([SEEN, LENGTH])
    accepted = 0
    for mask in (padding, masks.causal() & padding):
        try:
            expected = run(mechanism, inputs, mask, store)
        except RefusedError:
            continue
        accepted += 1
        for number in (torch.nan, torch.inf, 1e30, 13.0):
            found = run(mechanism, overwrite_hidden(inputs, number), mask, store)
            assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True)), (mask, number)
    assert accepted > 0
