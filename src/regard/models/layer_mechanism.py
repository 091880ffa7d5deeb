"""The mechanism and the position of one layer, by the names in its model's config, and what layers share.

Positions are those of embeddings, and those inside attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from torch import nn

from regard.fields import declare
from regard.mechanism_catalogue import CatalogueRow, find_row
from regard.mechanisms.linformer import Linformer
from regard.models.hyperparameters import model_field
from regard.positions import ALiBi, Learned, Rotary, ShawRelative, Sinusoidal, T5Buckets
from regard.positions.base import AbsolutePosition, PairBias, Rotation

ABSOLUTE_POSITIONS = ("sinusoidal", "learned")
"""Positions that are added to embeddings."""
HEAD_POSITIONS = ("rotary", "alibi", "t5", "shaw")
"""Positions in the heads of self-attention: rotations or biases."""
POSITIONS = (*ABSOLUTE_POSITIONS, *HEAD_POSITIONS, "none")


def make_absolute_position(name: str, *, width: int, max_length: int) -> AbsolutePosition | None:
    """Build the position that is added to embeddings; None for any other name of ``POSITIONS``."""
    if name == "sinusoidal":
        return Sinusoidal(width)
    return Learned(max_length, width) if name == "learned" else None


def make_head_position(
    name: str, *, width: int, heads: int, bidirectional: bool, parts: int = 1
) -> Rotation | PairBias | None:
    """Build the position of one layer's self-attention; None for any other name of ``POSITIONS``.

    ``parts`` is the number of parts of a head that are rotated each (``Traits.score_parts``).
    """
    if name == "rotary":
        return Rotary(width // heads // parts)
    if name == "alibi":
        return ALiBi(heads)
    if name == "shaw":
        return ShawRelative(width // heads)
    return T5Buckets(heads, bidirectional=bidirectional) if name == "t5" else None


def mechanism_field() -> Any:
    """The field of a config with the name of the mechanism of attention."""
    do = "choose a name in regard.catalogue()"
    return model_field("dot_product", "the mechanism of attention, a name in the catalogue", example=do)


def mechanism_options_field(text: str = "its options, as for ``regard.mechanism``") -> Any:
    """The field of a config with the options of a mechanism of attention."""
    return field(default_factory=dict, metadata=declare(text, example="for example mechanism_options={}"))


def options_at_depth(mechanism: str, options: Mapping[str, Any], depth: int) -> Mapping[str, Any]:
    """Return the options of a mechanism in the layer with ``depth`` layers below; it is added if it is an option."""
    row = _find_row(mechanism)
    return options if row is None or "depth" not in row.options else {"depth": depth, **options}


def options_for_length(mechanism: str, options: Mapping[str, Any], most_tokens: int) -> Mapping[str, Any]:
    """Return the options of a mechanism for texts of so many tokens: ``length`` is added if it is one."""
    row = _find_row(mechanism)
    return options if row is None or "length" not in row.options else {"length": most_tokens, **options}


def options_in_decoder(mechanism: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a mechanism in a decoder: ``causal`` is added if it is one.

    What is drawn for a token may not depend on later ones.
    """
    row = _find_row(mechanism)
    return options if row is None or "causal" not in row.options else {"causal": True, **options}


def share_projections(layers: nn.Module) -> None:
    """Let the Linformers with sharing="layerwise" in the layers of a model have the projection of the first one."""
    linformers = [part for part in layers.modules() if isinstance(part, Linformer) and part.sharing == "layerwise"]
    for one in linformers[1:]:
        one.projection = linformers[0].projection


def count_score_parts(mechanism: str) -> int:
    """Return into how many parts with scores of their own a mechanism splits queries and keys."""
    row = _find_row(mechanism)
    return 1 if row is None else row.mechanism.traits.score_parts


def _find_row(mechanism: object) -> CatalogueRow | None:
    """Find a mechanism in the catalogue; None for anything else, which the layer refuses."""
    return find_row(mechanism) if isinstance(mechanism, str) else None
