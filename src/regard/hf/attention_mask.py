"""The functions that make the masks of a model: for ``transformers``' ``AttentionMaskInterface``.

``attention_mask`` makes what "eager" gets: floats (batch, 1, queries, keys), 0 where a query may attend to a key and
the lowest value of the dtype elsewhere. Every model can compute with such masks. A bool mask would be smaller, but
layers with code of their own accept the name "regard" too, get the mask of that name, and add it to their scores: Bloom
would see the future, in silence. Kernels lose nothing: the structure is recognized by the function that describes the
mask, or else by its cells, before it is converted.

A mask is always made. The function for SDPA returns None where a flag ``is_causal`` would say the same, and that flag
is ambiguous: with a static cache it aligns query 0 with key 0, with a dynamic one the last query with the last key.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import sdpa_mask

from regard.hf.mask_function import recognize_function
from regard.hf.read_mask import remember_structure
from regard.hf.visible_keys import narrow_expanded, recognize
from regard.tensors import has_values, is_traced


def attention_mask(*sizes: Any, dtype: torch.dtype = torch.float32, **arguments: Any) -> Tensor:
    """Make the additive mask (batch, 1, queries, keys) of a model; the arguments are those of ``transformers``."""
    with _without_inference_mode():
        allowed = bool_mask(*sizes, **arguments)
        cells = narrow_expanded(allowed)
        lowest = torch.finfo(dtype).min
        additive = torch.zeros((), dtype=dtype, device=cells.device).where(cells, lowest).expand(allowed.shape)
        if has_values(additive):
            visible = recognize_function(*sizes, **arguments)
            remember_structure(additive, recognize(allowed) if visible is None else visible)
        return additive


def bool_mask(*sizes: Any, **arguments: Any) -> Tensor:
    """Make the bool mask (batch, 1, queries, keys), True where a query may attend, as "sdpa" gets it."""
    arguments |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    with _without_inference_mode():
        mask = sdpa_mask(*sizes, **arguments)
    assert mask is not None  # it is only skipped where that is allowed
    return mask


def _without_inference_mode() -> AbstractContextManager[object]:
    """Leave inference mode: a tensor made there has no version, so its reading could not be kept for all layers."""
    return nullcontext() if is_traced() or not torch.is_inference_mode_enabled() else torch.inference_mode(False)
