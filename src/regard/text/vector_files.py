"""File formats of vectors: NumPy, JSON lines and Parquet, written as shards and joined in constant memory.

       sentence vectors                    token vectors
npy      (rows, width) float32               (all tokens, width), and OUT.offsets.npy (rows + 1) int64:
                                             row r has the tokens offsets[r] to offsets[r + 1] - 1
jsonl    {"text", "vector"}                  {"text", "tokens", "vectors"}
parquet  text, vector                        text, tokens, vectors
"""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias, final, runtime_checkable

import numpy as np

from regard.errors import CheckpointError, MissingPackageError, OptionError, unknown_name_error
from regard.text.tokenizer import TokenizedText

Vectors: TypeAlias = Sequence["np.ndarray[Any, np.dtype[np.float32]]"]
"""One array per row: (width,), or (tokens, width)."""
Lengths: TypeAlias = Callable[[], Iterable[int]]
"""Function that iterates over the number of vectors of each row: the rows may be too many for a list."""


@runtime_checkable
class ByteSink(Protocol):
    """Writable binary stream, such as a file or standard output."""

    def write(self, data: bytes, /) -> int:
        """Write bytes and return their number."""
        ...


class VectorFormat(ABC):
    """File format of vectors. With ``tokens`` a row has one vector per token, else a single one."""

    package: ClassVar[str] = ""
    """Optional package that the format needs; empty if none."""

    def __init__(self, *, tokens: bool, width: int = 0) -> None:
        self.tokens, self.width = tokens, width

    @classmethod
    def check_installed(cls) -> None:
        """Raise MissingPackageError if the format needs a package that is not installed."""
        if cls.package and find_spec(cls.package) is None:
            raise MissingPackageError(
                f"writing {cls.__name__} needs {cls.package}",
                expected=f"the package {cls.package}",
                got="not installed",
                do="pip install 'regard[parquet]', or write .npy or .jsonl",
            )

    def companions(self, out: Path) -> list[Path]:
        """Paths of the files written in addition to ``out``."""
        del out
        return []

    @abstractmethod
    def write(self, file: ByteSink, texts: Sequence[TokenizedText], vectors: Vectors) -> None:
        """Write rows as a complete file: one shard."""

    @abstractmethod
    def join(self, parts: Sequence[Path], lengths: Lengths, out: Path) -> None:
        """Join the files of several ``write`` calls, in order, into ``out``."""


@final
class Npy(VectorFormat):
    """NumPy's .npy format: one float32 array."""

    def companions(self, out: Path) -> list[Path]:
        """Path of the file of token offsets, with ``tokens``."""
        return [_offsets_path(out)] if self.tokens else []

    def write(self, file: ByteSink, texts: Sequence[TokenizedText], vectors: Vectors) -> None:
        """Write one array of the vectors of all rows."""
        del texts
        rows = np.concatenate([row.reshape(-1, self.width) for row in (_empty_vectors(self.width), *vectors)])
        _write_npy_header(file, "<f4", rows.shape)
        file.write(rows.astype("<f4", copy=False).tobytes())  # np.save does not tell that a disk is full

    def join(self, parts: Sequence[Path], lengths: Lengths, out: Path) -> None:
        """Write one header for all rows, then the numbers of each shard; with ``tokens`` also the offsets."""
        with out.open("wb") as file:
            _write_npy_header(file, "<f4", (sum(lengths()), self.width))
            for part in parts:
                file.write(np.load(part, allow_pickle=False).astype("<f4").tobytes())
        if self.tokens:
            _write_offsets(_offsets_path(out), lengths)


@final
class Jsonl(VectorFormat):
    """JSON lines; numbers have 9 significant digits, which represent each float32 exactly."""

    def write(self, file: ByteSink, texts: Sequence[TokenizedText], vectors: Vectors) -> None:
        """Write one line per row."""
        for text, row in zip(texts, vectors, strict=True):
            file.write(self.line(text, row).encode("utf-8"))

    def line(self, text: TokenizedText, vectors: np.ndarray[Any, np.dtype[np.float32]]) -> str:
        """Format the line of one row."""
        start = {"text": text.text, "tokens": text.tokens} if self.tokens else {"text": text.text}
        numbers = "[" + ", ".join(map(_format_vector, vectors)) + "]" if self.tokens else _format_vector(vectors)
        key = "vectors" if self.tokens else "vector"
        return f'{json.dumps(start, ensure_ascii=False)[:-1]}, "{key}": {numbers}}}\n'

    def join(self, parts: Sequence[Path], lengths: Lengths, out: Path) -> None:
        """Concatenate the lines of all shards."""
        del lengths
        with out.open("wb") as file:
            for part in parts:
                with part.open("rb") as read:
                    shutil.copyfileobj(read, file)


@final
class Parquet(VectorFormat):
    """Apache Parquet, written by pyarrow."""

    package = "pyarrow"

    def write(self, file: ByteSink, texts: Sequence[TokenizedText], vectors: Vectors) -> None:
        """Write the rows as one row group."""
        import pyarrow as pa
        import pyarrow.parquet as parquet

        columns: dict[str, Any] = {"text": [text.text for text in texts]}
        if self.tokens:
            columns["tokens"] = [list(text.tokens) for text in texts]
            columns["vectors"] = [list(row) for row in vectors]
        else:
            columns["vector"] = list(vectors)
        sink: Any = file
        parquet.write_table(pa.table(columns, schema=self._schema()), sink)

    def join(self, parts: Sequence[Path], lengths: Lengths, out: Path) -> None:
        """Join the shards, one row group each."""
        import pyarrow.parquet as parquet

        del lengths
        with parquet.ParquetWriter(out, self._schema()) as writer:
            for part in parts:
                writer.write_table(parquet.read_table(part, schema=self._schema()))

    def _schema(self) -> Any:
        import pyarrow as pa

        vector = pa.list_(pa.float32(), self.width)
        if self.tokens:
            return pa.schema([("text", pa.string()), ("tokens", pa.list_(pa.string())), ("vectors", pa.list_(vector))])
        return pa.schema([("text", pa.string()), ("vector", vector)])


_FORMATS: dict[str, type[VectorFormat]] = {"npy": Npy, "jsonl": Jsonl, "parquet": Parquet}


_TABLE_ADVICE = "use parquet or jsonl, which table libraries read: pandas.read_json('vectors.jsonl', lines=True)"
_ARRAY_ADVICE = "use npy, which numpy.load reads"
ALTERNATIVE_FORMATS = {
    **dict.fromkeys(("csv", "tsv", "txt", "xlsx", "feather"), _TABLE_ADVICE),
    **dict.fromkeys(("pt", "pth", "npz", "h5", "bin", "safetensors"), _ARRAY_ADVICE),
    "json": "use jsonl, one object per line",
}
"""Alternatives to unsupported formats, by suffix."""


def find_format(name: str) -> type[VectorFormat]:
    """Find a format by its name, which is also its suffix. Raises OptionError, listing the names, if it is unknown."""
    if name not in _FORMATS:
        error = unknown_name_error("format of vectors", name, _FORMATS)
        raise OptionError(
            error.what, expected=error.expected, got=error.got, do=ALTERNATIVE_FORMATS.get(name.lower(), error.do)
        )
    return _FORMATS[name]


def check_finite(vectors: Vectors) -> None:
    """Raise CheckpointError if a vector contains NaN or Inf."""
    if not all(np.isfinite(row).all() for row in vectors):
        raise CheckpointError(
            "the model gives vectors that are not finite",
            expected="finite numbers",
            got="NaN or Inf",
            do="the weights are damaged or overflow in this dtype: load them again, in float32",
        )


def _offsets_path(out: Path) -> Path:
    return out.with_name(f"{out.name}.offsets.npy")


def _write_offsets(path: Path, lengths: Lengths) -> None:
    """Write 0, then the cumulative number of tokens after each row, as int64."""
    with path.open("wb") as file:
        _write_npy_header(file, "<i8", (sum(1 for _ in lengths()) + 1,))
        for offset in accumulate(lengths(), initial=0):
            file.write(offset.to_bytes(8, "little"))


def _write_npy_header(file: ByteSink, dtype: str, shape: tuple[int, ...]) -> None:
    np.lib.format.write_array_header_1_0(file, {"descr": dtype, "fortran_order": False, "shape": shape})


def _empty_vectors(width: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.empty((0, width), np.float32)


def _format_vector(vector: np.ndarray[Any, np.dtype[np.float32]]) -> str:
    return "[" + ", ".join(f"{number:.9g}" for number in vector.tolist()) + "]"
