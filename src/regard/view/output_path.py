"""The files that views are written to: their kinds by the ending of the name, and the check before any work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from regard.errors import OptionError, OutputExistsError, check_parent_folder, short_repr


@final
@dataclass(frozen=True)
class OutputKind:
    """A kind of file: what it is, the endings of its name, an example, and advice for some other endings.

    ``other_suffixes`` are endings that are accepted and not proposed.
    """

    description: str
    suffixes: tuple[str, ...]
    example: str
    advice: Mapping[str, str] = field(default_factory=dict)
    other_suffixes: tuple[str, ...] = ()

    def has(self, path: Path) -> bool:
        """Whether the name of a file has an ending of this kind."""
        return path.suffix.lower() in (*self.suffixes, *self.other_suffixes)


_FIGURE_ADVICE = "; regard.show(...).figure() draws figures"
PAGE = OutputKind(
    "the page is HTML",
    (".html",),
    "attention.html",
    dict.fromkeys((".svg", ".png", ".pdf"), _FIGURE_ADVICE)
    | dict.fromkeys((".csv", ".json"), "; regard.show(...).table() has numbers"),
    other_suffixes=(".htm",),
)
FIGURE = OutputKind("a figure is SVG, PDF or PNG", (".svg", ".pdf", ".png"), "head.svg")
TABLE = OutputKind("a table is CSV or JSON", (".csv", ".json"), "heads.csv")
VIEW = OutputKind(
    "a view is a page, a figure or a table",
    (*PAGE.suffixes, *FIGURE.suffixes, *TABLE.suffixes),
    "attention.html",
    other_suffixes=PAGE.other_suffixes,
)
_BITMAPS = (".bmp", ".gif", ".jpeg", ".jpg", ".tif", ".tiff", ".webp")
"""Suffixes of pictures of pixels, for which a figure would be PNG."""
REPORT = OutputKind("a report is a page or JSON", (".html", ".json"), "audit.html")
"""The report of an audit."""


def check_output_path(path: Path, kind: OutputKind, *, overwrite: bool) -> None:
    """Check that an output of this kind can be written to ``path``, before a model is loaded.

    Raises OptionError for a name with another ending, and for a folder; OutputError for a missing parent folder;
    OutputExistsError if ``path`` exists and ``overwrite`` is False.
    """
    try:
        is_folder, exists = path.is_dir(), path.exists()
    except OSError:  # a text that is no path at all, such as one of 1,000 letters
        is_folder = exists = False
    if not kind.has(path) and not is_folder:
        *first, last = kind.suffixes
        suffix = ".png" if ".png" in kind.suffixes and path.suffix.lower() in _BITMAPS else kind.suffixes[0]
        raise OptionError(
            f"{kind.description}, but the output has another suffix",
            expected="a name that ends in " + (f"{', '.join(first)} or {last}" if first else last),
            got=short_repr(str(path)) if len(str(path)) > 80 else str(path),
            do=f"name it {path.with_suffix(suffix).name[-80:]}" + kind.advice.get(path.suffix.lower(), ""),
        )
    if is_folder:
        raise OptionError(
            "the output is a folder", expected="a file name", got=str(path), do=f"add a name such as {kind.example}"
        )
    check_parent_folder(path)
    if exists and not overwrite:
        raise OutputExistsError(
            "the output already exists",
            expected="a new file",
            got=str(path),
            do="choose another name (`out=...`), or replace it with `overwrite=True`",
        )
