"""Files of episodes: one .npz for each environment, without pickle.

    environment            its name
    lengths (episodes,)    the number of time steps of each episode
    actions (steps, ..), rewards (steps,), observations/KEY (steps, ..)      all episodes concatenated

Texts are arrays of Unicode. Equal episodes give equal bytes.

Arrays of a .npz file that may be broken or hostile: every size is checked before its memory is taken.

A .npz is a zip of .npy files, each a header (dtype, shape) and the numbers. ``numpy.load`` allocates what the header
says. Here the header must agree with the size in the directory of the zip, that size with what DEFLATE can make of the
stored bytes (1,032 times as much at most: https://zlib.net/zlib_tech.html), these with the size of the file, and all
arrays together with ``MAX_BYTES``. Arrays that only pickle can read are refused.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.arguments import explain_arguments
from regard.atomic_write import atomic_write
from regard.control import Episode
from regard.errors import DataError, OptionError, short_repr, write_error

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
            for info in members:
                _check_array_header(archive, info)
            return {member.filename.removesuffix(_SUFFIX): _read_array(archive, member) for member in members}
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
    names = [member.filename for member in members]
    if len(set(names)) != len(names):
        raise ValueError("two arrays have the same name")
    if sum(member.compress_size for member in members) > file_size:
        raise ValueError(f"the arrays take more than the {file_size:,} bytes of the file")
    for info in members:
        if not info.filename.endswith(_SUFFIX):
            raise ValueError(f"{info.filename!r} is not an array")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{info.filename} is compressed by method {info.compress_type}")
        if info.file_size > _DEFLATE_RATIO * info.compress_size + _DEFLATE_SLACK:
            raise ValueError(f"{info.filename} cannot have {info.file_size:,} bytes in {info.compress_size:,}")
    total = sum(member.file_size for member in members)
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


_PREFIX = "observations/"
_OTHERS = {"environment", "lengths", "actions", "rewards"}
_HEADERS = 2**20
"""Bytes that the names and shapes of all arrays take at most."""


@explain_arguments
def write_episodes(path: str | Path, name: str, episodes: Sequence[Episode]) -> None:
    """Write the episodes of the environment ``name``; the file appears complete or not at all.

    Of several processes that write the same file, the last one wins. Raises OptionError without episodes, DataError for
    objects that are no arrays or texts and for more than ``MAX_BYTES``, OutputError for a path that cannot be written.
    """
    if not episodes:
        raise OptionError(
            "there are no episodes to write", expected="1 or more", got="none", do="collect_episodes(name, range(10))"
        )
    steps = [observation for episode in episodes for observation in episode.observations]
    arrays: dict[str, Any] = {
        "environment": np.array(name),
        "lengths": np.array([len(recorded) for recorded in episodes]),
        "actions": np.stack([action for episode in episodes for action in episode.actions]),
        "rewards": np.array([reward for episode in episodes for reward in episode.rewards], dtype=np.float64),
    }
    arrays |= {_PREFIX + key: np.stack([step[key] for step in steps]) for key in sorted(steps[0])}
    others = [key for key, stored in arrays.items() if not _is_read(stored)]
    if others:
        raise DataError(
            "the episodes hold values that are neither numbers nor texts",
            expected="arrays of numbers, and texts",
            got=", ".join(f"{key} of {arrays[key].dtype}" for key in others),
            do="convert them to arrays",
        )
    size = sum(array.nbytes for array in arrays.values())
    if size > MAX_BYTES - _HEADERS:
        raise DataError(
            "the episodes are too large for one file",
            expected=f"at most {MAX_BYTES - _HEADERS:,} bytes",
            got=f"{size:,} bytes",
            do="write several files",
        )
    try:
        with atomic_write(Path(path), writers=2) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)
    except OSError as error:
        raise write_error(f"{path} cannot be written", error) from error


@explain_arguments
def read_episodes(path: str | Path) -> tuple[str, list[Episode]]:
    """Read a file of episodes: the name of the environment, and the episodes.

    Raises DataError for a file that is missing, broken, too large, or of another kind.
    """
    arrays = read_arrays(path)
    lengths = _check_arrays(path, arrays)
    ends = np.cumsum(lengths)
    observed = {key.removeprefix(_PREFIX): stored for key, stored in arrays.items() if key.startswith(_PREFIX)}
    episodes = []
    for start, end in zip(ends - lengths, ends, strict=True):
        observations = [{key: _take(part, step) for key, part in observed.items()} for step in range(start, end)]
        episodes.append(
            Episode(observations, list(arrays["actions"][start:end]), arrays["rewards"][start:end].tolist())
        )
    return str(arrays["environment"]), episodes


def _is_read(values: NDArray[Any]) -> bool:
    """Whether ``read_episodes`` reads such an array."""
    return values.dtype.kind in KINDS and (values.dtype.kind != "U" or is_text(values))


def _take(values: NDArray[Any], step: int) -> Any:
    return str(values[step]) if values.dtype.kind == "U" else values[step]


def _check_arrays(path: str | Path, arrays: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Raise DataError unless the arrays belong to a file of episodes; return their lengths."""
    missing = _OTHERS - set(arrays)
    strange = [key for key in arrays if key not in _OTHERS and not key.startswith(_PREFIX)]
    if missing or strange:
        raise file_error(path, f"arrays {', '.join(sorted(arrays))}")
    name, lengths, rewards = arrays["environment"], arrays["lengths"], arrays["rewards"]
    if name.dtype.kind != "U" or name.ndim:
        raise file_error(path, f"environment {short_repr(name)}")
    # Rewards take bytes, so a file cannot claim more time steps than it has room for.
    if rewards.dtype.kind != "f" or rewards.ndim != 1:
        raise file_error(path, f"rewards {short_repr(rewards)}")
    if lengths.ndim != 1 or lengths.dtype.kind != "i" or not lengths.size or lengths.min() < 1:
        raise file_error(path, f"lengths {short_repr(lengths)}")
    steps = len(rewards)
    if len(lengths) > steps or lengths.max() > steps or lengths.sum(dtype=np.int64) != steps:
        raise file_error(path, f"lengths that do not add up to {steps:,} time steps")
    for key in set(arrays) - {"environment", "lengths"}:
        if arrays[key].ndim < 1 or len(arrays[key]) != steps:
            raise file_error(path, f"{key} of shape {arrays[key].shape} for {steps:,} time steps")
    return lengths.astype(np.int64)
