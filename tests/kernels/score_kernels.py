"""Kernels of attention: inputs, formula, call and error of each.

    exact            w_ij = softmax(scale q_i . k_j + bias_ij)                        Vaswani et al. 2017, section 3.2.1
    sigmoid          w_ij = sigmoid(scale q_i . k_j + bias_ij + b_i)                    Ramapuram et al. 2025, section 2
    talking heads    w_f = sum_g softmax(sum_h scale q_h . k_h P_hg + bias_g) R_gf      Shazeer et al. 2020, section 4
    additive         score_ij = v . tanh(a_i + b_j) + bias_ij                 Bahdanau et al. 2015, appendix A.1.2

b_i is a number, or -log of the number of keys that query i may attend to. The formulas compute in float64. Inputs are
rounded to the dtype first, so that they have the same inputs. The conformance suite and test_isas.py compare the
kernels with the NumPy oracles.

A result that is computed by sums of L terms in the wide dtype (float32 for half precision) has an error of at most
L * wide of the largest term; at most 8 intermediate numbers are rounded to the dtype, 4 in talking heads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import regard
from mask_forms import BATCH
from regard.kernels import results
from regard.kernels.implementations.mlp_score import ADDITIVE as ADDITIVE_OPERATOR
from regard.kernels.implementations.sigmoid import SIGMOID_ATTENTION
from regard.kernels.implementations.talking_heads import TALKING_HEADS as TALKING_HEADS_OPERATOR
from regard.kernels.operators.attention_op import ATTENTION as EXACT_FORWARD
from regard.kernels.operators.attention_op import ATTENTION_BACKWARD
from regard.kernels.operators.kernel_arguments import KernelArguments, to_kernel_arguments
from regard.validation import make_request
from sixteenths import sixteenths

HEADS, KEY_HEADS, QUERIES, KEYS, HEAD_DIM, INNER, VALUE_DIM = 6, 3, 7, 11, 19, 5, 13
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng([*shape, seed]).standard_normal(shape))


def exact_numbers(*shape: int, seed: int) -> Tensor:
    return torch.from_numpy(sixteenths(*shape, seed=seed))


@dataclass(frozen=True)
class ScoreKernel:
    """A kernel, and what its result should be.

    Args:
        tensors: names of the inputs, in the order of the operator.
        make_inputs: makes random leaf tensors of these sizes; tokens in the memory layout of layers, by token.
        formula: computes the results (output, and lse if the operator returns it) from the inputs, a bias, the cells
            that are ``allowed``, and ``options``.
        call: computes them with the kernel, from the inputs, and ``mask``, ``bias``, ``dropout`` and ``options``.
        tolerance: error of a result relative to its largest number.
        count_repeats: how often a gradient sums what the tolerance counts once.
        head_sizes: sizes (head_dim, value_dim) that a test compares.
        thread_lengths: numbers (queries, keys) that are divided among threads.
        mixes_heads: whether a query or key affects all heads.
        numbers: values of the operator's numbers that a test passes, in turn.
        summed: terms that have a gradient.
        returns_lse: whether lse is a result.
        operator: has the operators ``forward`` and ``backward``.
    """

    operator: Any
    tensors: tuple[str, ...]
    make_inputs: Callable[..., list[Tensor]]
    formula: Callable[..., tuple[Tensor, ...]]
    call: Callable[..., tuple[Tensor, ...]]
    tolerance: Callable[[Sequence[Tensor]], float]
    count_repeats: Callable[[str, Sequence[Tensor]], int]
    head_sizes: Sequence[tuple[int, int]]
    thread_lengths: Sequence[tuple[int, int]]
    scale: float = HEAD_DIM**-0.5
    dtypes: Sequence[torch.dtype] = DTYPES
    draw: Callable[..., Tensor] = normal
    mixes_heads: bool = False
    numbers: Sequence[tuple[float | None, ...]] = ((),)
    summed: Sequence[str] = ("bias", "table")
    returns_lse: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def make_terms(self, inputs: Sequence[Tensor], **terms: Any) -> KernelArguments:
        tokens = [inputs[self.tensors.index(name)] for name in ("query", "key", "value")]
        return to_kernel_arguments(make_request(*tokens, scale=self.scale, **terms))

    def upstream(self, outputs: Sequence[Tensor]) -> list[Tensor]:
        """Gradients of the results; 0 where lse is not finite."""
        drawn = [self.draw(*output.shape, seed=5 + index).to(output.dtype) for index, output in enumerate(outputs)]
        return [
            drawn[0],
            *(one.masked_fill(~lse.isfinite(), 0.0) for one, lse in zip(drawn[1:], outputs[1:], strict=True)),
        ]

    def assert_agrees(
        self, inputs: Sequence[Tensor], bias: Tensor | None = None, *, mask: Any = None, **options: Any
    ) -> None:
        """Compare the results and all gradients with the formula in float64."""
        options = {**self.options, **options}
        leaves = [*inputs] if bias is None else [*inputs, bias]
        exact_leaves = [leaf.detach().double().requires_grad_() for leaf in leaves]
        queries, keys = inputs[0].shape[2], inputs[1].shape[2]
        allowed = None if mask is None else mask.dense(queries, keys)
        exact = self.formula(*exact_leaves, allowed=allowed, **options)
        outputs = self.call(*inputs, mask=mask, bias=bias, **options)
        assert outputs[0].dtype == inputs[0].dtype
        assert all(lse.dtype == results.accumulation_dtype(inputs[0].dtype) for lse in outputs[1:])
        upstream = self.upstream(outputs)
        actual = [*outputs, *torch.autograd.grad(outputs, leaves, upstream)]
        expected = [*exact, *torch.autograd.grad(exact, exact_leaves, [part.double() for part in upstream])]
        names = [*("output", "lse")[: len(outputs)], *self.tensors, "bias"]
        for name, ours, theirs in zip(names, actual, expected, strict=False):
            largest = theirs.detach().abs().masked_fill(~theirs.isfinite(), 0.0)
            limit = self.tolerance(inputs) * (max(1.0, float(largest.max())) if largest.numel() else 1.0)
            repeats = BATCH * HEADS * queries * keys // max(1, bias.numel()) if name == "bias" else 1
            torch.testing.assert_close(
                ours.double(), theirs, rtol=0, atol=limit * self.count_repeats(name, inputs) * repeats,
                msg=lambda text, name=name: f"{name}: {text}",
            )  # fmt: skip


def repeat_heads(inputs: Sequence[Tensor], group: int) -> list[Tensor]:
    return [tokens.repeat_interleave(group, dim=1) for tokens in inputs]


def make_tokens(
    queries: int = QUERIES,
    keys: int = KEYS,
    *,
    heads: int = HEADS,
    key_heads: int = KEY_HEADS,
    head_dim: int = HEAD_DIM,
    value_dim: int = VALUE_DIM,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor]:
    """Random query, key and value in the memory layout of layers, (batch, length, heads, size)."""
    shapes = (queries, heads, head_dim), (keys, key_heads, head_dim), (keys, key_heads, value_dim)
    return [normal(BATCH, *shape, seed=1).to(dtype).transpose(1, 2).requires_grad_() for shape in shapes]


def _sum_error(inputs: Sequence[Tensor], terms: int) -> float:
    """Error of a sum of the longest length and ``terms`` more, in the wide dtype."""
    query, key = inputs[:2]
    longest = max(key.shape[2], HEADS // KEY_HEADS * query.shape[2])
    return (terms + longest) * torch.finfo(results.accumulation_dtype(query.dtype)).eps


def _count_once(name: str, inputs: Sequence[Tensor]) -> int:
    return 1


# Exact attention


def _softmax(scores: Tensor, value: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor]:
    """The output and lse of scores; a score of -inf hides a key, as a mask does."""
    seen = torch.ones_like(scores, dtype=torch.bool) if allowed is None else allowed.expand_as(scores)
    seen = seen & (scores.detach() > -torch.inf)
    empty = ~seen.any(-1, keepdim=True)
    lse = scores.masked_fill(~seen, -torch.inf).masked_fill(empty, 0.0).logsumexp(-1, keepdim=True)
    weights = (scores.masked_fill(~seen, -torch.inf) - lse).exp()
    return weights @ value, lse.masked_fill(empty, -torch.inf)[..., 0]


def _exact_formula(query, key, value, bias=None, *, allowed=None):
    key, value = repeat_heads((key, value), query.shape[1] // key.shape[1])
    scores = query @ key.transpose(-2, -1) * query.shape[3] ** -0.5
    return _softmax(scores if bias is None else scores + bias, value, allowed)


def exact(*inputs: Tensor, **terms: Any) -> tuple[Tensor, ...]:
    """Output and lse."""
    arguments = to_kernel_arguments(make_request(*inputs, scale=inputs[0].shape[3] ** -0.5, **terms))
    found: tuple[Tensor, ...] = EXACT_FORWARD.compute_with_grad(*inputs, *arguments)[:2]
    return found


EXACT = ScoreKernel(
    SimpleNamespace(forward=EXACT_FORWARD, backward=ATTENTION_BACKWARD),
    ("query", "key", "value"),
    make_tokens,
    _exact_formula,
    exact,
    lambda inputs: _sum_error(inputs, inputs[0].shape[3] + inputs[2].shape[3]) + 4 * torch.finfo(inputs[0].dtype).eps,
    _count_once,
    head_sizes=[(1, 7), (7, 1), (67, 131), (640, 17), (17, 640)],
    thread_lengths=[(131, 257), (1, 4099)],
    summed=("bias", "table", "sinks"),
    returns_lse=True,
)

# Sigmoid


def _sigmoid_formula(query, key, value, bias=None, *, allowed=None, score_bias=None):
    key, value = repeat_heads((key, value), query.shape[1] // key.shape[1])
    scores = query @ key.transpose(-2, -1) * query.shape[3] ** -0.5
    scores = scores if bias is None else scores + bias
    seen = torch.ones_like(scores, dtype=torch.bool) if allowed is None else allowed.expand_as(scores)
    counted = -seen.sum(-1, keepdim=True).clamp(min=1).to(scores).log() if score_bias is None else score_bias
    return (torch.where(seen, torch.sigmoid(scores + counted), 0.0) @ value,)


def sigmoid(*inputs: Tensor, mask=None, bias=None, **options) -> Tensor:
    mechanism = regard.mechanism("sigmoid", heads=HEADS, head_dim=inputs[0].shape[3], impl="native", **options)
    output: Tensor = mechanism(*inputs, mask, bias=bias)
    return output


SIGMOID = ScoreKernel(
    SIGMOID_ATTENTION,
    ("query", "key", "value"),
    make_tokens,
    _sigmoid_formula,
    lambda *inputs, **terms: (sigmoid(*inputs, **terms),),
    lambda inputs: _sum_error(inputs, inputs[0].shape[3] + inputs[2].shape[3]) + 4 * torch.finfo(inputs[0].dtype).eps,
    _count_once,
    head_sizes=[(1, 7), (7, 1), (67, 131), (640, 17), (17, 640)],
    thread_lengths=[(131, 257), (1, 4099)],
    numbers=[(None,), (-1.5,)],
)

# Talking heads


def _talking_heads_inputs(*lengths: int, heads: int = HEADS, dtype: torch.dtype = torch.float64, **sizes) -> list:
    """Random query, key, value and matrices, which are in the wide dtype."""
    wide = results.accumulation_dtype(dtype)
    matrices = [normal(heads, heads, seed=seed).to(wide) / heads**0.5 for seed in (2, 3)]
    return [*make_tokens(*lengths, heads=heads, dtype=dtype, **sizes), *(one.requires_grad_() for one in matrices)]


def _talking_heads_formula(query, key, value, score_mixing, weight_mixing, bias=None, *, allowed=None):
    """A softmax without a visible key has weights of 0."""
    key, value = repeat_heads((key, value), query.shape[1] // key.shape[1])
    scores = query @ key.transpose(-2, -1) * query.shape[3] ** -0.5
    mixed = torch.einsum("bhij,hg->bgij", scores, score_mixing)
    mixed = mixed if bias is None else mixed + bias
    if allowed is not None:
        mixed = mixed.masked_fill(~allowed, -torch.inf)
    empty = (mixed == -torch.inf).all(-1, keepdim=True)
    weights = mixed.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)
    return (torch.einsum("bgij,gf->bfij", weights, weight_mixing) @ value,)


def talking_heads(*inputs: Tensor, mask=None, bias=None, dropout: float = 0.0) -> Tensor:
    """Call the mechanism with these matrices, which stay leaves."""
    query, key, value, score_mixing, weight_mixing = inputs
    mechanism = regard.mechanism(
        "talking_heads", heads=query.shape[1], head_dim=query.shape[3], dropout=dropout, impl="native"
    ).to(score_mixing.dtype)
    parameters = {"score_mixing": score_mixing, "weight_mixing": weight_mixing}
    output: Tensor = torch.func.functional_call(mechanism, parameters, (query, key, value, mask), {"bias": bias})
    return output


TALKING_HEADS = ScoreKernel(
    TALKING_HEADS_OPERATOR,
    ("query", "key", "value", "score_mixing", "weight_mixing"),
    _talking_heads_inputs,
    _talking_heads_formula,
    lambda *inputs, **terms: (talking_heads(*inputs, **terms),),
    lambda inputs: (
        _sum_error(inputs, inputs[0].shape[3] + inputs[2].shape[3] + 2 * inputs[0].shape[1])
        + 2 * torch.finfo(inputs[0].dtype).eps
    ),
    lambda name, inputs: BATCH * inputs[0].shape[2] if "mixing" in name else 1,
    head_sizes=[(1, 7), (7, 1), (67, 131), (641, 17), (17, 641)],
    thread_lengths=[(131, 601)],
    mixes_heads=True,
)

# Additive


def _additive_inputs(
    queries: int = QUERIES, keys: int = KEYS, *, head_dim=INNER, value_dim=VALUE_DIM, dtype=torch.float64
) -> list[Tensor]:
    """Random hidden values of queries and of keys, the score vector, and values."""
    drawn = (
        exact_numbers(BATCH, queries, HEADS, head_dim, seed=1).transpose(1, 2),
        exact_numbers(BATCH, keys, KEY_HEADS, head_dim, seed=2).transpose(1, 2),
        exact_numbers(HEADS, head_dim, seed=3),
        exact_numbers(BATCH, keys, KEY_HEADS, value_dim, seed=4).transpose(1, 2),
    )
    return [tensor.to(dtype).requires_grad_() for tensor in drawn]


def _additive_formula(query, key, vector, value, bias=None, *, allowed=None):
    key, value = repeat_heads((key, value), query.shape[1] // key.shape[1])
    scores = torch.einsum("bhqkw,hw->bhqk", torch.tanh(query[:, :, :, None] + key[:, :, None]), vector)
    return _softmax(scores if bias is None else scores + bias, value, allowed)


def additive(*inputs: Tensor, **terms: Any) -> tuple[Tensor, ...]:
    """Output and lse."""
    arguments = ADDITIVE.make_terms(inputs, **terms)
    results: tuple[Tensor, ...] = ADDITIVE_OPERATOR.forward.compute_with_grad(*inputs, *arguments)[:2]
    return results


def _additive_tolerance(inputs: Sequence[Tensor]) -> float:
    queries, inner = inputs[0].shape[2:]
    keys, value_dim = inputs[3].shape[2:]
    return 4 * (inner + value_dim + keys + BATCH * queries) * torch.finfo(inputs[0].dtype).eps


ADDITIVE = ScoreKernel(
    ADDITIVE_OPERATOR,
    ("query", "key", "vector", "value"),
    _additive_inputs,
    _additive_formula,
    additive,
    _additive_tolerance,
    _count_once,
    head_sizes=[(inner, 264 - inner) for inner in (1, 7, 16, 17, 63, 65, 263)],
    thread_lengths=[(131, 257)],
    scale=1.0,
    dtypes=(torch.float64, torch.float32),
    draw=exact_numbers,
    returns_lse=True,
)
KERNELS = {"exact": EXACT, "sigmoid": SIGMOID, "talking heads": TALKING_HEADS, "additive": ADDITIVE}
