"""All layers of a decoder for few tokens by the native kernel, in one call, as in a decoding step.

    a_l = attention_l(h_l-1),    h_l = feed_forward_l(a_l)               h (batch, length, width)
    h_L = norm(feed_forward_L(a_L))                                      the last one; the norm may be absent
    logits = h_L W^T + b                                                 if they are asked for

with the sublayers of ``sublayer_op``, and the same bits. A step of a large model reads more weights than caches hold,
so the Python objects of the modules come from memory again in each step. The layers are therefore read once, and kept
with what they were read from: the entries of the modules' dicts, and where each parameter is. A stack that is no longer
unchanged is to be read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.kernels.extension import native
from regard.kernels.operators.sublayer_op import (
    AttentionLayers,
    FeedForwardLayers,
    LinearLayer,
    NormLayer,
    RotationFactors,
    SublayerNorms,
)

DecoderStack: TypeAlias = "native.DecoderStack"


@final
class AttentionOfLayer(NamedTuple):
    """Self-attention of a layer: its sizes, what changes its scores, and its linear layers and norms."""

    heads: int
    key_heads: int
    head_dim: int
    value_dim: int
    scale: float
    softcap: float | None
    sinks: Tensor | None  # broadcasts to (batch, heads, length, 1)
    layers: AttentionLayers
    norms: SublayerNorms


@final
class FeedForwardOfLayer(NamedTuple):
    """The feed-forward layer of a layer."""

    layers: FeedForwardLayers
    norms: SublayerNorms


@final
class StepOfLayer(NamedTuple):
    """The inputs of a layer in a step: keys and values with room for the new tokens, the mask, and the rotation."""

    key: Tensor  # (batch, key_heads, rows, head_dim)
    value: Tensor
    begin: int  # the rows in use; the last ones are the new tokens
    end: int
    low: int | None  # the mask: see ``kernel_arguments``
    high: int | None
    start: Tensor | None
    stop: Tensor | None
    rotation: RotationFactors | None


@final
class PagesOfLayer(NamedTuple):
    """The same for a step of several texts, with keys and values in pages; the last tokens of each are new."""

    key_pages: Tensor  # (pages, key_heads, page_size, head_dim)
    value_pages: Tensor
    page_table: Tensor  # (batch, most_pages)
    lengths: Tensor  # (batch,)
    counts: Tensor | None  # (batch,): new tokens of each text
    low: int | None
    high: int | None
    rotation: RotationFactors | None  # of each new token


def read_stack(
    layers: Sequence[tuple[AttentionOfLayer, FeedForwardOfLayer]],
    norm: NormLayer | None,
    output: LinearLayer | None,
    dicts: Sequence[dict[Any, Any]],
    parameters: Sequence[Tensor],
    tokens: Float[Tensor, "batch length width"],
) -> DecoderStack | None:
    """Read layers for such tokens, and take what the dicts hold and where the parameters are.

    None if a parameter has to be copied to be read, as one at an odd address.
    """
    return native.DecoderStack.read(layers, norm, output, dicts, parameters, tokens)


def compute_stack(
    stack: DecoderStack,
    tokens: Float[Tensor, "batch length width"],
    steps: Sequence[StepOfLayer],
    logits: Float[Tensor, "batch length vocabulary"] | None = None,
) -> Float[Tensor, "layers batch length width"]:
    """Compute the output of each layer, for tokens for which ``sublayer_op.can_compute`` holds, and fill the logits."""
    outputs = tokens.new_empty((len(steps), *tokens.shape))
    stack.step(tokens.contiguous(), outputs, logits, steps, threads=torch.get_num_threads())
    return outputs


def compute_stack_in_pages(
    stack: DecoderStack,
    tokens: Float[Tensor, "tokens 1 width"],
    steps: Sequence[PagesOfLayer],
    logits: Float[Tensor, "tokens 1 vocabulary"] | None = None,
) -> Float[Tensor, "layers tokens 1 width"]:
    """Compute the same for new tokens of several texts, and write their keys and values into the pages."""
    outputs = tokens.new_empty((len(steps), *tokens.shape))
    stack.step_in_pages(tokens.contiguous(), outputs, logits, steps, threads=torch.get_num_threads())
    return outputs
