"""Arrays of a .npz file that may be broken or hostile: every size is checked before its memory is taken.

A .npz is a zip of .npy files, each a header (dtype, shape) and the numbers. ``numpy.load`` allocates what the header
says. Here the header must agree with the size in the directory of the zip, that size with what DEFLATE can make of the
stored bytes (1,032 times as much at most: https://zlib.net/zlib_tech.html), these with the size of the file, and all
arrays together with ``MAX_BYTES``. Arrays that only pickle can read are refused.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.errors import DataError

MAX_BYTES = 2**32
"""The most bytes of all arrays of a file."""
KINDS = "biufU"
"""Kinds of dtypes that are read: Booleans, integers, real numbers and Unicode."""
_SUFFIX = ".npy"
_DEFLATE_RATIO = 1032
_DEFLATE_SLACK = 64
"""Bytes that may exceed the ratio in a short stream, whose last bits are not a whole byte."""
_MAX_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


def read_arrays(path: str | Path) -> dict[str, NDArray[Any]]:
    """Read the arrays of a .npz file by their names. Raises DataError, which names the file, if it cannot be used."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            _check_directory(members, Path(path).stat().st_size)
            for one in members:
                _check_array_header(archive, one)
            return {one.filename.removesuffix(_SUFFIX): _read_array(archive, one) for one in members}
    except Exception as error:  # OSError, BadZipFile, zlib.error, NotImplementedError, tokenize.TokenError ..
        raise file_error(path, str(error)[:200] or type(error).__name__) from error


def is_text(array: NDArray[np.str_]) -> bool:
    """Whether an array of Unicode holds characters alone: no surrogates, and no numbers above the last character."""
    if not array.dtype.itemsize:
        return True
    points = array.astype(array.dtype.newbyteorder("=")).reshape(-1).view(np.uint32)
    is_surrogate = (points >= _SURROGATES.start) & (points < _SURROGATES.stop)
    return not (is_surrogate | (points > _MAX_CODE_POINT)).any()


def file_error(path: str | Path, got: str) -> DataError:
    """The error of a file that does not hold episodes."""
    return DataError(
        f"{path} is not a file of episodes",
        expected="a .npz that write_episodes wrote",
        got=got,
        do="collect the episodes again",
    )


def _check_directory(members: list[zipfile.ZipInfo], file_size: int) -> None:
    """Raise ValueError for a directory whose sizes cannot be true, or are too large."""
    names = [one.filename for one in members]
    if len(set(names)) != len(names):
        raise ValueError("two arrays have the same name")
    if sum(one.compress_size for one in members) > file_size:
        raise ValueError(f"the arrays take more than the {file_size:,} bytes of the file")
    for one in members:
        if not one.filename.endswith(_SUFFIX):
            raise ValueError(f"{one.filename!r} is not an array")
        if one.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{one.filename} is compressed by method {one.compress_type}")
        if one.file_size > _DEFLATE_RATIO * one.compress_size + _DEFLATE_SLACK:
            raise ValueError(f"{one.filename} cannot have {one.file_size:,} bytes in {one.compress_size:,}")
    total = sum(one.file_size for one in members)
    if total > MAX_BYTES:
        raise ValueError(f"arrays of {total:,} bytes, more than {MAX_BYTES:,}")


def _check_array_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    """Raise ValueError unless the header of an array has the size that the directory says, and another error of NumPy.

    NumPy reads at most 10,000 characters of a header.
    """
    with archive.open(member) as stream:
        version = np.lib.format.read_magic(stream)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise ValueError(f"{member.filename} has version {version} of the format")
        shape, _, dtype = readers[version](stream)
        header = stream.tell()
    if dtype.kind not in KINDS:
        raise ValueError(f"{member.filename} holds {dtype}, neither numbers nor texts")
    if any(type(edge) is not int or edge < 0 for edge in shape):
        raise ValueError(f"{member.filename} has the shape {shape}")
    expected = header + math.prod(shape) * dtype.itemsize
    if expected != member.file_size:
        raise ValueError(f"{member.filename} has {member.file_size:,} bytes where its header says {expected:,}")


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Read an array whose sizes were checked. The zip compares the checksum when its last byte is read."""
    with archive.open(member) as stream:
        array: NDArray[Any] = np.lib.format.read_array(stream, allow_pickle=False)
    if array.dtype.kind == "U" and not is_text(array):
        raise ValueError(f"{member.filename} holds numbers that are no characters")
    return array
