"""The attention of torch itself: each call as a function that ``check`` can try, as torch documents it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, final

from regard.conformance.checking import check
from regard.conformance.report import Report
from regard.errors import RefusedError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import MultiheadAttention


@final
@dataclass(frozen=True)
class Advice:
    """Advice about a fault: ``words`` occur in its cause; ``issue`` is where torch discusses it.

    ``call`` occurs in the names of the calls that it is about.
    """

    words: str
    do: str
    issue: str = ""
    call: str = ""


@final
@dataclass(frozen=True)
class TorchCall:
    """A call of torch: its name, the function that makes it, and the alignment that torch documents for it."""

    name: str
    make: Callable[[], Callable[..., Any]]
    align: str


ADVICE = (
    Advice(
        "reaches the output",
        "set hidden keys and values to 0 before the call, or use regard.attention, which does not read them",
        "https://github.com/pytorch/pytorch/issues/101967",
    ),
    Advice(
        "sees no key",
        "let each query see a key, or use need_weights=False and torch.backends.mha.set_fastpath_enabled(False)",
        "https://github.com/pytorch/pytorch/pull/190486",
        "inference",
    ),
    Advice(
        "sees no key in a head",
        "use need_weights=False, let each query see a key, or use regard.convert, whose layers give 0",
        "https://github.com/pytorch/pytorch/issues/160064",
    ),
    Advice(
        "sees no key",
        "let each query see a key, or use regard.attention, which gives 0",
        "https://github.com/pytorch/pytorch/issues/41508",
    ),
    Advice(
        "aligned at the start",
        "pass torch.nn.attention.bias.causal_lower_right, or use regard.attention with masks.causal()",
        "https://github.com/pytorch/pytorch/issues/108108",
    ),
)
"""Advice about the faults that calls of torch are known for."""

CALLS = (
    TorchCall("scaled_dot_product_attention, MATH", lambda: sdpa_with("MATH"), "start"),
    TorchCall("scaled_dot_product_attention, FLASH_ATTENTION", lambda: sdpa_with("FLASH_ATTENTION"), "start"),
    TorchCall("nn.MultiheadAttention, need_weights=False", lambda: multi_head_attention(need_weights=False), "end"),
    TorchCall("nn.MultiheadAttention, need_weights=True", lambda: multi_head_attention(need_weights=True), "end"),
    TorchCall(
        "nn.MultiheadAttention, batch_first=False",
        lambda: multi_head_attention(need_weights=False, batch_first=False),
        "end",
    ),
    TorchCall("nn.MultiheadAttention, inference, need_weights=False", lambda: fast_path(need_weights=False), "end"),
    TorchCall("nn.MultiheadAttention, inference, need_weights=True", lambda: fast_path(need_weights=True), "end"),
    TorchCall("nn.MultiheadAttention, inference, nested tensors", lambda: nested_fast_path, "end"),
    TorchCall("flex_attention, not compiled", lambda: flex_attention, "end"),
)
"""The calls that are tried. Their causal masks mean the first positions, except where a function of ours says which."""


def check_torch(progress: Callable[[int, int], None] | None = None) -> Iterator[tuple[TorchCall, Report]]:
    """Try each call of torch on this machine's processor."""
    for number, call in enumerate(CALLS):
        yield call, check(call.make(), framework="torch", align=call.align, strict=True)
        if progress is not None:
            progress(number + 1, len(CALLS))


def find_advice(call: str, cause: str) -> Advice | None:
    """The advice about a fault of a call, by the name of the call."""
    return next((advice for advice in ADVICE if advice.words in cause and advice.call in call), None)


def sdpa_with(backend: str) -> Callable[..., Tensor]:
    """``scaled_dot_product_attention`` with one of its backends, MATH or FLASH_ATTENTION."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            return scaled_dot_product_attention(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )

    return attention


def multi_head_attention(*, need_weights: bool, batch_first: bool = True) -> Callable[..., Any]:
    """``nn.MultiheadAttention`` without projections: its matrices are identities. True in the mask hides."""

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        import torch

        batch, heads, length, head_dim = query.shape
        if key.shape[1] != heads or value.shape[3] != head_dim:
            raise RefusedError("nn.MultiheadAttention has as many key heads as query heads, of one size")
        width = heads * head_dim
        layer = torch.nn.MultiheadAttention(width, heads, bias=False, batch_first=batch_first).to(query)
        identity = torch.eye(width, dtype=query.dtype, device=query.device)
        with torch.no_grad():
            layer.in_proj_weight.copy_(identity.repeat(3, 1))
            layer.out_proj.weight.copy_(identity)
        joined = [part.transpose(1, 2).flatten(2) for part in (query, key, value)]
        joined = joined if batch_first else [part.transpose(0, 1) for part in joined]
        masks = _layer_masks(attn_mask, (batch, heads, length, key.shape[2]))
        output, weights = layer(*joined, **masks, need_weights=need_weights, average_attn_weights=False)
        output = output if batch_first else output.transpose(0, 1)
        output = output.unflatten(2, (heads, head_dim)).transpose(1, 2)
        return (output,) if weights is None else (output, weights)

    return attention


def _layer_masks(mask: Tensor | None, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """A mask as an argument of the layer: one that is the same for all queries and heads is a ``key_padding_mask``."""
    if mask is None:
        return {}
    full = mask.expand(shape)
    if (full == full[:, :1, :1]).all():
        return {"key_padding_mask": full[:, 0, 0]}
    return {"attn_mask": full.flatten(0, 1)}


def fast_path(*, need_weights: bool) -> Callable[..., Any]:
    """The fast path of ``nn.MultiheadAttention`` in inference. True in the mask hides."""

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> tuple[Tensor, ...]:
        import torch

        if not query.shape == key.shape == value.shape:
            raise RefusedError("the fast path is for self-attention: as many queries as keys, of one size")
        batch, heads, length, head_dim = query.shape
        with torch.no_grad():
            layer, tokens = _inference_layer(*(part.transpose(1, 2) for part in (query, key, value)))
            if attn_mask is not None and attn_mask.shape[1] > 1 and layer.num_heads > heads:
                attn_mask = torch.nn.functional.pad(attn_mask, (0, 0, 0, 0, 0, 1))
            masks = _layer_masks(attn_mask, (batch, layer.num_heads, length, length))
            arguments = {"need_weights": need_weights, "average_attn_weights": False, **masks}
            output, weights = layer(tokens, tokens, tokens, **arguments)
            output = output.unflatten(2, (layer.num_heads, -1))[:, :, :heads, :head_dim].transpose(1, 2)
        return (output,) if weights is None else (output, weights[:, :heads])

    return attention


def nested_fast_path(query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The fast path of ``nn.MultiheadAttention`` with texts of several lengths as a nested tensor."""
    import torch

    if not query.shape == key.shape == value.shape:
        raise RefusedError("the fast path is for self-attention: as many queries as keys, of one size")
    heads, head_dim = query.shape[1:]
    ends = cu_seqlens.tolist()
    with torch.no_grad():
        layer, tokens = _inference_layer(query, key, value)
        texts = torch.nested.nested_tensor([tokens[first:end] for first, end in pairwise(ends)])
        parts = layer(texts, texts, texts, need_weights=False)[0].unbind()
        output = torch.zeros_like(query)
        output[: ends[-1]] = torch.cat(parts).unflatten(1, (layer.num_heads, -1))[:, :heads, :head_dim]
    return output


def _inference_layer(query: Tensor, key: Tensor, value: Tensor) -> tuple[MultiheadAttention, Tensor]:
    """A layer that takes the fast path, and its tokens (..., width), from three tensors (..., heads, head_dim).

    The fast path is for self-attention. So a token holds query, key, value and as many zeros for each head, and the
    projections pick them. Its scale is then half of the usual one, and queries are doubled. The number of heads must be
    even.
    """
    import torch

    if not all(part.isfinite().all() for part in (query, key, value)):
        raise RefusedError("a token holds query, key and value here: Inf and NaN would reach all of them")
    heads, head_dim = query.shape[-2:]
    even, size = heads + heads % 2, 4 * head_dim
    tokens = query.new_zeros(*query.shape[:-2], even, size)
    tokens[..., :heads, : 3 * head_dim] = torch.cat([query, key, value], -1)
    layer = torch.nn.MultiheadAttention(even * size, even, batch_first=True).to(query).eval()
    projections = []
    for number, factor in enumerate((2.0, 1.0, 1.0)):
        block = query.new_zeros(size, size)
        block[:head_dim, number * head_dim : (number + 1) * head_dim] = factor * torch.eye(head_dim)
        projections.append(torch.block_diag(*[block] * even))
    layer.in_proj_weight.copy_(torch.cat(projections))
    layer.in_proj_bias.zero_()
    layer.out_proj.weight.copy_(torch.eye(even * size))
    layer.out_proj.bias.zero_()
    return layer, tokens.flatten(-2)


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    scale: float | None = None,
) -> Tensor:
    """``flex_attention``, not compiled, with its masks as ``mask_mod`` and bias and softcap as ``score_mod``."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask
    from torch.nn.attention.flex_attention import flex_attention as flex

    (batch, heads, queries), keys = query.shape[:3], key.shape[2]
    full = None if bias is None else bias.expand(batch, heads, queries, keys)
    allowed = None if mask is None else mask.expand(batch, heads, queries, keys)
    left, right = window or (-1, -1)

    def score_mod(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        score = score if softcap is None else softcap * torch.tanh(score / softcap)
        return score if full is None else score + full[b, h, q, k]

    def mask_mod(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        position, visible = q + keys - queries, k >= 0
        visible = visible if allowed is None else visible & allowed[b, h, q, k]
        visible = visible & (k <= position) if causal else visible
        visible = visible & (k >= position - left) if left >= 0 else visible
        return visible & (k <= position + right) if right >= 0 else visible

    is_masked = mask is not None or causal or window is not None
    block_mask = create_block_mask(mask_mod, batch, heads, queries, keys, query.device.type) if is_masked else None
    has_terms = softcap is not None or bias is not None
    result: Any = flex(
        query, key, value, score_mod if has_terms else None, block_mask, scale, enable_gqa=key.shape[1] != heads
    )
    return result
