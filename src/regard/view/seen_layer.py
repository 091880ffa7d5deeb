"""What ``regard.record`` heard of a layer, to what the views show: whichever mechanism scored, and with what bias."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regard.errors import RefusedError
from regard.masks import Mask
from regard.mechanisms import DotProduct, LuongDot, LuongGeneral, Mechanism
from regard.mechanisms.by_head import by_head
from regard.mechanisms.hidden_layer import HiddenLayer
from regard.mechanisms.local_p import LocalPredictive
from regard.positions import ShawRelative
from regard.positions.base import DistanceBias
from regard.record import SeenLayer
from regard.view.layer_reading import Bell, LayerReading, Relative


def layers_of(seen: Iterable[SeenLayer]) -> tuple[LayerReading, ...]:
    """Each layer of a batch of one; the calls of a layer that was called step by step are joined.

    Raises RefusedError for what the views cannot compute again.
    """
    calls: dict[str, list[SeenLayer]] = {}
    for call in seen:
        calls.setdefault(call.name, []).append(call)
    return tuple(_layer(_joined(steps)) for steps in calls.values())


def array(tensor: Tensor) -> NDArray[Any]:
    """The numbers in float32."""
    return np.ascontiguousarray(tensor.detach().to("cpu", torch.float32).numpy())


def _joined(steps: list[SeenLayer]) -> SeenLayer:
    """One call with the queries of all steps, which looked at the same keys."""
    return replace(steps[0], query=torch.cat([step.query for step in steps], dim=2))


def _layer(seen: SeenLayer) -> LayerReading:
    heads = seen.query.shape[1]
    with torch.no_grad():
        key, value = (one.repeat_interleave(heads // one.shape[1], dim=1) for one in (seen.key, seen.value))
        query, key, scale, vector = _scored(seen, key)
        return LayerReading(
            name=seen.name,
            query=array(query[0]),
            key=array(key[0]),
            value=array(value[0]),
            scale=scale,
            allowed=_allowed(seen),
            vector=vector,
            bias=_bias(seen),
            bell=_bell(seen),
            relative=_relative(seen),
        )


def _scored(seen: SeenLayer, key: Tensor) -> tuple[Tensor, Tensor, float, NDArray[Any] | None]:
    """Query, key, scale and vector, in terms of which the score is a dot product or a hidden layer."""
    query, mechanism = seen.query, _scorer(seen.mechanism)
    match mechanism:
        case DotProduct():
            return query, key, mechanism.scale, None
        case LuongDot():
            return query, key, 1.0, None
        case LuongGeneral():
            return by_head(query, mechanism.weight.to(query).mT), key, 1.0, None
        case HiddenLayer():
            return mechanism.of_query(query), mechanism.of_key(key), 1.0, array(mechanism.vector)
    raise _refused(seen, "a dot product or a hidden layer as the score", type(seen.mechanism).__name__)


def _scorer(mechanism: Mechanism) -> Mechanism:
    return mechanism.align if isinstance(mechanism, LocalPredictive) else mechanism


def _bias(seen: SeenLayer) -> NDArray[Any] | None:
    if seen.bias is None or isinstance(seen.bias, ShawRelative):
        return None
    if not isinstance(seen.bias, DistanceBias):
        raise _refused(seen, "no bias of scores, or one by distance", f"a bias of type {type(seen.bias).__name__}")
    queries, keys = seen.query.shape[2], seen.key.shape[2]
    table = array(seen.bias.table(1 - keys, queries - 1))
    return np.ascontiguousarray(np.broadcast_to(table, (seen.query.shape[1], queries + keys - 1)))


def _relative(seen: SeenLayer) -> Relative | None:
    if not isinstance(seen.bias, ShawRelative):
        return None
    if not isinstance(_scorer(seen.mechanism), DotProduct):
        raise _refused(seen, "a dot product under relative positions", type(seen.mechanism).__name__)
    values = seen.bias.value_vectors
    return Relative(array(seen.bias.key_vectors), None if values is None else array(values))


def _bell(seen: SeenLayer) -> Bell | None:
    if not isinstance(seen.mechanism, LocalPredictive):
        return None
    return Bell(array(_centres(seen, seen.mechanism)[0]), seen.mechanism.window / 2)


def _centres(seen: SeenLayer, mechanism: LocalPredictive) -> Tensor:
    return mechanism.positions(seen.query, seen.key, seen.mask)[..., 0]


def _allowed(seen: SeenLayer) -> NDArray[np.bool_] | None:
    queries, keys = seen.query.shape[2], seen.key.shape[2]
    allowed = None if seen.mask is None else _dense(seen.mask, queries, keys)
    if isinstance(seen.mechanism, LocalPredictive):
        away = torch.arange(keys) - _centres(seen, seen.mechanism)[0, :, :, None].cpu()
        window = away.abs() <= seen.mechanism.window
        allowed = window if allowed is None else allowed & window
    if allowed is None:
        return None
    if not bool((allowed == allowed[:1]).all()):
        raise _refused(seen, "one mask for all heads of a layer", f"{allowed.shape[0]} masks")
    return np.asarray(allowed[0].numpy())


def _dense(mask: Mask, queries: int, keys: int) -> Tensor:
    return mask.dense(queries, keys).expand(1, -1, queries, keys)[0].cpu()


def _refused(seen: SeenLayer, expected: str, got: str) -> RefusedError:
    return RefusedError(
        f"the weights of {seen.name} cannot be shown",
        expected=expected,
        got=got,
        do="record the model with regard.record and read its weights there",
    )
