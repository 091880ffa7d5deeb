"""The page of texts under several mechanisms: one self-contained HTML file, like that of ``page``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from regard.arguments import explain_arguments
from regard.errors import DataError
from regard.view.page import MAX_VECTOR_CHARACTERS, fill_template, write_readings
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
    "print.js",
    "skip.js",
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


@explain_arguments
def write_side_by_side(
    readings: SideBySide | Sequence[SideBySide], path: str | Path, *, model: str = "", overwrite: bool = False
) -> Path:
    """Write the page of one or more texts under several mechanisms, and return its path.

    Raises the errors of ``write_page``.
    """
    return write_readings(
        readings,
        SideBySide,
        path,
        render_side_by_side,
        maker="regard.view.read_side_by_side",
        model=model,
        overwrite=overwrite,
    )


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
