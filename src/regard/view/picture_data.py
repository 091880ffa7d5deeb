"""JSON data of the page of pictures: the pixels as a PNG or JPEG in a data URI, the layers as they pack themselves.

Values are stored only if they fit: a page without them lacks the last step, the weighted sum, and has all weights.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import UInt8

from regard.escape_text import direction_of, escape_text
from regard.language import translate_message
from regard.models.media_encoder import TimeAxis, TokenGrid
from regard.view.attention_layer import AttentionLayer, choose_encoding
from regard.view.pack import ALPHABET, Json, pack_fixed, pack_float32
from regard.view.page_data import projection_data, projections_fit
from regard.view.picture_comparison import PictureComparison
from regard.view.picture_reading import Cell, PictureLayer, PictureReading
from regard.view.sound_track import SoundTrack
from regard.vision.picture_file import load_pillow

MAX_PNG_BYTES = 200_000
"""A picture whose PNG is larger is stored as a JPEG."""
SHOWN_LABELS = 5
ROLLOUT_LETTERS = 3


def values_fit(layers: Sequence[AttentionLayer], room: int) -> bool:
    """Whether a page of pictures has the values of these layers, too."""
    return 2 * sum(layer.size for layer in layers) <= room


def build_pictures_data(readings: Sequence[PictureReading], model: str, room: int) -> Json:
    """Build all data that the page's script reads, with vectors of at most ``room`` characters if possible."""
    attentions = [[layer.attention for layer in reading.layers] for reading in readings]
    if not values_fit([layer for layers in attentions for layer in layers], room):
        attentions = [[layer.without_values() for layer in layers] for layers in attentions]
    every = [layer for layers in attentions for layer in layers]
    letters, largest_error = choose_encoding(every, room)
    fit = projections_fit(every)
    return {
        "model": escape_text(model),
        "letters": letters,
        "alphabet": ALPHABET,
        "largest_error": largest_error,
        "rollout_letters": ROLLOUT_LETTERS,
        "heads_in_memory": 1024,
        "texts": [
            _picture(reading, layers, letters, fit=fit) for reading, layers in zip(readings, attentions, strict=True)
        ],
    }


def build_picture_comparisons_data(comparisons: Sequence[PictureComparison], model: str, room: int) -> Json:
    """Build all data of the page of comparisons: of each the first picture, and with it the other one and the changes.

    A reading that is compared with itself has no other one. Values are left out, and measures through all layers.
    """
    sides = [
        [comparison.first] if comparison.first is comparison.second else [comparison.first, comparison.second]
        for comparison in comparisons
    ]
    attentions = [[[layer.attention.without_values() for layer in side.layers] for side in two] for two in sides]
    letters, largest_error = choose_encoding([layer for two in attentions for side in two for layer in side], room)
    texts = []
    for comparison, two, layers in zip(comparisons, sides, attentions, strict=True):
        first, *other = [
            _picture(_without_measures(side), of_side, letters) for side, of_side in zip(two, layers, strict=True)
        ]
        texts.append(first | ({"other": other[0]} if other else {}) | _changes(comparison))
    return {
        "model": escape_text(model),
        "letters": letters,
        "alphabet": ALPHABET,
        "largest_error": largest_error,
        "heads_in_memory": 1024,
        "texts": texts,
    }


def _without_measures(reading: PictureReading) -> PictureReading:
    return replace(
        reading, rollout=None, gradient_rollouts={}, similarities={}, readout=None, no_rollout_reason="", track=None
    )


def _changes(comparison: PictureComparison) -> Json:
    """Encode the heads in their order, with the thousandths of attention of each token that moved."""
    move = comparison.move_in_head(0)
    return {
        "title": escape_text(comparison.title),
        "direction": direction_of(comparison.title),
        "names": [escape_text(name) for name in comparison.names],
        "changes": [
            {
                "layer": head.layer,
                "head": head.head,
                "other": [head.other_layer, head.other_head],
                "change": round(head.change, 4),
                "moved": np.rint(1e3 * moved).astype(int).tolist(),
            }
            for head, moved in zip(comparison.heads, comparison.moved, strict=True)
        ],
        "opening": {"layer": move.change.layer, "head": move.change.head, "query": move.place},
    }


def encode_picture(pixels: UInt8[np.ndarray, "channels height width"]) -> str:
    """Encode pixels as a data URI: PNG, which is exact, or JPEG if that would take more than ``MAX_PNG_BYTES``."""
    load_pillow()
    from PIL import Image

    picture = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    for form, options in (("png", {"optimize": True}), ("jpeg", {"quality": 92})):
        file = io.BytesIO()
        picture.save(file, form, **options)
        if file.tell() <= MAX_PNG_BYTES:
            break
    return f"data:image/{form};base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def _picture(reading: PictureReading, attentions: Sequence[AttentionLayer], letters: int, *, fit: bool = False) -> Json:
    """Encode a picture with its layers, and with their projections if they ``fit``."""
    masks: list[str] = []
    layers = [
        attention.pack(masks, letters) | _place(layer) | projection_data(attention, fit=fit)
        for layer, attention in zip(reading.layers, attentions, strict=True)
    ]
    return {
        "title": escape_text(reading.name),
        "direction": direction_of(reading.name),
        "picture": encode_picture(reading.pixels),
        "height": reading.pixels.shape[1],
        "width": reading.pixels.shape[2],
        "layers": layers,
        "masks": masks,
        "labels": [[escape_text(label), round(share, 6)] for label, share in reading.probabilities[:SHOWN_LABELS]]
        + [
            [escape_text(label), round(share, 6)]
            for label, share in reading.probabilities[SHOWN_LABELS:]
            if label in reading.gradient_rollouts
        ],
        "other_labels": max(0, len(reading.probabilities) - SHOWN_LABELS),
        "rollout": None if reading.rollout is None else pack_fixed(reading.rollout, ROLLOUT_LETTERS),
        "gradients": {escape_text(label): pack_float32(rows) for label, rows in reading.gradient_rollouts.items()},
        "similarities": {
            escape_text(text): pack_float32(cosines[None]) for text, cosines in reading.similarities.items()
        },
        "readout": None if reading.readout is None else pack_float32(reading.readout[None]),
        "no_rollout": translate_message(reading.no_rollout_reason),
    } | ({} if reading.axis is None else {"sound": _sound_data(reading.axis, reading.track)})


def _sound_data(axis: TimeAxis, track: SoundTrack | None) -> Json:
    """The axes of a spectrogram, and the sound with what was heard in it."""
    data: Json = {
        "seconds": axis.seconds_per_token,
        "length": axis.seconds,
        "marks": [list(mark) for mark in axis.marks],
    }
    return data if track is None else data | track.pack()


def _place(layer: PictureLayer) -> Json:
    """How the tokens of a layer lie over the picture, their windows, and how keys lie if not as queries do."""
    place = _grid(layer.grid, layer.cell)
    if layer.key_grid is not None and layer.key_cell is not None:
        place["keys_place"] = _grid(layer.key_grid, layer.key_cell)
    windows = layer.windows
    return place if windows is None else place | {"window": windows.size, "shift": windows.shift}


def _grid(grid: TokenGrid, cell: Cell) -> Json:
    return {"rows": grid.rows, "columns": grid.columns, "prefix": list(grid.prefix), "cell": cell}
