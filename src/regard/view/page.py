"""One self-contained page: template, style, script and data in a single HTML file that loads nothing.

The page is safe for untrusted text: the data is a JSON block with every less-than sign escaped, the script inserts
text only as text, and the content security policy allows only this script and this style, by their hashes. The page
is small: it stores queries, keys and values, linear in the length, and computes the weights of a head when it shows
it. Weights are stored only for layers without scores.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias, final

from regard.arguments import explain_arguments
from regard.atomic_write import write_text_file
from regard.errors import (
    DataError,
    OptionError,
    check_flag,
    check_kind,
)
from regard.escape_text import escape_text
from regard.language import HTML_LANGUAGES, language_in_use, read_catalogue, translate, use_language
from regard.view.comparison_data import build_comparisons_data
from regard.view.episode_data import build_episodes_data
from regard.view.episode_reading import EpisodeReading
from regard.view.long_data import build_long_data
from regard.view.long_reading import LongReading, summarize_long
from regard.view.output_path import PAGE, check_output_path
from regard.view.pack import Json
from regard.view.page_data import build_page_data
from regard.view.page_size import is_summarized
from regard.view.picture_comparison import PictureComparison
from regard.view.picture_data import build_picture_comparisons_data, build_pictures_data
from regard.view.picture_reading import PictureReading
from regard.view.reading import PairReading, Reading
from regard.view.reading_comparison import ReadingComparison
from regard.view.side_by_side import SideBySide
from regard.view.side_by_side_data import build_side_by_side_data

MAX_VECTOR_CHARACTERS = 880_000
"""Characters of vectors that keep the data of a page below 1 MiB; the most precise encoding that fits is used."""


AnyReading: TypeAlias = (
    Reading
    | LongReading
    | PairReading
    | PictureReading
    | SideBySide
    | ReadingComparison
    | PictureComparison
    | EpisodeReading
)
"""Readings of texts, translations, pictures and other files, texts under several mechanisms, comparisons, episodes."""


@final
@dataclass(frozen=True)
class _Page:
    """A kind of page: its main part, its files, and the function that builds its data.

    A later script may use the names of the earlier ones. ``images`` is the source of images that the page may show.
    """

    main: str
    styles: tuple[str, ...]
    scripts: tuple[str, ...]
    build: Callable[[Sequence[Any], str, int], Json]
    readings: str = "{{text: Texts}}"
    """The label of the tabs, one for each reading."""
    images: str = ""
    sounds: str = ""
    """The source of sounds that the page may play."""
    body: str = ""
    """Attributes of the body."""
    has_heat_map: bool = True
    connect: str = ""
    """Where the page may ask for data, besides its own."""


_WEIGHTS = ("language", "decode", "attention", "colour", "dom")
_CONTROLS = ("theme", "print", "skip", "text_list", "tabs", "start")
_OF_TEXTS = (*_WEIGHTS, "state", *_CONTROLS, "place", "token_level")
_TEXTS = _Page(
    "page.html",
    styles=("page", "one_screen"),
    scripts=(
        *(*_OF_TEXTS, "through_layers", "previews", "scale", "weight_row", "findings", "alignment", "grid"),
        *("heatmap", "overlaid_heads", "lines", "head_statistics", "weight_table", "steps", "word_step"),
        *("weights_alone", "lesson", "map_table", "shared_words", "figure", "one_screen", "main"),
    ),
    build=build_page_data,
    body=' class="one-screen"',
)
_PICTURES = _Page(
    "picture.html",
    styles=("page", "picture"),
    scripts=(
        *(*_WEIGHTS, "windows", "picture_state", *_CONTROLS, "picture_place", "sound_axes", "patch_drawing", "patches"),
        *("patch_heads",),
        *("heard_words", "sound_player", "labels", "weight_table", "steps", "weights_alone", "picture"),
    ),
    build=build_pictures_data,
    readings="{{text: Pictures}}",
    images="data:",
    sounds="data:",
)
_SIDE_BY_SIDE = _Page(
    "side_by_side.html",
    styles=("page", "side_by_side"),
    scripts=(
        *(*_OF_TEXTS, "matrix", "mechanisms", "exact_row", "panels", "compared_rows", "head_masses", "measures"),
        "side_by_side",
    ),
    build=build_side_by_side_data,
    body=' class="side-by-side"',
)
_COMPARISONS = _Page(
    "compare.html",
    styles=("page", "side_by_side", "compare"),
    scripts=(*(*_OF_TEXTS, "matrix", "compared_sides", "compared_words", "head_changes", "compared_maps", "compare"),),
    build=build_comparisons_data,
    readings="{{text: Comparisons}}",
    body=' class="compare"',
)
_PICTURE_COMPARISONS = _Page(
    "compare_pictures.html",
    styles=("page", "side_by_side", "compare", "picture"),
    scripts=(
        *(*_WEIGHTS, "windows", "picture_state", *_CONTROLS, "picture_place", "sound_axes", "patch_drawing"),
        *("compared_pictures", "head_changes", "compare_pictures"),
    ),
    build=build_picture_comparisons_data,
    readings="{{text: Comparisons}}",
    images="data:",
    body=' class="compare pictures"',
)
_EPISODES = _Page(
    "episode.html",
    styles=("page", "episode"),
    scripts=(
        *(
            "language",
            "decode",
            "colour",
            "dom",
            "episode_state",
            "theme",
            "print",
            "text_list",
            "tabs",
            "start",
            "episode_frame",
        ),
        *("alternatives", "observed", "earlier_steps", "strongest_sources", "episode_heads", "episode"),
    ),
    build=build_episodes_data,
    readings="{{text: Episodes}}",
    images="data:",
    has_heat_map=False,
)
_LONG = _Page(
    "long.html",
    styles=("page", "one_screen", "long"),
    scripts=("language", "decode", "colour", "dom", "long_state", *_CONTROLS, "one_screen", "long_map", "long"),
    build=build_long_data,
    body=' class="one-screen long-text"',
)
_SERVED = replace(_LONG, scripts=(*_LONG.scripts[:-1], "long_served", "long"), connect="'self'")
_PAGES: Mapping[type, _Page] = {
    Reading: _TEXTS,
    LongReading: _LONG,
    PairReading: _TEXTS,
    PictureReading: _PICTURES,
    SideBySide: _SIDE_BY_SIDE,
    ReadingComparison: _COMPARISONS,
    PictureComparison: _PICTURE_COMPARISONS,
    EpisodeReading: _EPISODES,
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
    write_text_file(render_page(several, model=model, language=language), path, what=f"the page {path}")
    return path


def render_page(readings: Sequence[AnyReading], *, model: str = "", language: str | None = None) -> str:
    """Render the page as HTML text. Raises as ``write_page``, and DataError for a reading without layers."""
    with use_language(language):
        return _render_page(shorten(readings), model)


def _render_page(readings: Sequence[AnyReading], model: str) -> str:
    if not readings:
        raise DataError("there is nothing to show", expected="at least one reading", got="none", do="pass a reading")
    kinds = {id(_PAGES[type(reading)]): type(reading).__name__ for reading in readings}
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
    page = _SERVED if isinstance(readings[0], LongReading) and readings[0].is_served else _PAGES[type(readings[0])]
    return _fill_template(page, title=readings[0].title, data=page.build(readings, model, MAX_VECTOR_CHARACTERS))


def shorten(
    readings: Sequence[AnyReading], advance: Callable[[int], None] = lambda done: None, *, always: bool = False
) -> Sequence[AnyReading]:
    """Summarize all texts if one of them is too large for a page with every weight, and no text is a translation.

    ``advance`` is called with the work done, in thousandths of a text. ``always`` summarizes texts of any length.
    """
    if not (always or any(map(is_summarized, readings))) or any(
        isinstance(reading, PairReading) for reading in readings
    ):
        return readings
    return [
        summarize_long(reading, lambda done, before=1000 * number: advance(before + done))  # type: ignore[misc]
        if isinstance(reading, Reading)
        else reading
        for number, reading in enumerate(readings)
    ]


def _fill_template(page: _Page, *, title: str, data: Json) -> str:
    """Fill the template with the page's main part, style and script, the title and the data."""
    style = "".join(_read_asset(f"{name}.css") for name in page.styles)
    scripts = "\n".join(_read_asset(f"{name}.js") for name in page.scripts)
    script = '"use strict";\n(() => {\n' + scripts + "})();\n"
    policy = (
        f"default-src 'none'; script-src '{_csp_hash(script)}'; style-src '{_csp_hash(style)}'; "
        + (f"img-src {page.images}; " if page.images else "")
        + (f"media-src {page.sounds}; " if page.sounds else "")
        + (f"connect-src {page.connect}; " if page.connect else "")
        + "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    title = escape_text(title).strip()
    parts = {
        "policy": policy,
        "title": html.escape(f"{title[:60]}{'…' if len(title) > 60 else ''} · regard"),
        "style": style,
        "data": _safe_json(data),
        "script": script,
        "body": page.body,
        "skip": "" if page.has_heat_map else " hidden",
        "language": HTML_LANGUAGES[language_in_use()],
        "translations": _translations_of(script),
    }
    # Data and titles are inserted in one pass, so that none of their text is ever read as a placeholder.
    template = _read_asset("shell.html").replace("{{main}}", _read_asset(page.main))
    template = _translate_texts(template.replace("{{readings}}", page.readings))
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], template)


def _translate_texts(template: str) -> str:
    """Translate the texts that a template marks, {{text: Heat map}}, some with the tags inside them."""
    return re.sub(
        r"\{\{text: (.*?)\}\}", lambda place: translate(" ".join(place[1].split())), template, flags=re.DOTALL
    )


def _translations_of(script: str) -> str:
    """The translations of a script's templates, as a block of JSON for its function ``translate``; none in English."""
    language = language_in_use()
    if language == "en":
        return ""
    script = script.replace(r"\u00a0", "\u00a0")
    used = {
        template: translation
        for template, translation in read_catalogue(language, ("page",)).items()
        if translation and all(part in script for part in re.split(r"\{\d+\}", template))
    }
    return f'<script type="application/json" id="translations">{_safe_json(used)}</script>\n'


def _read_asset(name: str) -> str:
    return (resources.files("regard.view") / "assets" / name).read_text(encoding="utf-8")


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _safe_json(data: Json) -> str:
    # A less-than sign could end the script element; escaped, it is the same character in JSON.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
