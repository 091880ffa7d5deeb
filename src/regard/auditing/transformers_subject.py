"""A model of ``transformers`` that reads token ids as the subject of an audit."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from regard.auditing.example import make_media
from regard.auditing.media_inputs import find_media_beside
from regard.auditing.properties.prefix import TOKEN_TYPES, TokenTypes
from regard.auditing.random_ids import allowed_ids, draw_ids
from regard.auditing.subject import Stream, Subject


def reads_ids(module: Any) -> bool:
    """Whether a model reads token ids before all else."""
    return getattr(module, "main_input_name", "") == "input_ids"


def describe_transformers(model: Any, causal: bool | None, length: int) -> Subject:
    """The subject of a model that reads token ids, in texts of ``length`` tokens."""
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    parameters = inspect.signature(model.forward).parameters
    special = {
        value for name, value in config.to_dict().items() if name.endswith("token_id") and isinstance(value, int)
    }
    special |= {0, 1, 2}
    vocabulary = _vocabulary_of(model, config)
    pads = tuple(token for token in _padding_ids(config) if token < vocabulary) or (0,)
    allowed = allowed_ids(vocabulary, special)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    takes = frozenset(parameters)
    is_contrastive = "return_loss" in takes and hasattr(model.config, "text_config")
    end_id = getattr(config, "eos_token_id", None) if is_contrastive else None

    def stream(name: str, mask: str, tokens: int, *, is_aligned: bool = True) -> Stream:
        hides = mask if mask in takes or takes_any else ""
        return Stream(
            name,
            draw_ids(name, allowed, end_id=end_id),
            tokens,
            is_aligned,
            {name: 1},
            {name: 0},
            hides,
            Tensor.long,
            pads=pads,
        )

    if model.config.is_encoder_decoder and "decoder_input_ids" in takes:
        target = stream("decoder_input_ids", "decoder_attention_mask", max(length - 4, 2))
        streams: tuple[Stream, ...] = (target, stream("input_ids", "attention_mask", length, is_aligned=False))
        kind, is_causal = "encoder-decoder of token ids", True
    else:
        streams = (stream("input_ids", "attention_mask", length),)
        is_causal = _is_causal_type(model, config)
        kind = "decoder of token ids" if is_causal else "encoder of token ids"
    if is_contrastive:
        media = find_media_beside(model, streams[0].draw(length, torch.Generator().manual_seed(0)))
        if media is not None:
            streams = (*streams, make_media(media))
        kind = "encoder of texts, and of pictures or sounds"
    cache = next((name for name in ("past_key_values", "cache_params", "state") if name in takes), "")
    return Subject(
        type(model).__name__,
        kind,
        model,
        model,
        streams,
        takes,
        takes_any,
        is_causal if causal is None else causal,
        model.config,
        "transformers",
        constants=functools.partial(_constants, takes, TOKEN_TYPES.get(model.config.model_type)),
        cache=cache,
    )


def _constants(takes: Collection[str], types: TokenTypes | None, batch: int, length: int) -> dict[str, Any]:
    """Arguments of each call. Where tokens are in a prefix unless their types say otherwise, the types say so."""
    made: dict[str, Any] = {"use_cache": False} if "use_cache" in takes else {}
    if types is not None and types.inside == 0:
        made[types.argument] = torch.full((batch, length), types.outside)
    return made


def _vocabulary_of(model: Any, config: Any) -> int:
    try:
        return int(model.get_input_embeddings().weight.shape[0])
    except (AttributeError, NotImplementedError):
        return int(getattr(config, "vocab_size", 97))


def _padding_ids(config: Any) -> tuple[int, ...]:
    """The id of padding, and that of the end, which many use as padding."""
    ids = [getattr(config, name, None) for name in ("pad_token_id", "eos_token_id")]
    flat = [token[0] if isinstance(token, list | tuple) and token else token for token in ids]
    return tuple(dict.fromkeys(token for token in flat if isinstance(token, int) and token >= 0))


_BIDIRECTIONAL = {"xlnet", "bert-generation", "cpmant"}
"""Types with a class for causal language models whose attention is bidirectional unless a call says otherwise."""


def _is_causal_type(model: Any, config: Any) -> bool:
    """Whether a model of ``transformers`` declares that it is causal: by its config, or by the use of its type."""
    from transformers.models.auto import modeling_auto as auto

    kind = config.model_type
    if kind in _BIDIRECTIONAL or getattr(config, "is_causal", None) is False:
        return False
    for name in ("is_decoder", "causal", "is_causal"):
        if getattr(config, name, None) is True:
            return True
    masked, writing = auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    names = {kind, model.config.model_type}
    return bool(names & set(writing)) and not names & set(masked)
