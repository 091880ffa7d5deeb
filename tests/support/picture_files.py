"""Small pictures for tests, as arrays and files, and IDX files."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
from PIL import Image


def random_pixels(height: int = 7, width: int = 11, channels: int = 3, seed: int = 1) -> np.ndarray:
    """Random pixels, uint8 (height, width, channels), or (height, width) with one channel."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return pixels[..., 0] if channels == 1 else pixels


def shape_picture(label: str, seed: int, size: int = 12) -> np.ndarray:
    """A grey picture of horizontal ("rows"), vertical ("columns") or no stripes ("plain"), with noise."""
    generator = np.random.default_rng([seed, len(label)])
    stripes = 90 + 90 * (np.arange(size) // 2 % 2)
    base = {"rows": stripes[:, None], "columns": stripes[None, :], "plain": np.full((1, 1), 120)}[label]
    noise = generator.integers(-30, 31, (size, size))
    return np.clip(np.broadcast_to(base, (size, size)) + noise, 0, 255).astype(np.uint8)


def write_folders(folder: Path, count: int = 17, size: int = 12, labels=("rows", "columns", "plain")) -> None:
    """Write ``count`` pictures of each label as PNG files, one folder for each label."""
    for label in labels:
        (folder / label).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            Image.fromarray(shape_picture(label, number, size)).save(folder / label / f"{number:03}.png")


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write an IDX file of bytes, with gzip if the name ends in .gz."""
    content = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
