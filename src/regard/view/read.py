"""A text and a model to a reading: the one place where the views meet a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.errors import CheckpointError, RefusedError
from regard.mechanisms import DotProduct
from regard.record import SeenLayer, record
from regard.view.reading import LayerReading, Reading, Tokens


def read(model: Any, text: str, *, truncate: bool = False, name: str = "the text") -> Reading:
    """What every attention layer of ``model``, from ``regard.load``, saw of the text.

    Raises DataError for a text longer than the model's limit unless ``truncate`` (``name`` names it), CheckpointError
    for a model without tokenizer, RefusedError for attention whose weights do not follow from query and key alone.
    """
    if model.tokenizer is None:
        raise CheckpointError(
            "this model has no tokenizer, so it cannot read text",
            expected="a model folder with tokenizer.json",
            got="none",
            do="put tokenizer.json beside config.json",
        )
    (tokenized,) = model.tokenizer.tokenize([text], truncate=truncate)
    model.tokenizer.check_length(tokenized, name)
    batch = model.tokenizer.pad([tokenized])
    with torch.no_grad(), record(model) as seen:
        output = model(batch.ids.to(model.device), mask=batch.mask, keep_layers=True)
    return Reading(
        tokens=Tokens(text, tokenized.tokens, tokenized.spans, tokenized.special),
        layers=tuple(_layer(layer) for layer in seen),
        hidden=_array(torch.cat(output.layers)),
        dropped=tokenized.dropped,
    )


def _layer(seen: SeenLayer) -> LayerReading:
    if not isinstance(seen.mechanism, DotProduct) or seen.bias is not None:
        raise RefusedError(
            f"the weights of {seen.name} cannot be shown",
            expected="scaled dot products, without a bias of scores",
            got=f"{type(seen.mechanism).__name__}, {'no bias' if seen.bias is None else 'with a bias'}",
            do="record the model with regard.record and read its weights there",
        )
    groups = seen.query.shape[1] // seen.key.shape[1]
    return LayerReading(
        name=seen.name,
        query=_array(seen.query[0]),
        key=_array(seen.key[0].repeat_interleave(groups, dim=0)),
        value=_array(seen.value[0].repeat_interleave(groups, dim=0)),
        scale=seen.mechanism.scale,
        allowed=_allowed(seen),
    )


def _allowed(seen: SeenLayer) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
    if seen.mask is None:
        return None
    queries, keys = seen.query.shape[2], seen.key.shape[2]
    dense = seen.mask.dense(queries, keys).expand(1, -1, queries, keys)[0]
    if not bool((dense == dense[:1]).all()):
        raise RefusedError(
            f"the mask of {seen.name} differs between heads",
            expected="one mask for all heads of a layer",
            got=f"{dense.shape[0]} masks",
            do="record the model with regard.record and read its weights there",
        )
    return np.asarray(dense[0].cpu().numpy())


def _array(tensor: Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.ascontiguousarray(tensor.detach().to("cpu", torch.float32).numpy())
