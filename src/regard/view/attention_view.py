"""``AttentionView``, the result of ``regard.show``: readings as a page, as figures, as tables, and in a notebook.

In a notebook the page is the document of an ``iframe``. Its sandbox allows scripts and downloads, and gives it no
origin: it reads neither the notebook nor what a browser stores. Its content security policy is that of the file.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

from regard.arguments import explain_arguments
from regard.errors import DataError, check_count, check_kind
from regard.language import abbreviate_names, check_language, translate, use_language
from regard.view.figures.draw import FigureKind, Heads, draw_figure
from regard.view.figures.figure import COLUMN, Figure
from regard.view.fit_page import AnyReading
from regard.view.page import render_page, write_page
from regard.view.tables import Table, TableKind, make_table

_FRAME = (
    '<iframe sandbox="allow-scripts allow-downloads" style="width:100%;height:{height}px;border:1px solid #d0d0d0;'
    'border-radius:4px" title="{title}" srcdoc="{page}">{otherwise}</iframe>'
)
FRAME_HEIGHT = 760
"""Height of the page in a notebook, in pixels."""


@final
@explain_arguments
class AttentionView:
    """The attention of one input or several: ``save`` writes the page, and a notebook shows it.

    ``figure`` draws figures for a paper, ``table`` has the numbers.

    ``readings`` are of one kind, as ``regard.view.write_page`` takes them; ``name`` names the model on the page.
    ``language`` is that of the page; None is the one in use.
    """

    def __init__(
        self, readings: AnyReading | Sequence[AnyReading], *, name: str = "", language: str | None = None
    ) -> None:
        several = [readings] if isinstance(readings, AnyReading) else readings
        check_kind("readings", several, Sequence, do="a reading from regard.view.read, or a list of them")
        for reading in several:
            check_kind("reading", reading, AnyReading.__args__, do="make one with regard.view.read")
        check_kind("name", name, str, do="the name of the model on the page")
        check_language(language)
        self.readings, self.name, self.language = tuple(several), name, language

    def __repr__(self) -> str:
        shown = abbreviate_names([repr(reading.title[:60]) for reading in self.readings], 3)
        return f"AttentionView({shown}; .save('attention.html') writes the page)"

    @property
    def title(self) -> str:
        """The title of the first reading."""
        return self.readings[0].title if self.readings else ""

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the page, one HTML file that loads nothing, and return its path. See ``regard.view.write_page``."""
        return write_page(self.readings, path, model=self.name, overwrite=overwrite, language=self.language)

    def figure(
        self,
        kind: FigureKind = "matrix",
        *,
        text: int = 0,
        layer: int | None = None,
        head: Heads = None,
        token: int | str | None = None,
        attention: str | None = None,
        words: bool = False,
        width: float = COLUMN,
    ) -> Figure:
        """Draw a figure for a paper; ``save`` of the result writes it as SVG, PDF or PNG. It needs matplotlib.

        Args:
            kind: "matrix" of one head; "lines" from queries to keys, of one head or several; "row" of one query, the
                text shaded by its weights; "grid" of all heads. Of a picture, a "row" is its weights over the picture.
            text: the number of the text, from 0.
            layer: the layer, from 0; None is where the page opens, at the strongest finding.
            head: the head, from 0, or "mean"; a list of heads for lines. None with a layer is the mean of all.
            token: the query of a row, or the one query of lines: its number from 0, or the token itself.
            attention: of a translation "alignment", "source" or "target"; None is the first of them.
            words: whether tokens of a word are joined.
            width: the largest width in millimetres; that of a column is 85.

        Raises OptionError for places that the text does not have, RefusedError for readings that are no texts or
        translations, MissingPackageError without matplotlib.
        """
        reading = self._reading(text)
        place: dict[str, Any] = {"layer": layer, "head": head, "token": token, "attention": attention}
        with use_language(self.language):
            return draw_figure(reading, kind, **place, words=words, width=width)

    def table(
        self,
        kind: TableKind = "heads",
        *,
        text: int = 0,
        layer: int | None = None,
        head: int | str | None = None,
        attention: str | None = None,
        words: bool = False,
    ) -> Table:
        """Make a table; ``save`` of the result writes it as CSV or JSON.

        Args:
            kind: "heads", statistics of every head of all texts; "findings", their notable pairs of words; "weights",
                every weight of one head of one text, chosen by the other arguments as in ``figure``.

        Raises OptionError for places that the text does not have and for arguments without effect, RefusedError for
        readings that are no texts or translations.
        """
        self._reading(text)
        return make_table(self.readings, kind, text=text, layer=layer, head=head, attention=attention, words=words)

    def _reading(self, text: Any) -> AnyReading:
        """The reading of this number. Raises OptionError if there is none."""
        if not self.readings:
            raise DataError(
                "there is nothing to show", expected="at least one reading", got="none", do="pass a reading"
            )
        check_count("text", text, minimum=0, maximum=len(self.readings) - 1, example=0)
        return self.readings[int(text)]

    def _repr_html_(self) -> str:
        title = html.escape(self.title[:60])
        page = html.escape(render_page(self.readings, model=self.name, language=self.language))
        with use_language(self.language):
            otherwise = translate(
                "The attention of “{title}” is shown here once the notebook is trusted: in Jupyter, File, Trust "
                "Notebook.",
                title=title,
            )
        return _FRAME.format(height=FRAME_HEIGHT, title=title, page=page, otherwise=otherwise)
