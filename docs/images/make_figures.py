"""Draws the figures of docs/showing.md.

python docs/images/make_figures.py
"""

from __future__ import annotations

from pathlib import Path

import regard

HERE = Path(__file__).resolve().parent
TEXT = "The animal didn't cross the street because it was too tired."


def main() -> None:
    """Write an SVG for each kind of figure."""
    view = regard.show("minilm", TEXT)
    for figure, name in (
        (view.figure("matrix", layer=3, head=1, words=True), "matrix"),
        (view.figure("lines", layer=3, head=[1, 3], token="it", words=True), "lines"),
        (view.figure("row", layer=3, head=1, token="it", words=True), "row"),
    ):
        figure.save(HERE / f"figure-{name}.svg", overwrite=True)


if __name__ == "__main__":
    main()
