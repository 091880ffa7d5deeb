"""Hashes of the C++ sources of kernels, which say whether those of a suite changed since it was measured.

The sources of a suite are the files that it names, all files that they include, the .cpp files of included headers, and
the choice of kernels (``tables``); for a suite that names none, such as one of whole models, they are all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchmarks.case import Suite

FOLDER = Path(__file__).resolve().parents[1] / "src" / "regard" / "kernels" / "csrc"
FORWARD = ("attention/attention.cpp", "attention/forward.h", "attention/matrix_forward.h")
"""Files of the forward pass of exact attention of many queries."""
FEW_QUERIES = ("decode/decode.cpp", "decode/decode_chunk.h")
"""Files of exact attention of few queries."""
BACKWARD = (*FORWARD, "attention/backward.h")
"""Files of exact attention with gradients."""
LINEAR = ("linear/linear.h", "linear/weight_gradient.h")
"""Files of linear layers of many tokens."""
_COMMENT = re.compile(rb"\s*//.*")
_INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)


def hash_each(suites: Mapping[str, Suite]) -> dict[str, str]:
    """Hash the sources of each suite, by its name."""
    return {name: hash_sources(suite.kernels) for name, suite in suites.items()}


def hash_sources(names: Sequence[str] = (), folder: Path = FOLDER) -> str:
    """Return the first digits of a hash of the files with these names in the folder, and of those that they use."""
    digest = hashlib.sha256()
    for file in _find_used(names, folder) if names else _find_all(folder):
        digest.update(file.relative_to(folder).as_posix().encode() + b"\0" + _read_code(file) + b"\0")
    return digest.hexdigest()[:12]


def _read_code(file: Path) -> bytes:
    """Read a file without its comments, which change no kernel."""
    return _COMMENT.sub(b"", file.read_bytes())


def _find_all(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.suffix in (".cpp", ".h"))


def _find_used(names: Iterable[str], folder: Path) -> list[Path]:
    found: set[Path] = set()
    open_files = [folder / name for name in names]
    while open_files:
        file = open_files.pop()
        if file not in found:
            found.add(file)
            open_files += [folder / name for name in _INCLUDE.findall(file.read_text(encoding="utf-8"))]
            open_files += [file.with_suffix(".cpp")] if file.with_suffix(".cpp").exists() else []
    return sorted(found | set((folder / "tables").glob("*.cpp")))
