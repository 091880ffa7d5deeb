"""The pages of readings: one self-contained HTML file each (``page_template``).

A page is small: it stores queries, keys and values, linear in the length, and computes the weights of a head when it
shows it. Weights are stored only for layers without scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from regard.arguments import explain_arguments
from regard.atomic_write import write_text_file
from regard.errors import (
    DataError,
    OptionError,
    check_flag,
    check_kind,
)
from regard.language import use_language
from regard.view.comparison_data import build_comparisons_data
from regard.view.episode_data import build_episodes_data
from regard.view.episode_reading import EpisodeReading
from regard.view.fit_page import AnyReading, plan_page
from regard.view.long_data import build_long_data
from regard.view.long_reading import LongReading
from regard.view.output_path import PAGE, check_output_path
from regard.view.pack import Json
from regard.view.page_data import build_page_data
from regard.view.page_size import MAX_VECTOR_CHARACTERS
from regard.view.page_template import Page, fill_template
from regard.view.picture_comparison import PictureComparison
from regard.view.picture_data import build_picture_comparisons_data, build_pictures_data
from regard.view.picture_reading import PictureReading
from regard.view.reading import PairReading, Reading
from regard.view.reading_comparison import ReadingComparison
from regard.view.side_by_side import SideBySide
from regard.view.side_by_side_data import build_side_by_side_data

_Build: TypeAlias = Callable[[Sequence[Any], str, int], Json]
"""Builds the data of a page from its readings, the name of the model, and the characters of vectors that fit."""

_BASE = ("language", "decode", "colour", "dom", "views")
_WEIGHTS = (*_BASE, "attention", "other_head")
_CONTROLS = ("theme", "print", "skip", "text_list", "tabs", "start")
_OF_TEXTS = (*_WEIGHTS, "state", *_CONTROLS, "place", "token_level")
_STEPS = (
    *("weight_table", "steps", "projection_step", "bucket_steps", "share_steps", "factor_steps", "branch_steps"),
    *("mixed_heads_steps", "state_steps", "weights_alone"),
)
_TEXTS = Page(
    "page.html",
    styles=("page", "one_screen"),
    scripts=(
        *(*_OF_TEXTS, "through_layers", "previews", "scale", "weight_row", "findings", "alignment", "grid"),
        *("heatmap", "overlaid_heads", "lines", "head_statistics", *_STEPS, "word_step", "lesson", "map_table"),
        *("shared_words", "figure", "one_screen", "main"),
    ),
    body=' class="one-screen"',
)
_PICTURES = Page(
    "picture.html",
    styles=("page", "picture"),
    scripts=(
        *(*_WEIGHTS, "windows", "picture_state", *_CONTROLS, "picture_place", "sound_axes", "patch_drawing", "patches"),
        *("patch_heads", "heard_words", "sound_player", "labels", *_STEPS, "picture"),
    ),
    readings="{{text: Pictures}}",
    images="data:",
    sounds="data:",
)
_SIDE_BY_SIDE = Page(
    "side_by_side.html",
    styles=("page", "side_by_side"),
    scripts=(
        *(*_OF_TEXTS, "matrix", "mechanisms", "exact_row", "panels", "compared_rows", "head_masses", "measures"),
        "side_by_side",
    ),
    body=' class="side-by-side"',
)
_COMPARISONS = Page(
    "compare.html",
    styles=("page", "side_by_side", "compare"),
    scripts=(
        *(*_OF_TEXTS, "matrix", "compared_sides", "compared_heads", "compared_words", "head_changes", "compared_maps"),
        "compare",
    ),
    readings="{{text: Comparisons}}",
    body=' class="compare"',
)
_PICTURE_COMPARISONS = Page(
    "compare_pictures.html",
    styles=("page", "side_by_side", "compare", "picture"),
    scripts=(
        *(*_WEIGHTS, "windows", "picture_state", *_CONTROLS, "sound_axes", "patch_drawing"),
        *("compared_pictures", "compared_heads", "head_changes", "compare_pictures"),
    ),
    readings="{{text: Comparisons}}",
    images="data:",
    body=' class="compare pictures"',
)
_EPISODES = Page(
    "episode.html",
    styles=("page", "episode"),
    scripts=(
        *(*_BASE, "episode_state", "theme", "print", "text_list", "tabs", "start", "episode_frame"),
        *("alternatives", "observed", "earlier_steps", "strongest_sources", "episode_heads", "episode"),
    ),
    readings="{{text: Episodes}}",
    images="data:",
    has_heat_map=False,
)
_LONG = Page(
    "long.html",
    styles=("page", "one_screen", "long"),
    scripts=(*_BASE, "long_state", *_CONTROLS, "one_screen", "long_map", "long"),
    body=' class="one-screen long-text"',
)
_SERVED = replace(_LONG, scripts=(*_LONG.scripts[:-1], "long_served", "long"), connect="'self'")
_PAGES: Mapping[type, tuple[Page, _Build]] = {
    Reading: (_TEXTS, build_page_data),
    LongReading: (_LONG, build_long_data),
    PairReading: (_TEXTS, build_page_data),
    PictureReading: (_PICTURES, build_pictures_data),
    SideBySide: (_SIDE_BY_SIDE, build_side_by_side_data),
    ReadingComparison: (_COMPARISONS, build_comparisons_data),
    PictureComparison: (_PICTURE_COMPARISONS, build_picture_comparisons_data),
    EpisodeReading: (_EPISODES, build_episodes_data),
}


@explain_arguments
def write_page(
    readings: AnyReading | Sequence[AnyReading],
    path: str | Path,
    *,
    model: str = "",
    overwrite: bool = False,
    language: str | None = None,
) -> Path:
    """Write the page of a reading, or of several, to a temporary file, move it into place, and return its path.

    Several readings are of one kind: texts and translations, pictures or other files, texts under several mechanisms,
    comparisons or episodes. ``language`` is that of the page, "en" or "zh"; None is the one in use
    (``regard.language``). Raises OutputExistsError if ``path`` exists and ``overwrite`` is False, OutputError if it
    cannot be written, DataError if there is no reading, OptionError for readings of different kinds.
    """
    several = [readings] if isinstance(readings, AnyReading) else readings
    check_kind("readings", several, Sequence, do="a reading from regard.view.read, or a list of them")
    assert isinstance(several, Sequence)
    for reading in several:
        check_kind("reading", reading, tuple(_PAGES), do="make one with regard.view.read")
    check_kind("path", path, (str, Path), do='"page.html"')
    path = Path(path)
    check_kind("model", model, str, do="the name that the page shows")
    check_flag("overwrite", overwrite)
    check_output_path(path, PAGE, overwrite=overwrite)
    with use_language(language):
        plan = plan_page(several)
        return save_page(plan.make(lambda done: None), path, model=model, notice=plan.notice)


def render_page(readings: Sequence[AnyReading], *, model: str = "", language: str | None = None) -> str:
    """Render the page as HTML text. Raises as ``write_page``, and DataError for a reading without layers."""
    with use_language(language):
        plan = plan_page(readings)
        return _render_page(plan.make(lambda done: None), model, plan.notice)


def save_page(readings: Sequence[AnyReading], path: Path, *, model: str, notice: str) -> Path:
    """Write the page of readings in the form that a ``PagePlan`` made, with its notice."""
    write_text_file(_render_page(readings, model, notice), path, what=f"the page {path}")
    return path


def _render_page(readings: Sequence[AnyReading], model: str, notice: str) -> str:
    if not readings:
        raise DataError("there is nothing to show", expected="at least one reading", got="none", do="pass a reading")
    kinds = {id(_PAGES[type(reading)][0]): type(reading).__name__ for reading in readings}
    if len(kinds) > 1:
        raise OptionError(
            "these readings have different pages",
            expected="readings of one kind",
            got=" and ".join(sorted(kinds.values())),
            do="write a page of each kind",
        )
    for reading in (reading for reading in readings if reading.is_empty):
        raise DataError(
            "a reading without layers has nothing to show",
            expected="one layer of attention or more",
            got=f"none, for {reading.title[:40]!r}",
            do="record a call of the model, and convert its layers with layers_of",
        )
    page, build = _PAGES[type(readings[0])]
    if isinstance(readings[0], LongReading) and readings[0].is_served:
        page = _SERVED
    data = build(readings, model, MAX_VECTOR_CHARACTERS)
    return fill_template(page, title=readings[0].title, data=data, notice=notice)
