"""impl "flex": torch's compiled FlexAttention on a GPU, with block-sparse masks.

The mask's tile map becomes FlexAttention's BlockMask (``flex_mask``), so empty tiles are skipped and full ones are not
tested, and the mask's rule its ``mask_mod``. A bias becomes a ``score_mod`` that indexes the bias tensor, or the table
of a distance bias; so does a softcap. With a sink z the output is multiplied by sigmoid(lse - z), the sum of the
weights of keys.

FlexAttention is compiled for each kind of mask and bias, for the sides of a window, and for all sizes. New values, such
as the padding of the next batch, are no new compilation. Lengths are not dynamic: several errors of torch, wrong
results among them, were with dynamic shapes. Uncompiled, FlexAttention holds the full matrix of scores, and torch falls
back to that when it has compiled a function too often. Here it raises an error instead.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import pad

from regard.errors import RefusedError
from regard.kernels.autocast import disable_autocast
from regard.kernels.implementation import Backend, Implementation
from regard.kernels.implementations.flex_mask import lower_mask
from regard.kernels.optional_package import find_problem
from regard.kernels.request import Request, make_term_check
from regard.kernels.tracing import in_functorch
from regard.positions.base import DistanceBias, PairBias, distance_range

COMPUTED_TERMS = ("mask", "bias", "scale", "softcap", "sinks")
"""The terms that FlexAttention computes."""
_find_other_term = make_term_check(COMPUTED_TERMS)
_MIN_DIM = 16
"""Least size of a head that FlexAttention compiles for a GPU; smaller ones are filled up with zeros."""
_MIN_CAPABILITY = (7, 0)
"""Least compute capability for which torch compiles with Triton."""
_MIN_BFLOAT16 = (8, 0)
"""Least compute capability for which it compiles bfloat16; on others it raises an error."""
_DEVICE_TYPES = ("cuda", "xpu")
MAX_COMPILATIONS = 4096
"""Compilations of FlexAttention in one process, torch's own limit being 8."""
_LSE_OPTION: dict[str, Any] = {"return_lse": True}  # of torch before 2.9
if hasattr(flex_module, "AuxRequest"):
    _LSE_OPTION = {"return_aux": flex_module.AuxRequest(lse=True)}
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def _unavailable_reason() -> str | None:
    """Return why there is no GPU to compute on; None if there is one."""
    if torch.cuda.is_available() or torch.xpu.is_available():
        return None
    return "torch finds no CUDA or XPU device"


def _details() -> str:
    """Describe torch's version and the GPU."""
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else torch.xpu.get_device_name()
    return f"torch {torch.__version__}, on {name}"


def _refuses(request: Request) -> str | None:
    """Refuse devices without a compiler, other terms, float64, transforms, traced masks, fake and empty tensors, and
    biases that need queries or weights.
    """
    reason = _device_refusal(request)
    if reason is not None:
        return reason
    other = _find_other_term(request.terms)
    if other is not None:
        return f"FlexAttention has no {other}"
    if request.query.dtype == torch.float64:
        return "FlexAttention has no float64"
    if in_functorch():
        return "FlexAttention has no rules for torch.func or forward-mode derivatives"
    if request.mask is not None and torch.compiler.is_compiling():
        return "flex builds a tile map from the mask's values, which torch.compile cannot trace"
    if isinstance(request.query, FakeTensor):
        return "flex compiles for tensors with values, and a fake tensor has none"
    if request.query.numel() == 0 or request.key.numel() == 0 or request.value.numel() == 0:
        return "FlexAttention needs at least one query and one key"
    if isinstance(request.bias, PairBias) and not isinstance(request.bias, DistanceBias):
        name = type(request.bias).__name__
        return f"FlexAttention takes a bias for each pair, and {name} needs the queries or the weights"
    if request.hardware is not None or torch.compiler.is_compiling():  # then torch has imported it
        return None
    return find_problem("triton")


def _device_refusal(request: Request) -> str | None:
    """Return why FlexAttention is not compiled for the device of a request; None if it is."""
    target = request.target
    if target.type not in _DEVICE_TYPES:
        return f"flex runs on a CUDA or XPU device, and the tensors are on {target.type}"
    if not target.has_triton:
        return "FlexAttention is compiled by Triton, which is not installed"
    if target.capability is not None and target.capability < _MIN_CAPABILITY:
        return f"torch compiles for GPUs from sm_70 on, and the tensors are on {target}"
    if request.query.dtype == torch.bfloat16 and target.capability is not None and target.capability < _MIN_BFLOAT16:
        return f"torch compiles bfloat16 for GPUs from sm_80 on, and the tensors are on {target}"
    return None


def _auto_defers(request: Request) -> str | None:
    if request.has_few_cells:
        return "with so few queries or tokens there are no tiles to skip, and it would be compiled first"
    return None


def _why_chosen(request: Request) -> str:
    blocks = (
        "the empty tiles of the mask are skipped" if request.mask is not None else "its terms are computed in tiles"
    )
    return f"torch's FlexAttention, compiled: {blocks}; the order is assumed, it was not measured on a device"


def _attention(request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute attention with the compiled kernel. Raises RefusedError after too many compilations."""
    dtype, request = request.query.dtype, request.with_rebalanced_scale
    with disable_autocast(request.device):
        if torch.compiler.is_compiling():
            return run_flex_attention(request, flex_attention).to(dtype)
        return run_flex_attention(request, call_compiled).to(dtype)


def call_compiled(*tensors: Tensor, **options: Any) -> Any:
    """Call compiled FlexAttention. Raises RefusedError where torch would not compile it any more."""
    exc = importlib.import_module("torch._dynamo.exc")  # late, since it takes a second
    try:
        return _compile_flex_attention(options["block_mask"] is not None)(*tensors, **options)
    except exc.FailOnRecompileLimitHit as error:
        raise RefusedError(
            "FlexAttention was compiled too often in this process",
            expected=f"at most {MAX_COMPILATIONS} kinds of masks, biases and sizes",
            got="one more, which torch would compute without its compiler, with all scores in memory",
            do='use fewer different windows or head sizes, call torch.compiler.reset(), or name impl="sdpa"',
        ) from error


def run_flex_attention(request: Request, kernel: Callable[..., Any]) -> Float[Tensor, "batch heads queries value_dim"]:
    """Convert the request for FlexAttention and call ``kernel``, which is ``flex_attention``, compiled or not."""
    key, value, blocks = request.key, request.value, None
    if request.mask is not None:
        mask = lower_mask(request)
        blocks = mask.blocks
        if mask.hidden_keys is not None:  # they may be NaN, and a weight of 0 times NaN is NaN
            hidden = mask.hidden_keys[..., None]
            key, value = key.masked_fill(hidden, 0.0), value.masked_fill(hidden, 0.0)
    result: Any = kernel(
        _fill_head(request.query),
        _fill_head(key),
        _fill_head(value),
        score_mod=_make_score_mod(request),
        block_mask=blocks,
        scale=request.terms.scale,
        enable_gqa=request.group > 1,
        **({} if request.terms.sinks is None else _LSE_OPTION),
    )
    output: Tensor = result if request.terms.sinks is None else result[0]
    output = output[..., : request.value.shape[3]]
    if request.terms.sinks is None:
        return output
    of_rows = result[1]
    lse = of_rows if isinstance(of_rows, Tensor) else of_rows.lse
    sinks = request.terms.sinks.to(lse).masked_fill(request.terms.sinks == torch.inf, torch.nan)
    of_keys = (lse[..., None] - sinks).sigmoid().masked_fill((lse == -torch.inf)[..., None], 0.0)
    return (output * of_keys).to(output.dtype)


def _fill_head(tokens: Tensor) -> Tensor:
    """Fill up the last dimension with zeros, which change neither scores nor outputs, to the least size."""
    missing = _MIN_DIM - tokens.shape[3]
    return tokens if missing <= 0 else pad(tokens, (0, missing))


def _make_score_mod(request: Request) -> ScoreMod | None:
    """Return the function that changes the scaled scores: the softcap, then the bias."""
    add_bias, softcap = _make_bias_mod(request), request.terms.softcap
    if softcap is None:
        return add_bias
    # A tensor: torch 2.13 traces no backward pass of a function that captures a float.
    cap = torch.full((), softcap, dtype=torch.float32, device=request.device)

    def cap_score(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        capped = cap * torch.tanh(score / cap)
        return capped if add_bias is None else add_bias(capped, batch, head, query, key)

    return cap_score


def _make_bias_mod(request: Request) -> ScoreMod | None:
    bias = request.bias
    if bias is None:
        return None
    if isinstance(bias, DistanceBias):
        lowest, highest = distance_range(request.frame)
        table = bias.table(lowest, highest).to(request.device, torch.float32)
        is_shared = bias.heads == 1
        shift = -request.frame.offset - lowest

        def by_distance(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            del batch
            return score + table[head * 0 if is_shared else head, key - query + shift]

        return by_distance
    assert isinstance(bias, Tensor)
    tensor = bias
    sizes = tensor.shape

    def by_pair(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        index = (batch, head, query, key)
        return score + tensor[tuple(at if size != 1 else at * 0 for at, size in zip(index, sizes, strict=True))]

    return by_pair


@cache
def _compile_flex_attention(has_mask: bool) -> Callable[..., Any]:
    """Compile FlexAttention, again for each kind of mask, bias and size.

    ``fullgraph`` makes torch raise an error when it reaches its limit of compilations, where it would call the function
    uncompiled otherwise.
    """
    config = importlib.import_module("torch._dynamo.config")  # late, since it takes a second
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # the name in torch 2.6
    limits = dict.fromkeys((limit, f"accumulated_{limit}"), MAX_COMPILATIONS)
    function = _masked_attention if has_mask else _unmasked_attention
    return cast(Callable[..., Any], config.patch(limits)(torch.compile(function, dynamic=False, fullgraph=True)))


# Two functions, since torch 2.13 fails to compile a function again that was called with a block mask before and is
# now called without one: it looks for the tensors of the block mask.
def _masked_attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
    return flex_attention(query, key, value, **options)


def _unmasked_attention(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
    return flex_attention(query, key, value, **options)


BACKEND = Backend("flex", _unavailable_reason, _details)
ATTENTION = Implementation("flex", _attention, _refuses, why_chosen=_why_chosen, auto_defers=_auto_defers)
