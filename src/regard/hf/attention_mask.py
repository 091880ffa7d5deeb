"""The function that makes the masks of a model: for ``transformers``' ``AttentionMaskInterface``.

It always returns a bool tensor (batch, 1, queries, keys), True where a query may attend to a key. The function for SDPA
returns None in its place where a flag ``is_causal`` would say the same, and that flag is ambiguous: with a static cache
it means that query 0 is aligned with key 0, with a dynamic one that the last query is aligned with the last key. And a
model that slices or combines masks needs a tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import sdpa_mask

from regard.tensors import is_traced


def attention_mask(*sizes: Any, **arguments: Any) -> Tensor:
    """Make the bool mask (batch, 1, queries, keys) of a model; the arguments are those of ``transformers``."""
    arguments |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    if is_traced() or not torch.is_inference_mode_enabled():
        return _make_mask(*sizes, **arguments)
    # A tensor made in inference mode has no version counter, so its reading could not be kept for all layers.
    with torch.inference_mode(False):
        return _make_mask(*sizes, **arguments)


def _make_mask(*sizes: Any, **arguments: Any) -> Tensor:
    mask = sdpa_mask(*sizes, **arguments)
    assert mask is not None  # it is only skipped where that is allowed
    return mask
