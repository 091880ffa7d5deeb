"""Every derivative and transform of torch, for every implementation: correct, or refused with a message.

Expected results are computed in float64, one input after the other: by central differences for derivatives, and by a
loop for vmap.
"""

import subprocess
import sys
from functools import cache, cached_property, partial
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap
from torch.utils.checkpoint import checkpoint

import regard
from capabilities import causal_or_none
from regard import masks, positions
from regard.errors import RefusedError
from regard.kernels.reference import query_tiles
from sampled_parameters import parametrize_sample

BATCH, HEADS, QUERIES, KEYS, HEAD_DIM = 1, 2, 3, 5, 2
IMPLS = ("auto", "native", "sdpa", "reference")
OPTIONS = {
    "plain": dict,
    "causal": lambda: {"mask": masks.causal()},
    "padding": lambda: {"mask": masks.padding([3])},
    "cells, an empty row": lambda: {"mask": masks.keep(torch.tensor([[1, 0, 1, 0, 1], [0] * 5, [1] * 5]).bool())},
    "composed": lambda: {"mask": masks.causal() | masks.global_tokens([4])},
    "bias": lambda: {"bias": torch.randn(1, HEADS, QUERIES, KEYS, dtype=torch.float64)},
    "trained bias": lambda: {"bias": torch.randn(1, 1, QUERIES, KEYS, dtype=torch.float64, requires_grad=True)},
    "ALiBi": lambda: {"bias": positions.ALiBi(HEADS)},
    "T5": lambda: {"bias": positions.T5Buckets(HEADS).double()},
    "Shaw": lambda: {"bias": positions.ShawRelative(HEAD_DIM, 2).double()},
}


CHECKED_IN_THE_DEFAULT_RUN = ("plain", "cells, an empty row", "T5", "Shaw")  # the others are similar


def _tangent(function, query, direction):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(query, direction))).tangent


def _batched(function, query, upstreams):
    leaf = query.clone().requires_grad_()
    (gradients,) = torch.autograd.grad(function(leaf), leaf, upstreams, is_grads_batched=True)
    return gradients


def _vmapped_backward(function, query, upstreams):
    leaf = query.clone().requires_grad_()
    output = function(leaf)
    return vmap(lambda upstream: torch.autograd.grad(output, leaf, upstream, retain_graph=True)[0])(upstreams)


def _checkpointed(function, query, upstream, *, reentrant):
    leaf = query.clone().requires_grad_()
    checkpoint(function, leaf, use_reentrant=reentrant).backward(upstream)
    return leaf.grad


def _twice(function, query, direction):
    """The second derivative in one direction, by two backward passes."""
    leaf = query.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(leaf).square().sum(), leaf, create_graph=True)
    return torch.autograd.grad(gradient, leaf, direction)[0]


def _of_batch(function, queries):
    return torch.stack([function(query) for query in queries])


class ExpectedDerivatives:
    """Expected values and derivatives of one function of the query, each computed once."""

    def __init__(self, function):
        self.function = function
        self.query, self.direction = (torch.randn(BATCH, HEADS, QUERIES, HEAD_DIM).double() for _ in range(2))
        self.upstreams = torch.randn(3, *function(self.query).shape, dtype=torch.float64)

    def slope(self, scalar, step=1e-6):
        """The derivative of ``scalar`` with respect to each number of the query, by central differences."""
        units = torch.eye(self.query.numel(), dtype=torch.float64).view(-1, *self.query.shape) * step
        with torch.no_grad():
            parts = [(scalar(self.query + unit) - scalar(self.query - unit)) / (2 * step) for unit in units]
        return torch.stack(parts, dim=-1)

    @cached_property
    def jacobian(self):
        return self.slope(self.function).unflatten(-1, self.query.shape)

    def gradient(self, upstream):
        return (self.jacobian * upstream[(..., *[None] * self.query.dim())]).sum(tuple(range(upstream.dim())))

    @cached_property
    def curvature(self):
        """Second derivative of the loss: the derivative of its gradient, which is the reference's first derivative."""

        def gradient_of_loss(query):
            leaf = query.clone().requires_grad_()
            with torch.enable_grad():
                return torch.autograd.grad(self.function(leaf).square().sum(), leaf)[0]

        return self.slope(gradient_of_loss).unflatten(-1, self.query.shape)


class TransformedFunction:
    """A function of the query to transform, at the point where its derivatives are known."""

    def __init__(self, function, known):
        self.function = function
        self.query, self.direction, self.upstreams = known.query, known.direction, known.upstreams

    def loss(self, query):
        return self.function(query).square().sum()


TRANSFORMS = {
    "vmap": (
        lambda case: vmap(case.function)(torch.stack([case.query, case.direction])),
        lambda known: _of_batch(known.function, [known.query, known.direction]),
    ),
    "grad": (
        lambda case: grad(lambda query: (case.function(query) * case.upstreams[0]).sum())(case.query),
        lambda known: known.gradient(known.upstreams[0]),
    ),
    "vjp": (
        lambda case: vjp(case.function, case.query)[1](case.upstreams[0])[0],
        lambda known: known.gradient(known.upstreams[0]),
    ),
    "jvp": (
        lambda case: jvp(case.function, (case.query,), (case.direction,))[1],
        lambda known: (known.jacobian * known.direction).flatten(-4).sum(-1),
    ),
    "forward_ad": (
        lambda case: _tangent(case.function, case.query, case.direction),
        lambda known: (known.jacobian * known.direction).flatten(-4).sum(-1),
    ),
    "jacfwd": (lambda case: jacfwd(case.function)(case.query), lambda known: known.jacobian),
    "jacrev": (lambda case: jacrev(case.function)(case.query), lambda known: known.jacobian),
    "hessian": (lambda case: hessian(case.loss)(case.query), lambda known: known.curvature),
    "grad of grad": (
        lambda case: grad(lambda query: (grad(case.loss)(query) * case.direction).sum())(case.query),
        lambda known: (known.curvature * known.direction).flatten(-4).sum(-1),
    ),
    "vmap of grad": (
        lambda case: vmap(grad(lambda query: (case.function(query) * case.upstreams[0]).sum()))(case.query[None])[0],
        lambda known: known.gradient(known.upstreams[0]),
    ),
    "is_grads_batched": (
        lambda case: _batched(case.function, case.query, case.upstreams),
        lambda known: _of_batch(known.gradient, known.upstreams),
    ),
    "vmap of backward": (
        lambda case: _vmapped_backward(case.function, case.query, case.upstreams),
        lambda known: _of_batch(known.gradient, known.upstreams),
    ),
    "two backward passes": (
        lambda case: _twice(case.function, case.query, case.direction),
        lambda known: (known.curvature * known.direction).flatten(-4).sum(-1),
    ),
    "functional.hessian": (
        lambda case: torch.autograd.functional.hessian(case.loss, case.query),
        lambda known: known.curvature,
    ),
    "functional.hessian, vectorized": (
        lambda case: torch.autograd.functional.hessian(case.loss, case.query, vectorize=True),
        lambda known: known.curvature,
    ),
    "checkpoint, reentrant": (
        lambda case: _checkpointed(case.function, case.query, case.upstreams[0], reentrant=True),
        lambda known: known.gradient(known.upstreams[0]),
    ),
    "checkpoint": (
        lambda case: _checkpointed(case.function, case.query, case.upstreams[0], reentrant=False),
        lambda known: known.gradient(known.upstreams[0]),
    ),
}
IN_FUNCTORCH = {"vmap", "jvp", "forward_ad", "jacfwd", "hessian", "grad of grad", "vmap of grad"}
FIRST_ONLY = {"grad", "vjp", "jacrev"}
SECOND = {"two backward passes", "functional.hessian", "functional.hessian, vectorized"}


def is_refusal_documented(impl: str, transform: str, option: str) -> bool:
    """Whether docs/implementations.md lists it as refused. "auto" only refuses the second derivatives of native."""
    if impl == "reference":
        return False
    if option == "Shaw":
        return impl != "auto"
    if impl == "auto":
        return transform in SECOND
    if impl == "native":
        return transform in IN_FUNCTORCH | FIRST_ONLY | SECOND
    trained = option in ("T5", "trained bias")  # torch has a slower kernel for it, with second derivatives
    return transform in IN_FUNCTORCH or transform in (FIRST_ONLY if trained else SECOND)


@pytest.mark.filterwarnings("ignore:.*batching rule.*|.*torch.jit.script.*|.*None of the inputs have requires_grad.*")
@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(
    "option",
    [
        option if option in CHECKED_IN_THE_DEFAULT_RUN else pytest.param(option, marks=pytest.mark.slow)
        for option in OPTIONS
    ],
)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_correct_or_refused(transform, option, impl):
    key, value, options, known = _attention(option)
    case = TransformedFunction(lambda query: regard.attention(query, key, value, impl=impl, **options), known)
    ours, exact = TRANSFORMS[transform]
    if is_refusal_documented(impl, transform, option):
        with pytest.raises(RefusedError, match=r"to do: .*(reference|auto)"):
            ours(case)
    else:
        torch.testing.assert_close(ours(case), exact(known), rtol=0, atol=1e-7, check_dtype=True)


@cache
def _attention(option):
    """Return key, value, the other arguments of attention, and the expected derivatives."""
    options = OPTIONS[option]()
    key, value = (torch.randn(BATCH, HEADS, KEYS, HEAD_DIM, dtype=torch.float64) for _ in range(2))
    known = ExpectedDerivatives(lambda query: regard.attention(query, key, value, impl="reference", **options))
    return key, value, options, known


@pytest.mark.parametrize("option", ["cells, an empty row", "trained bias", "T5", "Shaw"])
@pytest.mark.parametrize("statistic", ["output", "lse", "entropy", "received", "top_weights", "rows"])
@pytest.mark.parametrize("tiling", ["whole", "in tiles"])
def test_second_derivatives_of_statistics(tiling, statistic, option, monkeypatch):
    """Two backward passes against central differences of one; they were 0 where the first upstream was a constant."""
    if tiling == "in tiles":
        monkeypatch.setattr(query_tiles, "_TILE_BYTES", 2 * BATCH * HEADS * KEYS * 8)
    options = OPTIONS[option]()
    bias = options.get("bias")
    trained = [] if bias is None else [bias] if isinstance(bias, torch.Tensor) else list(bias.parameters())
    leaves = [torch.randn(BATCH, HEADS, n, HEAD_DIM).double().requires_grad_() for n in (QUERIES, KEYS, KEYS)]
    leaves += trained
    with torch.no_grad():
        directions = [torch.randn_like(leaf) for leaf in leaves]

    def first():
        seen = getattr(regard.observe(*leaves[:3], impl="reference", top=2, rows=[0, 2], **options), statistic)
        there = seen.masked_fill(seen.isinf(), 0.0)
        return torch.autograd.grad((there * there).sum(), leaves, create_graph=True, materialize_grads=True)

    ours = torch.autograd.grad(first(), leaves, directions, materialize_grads=True)
    step, sides = 1e-6, []
    for sign in (1, -1):
        with torch.no_grad():
            for leaf, direction in zip(leaves, directions, strict=True):
                leaf += sign * step * direction
        sides.append([gradient.detach() for gradient in first()])
        with torch.no_grad():
            for leaf, direction in zip(leaves, directions, strict=True):
                leaf -= sign * step * direction
    for mine, above, below in zip(ours, *sides, strict=True):
        torch.testing.assert_close(mine, (above - below) / (2 * step), rtol=0, atol=1e-6)


def test_second_derivatives_where_the_first_upstream_is_a_constant():
    query = torch.randn(1, 1, 3, 2, dtype=torch.float64, requires_grad=True)
    lse = regard.observe(query, query, query, impl="reference").lse
    (gradient,) = torch.autograd.grad(lse.sum(), query, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), query)
    assert second.any()
    (gradient,) = torch.autograd.grad(
        regard.observe(query, query, query, impl="native").lse.sum(), query, create_graph=True
    )
    with pytest.raises(RefusedError, match="no second derivatives"):
        torch.autograd.grad(gradient.sum(), query)


MECHANISMS = {entry.name: partial(regard.mechanism, entry.name) for entry in regard.catalogue()}
MIXING = ("vmap", "grad", "jvp", "hessian", "vmap of grad", "is_grads_batched")


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*")
@parametrize_sample("name, transform", MECHANISMS, MIXING, one_in=3)
def test_transforms_of_mechanisms(name, transform):
    """Mechanisms with default options, against their own outputs for one input after the other."""
    known = _mechanism(name)
    ours, exact = TRANSFORMS[transform]
    torch.testing.assert_close(ours(TransformedFunction(known.function, known)), exact(known), rtol=0, atol=1e-7)


@cache
def _mechanism(name):
    mechanism = MECHANISMS[name](heads=HEADS, head_dim=HEAD_DIM).double()
    key, value = (torch.randn(BATCH, HEADS, KEYS, HEAD_DIM, dtype=torch.float64) for _ in range(2))
    return ExpectedDerivatives(lambda query: mechanism(query, key, value, causal_or_none(mechanism)))


@pytest.mark.filterwarnings("ignore:.*batching rule.*")
@pytest.mark.parametrize(
    "position", [None, positions.Rotary(4), positions.ALiBi(2), positions.T5Buckets(2), positions.ShawRelative(4)]
)
def test_per_sample_gradients(position):
    """Per-sample gradients by vmap(grad(functional_call)), against one backward pass for each sample."""
    layer = regard.MultiHeadAttention(8, 2, position=position).double()
    tokens, weights = torch.randn(3, KEYS, 8, dtype=torch.float64), dict(layer.named_parameters())

    def loss(values, one):
        return functional_call(layer, values, (one[None],), {"mask": masks.causal()}).square().sum()

    each = vmap(grad(loss), (None, 0))(weights, tokens)
    for number, one in enumerate(tokens):
        exact = torch.autograd.grad(loss(weights, one), list(weights.values()))
        for name, gradient in zip(weights, exact, strict=True):
            torch.testing.assert_close(each[name][number], gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_dropout_under_vmap(impl):
    """vmap's ``randomness`` decides whether all samples draw the same; the weights are dropped."""
    query, key = torch.randn(2, 1, 1, 2, 3, dtype=torch.float64), torch.randn(1, 1, 503, 3, dtype=torch.float64)
    ones = torch.ones(1, 1, 503, 2, dtype=torch.float64)
    same, different = (
        vmap(lambda one: regard.attention(one, key, ones, dropout=0.5, impl=impl), randomness=how)(
            query[:1].expand_as(query)
        )
        for how in ("same", "different")
    )
    assert torch.equal(same[0], same[1])
    assert not torch.equal(different[0], different[1])
    assert ((same > 0.5) & (same < 1.5)).all()  # 1 on average, of 503 weights


@pytest.mark.slow
def test_compiled():
    """In a separate process, since torch cannot trace through the suite's shape checks: compiled_transforms.py."""
    script = Path(__file__).with_name("compiled_transforms.py")
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
