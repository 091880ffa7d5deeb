"""Reading of a sound, or of another input that a model draws as a picture: run the model, and capture its attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from regard.arguments import explain_arguments
from regard.errors import DataError, check_kind
from regard.models.media_encoder import MediaEncoder
from regard.recording import record
from regard.view.from_recording import layers_of
from regard.view.picture_reading import PictureLayer, PictureReading
from regard.view.read_picture import rank_labels

MAX_TOKENS = 2048
"""Maximum number of tokens of an input, 82 seconds of a Conformer."""


@explain_arguments
def read_file_attention(model: MediaEncoder, file: Any, *, name: str = "") -> PictureReading:
    """Capture every attention layer of ``model`` for a file; with a head that classifies also its labels.

    ``read_picture_attention`` does more for pictures.

    Args:
        model: a model that draws its inputs, from ``regard.load``: a Conformer, for sounds.
        file: a path, or another form that the model reads, such as the bytes of a file.
        name: the name of the file on the page and in messages; "" is its path.

    Raises DataError for a file that cannot be read or is too long, CheckpointError for a model without a processor,
    RefusedError for a model that does not draw its inputs.
    """
    check_kind("model", model, MediaEncoder, do='model = regard.models.MediaEncoder.load("conformer/")')
    check_kind("name", name, str, do="the name of the file on the page")
    name = name or (str(file) if isinstance(file, str | Path) else f"the {model.medium.one}")
    made = model.make_input(file, name=name)
    drawn = model.draw_input(made)
    if drawn.grid.tokens > MAX_TOKENS:
        raise DataError(
            f"{name} is too long to show",
            expected=f"at most {MAX_TOKENS:,} tokens",
            got=f"{drawn.grid.tokens:,}",
            do="cut it into parts",
        )
    with record(model) as seen:
        (output,) = model.run_inputs([made], batch=1)
    return PictureReading(
        name,
        drawn.pixels,
        tuple(PictureLayer(drawn.grid, layer, drawn.cell) for layer in layers_of(seen)),
        rank_labels(model.labels, output.logits if model.classifies else None),
        no_rollout_reason=drawn.no_rollout_reason,
        noun=drawn.noun,
        note=drawn.note,
        axis=drawn.axis,
    )
