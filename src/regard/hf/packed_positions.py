"""Several texts that are packed into one row, told apart by ``position_ids`` that start again for each of them.

``transformers`` separates such texts in the mask of a call that has neither a padding matrix nor a cache, as flash
attention does in its kernels. With a padding matrix of ones, or with the cache that a model makes by default, its masks
do not, and each text sees those before it. Here they are separated in these calls too.

All of this is known in one place, where ``transformers`` prepares the arguments of a mask. There the padding matrix
(batch, tokens) is replaced by one of text numbers,

    0 for padding, 1 for tokens of the first text in a row, 2 for tokens of the second ..

which ``attention_mask`` reads. A mask of 4 dimensions is the caller's own, and is never changed.

Some types (OPT, BioGPT, BERT as a decoder) make their masks without positions, but pass these to their layers: there
each layer separates the texts; in a trace it does so in the cells of the mask.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from regard.errors import RefusedError
from regard.hf.attention_mask import attention_mask, bool_mask, is_same_text
from regard.hf.chosen_keys import intersect
from regard.hf.packed_texts import separate
from regard.hf.read_mask import CausalTokens, get_causal_tokens
from regard.masks.visible_keys import VisibleKeys
from regard.tensors import has_values, is_traced

_SEPARABLE_LAYERS = {
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "indexed_attention",
    "moe",
    "mlp",
    "dense",
    "sparse",
}
"""Types of layers in which a token reads only what the mask shows, or only itself."""

_packed_caches: WeakSet[Any] = WeakSet()
"""The caches that hold several texts in a row. A later call with one of them is refused: each token would see them all.
"""


def label_packed_texts(preprocess: Callable[..., Any]) -> Callable[..., Any]:
    """Let ``transformers.masking_utils._preprocess_mask_arguments`` return text numbers for texts that are packed.

    Only for models that compute with regard; others get what ``preprocess`` returns.
    """

    @functools.wraps(preprocess)
    def compute(
        config: Any,
        inputs_embeds: Tensor,
        attention_mask: Any,
        past_key_values: Any,
        position_ids: Any,
        layer_idx: Any,
        *others: Any,
        **named: Any,
    ) -> Any:
        prepared = preprocess(
            config, inputs_embeds, attention_mask, past_key_values, position_ids, layer_idx, *others, **named
        )
        early_exit, padding, packed, queries, keys, first_query, first_key = prepared
        if early_exit or not _makes_our_masks(config):
            return prepared
        if packed is not None:  # a mask without padding and cache: transformers separates the texts
            _refuse_other_mixers(config, packed)
            return prepared
        _refuse_packed_cache(past_key_values, first_query)
        if not _are_positions(position_ids, queries):
            return prepared
        positions = position_ids.to(inputs_embeds.device).expand(inputs_embeds.shape[0], -1)
        numbers = _number_texts(positions, padding, first_query)
        if numbers is None:
            return prepared
        _refuse_other_mixers(config, numbers)
        if past_key_values is not None and has_values(numbers):
            _packed_caches.add(past_key_values)
        return early_exit, numbers, packed, queries, keys, first_query, first_key

    return compute


_latest: tuple[Tensor, int, CausalTokens, Int[Tensor, "batch tokens"] | None] | None = None
"""The positions, their version, the tokens and their text numbers of the latest call: all layers have the same ones."""


def separate_by_positions(
    visible: VisibleKeys, attention_mask: Tensor, position_ids: Any, sizes: tuple[int, int]
) -> VisibleKeys:
    """The visible keys among the tokens of the same text, if the mask was made for one text in each row, and the
    positions of its tokens start again. ``sizes`` are the numbers of queries and of keys.
    """
    global _latest
    queries, keys = sizes
    if not _are_positions(position_ids, queries) or not has_values(position_ids):
        return visible
    tokens = get_causal_tokens(attention_mask)
    if tokens is None:
        return visible
    known, version = _latest, 0 if position_ids.is_inference() else position_ids._version
    if known is not None and known[0] is position_ids and known[1] == version and known[2] is tokens:
        numbers = known[3]
    else:
        positions = position_ids.expand(attention_mask.shape[0], -1)
        numbers = _number_texts(positions, tokens.padding, tokens.first_query)
        if not position_ids.is_inference():  # such a tensor has no version, so that changes would not be seen
            _latest = position_ids, version, tokens, numbers  # one tuple, replaced as a whole, for threads
    return visible if numbers is None else separate(visible, numbers, (queries, keys), has_mask=True)


def hide_by_positions(attention_mask: Tensor, position_ids: Any, queries: int) -> Tensor:
    """In a trace, the mask that hides the tokens of other texts too, where ``separate_by_positions`` separates them."""
    if has_values(attention_mask) or not _are_positions(position_ids, queries):
        return attention_mask
    tokens = get_causal_tokens(attention_mask)
    if tokens is None:
        return attention_mask
    positions = position_ids.expand(attention_mask.shape[0], -1)
    numbers = _number_texts(positions, tokens.padding, tokens.first_query)
    return attention_mask if numbers is None else intersect(attention_mask, is_same_text(numbers, attention_mask))


def _makes_our_masks(config: Any) -> bool:
    """Whether the masks of a model are made by regard; masks of "sdpa" are inside ``replace_sdpa``."""
    function = ALL_MASK_ATTENTION_FUNCTIONS[config._attn_implementation]
    return function is attention_mask or function is bool_mask


def _are_positions(position_ids: Any, queries: int) -> bool:
    """Whether there are several tokens with one position each: models of pictures have several for a token."""
    return isinstance(position_ids, Tensor) and position_ids.dim() == 2 and position_ids.shape[1] == queries > 1


def _number_texts(
    positions: Int[Tensor, "batch tokens"], padding: Any, first_token: Any
) -> Int[Tensor, "batch tokens"] | None:
    """The number of the text of each token, from 1, and 0 for padding; None if every row holds one text.

    ``first_token`` is the number of tokens in the cache. While torch traces, the positions are not known: then rows of
    one text get numbers too. Raises RefusedError for a text that begins behind tokens in the cache.
    """
    traced = not has_values(positions)
    if traced and not (isinstance(first_token, int) and first_token == 0):
        return None
    offset = 0 if traced else int(first_token)
    tokens = positions.shape[1]
    visible = torch.ones_like(positions, dtype=torch.bool)
    if padding is not None:
        if padding.dim() != 2 or padding.shape[1] != offset + tokens:
            return None
        visible = padding[:, offset:].bool().expand_as(positions)
    starts = find_starts(positions, visible)
    if not traced and not bool(starts.any()):
        return None
    if offset > 0:
        raise _cache_error(f"{offset} tokens in the cache, and positions that start again")
    return ((starts.cumsum(1) + 1) * visible).int()


def find_starts(
    positions: Int[Tensor, "batch tokens"], visible: Bool[Tensor, "batch tokens"]
) -> Bool[Tensor, "batch tokens"]:
    """Find the tokens at which the second and later texts of a row begin: their position is lower than the one before.

    Hidden tokens are left out, whatever their positions, so padding is no text. Equal positions begin a text after one
    of a single token if the row begins with that position too, and if it is 0 or 1, with which texts begin; other equal
    positions belong to one text, as where they are limited to a maximum.
    """
    places = torch.arange(positions.shape[1], device=positions.device)
    latest = places.where(visible, -1).cummax(1).values  # of the visible tokens up to each one
    before = torch.nn.functional.pad(latest, (1, -1), value=-1)
    earlier = positions.gather(1, before.clamp(min=0))
    first = positions.gather(1, visible.long().argmax(1, keepdim=True))
    is_single = (positions == earlier) & (earlier == first) & (first <= 1)
    return visible & (before >= 0) & ((positions < earlier) | is_single)


def _refuse_other_mixers(config: Any, numbers: Tensor) -> None:
    """Raise RefusedError for texts in one row in a model with layers that read other tokens than a mask shows.

    Only on a CPU: elsewhere kernels of other packages separate the texts in such layers by other arguments.
    """
    layers = set(getattr(config, "layer_types", None) or ()) - _SEPARABLE_LAYERS
    if not layers or not numbers.is_cpu or not has_values(numbers):
        return
    raise RefusedError(
        "several texts that are packed into one row are not separated in all layers of this model",
        expected="layers of attention alone",
        got=f"layers of the types {', '.join(sorted(layers))}, which carry states or count blocks across texts",
        do="pad the texts instead of packing them",
    )


def _refuse_packed_cache(cache: Any, first_query: Any) -> None:
    """Raise RefusedError for a call with a cache that holds several texts, unless it was emptied since."""
    if cache is None or is_traced() or cache not in _packed_caches:
        return
    if int(first_query) > 0:
        raise _cache_error("a cache that holds several texts in a row, and new tokens behind them")
    _packed_caches.discard(cache)


def _cache_error(got: str) -> RefusedError:
    return RefusedError(
        "several texts that are packed into one row cannot be continued from a cache",
        expected="one text in each row, or all packed texts in one call",
        got=got,
        do="call the model with one text in each row, padded on the left, and its attention_mask",
    )
