"""The page of pictures: one self-contained HTML file, like that of ``page``, in which the pictures are data URIs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.errors import DataError, check_flag, check_kind
from regard.view.page import MAX_VECTOR_CHARACTERS, check_output_path, fill_template, write_html
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


def write_pictures(readings: Sequence[PictureReading], path: Path, *, model: str = "", overwrite: bool = False) -> Path:
    """Write the page of one or more pictures, and return its path. Raises the errors of ``write_page``."""
    check_kind("readings", readings, Sequence, do="a list of readings from regard.view.read_picture_attention")
    for reading in readings:
        check_kind("reading", reading, PictureReading, do="make one with regard.view.read_picture_attention(model, ..)")
    check_kind("path", path, Path, do='pathlib.Path("page.html")')
    check_kind("model", model, str, do="the name that the page shows")
    check_flag("overwrite", overwrite)
    check_output_path(path, overwrite=overwrite)
    return write_html(render_pictures(readings, model=model), path)


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
