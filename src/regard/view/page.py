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
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import TypeVar

from regard.arguments import explain_arguments
from regard.atomic_write import write_text_file
from regard.errors import (
    DataError,
    OptionError,
    OutputExistsError,
    check_flag,
    check_kind,
    check_parent_folder,
    short_repr,
)
from regard.escape_text import escape_text
from regard.view.layer_data import Json
from regard.view.page_data import build_page_data
from regard.view.reading import PairReading, Reading

Shown = TypeVar("Shown")

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
    "scale.js",
    "weight_row.js",
    "findings.js",
    "alignment.js",
    "grid.js",
    "heatmap.js",
    "lines.js",
    "head_statistics.js",
    "weight_table.js",
    "steps.js",
    "word_step.js",
    "weights_alone.js",
    "shared_words.js",
    "main.js",
)
SUFFIXES = (".html", ".htm")
_PRINT_HINT = "; a browser can print it to PDF"
_HINT_BY_SUFFIX = {
    ".pdf": _PRINT_HINT,
    ".png": _PRINT_HINT,
    ".svg": _PRINT_HINT,
    ".json": "; regard.record returns the weights themselves",
}
MAX_VECTOR_CHARACTERS = (
    880_000  # characters of vectors that keep a page below 1 MiB; the most precise encoding that fits is used
)


@explain_arguments
def write_page(
    readings: Reading | PairReading | Sequence[Reading | PairReading],
    path: str | Path,
    *,
    model: str = "",
    overwrite: bool = False,
) -> Path:
    """Write the page of a reading, or of several, to a temporary file, move it into place, and return its path.

    Raises OutputExistsError if ``path`` exists and ``overwrite`` is False, OutputError if it cannot be
    written, DataError if there is no reading.
    """
    return write_readings(
        readings, (Reading, PairReading), path, render_page, maker="regard.view.read", model=model, overwrite=overwrite
    )


def write_readings(
    readings: Shown | Sequence[Shown],
    kinds: type | tuple[type, ...],
    path: str | Path,
    render: Callable[..., str],
    *,
    maker: str,
    model: str,
    overwrite: bool,
) -> Path:
    """Check the arguments of a function that writes the page of readings of ``kinds``, and write what it renders.

    ``maker`` names the function that makes the readings. Raises as ``write_page`` does.
    """
    several = [readings] if isinstance(readings, kinds) else readings
    check_kind("readings", several, Sequence, do=f"a reading from {maker}, or a list of them")
    assert isinstance(several, Sequence)
    for reading in several:
        check_kind("reading", reading, kinds, do=f"make one with {maker}")
    check_kind("path", path, (str, Path), do='"page.html"')
    path = Path(path)
    check_kind("model", model, str, do="the name that the page shows")
    check_flag("overwrite", overwrite)
    check_output_path(path, overwrite=overwrite)
    write_text_file(render(several, model=model), path, what=f"the page {path}")
    return path


def check_output_path(path: Path, *, overwrite: bool) -> None:
    """Check that a page can be written to ``path``, before a model is loaded.

    Raises OptionError for a name that does not end in .html or .htm, and for a folder; OutputError for a missing parent
    folder; OutputExistsError if ``path`` exists and ``overwrite`` is False.
    """
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except OSError:  # a text that is no path at all, such as one of 1,000 letters
        is_folder = exists = False
    if path.suffix.lower() not in SUFFIXES and not is_folder:
        raise OptionError(
            "the page is HTML, but the output has another suffix",
            expected="a name that ends in .html",
            got=short_repr(str(path)) if len(str(path)) > 80 else str(path),
            do=f"name it {path.with_suffix('.html').name[-80:]}" + _HINT_BY_SUFFIX.get(path.suffix.lower(), ""),
        )
    if is_folder:
        raise OptionError(
            "the output is a folder", expected="a file name", got=str(path), do="add a name such as attention.html"
        )
    check_parent_folder(path)
    if exists and not overwrite:
        raise OutputExistsError(
            "the output already exists",
            expected="a new file",
            got=str(path),
            do="choose another name (--out), or replace it with overwrite=True (--overwrite)",
        )


def render_page(readings: Sequence[Reading | PairReading], *, model: str = "") -> str:
    """Render the page as HTML text. Raises DataError if there is no reading, or one without layers."""
    if not readings:
        raise DataError("there is nothing to show", expected="at least one text", got="none", do="pass a text")
    for reading in (one for several in readings for one in several.attentions.values() if not one.layers):
        raise DataError(
            "a reading without layers has nothing to show",
            expected="one layer of attention or more",
            got=f"none, for {reading.title[:40]!r}",
            do="record a call of the model, and convert its layers with layers_of",
        )
    data = build_page_data(readings, model, MAX_VECTOR_CHARACTERS)
    return fill_template("page.html", styles=("page.css",), scripts=SCRIPTS, title=readings[0].title, data=data)


def fill_template(
    template: str, *, styles: Sequence[str], scripts: Sequence[str], title: str, data: Json, images: str = ""
) -> str:
    """Fill a template with style, script, title and data; all but the data are assets.

    ``images`` is the source of images that the page may show, such as "data:"; "" is none.
    """
    style = "".join(map(_read_asset, styles))
    script = '"use strict";\n(() => {\n' + "\n".join(map(_read_asset, scripts)) + "})();\n"
    policy = (
        f"default-src 'none'; script-src '{_csp_hash(script)}'; style-src '{_csp_hash(style)}'; "
        + (f"img-src {images}; " if images else "")
        + "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    title = escape_text(title).strip()
    parts = {
        "policy": policy,
        "title": html.escape(f"{title[:60]}{'…' if len(title) > 60 else ''} · regard"),
        "style": style,
        "data": _safe_json(data),
        "script": script,
    }
    # One pass, so that an inserted text is never read as a placeholder.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], _read_asset(template))


def _read_asset(name: str) -> str:
    return (resources.files("regard.view") / "assets" / name).read_text(encoding="utf-8")


def _csp_hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")


def _safe_json(data: Json) -> str:
    # A less-than sign could end the script element; escaped, it is the same character in JSON.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
