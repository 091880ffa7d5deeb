"""Read the ``attention_mask`` that a model passes: which cells it hides, and what it adds to the others.

    None            nothing is hidden
    bool            True where a query may attend
    floats          added to the scores; -inf and a dtype's lowest value, as ``transformers`` writes, hide a cell
    floats with other numbers than 0, or that require grad: a bias, which may hide cells too (Swin, Parakeet)

The structure of a mask (``visible_keys``) is found once, not once per layer: all layers of a model get the same tensor.
What was found is kept as long as that tensor lives, together with its version, which every change in place raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from regard.errors import DtypeError, ShapeError, short_repr
from regard.masks.additive_mask import find_visible_keys, hidden_cells, separate_bias
from regard.masks.dense_mask import Keep
from regard.masks.visible_keys import VisibleKeys
from regard.tensors import has_values

_MAX_VIEWS = 4  # of one tensor: a model may slice its mask, in few ways


@final
@dataclass(frozen=True)
class MaskReading:
    """The visible keys, and whether the mask is a bias too."""

    visible: VisibleKeys
    is_bias: bool = False


_NOTHING_HIDDEN = MaskReading(VisibleKeys(None))
_readings: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""Readings of the masks that are alive. A cache of what their values say: it never affects a result."""


def read_mask(attention_mask: Any) -> tuple[VisibleKeys, Tensor | None]:
    """Return the visible keys, and the bias (#batch, #heads, #queries, #keys) or None.

    Raises DtypeError or ShapeError for a mask of another form.
    """
    if attention_mask is None:
        return _NOTHING_HIDDEN.visible, None
    _check_form(attention_mask)
    if not has_values(attention_mask):  # a trace: the cells become part of the graph
        if attention_mask.dtype == torch.bool:
            return VisibleKeys(Keep(attention_mask)), None
        hidden = hidden_cells(attention_mask)
        return VisibleKeys(Keep(~hidden)), attention_mask.masked_fill(hidden, 0.0)
    reading = _get_reading(attention_mask)
    return reading.visible, separate_bias(attention_mask) if reading.is_bias else None


def _check_form(attention_mask: Any) -> None:
    """Raise DtypeError or ShapeError unless the mask is a bool or float tensor of 4 dimensions."""
    if not isinstance(attention_mask, Tensor) or not (
        attention_mask.dtype == torch.bool or attention_mask.is_floating_point()
    ):
        raise DtypeError(
            "attention_mask has a form whose meaning is not known",
            expected="a bool tensor (True may attend), or floats that are added to the scores",
            got=short_repr(attention_mask),
            do="convert integers: attention_mask.bool() if 1 means may attend",
        )
    if attention_mask.dim() != 4:
        raise ShapeError(
            "attention_mask has the wrong number of dimensions for an attention layer",
            expected="(batch, heads, queries, keys), 1 for axes along which it is the same",
            got=f"shape {tuple(attention_mask.shape)}",
            do="pass a padding matrix (batch, keys) to the model, which makes the masks of its layers",
        )


def _get_reading(attention_mask: Tensor) -> MaskReading:
    """Get the reading of a mask, from the cache if the mask is the same tensor in the same version."""
    if attention_mask.is_inference():  # it has no version, so changes would not be seen
        return MaskReading(*find_visible_keys(attention_mask))
    found = _readings_of_owner(attention_mask).get(_view(attention_mask))
    if found is None:
        with torch.inference_mode(False):
            found = MaskReading(*find_visible_keys(attention_mask))
        _keep_reading(attention_mask, found)
    return found


def remember_structure(attention_mask: Tensor, visible: VisibleKeys) -> None:
    """Keep the structure of an additive mask that was just made, so that it is not read."""
    _keep_reading(attention_mask, MaskReading(visible))


def _keep_reading(attention_mask: Tensor, reading: MaskReading) -> None:
    readings = _readings_of_owner(attention_mask)
    while len(readings) >= _MAX_VIEWS:
        readings.pop(next(iter(readings)), None)
    readings[_view(attention_mask)] = reading


def _readings_of_owner(attention_mask: Tensor) -> dict[Any, MaskReading]:
    """The readings of the tensor that owns the memory of a mask, by view of it."""
    owner = attention_mask if attention_mask._base is None else attention_mask._base
    readings: dict[Any, MaskReading] = _readings.setdefault(owner, {})
    return readings


def _view(attention_mask: Tensor) -> tuple[object, ...]:
    """A key that differs between the views of a tensor, and between its versions."""
    return (
        attention_mask.storage_offset(),
        tuple(attention_mask.shape),
        attention_mask.stride(),
        attention_mask.dtype,
        attention_mask.requires_grad,
        attention_mask._version,
    )
