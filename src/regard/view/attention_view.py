"""``AttentionView``, the result of ``regard.show``: readings as a page, as figures, as tables, and in a notebook.

In a notebook the page is the document of an ``iframe``. Its sandbox allows scripts and downloads, and gives it no
origin: it reads neither the notebook nor what a browser stores. Its content security policy is that of the file.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import final

from regard.arguments import explain_arguments
from regard.errors import check_kind
from regard.view.page import AnyReading, render_page, write_page

_FRAME = (
    '<iframe sandbox="allow-scripts allow-downloads" style="width:100%;height:{height}px;border:1px solid #d0d0d0;'
    'border-radius:4px" title="{title}" srcdoc="{page}">{otherwise}</iframe>'
)
FRAME_HEIGHT = 760
"""Height of the page in a notebook, in pixels."""
_OTHERWISE = "The attention of {title} is shown here once the notebook is trusted: in Jupyter, File, Trust Notebook."


@final
@explain_arguments
class AttentionView:
    """The attention of one input or several: ``save`` writes the page, and a notebook shows it.

    ``readings`` are of one kind, as ``regard.view.write_page`` takes them; ``name`` names the model on the page.
    """

    def __init__(self, readings: AnyReading | Sequence[AnyReading], *, name: str = "") -> None:
        several = [readings] if isinstance(readings, AnyReading) else readings
        check_kind("readings", several, Sequence, do="a reading from regard.view.read, or a list of them")
        for reading in several:
            check_kind("reading", reading, AnyReading.__args__, do="make one with regard.view.read")
        check_kind("name", name, str, do="the name of the model on the page")
        self.readings, self.name = tuple(several), name

    def __repr__(self) -> str:
        shown = ", ".join(repr(reading.title[:60]) for reading in self.readings[:3])
        more = f" and {len(self.readings) - 3} more" if len(self.readings) > 3 else ""
        return f"AttentionView({shown}{more}; .save('attention.html') writes the page)"

    @property
    def title(self) -> str:
        """The title of the first reading."""
        return self.readings[0].title if self.readings else ""

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the page, one HTML file that loads nothing, and return its path. See ``regard.view.write_page``."""
        return write_page(self.readings, path, model=self.name, overwrite=overwrite)

    def _repr_html_(self) -> str:
        title = html.escape(self.title[:60])
        page = html.escape(render_page(self.readings, model=self.name))
        return _FRAME.format(height=FRAME_HEIGHT, title=title, page=page, otherwise=_OTHERWISE.format(title=title))
