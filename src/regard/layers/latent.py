"""Multi-head latent attention: keys and values of all heads are projections of one small latent for each token.

    c_j = norm(W_D x_j)           r_j = rotate(W_R x_j)                       the latent, and a rotary key for all heads
    q_h = [W_Q^h x_i; rotate(W_QR^h x_i)]       W_Q and W_QR are applied to norm(W_QD x_i) if queries have a latent too
    k_h = [W_K^h c_j; r_j]        v_h = W_V^h c_j
    output = W_O concat_h(softmax_j(scale * q_h . k_h) v_h)                   scale = 1/sqrt(head_dim + rotary_dim)

DeepSeek-AI 2024, "DeepSeek-V2", section 2.1, equations 9 to 19 and 37 to 47. Positions have parts of their own, since a
rotation between W_Q and W_K would prevent that one absorbs the other:

    expanded    keys and values are computed for each head: head_dim + rotary_dim and value_dim numbers
    absorbed    (W_K^hT W_Q^h x_i) . c_j = (W_Q^h x_i) . (W_K^h c_j), so all heads attend to one key [c_j; r_j] and one
                value c_j, and W_V^h follows the weighted sum

Both compute the same output, by exact dot-product attention. The expanded form has fewer operations for each pair, the
absorbed form needs nothing for a cached token, so decoding uses it. The cache stores c_j and r_j alone.

Tokens are (batch, length, width).
"""

from __future__ import annotations

from typing import Any, final, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.errors import (
    OptionError,
    check_count,
    check_flag,
    check_number,
    check_size,
    check_sizes,
    check_weights,
    short_repr,
)
from regard.layers.input_checks import check_layer_input
from regard.layers.latent_cache import LatentCache
from regard.layers.projection import linear_activation
from regard.masks.base import Mask
from regard.mechanisms.dot_product import DotProduct
from regard.mechanisms.state import State, wrong_state_error
from regard.positions.base import Rotation
from regard.positions.rotary import Rotary
from regard.validation import check_mask


@final
@explain_arguments
class LatentAttention(nn.Module):
    """Multi-head latent self-attention.

    Args:
        width: size of input and output tokens.
        heads: number of heads.
        latent_dim: size of the latent from which keys and values are computed.
        rotary_dim: size of the part of queries and keys that is rotated; 0 is no position.
        head_dim: size of the other part of queries and keys of a head.
        value_dim: size of the values of a head; None is ``head_dim``.
        query_latent_dim: size of the latent from which queries are computed; None is ``width``, without a latent.
        position: rotation of the rotary parts; None is ``positions.Rotary(rotary_dim, layout="pairs")``.
        scale: factor of the scores; None is 1/sqrt(head_dim + rotary_dim).
        bias: whether the projections from and to tokens of ``width`` have a bias; projections of heads have none.
        epsilon: epsilon of the norms of latents.
        dropout: probability of dropping a weight in training.
        impl: implementation of dot-product attention, as for ``regard.attention``.

    Defaults are the sizes of DeepSeek-V3. ``mechanism`` computes the expanded form, ``absorbed_mechanism`` the absorbed
    one. Raises OptionError for invalid sizes, or a position of another size.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        latent_dim: int = 512,
        rotary_dim: int = 64,
        head_dim: int = 128,
        value_dim: int | None = None,
        query_latent_dim: int | None = None,
        position: Rotation | None = None,
        scale: float | None = None,
        bias: bool = False,
        epsilon: float = 1e-6,
        dropout: float = 0.0,
        impl: str = "auto",
    ) -> None:
        super().__init__()
        value_dim = head_dim if value_dim is None else value_dim
        check_sizes(width=width, heads=heads, latent_dim=latent_dim, head_dim=head_dim, value_dim=value_dim)
        check_count("rotary_dim", rotary_dim, minimum=0)
        if query_latent_dim is not None:
            check_size("query_latent_dim", query_latent_dim)
        check_weights(rows=max(width, latent_dim, query_latent_dim or 1), heads=heads, size=head_dim + value_dim)
        check_flag("bias", bias)
        check_number("epsilon", epsilon, minimum=0.0)
        self.width, self.heads, self.latent_dim, self.rotary_dim = width, heads, latent_dim, rotary_dim
        self.head_dim, self.value_dim, self.query_latent_dim = head_dim, value_dim, query_latent_dim
        self.position = _resolve_position(position, rotary_dim)
        whole = head_dim + rotary_dim
        if query_latent_dim is None:
            self.query_projection = nn.Linear(width, heads * whole, bias=False)
        else:
            self.query_down = nn.Linear(width, query_latent_dim, bias=bias)
            self.query_norm = nn.RMSNorm(query_latent_dim, eps=epsilon)
            self.query_projection = nn.Linear(query_latent_dim, heads * whole, bias=False)
        self.latent_down = nn.Linear(width, latent_dim + rotary_dim, bias=bias)
        self.latent_norm = nn.RMSNorm(latent_dim, eps=epsilon)
        self.latent_up = nn.Linear(latent_dim, heads * (head_dim + value_dim), bias=False)
        self.output_projection = nn.Linear(heads * value_dim, width, bias=bias)
        scale = whole**-0.5 if scale is None else scale
        options: dict[str, Any] = {"heads": heads, "scale": scale, "dropout": dropout, "impl": impl}
        self.mechanism = DotProduct(head_dim=whole, **options)
        self.absorbed_mechanism = DotProduct(head_dim=latent_dim + rotary_dim, **options)
        self._init_weights()

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of the cache for each token of a sequence, in the dtype of the weights."""
        return (self.latent_dim + self.rotary_dim) * self.latent_up.weight.element_size()

    @overload
    def forward(
        self, tokens: Tensor, *, mask: Mask | None = ..., cache: None = ..., absorb: bool | None = ...
    ) -> Tensor: ...

    @overload
    def forward(
        self, tokens: Tensor, *, mask: Mask | None = ..., cache: State, absorb: bool | None = ...
    ) -> tuple[Tensor, LatentCache]: ...

    def forward(
        self, tokens: Tensor, *, mask: Mask | None = None, cache: State | None = None, absorb: bool | None = None
    ) -> Tensor | tuple[Tensor, LatentCache]:
        """Attend from tokens to tokens.

        Args:
            tokens: (batch, length, width).
            mask: from ``regard.masks``, over queries and keys, including those in the cache.
            cache: ``empty_cache()``, or the cache that an earlier call returned.
            absorb: whether to compute the absorbed form; None takes the form with fewer multiplications.

        Returns:
            (batch, length, width); with a cache, a pair of this output and the extended cache.

        Raises ShapeError, DtypeError, DeviceError, OptionError or RefusedError, as ``regard.attention`` does.
        """
        check_layer_input("input", tokens, self.latent_down)
        check_mask(mask)
        if absorb is not None:
            check_flag("absorb", absorb)
        if cache is not None and not isinstance(cache, LatentCache):
            raise wrong_state_error(cache, LatentCache, type(self).__name__)
        start = 0 if cache is None else cache.length
        query = self._project_query(tokens, start)
        keys = self._project_latent(tokens, start)
        if cache is not None:
            cache = cache.extended(keys)
            keys = cache.tokens
        if absorb is None:
            absorb = self._absorbed_is_cheaper(query.shape[2], keys.shape[2])
        heads = self._attend_absorbed(query, keys, mask) if absorb else self._attend_expanded(query, keys, mask)
        output = linear_activation(heads.transpose(1, 2).flatten(2), self.output_projection)
        return output if cache is None else (output, cache)

    def empty_cache(self) -> LatentCache:
        """Make the cache before the first token, to pass as ``cache=``."""
        return LatentCache(self.latent_dim)

    def _project_query(self, tokens: Tensor, start: int) -> Float[Tensor, "batch heads length head_and_rotary"]:
        """Compute the queries of all heads, with their rotary parts rotated, from position ``start`` on."""
        if self.query_latent_dim is not None:
            tokens = self.query_norm(linear_activation(tokens, self.query_down))
        query = linear_activation(tokens, self.query_projection).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return self._rotate_end(query, self.head_dim, start)

    def _project_latent(self, tokens: Tensor, start: int) -> Float[Tensor, "batch 1 length latent_and_rotary"]:
        """Compute the latent and the rotary key of each token, from position ``start`` on."""
        latent, rotary = linear_activation(tokens, self.latent_down).split([self.latent_dim, self.rotary_dim], dim=-1)
        return self._rotate_end(torch.cat([self.latent_norm(latent), rotary], dim=-1)[:, None], self.latent_dim, start)

    def _rotate_end(
        self, tokens: Float[Tensor, "batch heads length size"], first: int, start: int
    ) -> Float[Tensor, "batch heads length size"]:
        """Rotate the components from ``first`` on."""
        if self.position is None:
            return tokens
        return torch.cat([tokens[..., :first], self.position(tokens[..., first:], offset=start)], dim=-1)

    def _attend_expanded(
        self, query: Tensor, keys: Tensor, mask: Mask | None
    ) -> Float[Tensor, "batch heads length value_dim"]:
        """Attend to the keys and values of each head."""
        latent, rotary = keys[:, 0, :, : self.latent_dim], keys[..., self.latent_dim :]
        heads = linear_activation(latent, self.latent_up).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key, value = heads.split([self.head_dim, self.value_dim], dim=-1)
        key = torch.cat([key, rotary.to(key.dtype).expand(-1, self.heads, -1, -1)], dim=-1)
        output: Tensor = self.mechanism(query.to(key.dtype), key, value, mask)
        return output

    def _attend_absorbed(
        self, query: Tensor, keys: Tensor, mask: Mask | None
    ) -> Float[Tensor, "batch heads length value_dim"]:
        """Attend to the latents, with the projections of keys and values applied to queries and outputs."""
        weights = self.latent_up.weight.unflatten(0, (self.heads, -1))
        of_key, of_value = weights.split([self.head_dim, self.value_dim], dim=1)
        content, rotary = query.split([self.head_dim, self.rotary_dim], dim=-1)
        content = content @ of_key
        query = torch.cat([content, rotary.to(content.dtype)], dim=-1)
        keys = keys.to(query.dtype)
        mixed: Tensor = self.absorbed_mechanism(query, keys, keys[..., : self.latent_dim], mask)
        return mixed @ of_value.mT

    def _absorbed_is_cheaper(self, queries: int, keys: int) -> bool:
        """Whether the absorbed form has fewer multiplications for a head."""
        expansion = self.latent_dim * (self.head_dim + self.value_dim)  # of a key and value, or a query and output
        expanded = keys * expansion + queries * keys * (self.head_dim + self.rotary_dim + self.value_dim)
        absorbed = queries * expansion + queries * keys * (2 * self.latent_dim + self.rotary_dim)
        return absorbed < expanded

    def _init_weights(self) -> None:
        """Initialise weights by Xavier uniform, as ``MultiHeadAttention`` does, and biases by 0."""
        for module in self.children():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return (
            f"width={self.width}, heads={self.heads}, latent_dim={self.latent_dim}, rotary_dim={self.rotary_dim}, "
            f"head_dim={self.head_dim}, value_dim={self.value_dim}, query_latent_dim={self.query_latent_dim}"
        )


def _resolve_position(position: object, rotary_dim: int) -> Rotation | None:
    """Return the rotation of the rotary parts; None if there are none."""
    if position is None:
        if rotary_dim % 2 == 0:
            return Rotary(rotary_dim, layout="pairs") if rotary_dim else None
        position = "no position"
    elif isinstance(position, Rotation) and getattr(position, "head_dim", rotary_dim) == rotary_dim > 0:
        return position
    raise OptionError(
        "the position does not fit the rotary parts of queries and keys",
        expected=f"a rotation of {rotary_dim} dimensions, such as positions.Rotary({rotary_dim}); 0 are not rotated",
        got=short_repr(position) + (f" and rotary_dim={rotary_dim}" if isinstance(position, str) else ""),
        do="use an even rotary_dim, and a positions.Rotary of that size",
    )
