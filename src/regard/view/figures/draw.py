"""Figures of a reading, by their kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

from regard.errors import OptionError, RefusedError, check_choice, check_count, check_flag, short_repr
from regard.view.figures.figure import Figure, check_width
from regard.view.figures.grid import draw_grid
from regard.view.figures.lines import draw_lines, legend_texts
from regard.view.figures.matrix import draw_matrix
from regard.view.figures.picture import draw_picture, patch_weights
from regard.view.figures.row import draw_row
from regard.view.head_weights import (
    Place,
    find_attention,
    find_head,
    find_place,
    head_weights,
    no_layers_error,
)
from regard.view.picture_reading import PictureReading
from regard.view.reading import PairReading, Reading

FigureKind: TypeAlias = Literal["matrix", "lines", "row", "grid"]
Heads: TypeAlias = int | str | Sequence[int] | None
"""The number of a head, "mean", several numbers, or None."""


def draw_figure(reading: Any, kind: FigureKind, *, attention: Any, words: Any, width: float, **place: Any) -> Figure:
    """Draw a figure of a reading: see ``AttentionView.figure``, whose layer, head and token are ``place``."""
    check_choice("kind of figure", kind, get_args(FigureKind))
    check_flag("words", words)
    check_width(width)
    if isinstance(reading, PictureReading):
        _check_without_place(attention=attention, words=words or None)
        return _draw_picture(reading, kind, **place, width=width)
    if not isinstance(reading, Reading | PairReading):
        raise RefusedError(
            "there are no figures of this reading", expected="a reading of a text, a translation or a picture",
            got=f"a {type(reading).__name__}", do="write its page, and print it to PDF: view.save('page.html')",
        )  # fmt: skip
    shown = find_attention(reading, attention)
    if kind == "grid":
        _check_without_place(**place, words=words or None)
        find_place(reading, shown, layer=None, head=None, token=None)  # raises for a reading without layers
        return Figure(lambda: draw_grid(shown, width), (), note=f"all heads of {len(shown.layers)} layers")
    places = _find_places(reading, shown, kind, **place)
    heads = [head_weights(shown, place, words=words) for place in places]
    first = heads[0]
    note = ", ".join([places[0].name, *(str(place.head) for place in places[1:])])
    if kind == "row" or place["token"] is not None:
        note += f", from {first.rows[first.row]}"
    if first.sink is not None:
        note += "; the first token is kept apart"

    def draw() -> Any:
        if kind == "lines":
            return draw_lines(heads, width, only_row=place["token"] is not None)
        return draw_row(first, width, is_within=shown.keys is None) if kind == "row" else draw_matrix(first, width)

    return Figure(draw, (*first.rows, *first.columns, *legend_texts(heads)), note=note)


def _draw_picture(
    reading: PictureReading, kind: FigureKind, *, layer: Any, head: Any, token: Any, width: float
) -> Figure:
    """Draw a token of a picture: by default the first one, such as the class token, in the mean of the last layer."""
    if kind not in ("matrix", "row"):
        raise RefusedError(
            "the tokens of a picture are no text", expected='the figure of one token: `kind="row"`',
            got=f"kind={kind!r}", do='use `kind="row"`',
        )  # fmt: skip
    layers = reading.layers
    if not layers:
        raise no_layers_error(reading)
    number = len(layers) - 1 if layer is None else layer
    check_count("`layer`", number, minimum=0, maximum=len(layers) - 1, example=0)
    shown = layers[int(number)]
    chosen = find_head(head, shown.attention.heads)
    names = {shown.name_of(at): at for at in range(len(shown.grid.prefix))} if isinstance(token, str) else {}
    if isinstance(token, str):
        check_choice("token", token, names)
    query = names[token] if isinstance(token, str) else 0 if token is None else token
    check_count("`token`", query, minimum=0, maximum=shown.attention.queries - 1, example=0)
    place = Place(int(number), chosen, int(query))
    weights = patch_weights(shown, chosen, int(query))
    note = f"{place.name}, from {shown.name_of(int(query))}"
    return Figure(lambda: draw_picture(reading, shown, weights, int(query), width), (), note=note)


def _find_places(
    reading: Reading | PairReading, shown: Reading, kind: FigureKind, *, layer: Any, head: Any, token: Any
) -> list[Place]:
    """The places of one head, or of several for lines."""
    if kind == "matrix":
        _check_without_place(token=token)
    several = list(head) if isinstance(head, Sequence) and not isinstance(head, str) else [head]
    if not several or (len(several) > 1 and kind != "lines"):
        raise OptionError(
            f"a figure of kind {kind!r} shows one head", expected='the number of a head, or "mean"',
            got=short_repr(head), do='several heads: `kind="lines"` or `kind="grid"`',
        )  # fmt: skip
    return [find_place(reading, shown, layer=layer, head=number, token=token) for number in several]


def _check_without_place(**options: Any) -> None:
    """Raise OptionError for an option that has no effect on the kind of figure."""
    for name, value in options.items():
        if value is not None:
            raise OptionError(
                f"`{name}` has no effect on this kind of figure",
                expected='`token` with `kind="lines"` or `kind="row"`; `layer`, `head` and `words` without "grid"; '
                "`words` and `attention` of texts",
                got=short_repr(value),
                do=f"leave out `{name}`",
            )
