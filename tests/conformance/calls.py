"""One call of a mechanism, forward and backward, on random tensors from a fixed seed.

All numbers are multiples of 1/16 below 8, which every dtype represents exactly, so all dtypes share one oracle.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

import regard
from conformance.claims import CATALOGUE_ROWS, DTYPES, Claim
from conformance.mask_cases import Layout
from regard.conformance.mechanism_oracles import ORACLES
from regard.mechanisms import ExtraInput

NamedTensors = dict[str, Tensor]


def head_dim_of(claim: Claim, layout: Layout) -> int:
    """Return the head_dim of a layout for a mechanism, each of whose parts has the head_dim of the layout."""
    return layout.head_dim * ORACLES[claim.mechanism].head_parts


def build_mechanism(claim: Claim, layout: Layout) -> regard.mechanisms.Mechanism:
    """Build the mechanism of a claim, in its dtype."""
    torch.default_generator.manual_seed(3)  # parameters are drawn on the CPU; torch.manual_seed records the stack
    options = dict(ORACLES[claim.mechanism].options) | ({} if claim.impl == "its own" else {"impl": claim.impl})
    mechanism = regard.mechanism(claim.mechanism, heads=layout.heads, head_dim=head_dim_of(claim, layout), **options)
    for number in (*mechanism.parameters(), *mechanism.buffers()):
        number.data = _round_to_sixteenths(number.data)
    return mechanism.to(claim.device, DTYPES[claim.dtype])


def make_tensors(claim: Claim, layout: Layout, *, bias: bool = False) -> NamedTensors:
    """Return query, key, value, the mechanism's extra inputs that layers project, and, if ``bias`` and the mechanism
    accepts one, a bias (1, heads, queries, keys).
    """
    generator = torch.Generator().manual_seed(17)
    head_dim = head_dim_of(claim, layout)
    shapes = {
        "query": (layout.batch, layout.heads, layout.queries, head_dim),
        "key": (layout.batch, layout.key_heads, layout.keys, head_dim),
        "value": (layout.batch, layout.key_heads, layout.keys, layout.value_dim),
    }
    lengths = {"query": layout.queries, "key": layout.keys}
    for one in extra_inputs(claim, layout):
        shapes[one.name] = (layout.batch, one.heads, lengths[one.side], one.size)
    if bias and CATALOGUE_ROWS[claim.mechanism].bias:
        shapes["bias"] = (1, layout.heads, layout.queries, layout.keys)
    return {name: _randn(claim, generator, *shape) for name, shape in shapes.items()}


def extra_inputs(claim: Claim, layout: Layout) -> tuple[ExtraInput, ...]:
    """Return the mechanism's extra inputs that layers project."""
    return _extra_inputs(claim._replace(promise="any", dtype="float32"), layout)


@cache
def _extra_inputs(claim: Claim, layout: Layout) -> tuple[ExtraInput, ...]:
    return tuple(one for one in build_mechanism(claim, layout).extra_inputs if one.projected)


def make_grad_output(claim: Claim, layout: Layout) -> Tensor:
    """Return a random gradient of the output (batch, heads, queries, value_dim)."""
    generator = torch.Generator().manual_seed(19)
    return _randn(claim, generator, layout.batch, layout.heads, layout.queries, layout.value_dim)


def _randn(claim: Claim, generator: torch.Generator, *shape: int) -> Tensor:
    return _round_to_sixteenths(torch.randn(shape, generator=generator)).to(claim.device, DTYPES[claim.dtype])


def _round_to_sixteenths(tensor: Tensor) -> Tensor:
    return (tensor * 16).round() / 16


class CallResult(NamedTuple):
    """The output, and the gradients by name: inputs, bias if given, parameters."""

    output: Tensor
    gradients: NamedTensors


def run_with_gradients(
    mechanism,
    tensors: NamedTensors,
    mask,
    upstream: Tensor,
    stores: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
) -> CallResult:
    """Run forward and backward once, on new leaf tensors; ``stores`` are functions that lay them out in memory."""
    stores = {} if stores is None else stores
    leaves = {name: stores.get(name, torch.clone)(tensor).detach().requires_grad_() for name, tensor in tensors.items()}
    upstream = stores.get("upstream", torch.clone)(upstream)
    parameters = dict(mechanism.named_parameters())
    output = mechanism(mask=mask, **leaves)
    targets = {**leaves, **parameters}
    gradients = torch.autograd.grad(output, list(targets.values()), upstream, allow_unused=True, materialize_grads=True)
    return CallResult(output.detach(), dict(zip(targets, gradients, strict=True)))
