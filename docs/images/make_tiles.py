"""Draws how a tile of queries walks over the tiles of keys, for the page on tiles with a running softmax.

    python docs/images/make_tiles.py

Greys, blue and orange are readable on light and on dark pages.
"""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
TILES, SIDE, LEFT, TOP = 8, 30, 86, 94
NOW_ROW, NOW_COLUMN = 4, 5
DONE, NOW, FRAME = "#0072b2", "#e69f00", "#8a8f98"


def box(x: float, y: float, width: float, height: float, *, fill: str = "none", opacity: float = 1.0) -> str:
    """A rectangle with a grey frame."""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}" fill-opacity="{opacity}" '
        f'stroke="{FRAME}"/>'
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 13, italic: bool = False) -> str:
    """A line of text; the letters after ``_`` are an index."""
    line = re.sub(r"_([a-z]+)", r'<tspan font-size="9" dy="4">\1</tspan><tspan dy="-4">&#8203;</tspan>', words)
    style = ' font-style="italic"' if italic else ""
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{FRAME}"{style}>{line}</text>'


def draw() -> list[str]:
    """The picture as SVG elements."""
    size, lines = TILES * SIDE, []
    lines += [text(LEFT + size / 2, 16, "keys and values, 64 tokens a tile", anchor="middle")]
    lines += [text(LEFT - 12, TOP - 12, "queries", anchor="end")]
    for at in range(TILES):
        here = at == NOW_COLUMN
        lines.append(box(LEFT + at * SIDE, 26, SIDE, 14, fill=NOW if here else "none", opacity=0.8))
        lines.append(box(LEFT + at * SIDE, 44, SIDE, 14, fill=NOW if here else "none", opacity=0.8))
        here = at == NOW_ROW
        lines.append(box(LEFT - 34, TOP + at * SIDE, 22, SIDE, fill=NOW if here else "none", opacity=0.8))
        lines.append(
            box(
                LEFT + size + 22,
                TOP + at * SIDE,
                22,
                SIDE,
                fill=DONE if at < NOW_ROW else NOW if here else "none",
                opacity=0.35,
            )
        )
    lines += [
        text(LEFT - 16, 38, "k_j", anchor="end", italic=True),
        text(LEFT - 16, 56, "v_j", anchor="end", italic=True),
    ]
    for row in range(TILES):
        for column in range(TILES):
            is_done = row < NOW_ROW or (row == NOW_ROW and column < NOW_COLUMN)
            now = (row, column) == (NOW_ROW, NOW_COLUMN)
            fill, opacity = (NOW, 0.9) if now else (DONE, 0.18) if is_done else ("none", 1.0)
            lines.append(box(LEFT + column * SIDE, TOP + row * SIDE, SIDE, SIDE, fill=fill, opacity=opacity))
    right, middle = LEFT + size + 62, TOP + NOW_ROW * SIDE
    lines += [
        text(LEFT + size + 33, TOP - 12, "output", anchor="middle"),
        text(right, middle - 44, "of the queries in this row, kept in the cache:"),
        text(right, middle - 20, "m_i   largest score so far", italic=False),
        text(right, middle, "l_i    sum of exp(s_ij − m_i) so far"),
        text(right, middle + 20, "o_i   sum of exp(s_ij − m_i) v_j so far"),
        text(right, middle + 52, "a tile that is done is gone: nothing"),
        text(right, middle + 70, "of size queries × keys is ever stored"),
        text(LEFT, TOP + size + 22, "blue: done · orange: the tile in the cache now · empty: still to come", size=12),
    ]
    return lines


def main() -> None:
    """Write tiles.svg beside this file."""
    width, height = LEFT + TILES * SIDE + 62 + 300, TOP + TILES * SIDE + 34
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">'
    (HERE / "tiles.svg").write_text("\n".join([head, *draw(), "</svg>"]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
