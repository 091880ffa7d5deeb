"""The function that computes one attention layer of a model: for ``transformers``' ``AttentionInterface``.

    query (batch, heads, queries, head_dim), key, value (batch, key_heads, keys, ..) -> (batch, queries, heads, ..)

It translates the arguments of ``transformers`` to arguments of ``regard.attention``. Keys and values come with their
own number of heads (grouped queries), and the mask as a tensor (``read_mask``).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard import masks
from regard.errors import RefusedError, ShapeError
from regard.exact_attention import attention
from regard.hf import recorded_layers
from regard.hf.chosen_keys import hide_other_blocks, hide_other_keys
from regard.hf.masked_attention_op import attention_in_graph
from regard.hf.other_arguments import are_weights_requested, check_cache, refuse_unknown_arguments
from regard.hf.packed_texts import find_texts, hide_other_texts, separate
from regard.hf.read_mask import read_mask
from regard.kernels.autocast import is_in_autocast
from regard.kernels.reference import attention as reference_attention
from regard.masks import Mask
from regard.masks.visible_keys import VisibleKeys
from regard.validation import make_request


def attention_function(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | Tensor | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    sliding_window: int | None = None,
    cache: Any = None,
    indices: Any = None,
    block_indices: Any = None,
    **arguments: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute one attention layer.

    Args:
        module: the layer; ``module.is_causal`` counts if there is no mask, and ``is_causal`` is None.
        query, key, value: (batch, heads, length, head_dim); heads is a multiple of the heads of key and value.
        attention_mask: (#batch, #heads, #queries, #keys); see ``read_mask``.
        scaling: factor of the scores; None is 1/sqrt(head_dim).
        dropout: probability of setting a weight to 0, while the module is training.
        is_causal: whether queries attend to earlier keys only. Counts if there is no mask; a mask says it itself.
        position_bias: (#batch, #heads, #queries, #keys), added to the scores.
        softcap: the scores become softcap * tanh(scores / softcap), before bias and mask.
        s_aux, sinks: logits of attention sinks: (heads,), or (#batch, heads, #queries, 1).
        sliding_window: keys that a causal query may attend to, its own included. Counts if there is no mask; a mask
            holds the window itself.
        cache: a paged cache of continuous batching, which stores the new keys and returns all of them.
        indices: (batch, queries, chosen), the only keys that a query of a sparse model attends to; see ``chosen_keys``.
        block_indices: (batch, groups, queries, chosen), the only blocks of keys that it attends to; -1 is none.
        arguments: other arguments of the model; see ``other_arguments``.

    Returns:
        The output (batch, queries, heads, value_dim), contiguous; and the weights (batch, heads, queries, keys) before
        dropout if the caller of the model asked for them, else None.

    Raises RefusedError for arguments that no kernel computes, ShapeError, DtypeError or DeviceError for tensors that do
    not fit together.
    """
    refuse_unknown_arguments(arguments)
    check_cache(cache)
    if cache is not None:
        key, value = cache.update(key_states=key, value_states=value, layer_idx=module.layer_idx, kwargs=arguments)
    query, key, value = _match_batches(*_cast_in_autocast(query, key, value))
    mask, texts = _hide_in_mask(attention_mask, arguments, indices, block_indices, module, query, key, cache)
    if isinstance(scaling, Tensor):
        query, scaling = query * scaling.to(query.dtype), 1.0
    terms: dict[str, Any] = {"scale": scaling, "softcap": softcap, "sinks": _join_sinks(s_aux, sinks)}
    active_dropout = dropout if module.training else 0.0
    needs_weights = are_weights_requested(arguments)
    if mask is not None and position_bias is None and not needs_weights and not recorded_layers.is_recording():
        computed = attention_in_graph(query, key, value, mask, dropout=active_dropout, **terms)
        if computed is not None:
            return computed.transpose(1, 2).contiguous(), None
    if mask is None:
        visible, bias = _visible_keys_without_mask(module, is_causal, sliding_window, query, key), position_bias
    else:
        visible, bias = read_mask(_check_lengths(mask, query, key))
        bias = position_bias if bias is None else bias if position_bias is None else bias + position_bias
    if texts is not None:
        visible = separate(visible, texts, (query.shape[2], key.shape[2]), has_mask=mask is not None)
    output, weights = _compute(query, key, value, visible, bias, terms, active_dropout, needs_weights=needs_weights)
    if recorded_layers.is_recording():
        recorded_layers.report_call(module, query, key, value, visible=visible, bias=bias, **terms)
    return output.transpose(1, 2).contiguous(), weights


def _hide_in_mask(
    mask: Tensor | None,
    arguments: dict[str, Any],
    indices: Any,
    block_indices: Any,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    cache: Any,
) -> tuple[Tensor | None, Int[Tensor, "#batch tokens"] | None]:
    """Hide the keys of other texts in a row, and those that a sparse model has not chosen, in the mask of a call.

    Also return the text of each token (``find_texts``), None where a row holds one text or a paged cache reads it.
    """
    texts, keys = None, key.shape[2]
    if cache is None:
        texts = find_texts(arguments, module, query, keys, has_mask=mask is not None)
    if mask is not None and texts is not None:
        mask = hide_other_texts(mask, texts)
    if indices is not None:
        mask = hide_other_keys(mask, indices, query, keys)
    if block_indices is not None:
        mask = hide_other_blocks(mask, block_indices, module, query, keys)
    return mask, texts


def _compute(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    visible: VisibleKeys,
    bias: Tensor | None,
    terms: dict[str, Any],
    dropout: float,
    *,
    needs_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """Compute the output (batch, heads, queries, value_dim) of the visible keys, and the weights if they are needed."""
    terms = {"mask": visible.mask, "bias": None if bias is None else visible.narrow(bias, 3), **terms}
    tensors = query, visible.narrow(key, 2), visible.narrow(value, 2)
    output = attention(*tensors, **terms, dropout=dropout)
    return output, _compute_weights(*tensors, terms, visible, key.shape[2]) if needs_weights else None


def _compute_weights(
    query: Tensor, key: Tensor, value: Tensor, terms: dict[str, Any], visible: VisibleKeys, keys: int
) -> Tensor:
    """Compute the weights (batch, heads, queries, keys) before dropout; keys that no query may see have weight 0."""
    problem = reference_attention.make_dot_product_problem(make_request(query, key, value, **terms))
    weights = reference_attention.compute_weights(problem).to(query.dtype)
    return _restore_hidden_keys(weights, visible, keys)


def _check_lengths(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return the mask. Raises ShapeError for other lengths, since its structure, such as causal, would fit any."""
    queries, keys = query.shape[2], key.shape[2]
    if mask.shape[2] in (1, queries) and mask.shape[3] in (1, keys):
        return mask
    raise ShapeError(
        "attention_mask does not fit queries and keys",
        expected=f"a mask for {queries} queries and {keys} keys",
        got=str(tuple(mask.shape)),
        do="pass the mask of this layer: layers with a window of their own may have fewer keys in their cache",
    )


def _visible_keys_without_mask(
    module: nn.Module, is_causal: bool | None, sliding_window: int | None, query: Tensor, key: Tensor
) -> VisibleKeys:
    """The visible keys of a call without a mask: all, or causal if the layer is and there are as many queries as keys.

    A causal layer with a window attends to that many keys, its own included, as with the masks of ``transformers`` and
    its flash attention. Raises RefusedError for a causal layer with other lengths, where the alignment of queries with
    keys is not known, and for a window without one.
    """
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    queries, keys = query.shape[2], key.shape[2]
    window = None if sliding_window is None or sliding_window >= keys else sliding_window
    if causal and 1 != queries != keys:
        raise RefusedError(
            f"a causal layer ({type(module).__name__}) was called without a mask, and with more keys than queries",
            expected="an attention_mask, or as many queries as keys",
            got=f"{queries} queries and {keys} keys: which key the first query may see last is not known",
            do="pass the mask that the model makes for its layers, or is_causal=False if every query may see every key",
        )
    if window is not None:
        return VisibleKeys(_causal_window(module, causal, window))
    return VisibleKeys(masks.causal() if causal and queries > 1 else None)


def _causal_window(module: nn.Module, causal: bool, window: int) -> Mask:
    """The mask of a causal window that hides keys. Raises RefusedError for a window whose meaning is not known."""
    if causal and window >= 1:
        return masks.window(window - 1, 0)
    raise RefusedError(
        f"a layer ({type(module).__name__}) was called with a window, and without a mask",
        expected="an attention_mask, or a causal layer with sliding_window=1 or more",
        got=f"sliding_window={window}"
        + ("" if causal else " and a layer that is not causal: how far it reaches differs from model to model"),
        do="pass the mask that the model makes for its layers",
    )


def _cast_in_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Cast to the dtype of autocast where it is enabled, as it does for torch's own attention; float64 stays."""
    device = tensors[0].device
    if not is_in_autocast(device):
        return tensors
    dtype = torch.get_autocast_dtype(device.type)
    return tuple(tensor if tensor.dtype == torch.float64 else tensor.to(dtype) for tensor in tensors)


def _match_batches(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Expand queries or keys that are the same for the whole batch, such as learned queries."""
    if query.shape[0] == key.shape[0]:
        return query, key, value
    if query.shape[0] == 1:
        return query.expand(key.shape[0], -1, -1, -1), key, value
    if key.shape[0] == 1:
        return query, key.expand(query.shape[0], -1, -1, -1), value.expand(query.shape[0], -1, -1, -1)
    return query, key, value


def _join_sinks(of_heads: Tensor | None, of_queries: Tensor | None) -> Tensor | None:
    """Return the sinks of whichever kind there is."""
    if of_heads is not None and of_queries is not None:
        raise RefusedError(
            "attention with two kinds of sinks is not computed",
            expected="s_aux, one logit for each head, or sinks, one for each query",
            got="both",
            do="pass one of them",
        )
    return of_queries if of_heads is None else of_heads


def _restore_hidden_keys(weights: Tensor, visible: VisibleKeys, keys: int) -> Tensor:
    """Insert the weights of keys that no query may attend to, which are 0."""
    stop = keys if visible.stop is None else visible.stop
    if weights.shape[3] == keys:
        return weights
    return nn.functional.pad(weights, (visible.first, keys - stop))
