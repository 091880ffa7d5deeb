"""Captioned pictures made in a test: stripes of a direction and a colour, and the words for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from picture_files import shape_picture

COLOURS = {"red": (1.0, 0.2, 0.2), "green": (0.2, 1.0, 0.2), "blue": (0.2, 0.2, 1.0)}
DIRECTIONS = ("rows", "columns", "plain")


def write_captioned(folder: Path, count: int, *, size: int = 12) -> list[str]:
    """Write ``count`` pictures with a text beside each, 00.png and 00.txt and so on, and return the texts."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = []
    for index in range(count):
        colour, direction = list(COLOURS)[index % 3], DIRECTIONS[index // 3 % 3]
        grey = shape_picture(direction, index, size).astype(np.float64)
        pixels = grey[..., None] * np.array(COLOURS[colour])
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index:02d}.png")
        texts.append(f"{colour} {direction}")
        (folder / f"{index:02d}.txt").write_text(texts[-1] + "\n")
    return texts
