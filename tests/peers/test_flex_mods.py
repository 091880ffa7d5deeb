"""The masks and score mods of FlexAttention's documentation, against the masks, positions and terms of regard.

``torch.nn.attention.flex_attention`` runs as it is, without a compiler, in float64. Its indices are those of the tokens
from the start; a text that is decoded after a cache has an offset. He et al. 2024, "FlexAttention: the flexibility of
PyTorch with the performance of FlashAttention".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, and_masks, create_block_mask, flex_attention, or_masks

import regard
from regard import masks, positions
from regard.masks import Mask

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
]

BATCH, HEADS, KEY_HEADS, HEAD_DIM, VALUE_DIM = 2, 4, 2, 11, 13
LENGTHS = [(61, 61), (131, 131), (67, 131), (131, 67)]
"""Queries and keys, on both sides of regard's tiles of 64 and FlexAttention's blocks of 128."""
WINDOW, PREFIX, CAP, DOCUMENT = 17, 23, 3.0, 29
SLOPES = [2.0 ** (-8.0 * (head + 1) / HEADS) for head in range(HEADS)]
TABLE = torch.randn(HEADS, 2 * 131 + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
PADDED = torch.tensor([53, 0])
"""Keys of each text that are no padding; the second has none."""
IMPLEMENTATIONS = ("native", "reference")


def causal(offset: int) -> Callable[..., Tensor]:
    return lambda b, h, q, k: q + offset >= k


def sliding(offset: int) -> Callable[..., Tensor]:
    return lambda b, h, q, k: q + offset - k <= WINDOW


def prefix(b, h, q, k):
    return k < PREFIX


def padding(b, h, q, k):
    return k < PADDED[b]


def document(offset: int) -> Callable[..., Tensor]:
    return lambda b, h, q, k: (q + offset) // DOCUMENT == k // DOCUMENT


def add_slope(offset: int) -> Callable[..., Tensor]:
    return lambda score, b, h, q, k: score - torch.tensor(SLOPES, dtype=score.dtype)[h] * (q + offset - k).abs()


def add_distance(score, b, h, q, k):
    return score + (q - k)


def add_table(score, b, h, q, k):
    return score + TABLE[h, k - q + 131]


def cap(score, b, h, q, k):
    return CAP * torch.tanh(score / CAP)


def cap_and_add_slope(offset: int) -> Callable[..., Tensor]:
    return lambda score, b, h, q, k: add_slope(offset)(cap(score, b, h, q, k), b, h, q, k)


@dataclass(frozen=True)
class Case:
    """Functions of FlexAttention for an offset of the queries; the mask and terms of regard for queries and keys.

    The offset is 0 with ``from_start``, else the queries are the last of the tokens.
    """

    mask_mod: Callable[[int], Any] = lambda offset: None
    score_mod: Callable[[int], Any] = lambda offset: None
    mask: Callable[[int, int], Mask | None] = lambda queries, keys: None
    terms: Callable[[int, int], Mapping[str, Any]] = lambda queries, keys: {}
    from_start: bool = field(default=True, kw_only=True)


def keys_before(end: int) -> Mask:
    return masks.global_tokens(list(range(end)), side="key")


def documents_from_start(queries: int, keys: int) -> Mask:
    return masks.documents(torch.arange(keys) // DOCUMENT, query_ids=torch.arange(queries) // DOCUMENT)


def distances(queries: int, keys: int) -> Tensor:
    return (torch.arange(queries)[:, None] - torch.arange(keys))[None, None].double()


def table_bias(queries: int, keys: int) -> Tensor:
    return TABLE[:, (131 - distances(queries, keys)[0, 0]).long()][None]


CASES = {
    "none": Case(),
    "causal": Case(causal, mask=lambda queries, keys: masks.causal(align="start")),
    "causal after a cache": Case(causal, mask=lambda queries, keys: masks.causal(), from_start=False),
    "sliding window": Case(
        lambda offset: and_masks(causal(offset), sliding(offset)),
        mask=lambda queries, keys: masks.window(WINDOW, 0, align="start"),
    ),
    "sliding window after a cache": Case(
        lambda offset: and_masks(causal(offset), sliding(offset)),
        mask=lambda queries, keys: masks.window(WINDOW, 0),
        from_start=False,
    ),
    "prefix": Case(
        lambda offset: or_masks(prefix, causal(offset)),
        mask=lambda queries, keys: masks.causal(align="start") | keys_before(PREFIX),
    ),
    "padding": Case(lambda offset: padding, mask=lambda queries, keys: masks.padding(PADDED)),
    "documents": Case(document, mask=documents_from_start),
    "causal documents": Case(
        lambda offset: and_masks(document(offset), causal(offset)),
        mask=lambda queries, keys: documents_from_start(queries, keys) & masks.causal(align="start"),
    ),
    "documents after a cache": Case(
        document, mask=lambda queries, keys: masks.documents(torch.arange(keys) // DOCUMENT), from_start=False
    ),
    "relative": Case(
        score_mod=lambda offset: add_distance, terms=lambda queries, keys: {"bias": distances(queries, keys)}
    ),
    "relative table": Case(
        score_mod=lambda offset: add_table, terms=lambda queries, keys: {"bias": table_bias(queries, keys)}
    ),
    "alibi": Case(
        causal,
        add_slope,
        mask=lambda queries, keys: masks.causal(),
        terms=lambda queries, keys: {"bias": positions.ALiBi(HEADS)},
        from_start=False,
    ),
    "soft cap": Case(score_mod=lambda offset: cap, terms=lambda queries, keys: {"softcap": CAP}),
    "soft cap, alibi and window": Case(
        lambda offset: and_masks(causal(offset), sliding(offset)),
        cap_and_add_slope,
        mask=lambda queries, keys: masks.window(WINDOW, 0),
        terms=lambda queries, keys: {"bias": positions.ALiBi(HEADS), "softcap": CAP},
        from_start=False,
    ),
}


def draw(queries: int, keys: int) -> tuple[Tensor, ...]:
    shapes = ((HEADS, queries, HEAD_DIM), (KEY_HEADS, keys, HEAD_DIM), (KEY_HEADS, keys, VALUE_DIM))
    generator = torch.Generator().manual_seed(queries + keys)
    return tuple(torch.randn(BATCH, *shape, dtype=torch.float64, generator=generator) for shape in shapes)


def bound(inputs: tuple[Tensor, ...], bias: Any = None) -> float:
    """A bound of the difference of two outputs, each with the roundings of d products, n weights and n values.

    Errors of scores of at most e change the weights by at most e in sum, to first order.
    """
    query, key, value = inputs
    unit, keys = torch.finfo(query.dtype).eps, key.shape[2]
    key = key.repeat_interleave(HEADS // KEY_HEADS, dim=1)
    scores = float((query.abs() @ key.abs().mT).max()) * HEAD_DIM**-0.5
    largest_bias = float(bias.abs().max()) if isinstance(bias, Tensor) else float(max(query.shape[2], keys))
    error = unit * ((HEAD_DIM + 5) * scores + (0.0 if bias is None else 3 * largest_bias))
    return (error + (2 * keys + 4) * unit) * float(value.abs().max())


@pytest.mark.parametrize("name", CASES)
def test_outputs(name):
    """Outputs alone: FlexAttention has no backward pass on the CPU."""
    case = CASES[name]
    for queries, keys in LENGTHS:
        if not case.from_start and queries > keys:
            continue  # no text has fewer tokens than it decodes
        offset = 0 if case.from_start else keys - queries
        inputs = draw(queries, keys)
        mask_mod = case.mask_mod(offset)
        block_mask = mask_mod and create_block_mask(mask_mod, BATCH, HEADS, queries, keys, device="cpu")
        options = {"score_mod": case.score_mod(offset), "block_mask": block_mask, "enable_gqa": True}
        expected = flex_attention(*inputs, **options)
        terms = {"mask": case.mask(queries, keys), **case.terms(queries, keys)}
        for impl in IMPLEMENTATIONS:
            actual = regard.attention(*inputs, **terms, impl=impl)
            torch.testing.assert_close(actual, expected, rtol=0, atol=bound(inputs, terms.get("bias")))


def test_normalizers_and_sinks():
    """A sink z beside keys of normalizer l: output * sigmoid(l - z), as FlexAttention's users write it."""
    inputs, sinks = draw(131, 67), torch.tensor([-1.5, 0.0, 0.75, 3.0], dtype=torch.float64)
    output, found = flex_attention(*inputs, enable_gqa=True, return_aux=AuxRequest(lse=True))
    seen = regard.observe(*inputs, top=1)
    torch.testing.assert_close(seen.lse, found.lse, rtol=0, atol=bound(inputs))
    expected = output * torch.sigmoid(found.lse - sinks[:, None])[..., None]
    for impl in IMPLEMENTATIONS:
        actual = regard.attention(*inputs, sinks=sinks, impl=impl)
        torch.testing.assert_close(actual, expected, rtol=0, atol=bound(inputs))
