"""Files of episodes: one .npz for each environment, without pickle.

    environment            its name
    lengths (episodes,)    the number of time steps of each episode
    actions (steps, ..), rewards (steps,), observations/KEY (steps, ..)      of all episodes behind one another

Texts are arrays of Unicode. Equal episodes give equal bytes.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.atomic_write import atomic_write
from regard.control import Episode
from regard.errors import DataError, OptionError, short_repr, write_error

_PREFIX = "observations/"
_OTHERS = {"environment", "lengths", "actions", "rewards"}


def write_episodes(path: str | Path, name: str, episodes: Sequence[Episode]) -> None:
    """Write the episodes of the environment ``name``; the file appears complete or not at all.

    Raises OptionError without episodes, DataError for objects that are no arrays or texts, OutputError for a path that
    cannot be written.
    """
    if not episodes:
        raise OptionError(
            "there are no episodes to write", expected="1 or more", got="none", do="collect_episodes(name, range(10))"
        )
    steps = [one for episode in episodes for one in episode.observations]
    arrays: dict[str, Any] = {
        "environment": np.array(name),
        "lengths": np.array([len(one) for one in episodes]),
        "actions": np.stack([one for episode in episodes for one in episode.actions]),
        "rewards": np.array([one for episode in episodes for one in episode.rewards], dtype=np.float64),
    }
    arrays |= {_PREFIX + key: np.stack([one[key] for one in steps]) for key in sorted(steps[0])}
    objects = [key for key, one in arrays.items() if one.dtype.hasobject]
    if objects:
        raise DataError(
            "the episodes hold Python objects, which only pickle could write",
            expected="arrays of numbers, and texts",
            got=", ".join(objects),
            do="convert them to arrays",
        )
    try:
        with atomic_write(Path(path)) as aside, aside.open("wb") as file:
            np.savez_compressed(file, **arrays)
    except OSError as error:
        raise write_error(f"{path} cannot be written", error) from error


def read_episodes(path: str | Path) -> tuple[str, list[Episode]]:
    """Read a file of episodes: the name of the environment, and the episodes.

    Raises DataError for a file that is missing, broken, or of another kind.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise _file_error(path, str(error)[:200]) from error
    lengths = _check_arrays(path, arrays)
    ends = np.cumsum(lengths)
    observed = {key.removeprefix(_PREFIX): one for key, one in arrays.items() if key.startswith(_PREFIX)}
    episodes = []
    for start, end in zip(ends - lengths, ends, strict=True):
        observations = [{key: _take(one, step) for key, one in observed.items()} for step in range(start, end)]
        episodes.append(
            Episode(observations, list(arrays["actions"][start:end]), arrays["rewards"][start:end].tolist())
        )
    return str(arrays["environment"]), episodes


def _take(values: NDArray[Any], step: int) -> Any:
    return str(values[step]) if values.dtype.kind == "U" else values[step]


def _check_arrays(path: str | Path, arrays: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Raise DataError unless the arrays are those of a file of episodes; return their lengths."""
    missing = _OTHERS - set(arrays)
    strange = [key for key in arrays if key not in _OTHERS and not key.startswith(_PREFIX)]
    if missing or strange:
        raise _file_error(path, f"arrays {', '.join(sorted(arrays))}")
    lengths = arrays["lengths"]
    if lengths.ndim != 1 or lengths.dtype.kind != "i" or not lengths.size or lengths.min() < 1:
        raise _file_error(path, f"lengths {short_repr(lengths)}")
    for key in set(arrays) - {"environment", "lengths"}:
        if arrays[key].ndim < 1 or len(arrays[key]) != lengths.sum():
            raise _file_error(path, f"{key} of shape {arrays[key].shape} for {lengths.sum()} time steps")
    return lengths.astype(np.int64)


def _file_error(path: str | Path, got: str) -> DataError:
    return DataError(
        f"{path} is not a file of episodes",
        expected="a .npz that write_episodes wrote",
        got=got,
        do="collect the episodes again",
    )
