"""The two blocks of a Perceiver: cross-attention and self-attention, with widths for queries and keys, and for values.

    queries x (.., n), keys and values from y (.., m)
    query_key_width    size of all heads of queries and keys; None is m, or n if ``cross_width`` is "queries"
    value_width        size of all heads of values; None is query_key_width

Jaegle et al. 2021, "Perceiver IO", appendix E, equations 1 to 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from torch import nn

from regard.errors import OptionError
from regard.layers import CrossAttentionBlock, EncoderBlock, FeedForward, MultiHeadAttention, PreNorm, Residual

CROSS_WIDTHS = ("inputs", "queries")
"""The default of ``query_key_width`` of cross-attention: the width of the inputs, or of the queries."""
_EPSILON = 1e-5
"""The epsilon of all layer norms, as in the published code, which does not use the field ``layer_norm_eps``."""


@final
@dataclass(frozen=True)
class BlockOptions:
    """The common hyperparameters of the blocks of a Perceiver.

    ``latent_width`` is the width of latents, ``dropout`` the dropout of attention weights, ``cross_width`` one of
    ``CROSS_WIDTHS``, ``deviation`` the standard deviation of initial trained queries.
    """

    latent_width: int
    activation: str
    dropout: float
    cross_width: str
    deviation: float


def make_cross_block(
    options: BlockOptions,
    *,
    width: int,
    memory_width: int,
    heads: int,
    residual: type[Residual],
    query_key_width: int | None = None,
    value_width: int | None = None,
    widening: int = 1,
) -> CrossAttentionBlock:
    """Make a block of queries of ``width`` that read a memory; ``residual`` is ``PreNorm`` or ``NoResidual``."""
    default = memory_width if options.cross_width == "inputs" else width
    query_key_width = default if query_key_width is None else query_key_width
    value_width = query_key_width if value_width is None else value_width
    return CrossAttentionBlock(
        attention=MultiHeadAttention(
            width,
            heads,
            key_width=memory_width,
            head_dim=_divide("queries and keys of cross-attention", query_key_width, heads),
            value_head_dim=_divide("values of cross-attention", value_width, heads),
            dropout=options.dropout,
        ),
        feed_forward=FeedForward(width, widening * width, activation=options.activation),
        attention_residual=residual(nn.LayerNorm(width, eps=_EPSILON)),
        feed_forward_residual=PreNorm(nn.LayerNorm(width, eps=_EPSILON)),
        memory_norm=nn.LayerNorm(memory_width, eps=_EPSILON),
    )


def make_self_block(
    options: BlockOptions, *, heads: int, query_key_width: int | None, value_width: int | None, widening: int
) -> EncoderBlock:
    """Make a block of latents that attend to each other."""
    width = options.latent_width
    query_key_width = width if query_key_width is None else query_key_width
    value_width = query_key_width if value_width is None else value_width
    return EncoderBlock(
        attention=MultiHeadAttention(
            width,
            heads,
            head_dim=_divide("queries and keys of self-attention", query_key_width, heads),
            value_head_dim=_divide("values of self-attention", value_width, heads),
            dropout=options.dropout,
        ),
        feed_forward=FeedForward(width, widening * width, activation=options.activation),
        attention_residual=PreNorm(nn.LayerNorm(width, eps=_EPSILON)),
        feed_forward_residual=PreNorm(nn.LayerNorm(width, eps=_EPSILON)),
    )


def _divide(name: str, width: int, heads: int) -> int:
    """The size of a head. Raises OptionError if the heads do not divide the width."""
    if width % heads:
        raise OptionError(
            f"the {name} do not divide into heads",
            expected=f"a divisor of their width, {width}",
            got=f"{heads} heads",
            do="choose another number of heads, or pass query_key_width= and value_width= to the config",
        )
    return width // heads
