"""The page of texts under several mechanisms: one self-contained HTML file, like that of ``page``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.errors import DataError, check_flag, check_kind
from regard.view.page import MAX_VECTOR_CHARACTERS, check_output_path, fill_template, write_html
from regard.view.side_by_side import SideBySide
from regard.view.side_by_side_data import build_side_by_side_data

# Each file is one idea; a later file may use the names of the earlier ones.
SCRIPTS = (
    "decode.js",
    "attention.js",
    "colour.js",
    "dom.js",
    "state.js",
    "theme.js",
    "tabs.js",
    "place.js",
    "token_level.js",
    "mechanisms.js",
    "exact_row.js",
    "panels.js",
    "compared_rows.js",
    "head_masses.js",
    "measures.js",
    "side_by_side.js",
)


def write_side_by_side(readings: Sequence[SideBySide], path: Path, *, model: str = "", overwrite: bool = False) -> Path:
    """Write the page of one or more texts under several mechanisms, and return its path.

    Raises the errors of ``write_page``.
    """
    check_kind("readings", readings, Sequence, do="a list of readings from regard.view.read_side_by_side")
    for reading in readings:
        check_kind("reading", reading, SideBySide, do="make one with regard.view.read_side_by_side(model, text, ..)")
    check_kind("path", path, Path, do='pathlib.Path("page.html")')
    check_kind("model", model, str, do="the name that the page shows")
    check_flag("overwrite", overwrite)
    check_output_path(path, overwrite=overwrite)
    return write_html(render_side_by_side(readings, model=model), path)


def render_side_by_side(readings: Sequence[SideBySide], *, model: str = "") -> str:
    """Render the page as HTML text. Raises DataError if there is no text."""
    if not readings:
        raise DataError("there is nothing to show", expected="at least one text", got="none", do="pass a text")
    return fill_template(
        "side_by_side.html",
        styles=("page.css", "side_by_side.css"),
        scripts=SCRIPTS,
        title=readings[0].title,
        data=build_side_by_side_data(readings, model, MAX_VECTOR_CHARACTERS),
    )
