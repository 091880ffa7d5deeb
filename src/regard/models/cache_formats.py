"""Round the keys and values that a decoder caches (``kernels.int8_rows``), which takes and reads less memory.

The caches of self-attention are rounded, in decoding. The keys and values of a text that is read without a cache, and
those of an encoder's output, are not.
"""

from __future__ import annotations

from regard.errors import RefusedError, check_kind
from regard.kernels.int8_rows import check_cache_format
from regard.layers import DecoderBlock, MultiHeadAttention
from regard.mechanisms.dot_product import DotProduct
from regard.models.model import Model


def set_cache_format(model: Model, cache_format: str) -> None:
    """Round the keys and values in the caches of a loaded model.

    Raises OptionError for an unknown format, RefusedError for a model that caches no keys and values, or whose kernels
    do not read rounded ones.
    """
    check_cache_format(cache_format)
    check_kind("model", model, Model, do="regard.load(folder)")
    reason = _refusal(model)
    if reason is not None:
        raise RefusedError(
            f"this {type(model).__name__} has no cache in {cache_format}: {reason}",
            expected="a decoder whose layers cache keys and values of scaled dot products",
            got=type(model).__name__,
            do=f"decode without {cache_format} in the cache (`cache_format=...`)",
        )
    for module in model.modules():
        if isinstance(module, DotProduct):
            module.cache_format = cache_format


def _refusal(model: Model) -> str | None:
    """Why the caches of a model cannot be rounded; None if they can."""
    blocks = [module for module in model.modules() if isinstance(module, DecoderBlock)]
    if not blocks:
        return "it has no decoder layers, whose keys and values are cached"
    for block in blocks:
        if not isinstance(block.attention, MultiHeadAttention):
            return f"{type(block.attention).__name__} caches no keys and values of heads"
        mechanism = block.attention.mechanism
        if not isinstance(mechanism, DotProduct):
            return f"{type(mechanism).__name__} does not read rounded keys and values"
    return None
