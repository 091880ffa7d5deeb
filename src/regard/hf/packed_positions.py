"""Several texts that are packed into one row, told apart in every call of a model, whatever says where they begin.

    position_ids                   start again for each text
    cu_seq_lens_q, cu_seq_lens_k   the first token of each text, see ``packed_texts``
    seq_idx                        the number of each token's text

``transformers`` separates texts in the mask of a call that has ``position_ids`` and neither a padding matrix nor a
cache, as flash attention does in its kernels. With a padding matrix of ones, or with the cache that a model makes by
default, its masks do not, and each text sees those before it; masks of encoders never do. Here all are separated.

A call of a model knows its arguments (``packed_calls``), and ``transformers`` prepares the arguments of all masks in
one function. So the call writes the texts down beside its padding matrix (``PackedTexts``), and the function replaces
that matrix by one of text numbers, which ``attention_mask`` reads:

    0 for padding, 1 for tokens of the first text in a row, 2 for tokens of the second ..

A call is refused if a layer of the model reads other tokens than a mask shows, or if no mask was made from the texts. A
mask of 4 dimensions is the caller's own, and is never changed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final
from weakref import WeakSet

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from regard.errors import RefusedError
from regard.hf.attention_mask import attention_mask, bool_mask
from regard.hf.packed_texts import SEPARATIONS
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

_MIXING_MODELS = {
    "convbert": "convolutions over tokens",
    "cpmant": "masks of their own",
    "fnet": "Fourier transforms over tokens",
    "mobilebert": "embeddings of neighbouring tokens",
    "nystromformer": "convolutions over tokens",
    "rwkv": "states",
    "xlstm": "states",
}
"""Model types whose layers read other tokens than a mask shows, and that have no types of layers which say so."""

_packed_caches: WeakSet[Any] = WeakSet()
"""The caches that hold several texts in a row. A later call with one of them is refused: each token would see them all.
"""


_TEXTS = "_regard_packed_texts"


@final
@dataclass(frozen=True, eq=False)
class PackedTexts:
    """The texts of a call of a model, beside its padding matrix.

    ``numbers`` (batch, tokens) are from 1, and 0 for padding. ``has_mask`` says whether the caller passed a padding
    matrix, and ``by_positions`` whether positions alone tell the texts apart.
    """

    numbers: Int[Tensor, "batch tokens"]
    has_mask: bool
    by_positions: bool

    def write_beside(self, mask: Tensor) -> Tensor:
        """Write the texts down beside a copy of the padding matrix."""
        labelled = mask.clone()
        setattr(labelled, _TEXTS, self)
        return labelled


def read_texts(mask: Any) -> PackedTexts | None:
    """The texts that a call wrote down beside its padding matrix."""
    return getattr(mask, _TEXTS, None) if isinstance(mask, Tensor) else None


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
        texts = read_texts(attention_mask)
        if texts is not None and texts.by_positions and not texts.has_mask and past_key_values is None:
            attention_mask = None if position_ids is not None else attention_mask
        prepared = preprocess(
            config, inputs_embeds, attention_mask, past_key_values, position_ids, layer_idx, *others, **named
        )
        early_exit, padding, packed, queries, keys, first_query, first_key = prepared
        if not makes_our_masks(config):
            return prepared
        if early_exit:
            return early_exit, _make_additive(config, padding, inputs_embeds.dtype), *prepared[2:]
        if packed is not None:  # a mask without padding and cache: transformers separates the texts
            refuse_other_mixers(config, packed)
            SEPARATIONS.count()
            return prepared
        _refuse_packed_cache(past_key_values, first_query)
        numbers = _find_numbers(texts, position_ids, padding, (inputs_embeds, queries, first_query))
        if numbers is None:
            return prepared
        refuse_other_mixers(config, numbers)
        SEPARATIONS.count()
        if past_key_values is not None and has_values(numbers):
            _packed_caches.add(past_key_values)
        return early_exit, numbers, packed, queries, keys, first_query, first_key

    return compute


def _make_additive(config: Any, mask: Any, dtype: torch.dtype) -> Any:
    """The additive form of a caller's bool mask: layers with code of their own would add its values to their scores."""
    function = ALL_MASK_ATTENTION_FUNCTIONS[config._attn_implementation]
    if function is not attention_mask or not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        return mask
    return torch.zeros((), dtype=dtype, device=mask.device).where(mask, torch.finfo(dtype).min)


def _find_numbers(
    texts: PackedTexts | None, position_ids: Any, padding: Any, tokens: tuple[Tensor, int, Any]
) -> Int[Tensor, "batch tokens"] | None:
    """The number of the text of each token that a mask is made for, None if every row holds one text.

    ``tokens`` are the embeddings (batch, queries, width), the number of queries, and the number of tokens in the cache.
    """
    embeddings, queries, first_query = tokens
    if texts is not None and texts.numbers.shape[1] == queries and padding is not None:
        return texts.numbers.to(embeddings.device)
    if not are_positions(position_ids, queries):
        return None
    return number_texts(position_ids.to(embeddings.device).expand(embeddings.shape[0], -1), padding, first_query)


def makes_our_masks(config: Any) -> bool:
    """Whether the masks of a model are made by regard; masks of "sdpa" are inside ``replace_sdpa``."""
    name = config._attn_implementation
    function = ALL_MASK_ATTENTION_FUNCTIONS.get(name)
    return function is attention_mask or function is bool_mask


def are_positions(position_ids: Any, queries: int) -> bool:
    """Whether there are several tokens with one position each: models of pictures have several for a token."""
    return isinstance(position_ids, Tensor) and position_ids.dim() == 2 and position_ids.shape[1] == queries > 1


def number_texts(
    positions: Int[Tensor, "batch tokens"] | None,
    padding: Any,
    first_token: Any,
    packed: Int[Tensor, "batch tokens"] | None = None,
) -> Int[Tensor, "batch tokens"] | None:
    """The number of the text of each token, from 1, and 0 for padding; None if every row holds one text.

    ``packed`` are numbers that another argument of the call gives: texts differ where either of the two says it.
    ``first_token`` is the number of tokens in the cache. While torch traces, the positions are not known: then rows of
    one text get numbers too. Raises RefusedError for a text that begins behind tokens in the cache.
    """
    known = [numbers for numbers in (positions, packed) if numbers is not None]
    if not known:
        return None
    traced = not all(map(has_values, known))
    if traced and not (isinstance(first_token, int) and first_token == 0):
        return None
    offset, tokens = 0 if traced else int(first_token), known[0].shape[1]
    visible = torch.ones_like(known[0], dtype=torch.bool)
    if padding is not None:
        if padding.dim() != 2 or padding.shape[1] != offset + tokens:
            return None
        visible = padding[:, offset:].bool().expand_as(visible).to(visible.device)
    numbers = packed
    if positions is not None:
        starts = find_starts(positions, visible)
        if traced or bool(starts.any()):
            numbers = starts.cumsum(1) + 1
            numbers = numbers if packed is None else packed.to(numbers.device) * (tokens + 1) + numbers
    if numbers is None:
        return None
    if offset > 0:
        raise cache_error(f"{offset} tokens in the cache, and several texts in the row behind them")
    return (numbers.to(visible.device) * visible).int()


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


def find_other_mixers(config: Any) -> str | None:
    """The layers of a model that read other tokens than a mask shows, in words; None if there are none."""
    layers = sorted(set(getattr(config, "layer_types", None) or ()) - _SEPARABLE_LAYERS)
    if layers:
        return f"layers of the types {', '.join(layers)}, which carry states or count blocks across texts"
    mixing = _MIXING_MODELS.get(config.model_type)
    return None if mixing is None else f"layers of {config.model_type}, with {mixing}"


def refuse_other_mixers(config: Any, numbers: Tensor) -> None:
    """Raise RefusedError for texts in one row in a model with layers that read other tokens than a mask shows.

    Only on a CPU: elsewhere kernels of other packages separate the texts in such layers by other arguments.
    """
    mixers = find_other_mixers(config)
    if mixers is None or not numbers.is_cpu or not has_values(numbers):
        return
    raise RefusedError(
        "several texts that are packed into one row are not separated in all layers of this model",
        expected="layers of attention alone",
        got=mixers,
        do="pad the texts instead of packing them",
    )


def _refuse_packed_cache(cache: Any, first_query: Any) -> None:
    """Raise RefusedError for a call with a cache that holds several texts, unless it was emptied since."""
    if cache is None or is_traced() or cache not in _packed_caches:
        return
    if int(first_query) > 0:
        raise cache_error("a cache that holds several texts in a row, and new tokens behind them")
    _packed_caches.discard(cache)


def cache_error(got: str) -> RefusedError:
    """The error of a call that continues from a cache, and has several texts in a row."""
    return RefusedError(
        "several texts that are packed into one row cannot be continued from a cache",
        expected="one text in each row, or all packed texts in one call",
        got=got,
        do="call the model with one text in each row, padded on the left, and its attention_mask",
    )
