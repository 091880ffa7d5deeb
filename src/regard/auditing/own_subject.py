"""A model of regard as the subject of an audit.

texts                    ids, hidden by ``masks.padding`` on the right, else by ``masks.keep``
sources and targets      ids of both, outputs belong to the targets
texts beside pictures    of a CLIP: the embeddings of both; each text ends with the end token
an agent's sequences     of a Gato: tokens of actions, hidden on the right by ``GatoBatch.lengths``
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from regard.auditing.example import make_media
from regard.auditing.media_inputs import find_media_inputs
from regard.auditing.own_decoder import step_function
from regard.auditing.properties.padding import AMOUNTS
from regard.auditing.random_ids import allowed_ids, draw_ids
from regard.auditing.subject import Stream, Subject
from regard.errors import RefusedError

_SHORTEST = 4
"""Tokens of a text that are tried at least, however few the model reads."""


def describe_own(model: Any, causal: bool | None, length: int | None, default: int) -> Subject | None:
    """The subject of a model of regard; None if it reads neither token ids nor an agent's sequences.

    Texts have ``length`` tokens, or if that is None ``default`` ones, fewer where the model reads no longer texts.
    """
    from regard.models import Gato

    if isinstance(model, Gato):
        return _describe_agent(model, causal, length or default)
    parameters = inspect.signature(model.forward).parameters
    limit = getattr(model, "max_tokens", None)
    if length is None:
        length = default if limit is None else min(default, max(limit - max(AMOUNTS), _SHORTEST))
    if "target" in parameters:
        return _describe_encoder_decoder(model, length)
    return _describe_texts(model, causal, length) if "ids" in parameters else None


def _describe_texts(model: Any, causal: bool | None, length: int) -> Subject:
    from regard.models import CausalLanguageModel, Clip
    from regard.models.base import Decoder

    text = model.text if isinstance(model, Clip) else model
    streams = [_make_stream(text, "ids", length, _size(text.config, "vocabulary"), end_id=_end_id(text))]
    is_causal = isinstance(model, CausalLanguageModel) or getattr(text, "is_causal", False)
    kind = "decoder of token ids" if is_causal else "encoder of token ids"
    if isinstance(model, Clip):
        pictures = find_media_inputs(model.vision)
        assert pictures is not None
        streams.append(make_media(pictures))
        kind = "encoder of texts, and of pictures or sounds"
    has_state = isinstance(model, Decoder)
    wrap = functools.partial(model_function, has_state=has_state)
    return Subject(
        type(model).__name__,
        kind,
        wrap(model),
        model,
        tuple(streams),
        _parameters(model) | ({"use_cache"} if has_state else set()),
        causal=is_causal if causal is None else causal,
        config=model.config,
        family="regard",
        wrap=wrap,
        cache="state" if has_state else "",
    )


def _describe_encoder_decoder(model: Any, length: int) -> Subject:
    sizes = [_size(model.config, "vocabulary", f"{side}_vocabulary") for side in ("source", "target")]
    wrap = functools.partial(model_function, has_state=True)
    return Subject(
        type(model).__name__,
        "encoder-decoder of token ids",
        wrap(model),
        model,
        (
            _make_stream(model, "target", max(length - 4, 2), sizes[1], mask=""),
            _make_stream(model, "source", length, sizes[0], is_aligned=False),
        ),
        _parameters(model) | {"use_cache"},
        causal=True,
        config=model.config,
        family="regard",
        wrap=wrap,
        cache="state",
    )


def _describe_agent(model: Any, causal: bool | None, length: int) -> Subject:
    stream = Stream(
        "ids",
        draw_ids("ids", allowed_ids(model.config.vocabulary, {model.config.ranges.patch_id})),
        length,
        True,
        {"ids": 1},
        {"ids": 0},
        "lengths",
        _count_visible,
        pads=(0,),
    )
    return Subject(
        type(model).__name__,
        "decoder of token ids",
        _agent_function(model),
        model,
        (stream,),
        frozenset({"ids", "lengths"}),
        causal=True if causal is None else causal,
        config=model.config,
        family="regard",
        wrap=_agent_function,
    )


def model_function(model: Any, *, has_state: bool = False) -> Callable[..., Any]:
    """The model as a function whose ``mask`` is a mask of regard, or says which tokens are visible: (batch, length)."""
    function = step_function(model) if has_state else model

    def call(*, mask: Any = None, **arguments: Any) -> Any:
        given = {} if mask is None else {"mask": _make_mask(mask.bool()) if isinstance(mask, Tensor) else mask}
        return function(**given, **arguments)

    return call


def _agent_function(model: Any) -> Callable[..., Any]:
    """The model as a function of ids (batch, length) and of the number of visible ones in each row."""
    from regard.models import GatoBatch

    def call(*, ids: Tensor, lengths: Tensor | None = None) -> Any:
        batch = GatoBatch.of_actions(ids, channels=model.config.channels)
        return model(batch if lengths is None else replace(batch, lengths=lengths))

    return call


def _make_stream(
    model: Any,
    name: str,
    length: int,
    vocabulary: int,
    *,
    mask: str = "mask",
    is_aligned: bool = True,
    end_id: int | None = None,
) -> Stream:
    """Texts of a model. Each ends with ``end_id``, if there is one."""
    pad = getattr(model, "pad_id", None)
    pads = (int(pad),) if isinstance(pad, int) and pad >= 0 else (0,)
    special = {0, 1, 2, 3, *pads} | (set() if end_id is None else {end_id})
    return Stream(
        name,
        draw_ids(name, allowed_ids(vocabulary, special), end_id=end_id),
        length,
        is_aligned,
        {name: 1},
        {name: 0},
        mask,
        Tensor.bool,
        pads=pads,
    )


def _make_mask(visible: Tensor) -> Any:
    """The mask of regard that hides padding."""
    from regard import masks

    lengths = _lengths_of(visible)
    return masks.keep(visible[:, None, None]) if lengths is None else masks.padding(lengths)


def _count_visible(visible: Tensor) -> Tensor:
    lengths = _lengths_of(visible)
    if lengths is None:
        raise RefusedError(
            "tokens of an agent are hidden at the end of a sequence alone",
            expected="visible tokens, then hidden ones",
            got="hidden tokens before visible ones",
            do="pad sequences on the right",
        )
    return lengths


def _lengths_of(visible: Tensor) -> Tensor | None:
    """The number of visible tokens of each row; None if one is behind a hidden token."""
    lengths = visible.sum(1)
    is_first = torch.arange(visible.shape[1], device=visible.device) < lengths[:, None]
    return lengths if torch.equal(is_first, visible) else None


def _end_id(text: Any) -> int | None:
    """The id of the end token that each text needs; None if the model needs none."""
    from regard.models import ClipText

    if not isinstance(text, ClipText):
        return None
    return text.config.vocabulary - 1 if text.config.end_id is None else text.config.end_id


def _parameters(model: Any) -> frozenset[str]:
    return frozenset(inspect.signature(model.forward).parameters)


def _size(config: Any, *names: str) -> int:
    return next((int(getattr(config, name)) for name in names if hasattr(config, name)), 32)
