"""The mechanism and the position of one layer, by the names in its model's config, and what layers share.

Positions are in embeddings, or inside attention.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import field
from typing import Any

from torch import nn

from regard.errors import OptionError, RefusedError, unknown_name_error
from regard.fields import declare
from regard.layers import GatedDeltaNet, Mamba2Mixer
from regard.layers.scan_mixer import ScanMixer
from regard.masks import Mask
from regard.mechanism_catalogue import CatalogueRow, find_row, get_row
from regard.mechanisms import Mechanism
from regard.mechanisms.linformer import Linformer
from regard.models.hyperparameters import model_field
from regard.positions import ALiBi, Learned, Rotary, ShawRelative, Sinusoidal, T5Buckets
from regard.positions.base import AbsolutePosition, PairBias, Rotation

MIXERS: Mapping[str, type[ScanMixer]] = {
    "gated_delta_net": GatedDeltaNet,
    "mamba2_mixer": Mamba2Mixer,
}
"""Mixers that a layer of a language model may have in place of multi-head attention, by name."""
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


def mechanism_options_field(
    text: str = "its options, as for ``regard.mechanism``", *, stored: str | None = None
) -> Any:
    """The field of a config with the options of a mechanism of attention, and its name in published files."""
    facts = declare(text, example="for example mechanism_options={}")
    return field(default_factory=dict, metadata=facts if stored is None else facts | {"stored": stored})


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


def options_of_layer(mechanism: str, options: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Return the ``options``, given for several mechanisms, that a decoder's mechanism has, in the layer at ``depth``.

    ``causal`` and ``depth`` are added as in ``options_in_decoder`` and ``options_at_depth``.
    """
    known = options_of(mechanism)
    own = {name: value for name, value in options.items() if name in known}
    return dict(options_at_depth(mechanism, options_in_decoder(mechanism, own), depth))


def options_of(name: str) -> tuple[str, ...]:
    """Names of the options of a mechanism of the catalogue or of a mixer. Raises OptionError for any other name."""
    if name not in MIXERS:
        return get_row(name).options
    return tuple(option for option in inspect.signature(MIXERS[name]).parameters if option not in ("width", "heads"))


def check_layer_options(mechanisms: Collection[str], options: Mapping[str, Any]) -> None:
    """Raise OptionError for an option that none of the mechanisms has."""
    known = sorted({option for name in mechanisms for option in options_of(name)})
    for name in options:
        if name not in known:
            raise unknown_name_error(f"option of the mechanisms {', '.join(dict.fromkeys(mechanisms))}:", name, known)


def make_mixer(name: str, width: int, heads: int, head_dim: int, options: Mapping[str, Any]) -> ScanMixer:
    """Make the mixer of this name; ``options`` may change its sizes, which are those of attention, by default.

    The values of a Mamba-2 are twice as wide, as in the paper.
    """
    if name == "gated_delta_net":
        return GatedDeltaNet(width, heads, **{"head_dim": head_dim, **options})
    return Mamba2Mixer(width, heads, **{"value_dim": 2 * head_dim, **options})


def choose_rotation(mechanism: Mechanism, rotary: Rotary) -> Rotary | None:
    """Return the rotation of queries and keys in a layer: of each part of a head, or None if it is none by distances.

    A mixer with a state knows the order of tokens without it.
    """
    traits = mechanism.traits
    if not traits.takes_rotation:
        return None
    if traits.score_parts == 1:
        return rotary
    part = rotary.head_dim // traits.score_parts
    return Rotary(part, base=rotary.base, scaling=rotary.scaling)


def check_decodes(mechanism: Mechanism, name: str, mask: Mask, *, what: str, expected: str, do: str) -> None:
    """Raise OptionError for a mechanism that does not support a causal mask of a decoder, or steps."""
    reason = mechanism.refuses_mask(mask)
    try:
        mechanism.empty_state()
    except RefusedError as error:
        reason = error.what
    if reason is not None:
        raise OptionError(
            f"{what} is causal and decodes in steps, which {name} does not support: {reason}",
            expected=expected,
            got=name,
            do=do,
        )


def share_projections(layers: nn.Module) -> None:
    """Let the Linformers with sharing="layerwise" in the layers of a model have the projection of the first one."""
    linformers = [part for part in layers.modules() if isinstance(part, Linformer) and part.sharing == "layerwise"]
    for linformer in linformers[1:]:
        linformer.projection = linformers[0].projection


def count_score_parts(mechanism: str) -> int:
    """Return into how many parts with scores of their own a mechanism splits queries and keys."""
    row = _find_row(mechanism)
    return 1 if row is None else row.mechanism.traits.score_parts


def _find_row(mechanism: object) -> CatalogueRow | None:
    """Find a mechanism in the catalogue; None for anything else, which the layer refuses."""
    return find_row(mechanism) if isinstance(mechanism, str) else None
