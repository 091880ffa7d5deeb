"""``Figure``: a drawing of matplotlib that is saved as SVG, PDF or PNG, with the same bytes each time.

In an SVG text is outlines, so that it needs no font; a PDF holds its fonts.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

from regard.arguments import explain_arguments
from regard.atomic_write import write_bytes_file
from regard.errors import MissingPackageError, check_flag, check_kind, check_number
from regard.view.figures.colours import INK
from regard.view.figures.text_on_figures import find_families
from regard.view.output_path import FIGURE, check_output_path

COLUMN = 85.0
"""Width of a column of a journal, in millimetres."""
MARGIN = 0.4
"""Space around labels at an edge, in millimetres."""
DOTS_PER_INCH = 300
POINTS, LEAST_POINTS = 7.0, 5.0
"""Sizes of text: usually, and where there is little room."""
_SETTINGS = {
    "font.size": POINTS,
    "text.color": INK,
    "text.usetex": False,
    "text.hinting": "none",  # widths do not depend on the resolution
    "text.parse_math": False,  # a dollar sign in a text is a dollar sign
    "svg.fonttype": "path",
    "svg.hashsalt": "regard",
    "axes.linewidth": 0.4,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}
_COMMENT = re.compile(rb" *<!--.*?-->\n?", re.DOTALL)
"""A comment of an SVG: matplotlib repeats each text in one."""
_METADATA: dict[str, dict[str, str | None]] = {
    "svg": {"Date": None, "Creator": "regard"},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": "regard", "Producer": None},
}


@final
@explain_arguments
class Figure:
    """A figure: ``save`` writes it, and a notebook shows it. ``drawing`` is its ``Figure`` of matplotlib.

    ``note`` says in one line what is drawn, for a caption.
    """

    def __init__(self, draw: Callable[[], Any], texts: Iterable[str], *, note: str) -> None:
        _check_package()
        families = find_families(texts)
        # A PDF cannot hold some other fonts as they are (CFF in a collection), but their outlines.
        self._settings = {**_SETTINGS, "font.family": families, "pdf.fonttype": 42 if len(families) == 1 else 3}
        self.note = note
        with self._style():
            self.drawing = draw()

    def __repr__(self) -> str:
        width, height = (25.4 * inches for inches in self.drawing.get_size_inches())
        return f"Figure({self.note}; {width:.0f} x {height:.0f} mm; .save('figure.svg') writes it)"

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the figure as .svg, .pdf or .png (300 dots per inch), and return its path.

        Raises OptionError for another name, OutputExistsError if ``path`` exists and ``overwrite`` is False,
        OutputError if it cannot be written.
        """
        check_kind("path", path, (str, Path), do='"figure.svg"')
        path = Path(path)
        check_flag("overwrite", overwrite)
        check_output_path(path, FIGURE, overwrite=overwrite)
        write_bytes_file(self.encode(path.suffix.lower()[1:]), path, what=f"the figure {path}")
        return path

    def encode(self, ending: str) -> bytes:
        """The contents of a file of the figure: "svg", "pdf" or "png"."""
        buffer = io.BytesIO()
        with self._style():
            self.drawing.savefig(buffer, format=ending, dpi=DOTS_PER_INCH, metadata=_METADATA[ending])
        return _COMMENT.sub(b"", buffer.getvalue()) if ending == "svg" else buffer.getvalue()

    @contextmanager
    def _style(self) -> Iterator[None]:
        import matplotlib.style

        with matplotlib.style.context(["default", self._settings]), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font")  # reported by ``find_families``
            yield

    def _repr_svg_(self) -> str:
        return self.encode("svg").decode("utf-8")


def _check_package() -> None:
    try:
        import matplotlib.style  # noqa: F401
    except ImportError as error:
        raise MissingPackageError(
            "figures need a package",
            expected="matplotlib",
            got="it is not installed",
            do="pip install 'regard[figures]'",
        ) from error


def check_width(width: Any) -> None:
    """Raise OptionError for a width in millimetres that no page has."""
    check_number("`width`", width, minimum=20, maximum=1000)


def new_drawing(width: float, height: float) -> Any:
    """An empty drawing of this size in millimetres."""
    from matplotlib.figure import Figure as Drawing

    return Drawing(figsize=(width / 25.4, height / 25.4))


def add_axes(drawing: Any, left: float, top: float, width: float, height: float) -> Any:
    """Axes without a frame at a place in millimetres from the top left, whose units are millimetres from there too."""
    total_width, total_height = (25.4 * inches for inches in drawing.get_size_inches())
    axes = drawing.add_axes(
        (left / total_width, 1 - (top + height) / total_height, width / total_width, height / total_height)
    )
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    return axes
