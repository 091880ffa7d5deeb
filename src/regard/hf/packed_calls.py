"""A call of a model with several texts in a row: the call writes them down for its masks, or is refused.

Whatever says where texts begin (see ``packed_positions``) is an argument of the outermost call. Models pass these
arguments on to their layers, or drop them, each in another way; but all of them hand the padding matrix to the function
that makes a mask. So the texts travel beside it, and a model in which no mask was made from them is refused.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.errors import RefusedError
from regard.hf.packed_positions import (
    PackedTexts,
    are_positions,
    find_other_mixers,
    makes_our_masks,
    number_texts,
    read_texts,
    refuse_other_mixers,
)
from regard.hf.packed_texts import ARGUMENTS, SEPARATIONS, number_call
from regard.masks.additive_mask import hidden_cells
from regard.tensors import has_values, is_traced

_WHERE_TEXTS_BEGIN = ("position_ids", *ARGUMENTS)


def separate_texts_in_calls(call: Callable[..., Any]) -> Callable[..., Any]:
    """Let calls of models that compute with regard separate the texts of a row; ``call`` is that of ``nn.Module``."""

    @functools.wraps(call)
    def compute(model: nn.Module, *arguments: Any, **named: Any) -> Any:
        config = getattr(model, "config", None)
        if config is None or not makes_our_masks(config):
            return call(model, *arguments, **named)
        parameters = _parameters(type(model).forward) if arguments else ()
        if len(arguments) > len(parameters):
            return call(model, *arguments, **named)
        known = {**dict(zip(parameters, arguments, strict=False)), **named}
        texts = _find_texts(config, known)
        if texts is None:
            return call(model, *arguments, **named)
        mask = known.get("attention_mask")
        mask = texts.write_beside(torch.ones_like(texts.numbers, dtype=torch.long) if mask is None else mask)
        before = SEPARATIONS.made
        output = call(model, **{**known, "attention_mask": mask})
        if SEPARATIONS.made == before and not is_traced():
            raise _separation_error(model)
        return output

    return compute


@functools.cache
def _parameters(forward: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the arguments of a model's call that have a place."""
    parameters = inspect.signature(forward).parameters.values()
    return tuple(known.name for known in parameters if known.kind is known.POSITIONAL_OR_KEYWORD)[1:]


def _find_texts(config: Any, arguments: Mapping[str, Any]) -> PackedTexts | None:
    """The texts of a call; None if each row holds one text, or if an outer call has written them down.

    None as well for a mask of 4 dimensions, which says itself what is visible. Raises RefusedError for texts that
    cannot be separated.
    """
    mask, tokens = arguments.get("attention_mask"), _find_shape(arguments)
    if isinstance(mask, Tensor) and mask.dim() == 4:
        _refuse_mask_of_texts(config, mask)
    if tokens is None or read_texts(mask) is not None or not any(name in arguments for name in _WHERE_TEXTS_BEGIN):
        return None
    if mask is not None and not (isinstance(mask, Tensor) and mask.dim() == 2):
        return None
    numbers = _number(arguments, mask, tokens)
    if numbers is None:
        return None
    if getattr(config, "is_encoder_decoder", False):
        raise _encoder_decoder_error()
    refuse_other_mixers(config, numbers)
    by_positions = number_call(arguments, *tokens) is None
    return PackedTexts(numbers, has_mask=mask is not None, by_positions=by_positions)


def _find_shape(arguments: Mapping[str, Any]) -> tuple[int, int] | None:
    """The numbers of rows and of tokens of a call."""
    for name in ("input_ids", "inputs_embeds"):
        tokens = arguments.get(name)
        if isinstance(tokens, Tensor) and tokens.dim() >= 2:
            return tokens.shape[0], tokens.shape[1]
    return None


def _number(
    arguments: Mapping[str, Any], mask: Tensor | None, tokens: tuple[int, int]
) -> Int[Tensor, "batch tokens"] | None:
    """The number of the text of each token, from 1, and 0 for padding; None if each row holds one text."""
    batch, length = tokens
    past = _count_past(arguments.get("past_key_values"))
    if past is None:
        return None
    packed = number_call(arguments, batch, length)
    positions: Any = arguments.get("position_ids")
    return number_texts(
        positions.expand(batch, -1) if are_positions(positions, length) else None,
        mask,
        past,
        None if packed is None else packed.expand(batch, -1) + 1,
    )


def _refuse_mask_of_texts(config: Any, mask: Tensor) -> None:
    """Raise RefusedError for a mask that hides tokens from later ones, in a model with layers that carry them on."""
    mixers = find_other_mixers(config)
    if mixers is None or not mask.is_cpu or not has_values(mask):
        return
    visible = mask if mask.dtype == torch.bool else ~hidden_cells(mask)
    if bool((visible[..., :-1, :] & ~visible[..., 1:, :]).any()):
        raise RefusedError(
            "an attention_mask that hides tokens from later ones does not hold in all layers of this model",
            expected="a matrix of padding (batch, tokens), or layers of attention alone",
            got=mixers,
            do="pad the texts instead of packing them",
        )


def _count_past(cache: Any) -> int | None:
    """The number of tokens in the cache of a call; None if it is not known, as in a trace."""
    if cache is None:
        return 0
    count = getattr(cache, "get_seq_length", None)
    return None if is_traced() or count is None else int(count())


def _encoder_decoder_error() -> RefusedError:
    return RefusedError(
        "several texts that are packed into one row are not separated in an encoder-decoder",
        expected="one text in each row: no argument says which source belongs to which target",
        got=f"several texts in a row, by {' or '.join(_WHERE_TEXTS_BEGIN)}",
        do="pad the texts instead of packing them",
    )


def _separation_error(model: nn.Module) -> RefusedError:
    return RefusedError(
        "several texts that are packed into one row are not separated in this model",
        expected="a model that makes its masks with the functions of transformers",
        got=f"{type(model).__name__}, which made none from the arguments of this call, so that texts saw one another",
        do="pad the texts instead of packing them",
    )
