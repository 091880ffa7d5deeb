"""The functions that make the masks of a model: for ``transformers``' ``AttentionMaskInterface``.

``attention_mask`` makes what "eager" gets: floats (batch, 1, queries, keys), 0 where a query may attend to a key and
the lowest value of the dtype elsewhere. Every model can compute with such masks. A bool mask would be smaller, but
layers with code of their own accept the name "regard" too, get the mask of that name, and add it to their scores: Bloom
would see the future, in silence. Kernels lose nothing: the structure is recognized by the function that describes the
mask, or else by its cells, before it is converted.

A mask is always made. The function for SDPA returns None where a flag ``is_causal`` would say the same, and that flag
is ambiguous: with a static cache it aligns query 0 with key 0, with a dynamic one the last query with the last key.

A padding matrix (batch, tokens) of bools is True for tokens. One of integers holds the number of each token's text, 0
for padding, and tokens of other texts are hidden: see ``packed_positions``.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers.masking_utils import sdpa_mask

from regard.errors import RefusedError
from regard.hf.mask_function import has_chunks, recognize_function
from regard.hf.packed_texts import separate
from regard.hf.read_mask import remember_structure
from regard.masks.visible_keys import VisibleKeys, narrow_expanded, recognize
from regard.tensors import has_values, is_traced

_READS_BOOLS = ("nemotron_asr_streaming_encoder",)
"""Types whose layers invert their mask: they would hide the keys that an additive one shows."""


def attention_mask(*sizes: Any, dtype: torch.dtype = torch.float32, **arguments: Any) -> Tensor:
    """Make the additive mask (batch, 1, queries, keys) of a model; the arguments come from ``transformers``."""
    if getattr(arguments.get("config"), "model_type", None) in _READS_BOOLS:
        return bool_mask(*sizes, **arguments)
    with _without_inference_mode():
        allowed = bool_mask(*sizes, **arguments)
        cells = narrow_expanded(allowed)
        lowest = torch.finfo(dtype).min
        additive = torch.zeros((), dtype=dtype, device=cells.device).where(cells, lowest).expand(allowed.shape)
        if has_values(additive):
            remember_structure(additive, _find_structure(allowed, *sizes, **arguments))
        return additive


def bool_mask(*sizes: Any, **arguments: Any) -> Tensor:
    """Make the bool mask (batch, 1, queries, keys), True where a query may attend, as "sdpa" gets it.

    Raises RefusedError for texts in one row under a mask of chunks.
    """
    numbers = _text_numbers(arguments.get("attention_mask"))
    arguments |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    if numbers is not None:
        arguments |= {"attention_mask": numbers > 0}
        _refuse_chunks(numbers, arguments.get("mask_function"))
    with _without_inference_mode():
        mask = sdpa_mask(*sizes, **arguments)
        assert mask is not None  # it is only skipped where that is allowed
        return mask if numbers is None else mask & _is_same_text(numbers, mask)


def _find_structure(allowed: Tensor, *sizes: Any, **arguments: Any) -> VisibleKeys:
    """The visible keys of a mask that was just made: by its function if that is known, else by its cells."""
    numbers = _text_numbers(arguments.get("attention_mask"))
    if numbers is not None:
        arguments |= {"attention_mask": numbers > 0}
    visible = recognize_function(*sizes, **arguments)
    if visible is None:
        return recognize(allowed)
    if numbers is None:
        return visible
    return separate(visible, numbers, (allowed.shape[2], allowed.shape[3]), has_mask=True)


def _text_numbers(padding: Any) -> Int[Tensor, "batch tokens"] | None:
    """The numbers of the tokens' texts, if the padding matrix holds them."""
    return padding if isinstance(padding, Tensor) and padding.dim() == 2 and padding.dtype == torch.int32 else None


def _is_same_text(numbers: Int[Tensor, "batch tokens"], mask: Tensor) -> Tensor:
    """Whether query and key are tokens of the same text (batch, 1, queries, keys); keys behind the tokens are not.

    True for all keys of a query that is padding, which sees as in a row of one text: a trace numbers such rows too.
    """
    queries, keys = mask.shape[2:]
    of_queries = numbers[:, numbers.shape[1] - queries :]
    of_keys = torch.nn.functional.pad(numbers, (0, keys - numbers.shape[1]))
    of_queries = of_queries[:, :, None]
    return ((of_queries == of_keys[:, None]) | (of_queries == 0))[:, None]


def _refuse_chunks(numbers: Tensor, function: Any) -> None:
    """Raise RefusedError for chunks of several texts: chunks are counted from the first token of a row."""
    if function is None or not has_values(numbers) or not has_chunks(function) or int(numbers.max()) < 2:
        return
    raise RefusedError(
        "several texts that are packed into one row, in a layer that attends in chunks, need other arguments",
        expected="position_ids that start again for each text, without attention_mask and without a cache",
        got="an attention_mask or a cache beside them",
        do="call the model with position_ids and use_cache=False alone",
    )


def _without_inference_mode() -> AbstractContextManager[object]:
    """Leave inference mode: a tensor made there has no version, so its reading could not be kept for all layers."""
    return nullcontext() if is_traced() or not torch.is_inference_mode_enabled() else torch.inference_mode(False)
