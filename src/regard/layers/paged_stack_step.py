"""All layers of a decoder in a step of one token of each of several texts, whose keys and values are in pages.

    a_l = attention_l(h_l-1),    h_l = feed_forward_l(a_l)       h (texts, width), the last token of each text
    h_L = norm(feed_forward_L(a_L))

One native call, as ``stack_step`` for texts in a batch: the same layers, read once and kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from regard.kernels.implementations.paged import find_band
from regard.kernels.operators.decoder_stack_op import AttentionOfLayer, PagesOfLayer, compute_stack_in_pages
from regard.kernels.operators.paged_attention_op import MAX_GROUP_SIZE, PagedKeysValues
from regard.kernels.operators.sublayer_op import RotationFactors
from regard.kernels.request import is_scale_in_range
from regard.layers.plain_module import is_unmodified
from regard.layers.stack_step import ReadLayers, read_layers
from regard.layers.sublayer_step import can_step
from regard.masks.base import Mask
from regard.mechanisms.ragged_pages import RaggedStep


def paged_stack_step(
    layers: nn.ModuleList,
    norm: nn.Module,
    tokens: Float[Tensor, "texts width"],
    step: RaggedStep,
    masks: Sequence[Mask | None],
) -> Float[Tensor, "texts width"] | None:
    """Compute the normalised output of the last layer, and write the keys and values of the tokens into their pages.

    None, with nothing written, if blocks must be called: also if a text has several new tokens.
    """
    each = tokens[:, None]
    if step.several or not can_step(each):
        return None
    read = read_layers(layers, norm, each)
    if read is None:
        return None
    rotations = _find_factors(read, each, step)
    if rotations is None:
        return None
    steps = []
    for number, (attention, mask, rotation) in enumerate(zip(read.attentions, masks, rotations, strict=True)):
        pages, band = step.pages_of(number), find_band(mask)
        if band is None or not _fit(attention, pages, each):
            return None
        steps.append(PagesOfLayer(*pages, *band, rotation))
    return compute_stack_in_pages(read.stack, each, steps)[-1, :, 0]


def _find_factors(read: ReadLayers, tokens: Tensor, step: RaggedStep) -> list[RotationFactors | None] | None:
    """Find the factors of each layer's rotation at the positions of the tokens; None if one of them has none."""
    found: dict[tuple[int, int], RotationFactors | None] = {}
    factors = []
    for attention, rotation in zip(read.attentions, read.rotations, strict=True):
        kind = (id(rotation), attention.head_dim)
        if kind not in found:
            if rotation is None:
                found[kind] = None
            else:
                found[kind] = rotation.factors_at(tokens, attention.head_dim, step.positions)
                if found[kind] is None or not is_unmodified(rotation):
                    return None
        factors.append(found[kind])
    return factors


def _fit(attention: AttentionOfLayer, pages: PagedKeysValues, tokens: Tensor) -> bool:
    """Whether the kernel reads such pages, and they are those of the layer."""
    key, value = pages.key_pages, pages.value_pages
    return (
        attention.heads <= MAX_GROUP_SIZE * attention.key_heads
        and is_scale_in_range(attention.scale)
        and key.shape[1:] == (attention.key_heads, key.shape[2], attention.head_dim)
        and value.shape == (*key.shape[:3], attention.value_dim)
        and key.dtype is value.dtype is tokens.dtype
        and key.is_cpu
    )
