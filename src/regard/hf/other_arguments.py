"""Arguments that a model passes beyond those of attention: known ones are harmless, all others are refused.

``transformers`` hands every keyword of a model's call down to its attention function. One that nobody reads may still
have a meaning: the blocks of keys that a sparse model has chosen, say. To ignore it would be a wrong result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers.generation.continuous_batching.cache import PagedAttentionCache

from regard.errors import RefusedError, short_repr

HARMLESS = frozenset(
    {
        # What the model has used already, or uses later.
        "cache_position",
        "inputs_embeds",
        "input_ids",
        "interpolate_pos_encoding",
        "labels",
        "layer_idx",
        "logits_to_keep",
        "mm_token_type_ids",
        "num_items_in_batch",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "token_type_ids",
        "use_cache",
        # What the caller wants to get.
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "return_loss",
        # For kernels of other implementations.
        "deterministic",
        "logits_indices",
        "logits_processor_args",
        "read_index",
        "use_top_left_mask",
        "write_index",
        # See ``packed_texts``.
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "max_length_k",
        "max_length_q",
        "seq_idx",
    }
)
"""Names of arguments that do not change what attention computes."""

_MEANINGS = {
    "block_table": "the pages of a cache that a kernel of flash attention reads itself",
}


def refuse_unknown_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise RefusedError for an argument whose meaning is not known, or that no kernel computes."""
    for name, value in arguments.items():
        if name in HARMLESS or value is None or value is False:
            continue
        raise RefusedError(
            f"attention with the argument {name!r} is not computed",
            expected="arguments that regard.hf knows",
            got=f"{name}, {_MEANINGS.get(name, 'whose meaning for attention is not known')}",
            do='use attn_implementation="eager" for this model'
            if name in _MEANINGS
            else f'call the model without {name}, or use attn_implementation="eager"',
        )


def check_cache(cache: object) -> None:
    """Raise RefusedError for a cache that is not the paged one of continuous batching: its keys would not be read."""
    if cache is None or isinstance(cache, PagedAttentionCache):
        return
    raise RefusedError(
        "attention with this cache is not computed",
        expected="the PagedAttentionCache of continuous batching, or none: other caches return their keys to the layer",
        got=f"cache={short_repr(cache)}",
        do="pass other caches to the model, as past_key_values",
    )
