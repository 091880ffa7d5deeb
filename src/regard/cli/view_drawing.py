"""Figures and tables of ``regard view``, in place of the page: by the ending of the name of the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from regard.errors import OptionError
from regard.fields import option_field

if TYPE_CHECKING:
    from regard.view.output_path import OutputKind

FIGURES = ("matrix", "lines", "row", "grid")
TABLES = ("heads", "findings", "weights")
ATTENTIONS = ("alignment", "source", "target")
_PANEL = "Figures and tables"


def _parse_heads(text: str) -> Any:
    """The numbers of heads, separated by commas; one number alone; or another text, such as "mean"."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        return text
    numbers = [int(part) for part in parts]
    return numbers if len(numbers) > 1 else numbers[0]


@final
@dataclass(frozen=True)
class DrawingOptions:
    """The kind and the place of a figure or a table."""

    figure: str | None = option_field(
        None,
        "Kind of figure, with -o NAME.svg, .pdf or .png: matrix of one head, lines, row of one token, or grid of all "
        "heads; of a picture a row. Default: matrix.",
        completions=FIGURES,
        metavar="KIND",
        panel=_PANEL,
    )
    table: str | None = option_field(
        None,
        "Kind of table, with -o NAME.csv or .json: heads, findings, or weights of a head. Default: heads.",
        completions=TABLES,
        metavar="KIND",
        panel=_PANEL,
    )
    layer: int | None = option_field(
        None, "Layer, from 0. Default: that of the strongest finding.", metavar="N", panel=_PANEL
    )
    head: Any = option_field(
        None,
        'Head, from 0, or "mean"; several for lines: 1,4,7. Default: that of the finding, or mean with --layer.',
        metavar="N",
        panel=_PANEL,
        parse=_parse_heads,
    )
    token: Any = option_field(
        None,
        "Token of a row or of lines: its number from 0, or the token itself.",
        metavar="TOKEN",
        panel=_PANEL,
        parse=lambda text: int(text) if text.isdecimal() else text,
    )
    attention: str | None = option_field(
        None,
        "With --source: alignment, source or target. Default: alignment.",
        completions=ATTENTIONS,
        metavar="KIND",
        panel=_PANEL,
    )
    words: bool = option_field(False, "Join the tokens of each word.", panel=_PANEL)
    width: float | None = option_field(
        None, "Largest width of a figure in millimetres. Default: 85, a column.", metavar="MM", panel=_PANEL
    )

    @property
    def given(self) -> dict[str, Any]:
        """The options that differ from their defaults, as they are written."""
        values = {name: getattr(self, name) for name in _names()}
        return {f"--{name}": value for name, value in values.items() if value not in (None, False)}

    def check(self, path: Path | None) -> None:
        """Raise OptionError for options that have no effect on an output of this name."""
        kind = _find_kind(path)
        valid = set(_names()) - {"figure": {"table"}, "table": {"figure", "token", "width"}}.get(kind, {*_names()})
        for name in _names():
            if getattr(self, name) not in (None, False) and name not in valid:
                raise OptionError(
                    f"`{name}` has no effect on " + ("the terminal" if path is None else f"{path}"),
                    expected="-o NAME.svg, .pdf or .png for a figure, -o NAME.csv or .json for a table",
                    got=str(getattr(self, name)),
                    do="add an output, such as -o head.svg, or leave it out"
                    if path is None
                    else "change the name of the output, or leave it out",
                )

    def check_inputs(self, path: Path | None, kind: str, *, figures: bool) -> None:
        """Raise OptionError for tables of other inputs than texts, and unless there are ``figures`` for figures."""
        output = _find_kind(path)
        if output == "table" or (output == "figure" and not figures):
            raise OptionError(
                f"there are no {output}s of {kind}",
                expected="-o NAME.html, the page" + (", or a figure: -o NAME.svg" if figures else ""),
                got=f"-o {path}",
                do="write the page, and print it to PDF",
            )

    def write(self, readings: Sequence[Any], path: Path, *, overwrite: bool) -> str:
        """Write the figure or the table, and describe it. Raises OptionError for a figure of several texts."""
        from regard.view.attention_view import AttentionView

        view = AttentionView(readings)
        place = {name: getattr(self, name) for name in ("layer", "head", "attention", "words")}
        if _find_kind(path) == "table":
            kind: Any = self.table or "heads"
            table = view.table(kind, **place)
            table.save(path, overwrite=overwrite)
            return f"Table: {path} ({len(table):,} rows of {kind})"
        if len(readings) > 1:
            raise OptionError(
                "a figure shows one text or picture", expected="one", got=str(len(readings)), do="view one of them"
            )
        size: dict[str, Any] = {} if self.width is None else {"width": self.width}
        figure_kind: Any = self.figure or "matrix"
        figure = view.figure(figure_kind, **place, token=self.token, **size)
        figure.save(path, overwrite=overwrite)
        return f"Figure: {path} ({figure.note})"


def _names() -> list[str]:
    return [field.name for field in fields(DrawingOptions)]


def _find_kind(path: Path | None) -> str:
    """ "figure" or "table" by the name of the output; "" for a page and for the terminal."""
    kinds = _kinds()
    return next((name for name, kind in kinds.items() if path is not None and kind.has(path)), "")


def _kinds() -> dict[str, OutputKind]:
    from regard.view.output_path import FIGURE, TABLE

    return {"figure": FIGURE, "table": TABLE}


def is_drawing(path: Path | None) -> bool:
    """Whether an output of this name is a figure or a table."""
    return path is not None and bool(_find_kind(path))
