"""``nn.MultiheadAttention`` of torch, computed by ``regard.attention``: the same call, the same weights and names.

    Concat(head_1, .., head_h) W_O,    head_i = softmax(Q_i K_i^T / sqrt(head_dim)) V_i

A layer is converted in place: it stays the same object with the same parameters, so an optimizer, a state dict and the
module around it see no change. ``MultiHeadAttention.from_torch`` makes a layer of regard instead.

Three things differ from torch. A query that may attend to no key gets 0, and weights of 0, where torch has NaN. Weights
that are returned are those before dropout. A wrong argument raises an error of regard.

    attn_mask          (queries, keys) or (batch * heads, queries, keys)
    key_padding_mask   (batch, keys)

A bool is True where a query may NOT attend. Floats are added to the scores: -inf hides a key, and any other number is a
bias, however low: torch computes with it too, so a row of -1e9 alone has the weights of a row of 0.
``masks.from_multihead_attention`` takes those arguments as well, but refuses a bias.
"""

from __future__ import annotations

from functools import reduce
from operator import add, and_
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard import masks
from regard.errors import DtypeError, OptionError, RefusedError, ShapeError, short_repr
from regard.masks import Mask
from regard.mechanisms.dot_product import DotProduct
from regard.tensors import has_values


def why_not_convertible(module: nn.MultiheadAttention) -> str | None:
    """Explain why a layer of torch cannot be converted; None if it can."""
    kind = type(module)
    if kind is not nn.MultiheadAttention:
        return f"{kind.__name__} is a subclass of nn.MultiheadAttention, whose code may differ"
    if module.bias_k is not None or module.add_zero_attn:
        return "nn.MultiheadAttention with add_bias_kv or add_zero_attn adds a key of its own"
    return None


def convert_in_place(module: nn.MultiheadAttention) -> None:
    """Let a layer for which ``why_not_convertible`` returns None compute with regard."""
    module.__class__ = TorchAttention
    mechanism = DotProduct(heads=module.num_heads, head_dim=module.head_dim, dropout=module.dropout)
    module.add_module("mechanism", mechanism.train(module.training))


@final
class TorchAttention(nn.MultiheadAttention):
    """A converted ``nn.MultiheadAttention``; see ``regard.convert``. Its ``mechanism`` has no weights."""

    mechanism: DotProduct

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the layer; the arguments are the same as for ``nn.MultiheadAttention``.

        Args:
            query: (length, batch, width), with ``batch_first`` (batch, length, width), or (length, width).
            key, value: the same for the keys, of ``kdim`` and ``vdim``.
            key_padding_mask: (batch, keys), or (keys,) without a batch; True may not attend, floats are added.
            need_weights: whether weights are returned, which take quadratic memory.
            attn_mask: (queries, keys) or (batch * heads, queries, keys); True may not attend, floats are added.
            average_attn_weights: whether the weights are the mean of all heads.
            is_causal: whether ``attn_mask`` is causal; it is then not read, unless there is padding or weights are
                returned, as in torch.

        Returns:
            The output in the layout of ``query``; and the weights (batch, queries, keys), (batch, heads, queries, keys)
            for each head, or None. Without a batch they have no first axis.

        Raises ShapeError, DtypeError, DeviceError, OptionError or RefusedError, as ``regard.attention`` does.
        """
        is_batched = self._check_tokens(query, key, value)
        queries, keys, values = (
            self._split_heads(tokens, is_batched) for tokens in self._project_tokens(query, key, value)
        )
        if key_padding_mask is not None and not is_batched:
            key_padding_mask = key_padding_mask[None]
        if is_causal and attn_mask is None:
            raise OptionError(
                "is_causal is a hint on attn_mask",
                expected="attn_mask=nn.Transformer.generate_square_subsequent_mask(length) beside it",
                got="is_causal=True, attn_mask=None",
                do="pass both, as for nn.MultiheadAttention",
            )
        if is_causal and key_padding_mask is None and not need_weights:
            terms = MaskAndBias(masks.causal(align="start"), None)
        else:
            shape = (*queries.shape[:3], keys.shape[2])
            terms = read_torch_masks(attn_mask, key_padding_mask, shape, queries.dtype)
        if self.mechanism.dropout != self.dropout:  # it may have been changed since
            self.mechanism.dropout = self.dropout
        heads = self.mechanism(queries, keys, values, terms.mask, bias=terms.bias)
        output = self._restore_layout(self.out_proj(heads.transpose(1, 2).flatten(2)), is_batched)
        if not need_weights:
            return output, None
        weights = self.mechanism.weights(queries, keys, mask=terms.mask, bias=terms.bias).to(query.dtype)
        weights = weights.mean(1) if average_attn_weights else weights
        return output, weights if is_batched else weights[0]

    def _check_tokens(self, query: Tensor, key: Tensor, value: Tensor) -> bool:
        """Return whether there is an axis of the batch. Raises RefusedError or ShapeError."""
        if query.is_nested or key.is_nested or value.is_nested:
            raise RefusedError(
                "a converted layer does not compute nested tensors",
                expected="padded tokens, with a key_padding_mask",
                got="a nested tensor, as nn.TransformerEncoder makes in its fast path",
                do="regard.convert(model) with the whole model, which turns that path off",
            )
        widths = (self.embed_dim, self.kdim, self.vdim)
        for name, tokens, width in zip(("query", "key", "value"), (query, key, value), widths, strict=True):
            if tokens.dim() not in (2, 3) or tokens.dim() != query.dim() or tokens.shape[-1] != width:
                batched = "(batch, length, {})" if self.batch_first else "(length, batch, {})"
                raise ShapeError(
                    f"{name} has the wrong shape",
                    expected=f"{batched.format(width)} or (length, {width}), the same form for query, key and value",
                    got=str(tuple(tokens.shape)),
                    do="pass the tokens as nn.MultiheadAttention takes them",
                )
        return query.dim() == 3

    def _project_tokens(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        """Project the tokens to queries, keys and values, in one product where they are the same."""
        if self.in_proj_weight is not None and query is key and key is value:
            return functional.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, dim=-1)
        weights: Any = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return tuple(map(functional.linear, (query, key, value), weights, biases))

    def _split_heads(self, tokens: Tensor, is_batched: bool) -> Tensor:
        """Split projected tokens in the layout of a call into heads (batch, heads, length, head_dim)."""
        tokens = tokens[None] if not is_batched else tokens if self.batch_first else tokens.transpose(0, 1)
        return tokens.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _restore_layout(self, output: Tensor, is_batched: bool) -> Tensor:
        """Return an output (batch, queries, width) in the layout of a call."""
        if not is_batched:
            return output[0]
        return output if self.batch_first else output.transpose(0, 1)


def turn_off_fast_paths(model: nn.Module) -> None:
    """Let the transformer layers of torch call their converted attention layers in eval mode too.

    Their fast path computes a whole layer from its weights, and an encoder makes nested tensors for it.
    """
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer) and isinstance(module.self_attn, TorchAttention):
            module.activation_relu_or_gelu = 0  # read by the fast path alone
        if isinstance(module, nn.TransformerEncoder) and any(
            isinstance(part, TorchAttention) for part in module.modules()
        ):
            module.use_nested_tensor = False


@final
class MaskAndBias(NamedTuple):
    """Which keys a query may attend to, None for all; and what is added to the scores, None for nothing."""

    mask: Mask | None
    bias: Tensor | None


def read_torch_masks(
    attn_mask: Any, key_padding_mask: Any, shape: tuple[int, int, int, int], dtype: torch.dtype
) -> MaskAndBias:
    """Read the masks of a call, for scores of a ``shape`` (batch, heads, queries, keys) and queries of a ``dtype``.

    Raises DtypeError for other kinds than bool and float tensors, and ShapeError for other shapes than torch takes.
    """
    batch, heads, queries, keys = shape
    parts = []
    if attn_mask is not None:
        _check_dtype("attn_mask", attn_mask)
        _check_shape("attn_mask", attn_mask, (queries, keys), (batch * heads, queries, keys))
        parts.append(attn_mask[None, None] if attn_mask.dim() == 2 else attn_mask.unflatten(0, (batch, heads)))
    if key_padding_mask is not None:
        _check_dtype("key_padding_mask", key_padding_mask)
        _check_shape("key_padding_mask", key_padding_mask, (batch, keys))
        parts.append(key_padding_mask[:, None, None])
    read = [_split(part, dtype) for part in parts]
    hiding = [part.mask for part in read if part.mask is not None]
    added = [part.bias for part in read if part.bias is not None]
    return MaskAndBias(reduce(and_, hiding) if hiding else None, reduce(add, added) if added else None)


def _split(part: Tensor, dtype: torch.dtype) -> MaskAndBias:
    """Split a bool or additive mask (#batch, #heads, #queries, keys)."""
    if part.dtype == torch.bool:
        return MaskAndBias(masks.blocked(part), None)
    hidden = part.detach() == -torch.inf
    bias = part.masked_fill(hidden, 0.0).to(dtype)
    if not has_values(hidden):
        return MaskAndBias(masks.blocked(hidden), bias)
    is_bias = part.requires_grad or bool(bias.any())
    return MaskAndBias(masks.blocked(hidden) if bool(hidden.any()) else None, bias if is_bias else None)


def _check_dtype(name: str, mask: Any) -> None:
    if isinstance(mask, Tensor) and (mask.dtype == torch.bool or mask.is_floating_point()):
        return
    raise DtypeError(
        f"{name} is neither a bool nor a float tensor",
        expected="bools, True where a query may not attend, or floats that are added to the scores",
        got=short_repr(mask),
        do="convert integers to bool, and check which value means may attend",
    )


def _check_shape(name: str, mask: Tensor, *shapes: tuple[int, ...]) -> None:
    if tuple(mask.shape) not in shapes:
        raise ShapeError(
            f"{name} has the wrong shape",
            expected=" or ".join(map(str, shapes)),
            got=str(tuple(mask.shape)),
            do="pass it as nn.MultiheadAttention takes it",
        )
