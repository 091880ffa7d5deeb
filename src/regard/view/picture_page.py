"""The page of pictures: one self-contained HTML file, like that of ``page``, in which the pictures are data URIs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.arguments import explain_arguments
from regard.errors import DataError
from regard.view.page import MAX_VECTOR_CHARACTERS, fill_template, write_readings
from regard.view.picture_data import build_pictures_data
from regard.view.picture_reading import PictureReading

# Each file is one idea; a later file may use the names of the earlier ones.
SCRIPTS = (
    "decode.js",
    "attention.js",
    "colour.js",
    "dom.js",
    "windows.js",
    "picture_state.js",
    "theme.js",
    "print.js",
    "skip.js",
    "tabs.js",
    "picture_place.js",
    "sound_axes.js",
    "patches.js",
    "patch_heads.js",
    "labels.js",
    "weight_table.js",
    "steps.js",
    "weights_alone.js",
    "picture.js",
)


@explain_arguments
def write_pictures(
    readings: PictureReading | Sequence[PictureReading], path: str | Path, *, model: str = "", overwrite: bool = False
) -> Path:
    """Write the page of one or more pictures, and return its path. Raises the errors of ``write_page``."""
    return write_readings(
        readings,
        PictureReading,
        path,
        render_pictures,
        maker="regard.view.read_picture_attention",
        model=model,
        overwrite=overwrite,
    )


def render_pictures(readings: Sequence[PictureReading], *, model: str = "") -> str:
    """Render the page as HTML text. Raises DataError if there is no picture, or one of a model without layers."""
    if not readings or not all(reading.layers for reading in readings):
        raise DataError(
            "there is nothing to show",
            expected="at least one picture, and a model with attention layers",
            got="no layer" if readings else "no picture",
            do="pass a picture, and a trained model",
        )
    return fill_template(
        "picture.html",
        styles=("page.css", "picture.css"),
        scripts=SCRIPTS,
        title=readings[0].name,
        data=build_pictures_data(readings, model, MAX_VECTOR_CHARACTERS),
        images="data:",
    )
