"""Files of episodes: one .npz for each environment, without pickle.

    environment            its name
    lengths (episodes,)    the number of time steps of each episode
    actions (steps, ..), rewards (steps,), observations/KEY (steps, ..)      of all episodes behind one another

Texts are arrays of Unicode. Equal episodes give equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from regard.atomic_write import atomic_write
from regard.control import Episode
from regard.errors import DataError, OptionError, short_repr, write_error
from regard.tasks.control.array_archive import KINDS, MAX_BYTES, file_error, is_text, read_arrays

_PREFIX = "observations/"
_OTHERS = {"environment", "lengths", "actions", "rewards"}
_HEADERS = 2**20
"""Bytes that the names and shapes of all arrays take at most."""


def write_episodes(path: str | Path, name: str, episodes: Sequence[Episode]) -> None:
    """Write the episodes of the environment ``name``; the file appears complete or not at all.

    Of several processes that write the same file, the last one wins. Raises OptionError without episodes, DataError for
    objects that are no arrays or texts and for more than ``MAX_BYTES``, OutputError for a path that cannot be written.
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
    others = [key for key, one in arrays.items() if not _is_read(one)]
    if others:
        raise DataError(
            "the episodes hold values that are neither numbers nor texts",
            expected="arrays of numbers, and texts",
            got=", ".join(f"{key} of {arrays[key].dtype}" for key in others),
            do="convert them to arrays",
        )
    size = sum(one.nbytes for one in arrays.values())
    if size > MAX_BYTES - _HEADERS:
        raise DataError(
            "the episodes are too large for one file",
            expected=f"at most {MAX_BYTES - _HEADERS:,} bytes",
            got=f"{size:,} bytes",
            do="write several files",
        )
    try:
        with atomic_write(Path(path), writers=2) as aside, aside.open("wb") as file:
            np.savez_compressed(file, **arrays)
    except OSError as error:
        raise write_error(f"{path} cannot be written", error) from error


def read_episodes(path: str | Path) -> tuple[str, list[Episode]]:
    """Read a file of episodes: the name of the environment, and the episodes.

    Raises DataError for a file that is missing, broken, too large, or of another kind.
    """
    arrays = read_arrays(path)
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


def _is_read(values: NDArray[Any]) -> bool:
    """Whether ``read_episodes`` reads such an array."""
    return values.dtype.kind in KINDS and (values.dtype.kind != "U" or is_text(values))


def _take(values: NDArray[Any], step: int) -> Any:
    return str(values[step]) if values.dtype.kind == "U" else values[step]


def _check_arrays(path: str | Path, arrays: dict[str, NDArray[Any]]) -> NDArray[np.int64]:
    """Raise DataError unless the arrays are those of a file of episodes; return their lengths."""
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
