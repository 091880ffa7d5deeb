"""impl "flex": torch's compiled FlexAttention on a GPU, with block-sparse masks.

The mask's tile map becomes FlexAttention's BlockMask, so empty tiles are skipped and full ones are not tested,
and the mask's rule its ``mask_mod``. A bias becomes a ``score_mod`` that indexes the bias tensor, or the table of a
distance bias; so does a softcap. With a sink z the output is multiplied by sigmoid(lse - z), the sum of the weights of
keys.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import flex_attention as flex_module
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import pad

from regard.kernels.implementation import Backend, Implementation
from regard.kernels.request import Request, make_term_check
from regard.masks.tiles import FULL, PARTIAL
from regard.positions.base import DistanceBias, PairBias, distance_range

_BLOCK_SIZE = 128
COMPUTED_TERMS = ("mask", "bias", "scale", "softcap", "sinks")
"""The terms that FlexAttention computes."""
_find_other_term = make_term_check(COMPUTED_TERMS)
_MIN_DIM = 16
"""Least size of a head that FlexAttention compiles for a GPU; smaller ones are filled up with zeros."""
_MAX_COMPILATIONS = 4096
_LSE_OPTION: dict[str, Any] = {"return_lse": True}  # of torch before 2.9
if hasattr(flex_module, "AuxRequest"):
    _LSE_OPTION = {"return_aux": flex_module.AuxRequest(lse=True)}
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def _unavailable_reason() -> str | None:
    """Return why there is no CUDA GPU to compute on; None if there is one."""
    return None if torch.cuda.is_available() else "torch finds no CUDA GPU"


def _details() -> str:
    """Describe torch's version and the GPU."""
    return f"torch {torch.__version__}, on {torch.cuda.get_device_name()}"


def _refuses(request: Request) -> str | None:
    """Refuse CPUs, other terms, float64, empty tensors, traced masks, and biases that need queries or weights."""
    if request.device.type != "cuda":
        return f"flex runs on a CUDA GPU here, and the tensors are on {request.device}"
    other = _find_other_term(request.terms)
    if other is not None:
        return f"FlexAttention has no {other}"
    if request.query.dtype == torch.float64:
        return "FlexAttention has no float64"
    if request.mask is not None and torch.compiler.is_compiling():
        return "flex builds a tile map from the mask's values, which torch.compile cannot trace"
    if request.query.numel() == 0 or request.key.numel() == 0:
        return "FlexAttention needs at least one query and one key"
    if isinstance(request.bias, PairBias) and not isinstance(request.bias, DistanceBias):
        name = type(request.bias).__name__
        return f"FlexAttention takes a bias for each pair, and {name} needs the queries or the weights"
    return None


def _attention(request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
    """Compute attention with the compiled kernel."""
    return run_flex_attention(request, _compile_flex_attention())


def run_flex_attention(request: Request, kernel: Callable[..., Any]) -> Float[Tensor, "batch heads queries value_dim"]:
    """Convert the request for FlexAttention and call ``kernel``, which is ``flex_attention``, compiled or not."""
    key, value = request.key, request.value
    if request.mask is not None:
        visible = find_visible_keys(request)
        if not bool(visible.all()):  # a key hidden from every query may be NaN, and a weight of 0 times NaN is NaN
            hidden = ~visible[..., None].to(request.device)
            key, value = key.masked_fill(hidden, 0.0), value.masked_fill(hidden, 0.0)
    result: Any = kernel(
        _fill_head(request.query),
        _fill_head(key),
        _fill_head(value),
        score_mod=_make_score_mod(request),
        block_mask=None if request.mask is None else make_block_mask(request),
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


def make_block_mask(request: Request) -> BlockMask:
    """Convert the mask's tile map to a BlockMask."""
    assert request.mask is not None
    queries, keys = request.frame.queries, request.frame.keys
    codes = request.mask.tiles(queries, keys, tile=_BLOCK_SIZE).codes()
    partial, full = codes == PARTIAL, codes == FULL
    counts = [tiles.sum(-1).int().to(request.device) for tiles in (partial, full)]
    orders = [
        tiles.int().argsort(dim=-1, descending=True, stable=True).int().to(request.device) for tiles in (partial, full)
    ]
    return BlockMask.from_kv_blocks(
        counts[0],
        orders[0],
        counts[1],
        orders[1],
        BLOCK_SIZE=_BLOCK_SIZE,
        mask_mod=request.mask.mask_mod(queries, keys, device=request.device),
        seq_lengths=(queries, keys),
    )


def find_visible_keys(request: Request) -> Bool[Tensor, "#batch #key_heads keys"]:
    """Find the keys that any query may attend to, from the tile map; the result is on the CPU."""
    assert request.mask is not None
    tiles = request.mask.tiles(request.frame.queries, request.frame.keys, tile=_BLOCK_SIZE)
    # One bit of every word at a time: unpacking all bits of a random mask would take 64 times the memory.
    columns = torch.stack([(tiles.bitmaps >> bit & 1).bool().any(1) for bit in range(64)], dim=-1).flatten(1)
    columns = torch.cat([columns, torch.ones(1, _BLOCK_SIZE, dtype=torch.bool)])  # -1 is the last one: the full tile
    group = torch.repeat_interleave(tiles.row_start[:, -1] - tiles.row_start[:, 0])
    counts = torch.zeros(tiles.batch * tiles.heads, tiles.key_tiles, _BLOCK_SIZE, dtype=torch.int32)
    counts.index_put_((group, tiles.key_tile.long()), columns[tiles.bitmap.long()].int(), accumulate=True)
    visible = (counts > 0).flatten(1)[:, : request.frame.keys].unflatten(0, (tiles.batch, tiles.heads))
    return visible.unflatten(1, (-1, request.group)).any(2) if tiles.heads > 1 else visible


def _make_score_mod(request: Request) -> ScoreMod | None:
    """Return the function that changes the scaled scores: the softcap, then the bias."""
    add_bias, softcap = _make_bias_mod(request), request.terms.softcap
    if softcap is None:
        return add_bias
    cap: float = softcap

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
def _compile_flex_attention() -> Callable[..., Any]:
    """Compile FlexAttention, once for each shape and for the constants of each mask.

    After a number of compilations, 8 by default, torch would compute all further ones without its compiler, with the
    full matrix of scores.
    """
    config = importlib.import_module("torch._dynamo.config")  # late, since it takes a second
    limit = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"  # the name in torch 2.6
    limits = dict.fromkeys((limit, f"accumulated_{limit}"), _MAX_COMPILATIONS)
    return cast(Callable[..., Any], config.patch(limits)(torch.compile(flex_attention, dynamic=False)))


BACKEND = Backend("flex", _unavailable_reason, _details)
ATTENTION = Implementation(
    "flex",
    _attention,
    _refuses,
    auto_skips=lambda request: "used only by name until it has been measured against sdpa",
)
