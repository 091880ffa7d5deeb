"""Arguments that a model passes beyond the arguments of attention: known ones are harmless, all others are refused.

``transformers`` hands every keyword of a model's call down to its attention function. One without an effect may still
have a meaning: the blocks of keys that a sparse model has chosen, say. To ignore it would be a wrong result.

Most harmless names are read from the installed ``transformers``: they are parameters of its losses, which get the same
keywords, of what prepares the inputs of generation, and of the kernels of flash attention.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from transformers import GenerationMixin
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.loss import loss_utils
from transformers.modeling_flash_attention_utils import FlashAttentionKwargs
from transformers.utils import output_capturing
from transformers.utils.generic import TransformersKwargs

from regard.errors import RefusedError, short_repr


def _keywords(functions: Iterable[Any]) -> Iterator[str]:
    """Yield the names of the parameters of functions that accept any keyword, as those do that get a model's."""
    for function in functions:
        parameters = inspect.signature(function).parameters.values()
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            yield from (
                parameter.name
                for parameter in parameters
                if parameter.kind is not parameter.VAR_KEYWORD and parameter.name != "self"
            )


HARMLESS = frozenset(
    {
        *_keywords([*loss_utils.LOSS_MAPPING.values(), loss_utils.fixed_cross_entropy]),
        *_keywords([GenerationMixin.prepare_inputs_for_generation]),
        *TransformersKwargs.__annotations__,
        # See ``packed_texts``.
        *FlashAttentionKwargs.__annotations__,
        "seq_idx",
        # What the model has used already, or uses later.
        "cache_position",
        "interpolate_pos_encoding",
        "layer_idx",
        "logits_to_keep",
        "mm_token_type_ids",
        "position_embeddings",
        "token_type_ids",
        "use_cache",
        # What the caller wants to get.
        "return_dict",
        "return_loss",
        # For kernels of other implementations.
        "deterministic",
        "logits_indices",
        "logits_processor_args",
        "read_index",
        "use_top_left_mask",
        "write_index",
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


def are_weights_requested(arguments: Mapping[str, Any]) -> bool:
    """Whether the caller of a model asked for its attention weights, so that this call of a layer returns them.

    ``output_attentions=True`` reaches a layer in one of two ways: a model passes it down as an argument, or collects
    the weights by hooks, and then only the collector that is active says so.
    """
    if "output_attentions" in arguments:
        return bool(arguments["output_attentions"])
    if torch.compiler.is_compiling():  # the collector is a context variable, which cannot be traced
        return False
    collected = output_capturing._active_collector.get()
    return collected is not None and any(name.endswith("attentions") for name in collected)
