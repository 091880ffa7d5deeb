"""One call of a mechanism, forward and backward, on random tensors from a fixed seed.

All numbers are multiples of 1/16 below 8, which every dtype represents exactly, so all dtypes share one oracle.
"""

from typing import NamedTuple

import torch
from torch import Tensor

import regard
from conformance.claims import CATALOGUE_ROWS, DTYPES, Claim
from conformance.mask_cases import Layout
from conformance.mechanism_oracles import ORACLES

NamedTensors = dict[str, Tensor]


def device_of(claim: Claim) -> str:
    return "cuda" if claim.impl == "flex" else "cpu"


def build_mechanism(claim: Claim, at: Layout) -> regard.mechanisms.Mechanism:
    """Build the mechanism of a claim, in its dtype."""
    torch.manual_seed(3)
    options = dict(ORACLES[claim.mechanism].options) | ({} if claim.impl == "its own" else {"impl": claim.impl})
    made = regard.mechanism(claim.mechanism, heads=at.heads, head_dim=at.head_dim, **options)
    for parameter in made.parameters():
        parameter.data = _round_to_sixteenths(parameter.data)
    return made.to(device_of(claim), DTYPES[claim.dtype])


def make_tensors(claim: Claim, at: Layout, *, bias: bool = False) -> NamedTensors:
    """Return query, key, value and, if ``bias`` and the mechanism accepts one, a bias (1, heads, queries, keys)."""
    generator = torch.Generator().manual_seed(17)
    shapes = {
        "query": (at.batch, at.heads, at.queries, at.head_dim),
        "key": (at.batch, at.key_heads, at.keys, at.head_dim),
        "value": (at.batch, at.key_heads, at.keys, at.value_dim),
    }
    if bias and CATALOGUE_ROWS[claim.mechanism].bias:
        shapes["bias"] = (1, at.heads, at.queries, at.keys)
    return {name: _randn(claim, generator, *shape) for name, shape in shapes.items()}


def make_grad_output(claim: Claim, at: Layout) -> Tensor:
    """Return a random gradient of the output (batch, heads, queries, value_dim)."""
    generator = torch.Generator().manual_seed(19)
    return _randn(claim, generator, at.batch, at.heads, at.queries, at.value_dim)


def _randn(claim: Claim, generator: torch.Generator, *shape: int) -> Tensor:
    return _round_to_sixteenths(torch.randn(shape, generator=generator)).to(device_of(claim), DTYPES[claim.dtype])


def _round_to_sixteenths(tensor: Tensor) -> Tensor:
    return (tensor * 16).round() / 16


class CallResult(NamedTuple):
    """The output, and the gradients by name: inputs, bias if given, parameters."""

    output: Tensor
    gradients: NamedTensors


def run_with_gradients(mechanism, given: NamedTensors, mask, upstream: Tensor) -> CallResult:
    """Run forward and backward once, on new leaf tensors."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in given.items()}
    parameters = dict(mechanism.named_parameters())
    output = mechanism(leaves["query"], leaves["key"], leaves["value"], mask, bias=leaves.get("bias"))
    wanted = {**leaves, **parameters}
    found = torch.autograd.grad(output, list(wanted.values()), upstream, allow_unused=True, materialize_grads=True)
    return CallResult(output.detach(), dict(zip(wanted, found, strict=True)))
