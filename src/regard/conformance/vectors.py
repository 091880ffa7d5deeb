"""Cases in a file, for kernels in other languages.

Each tensor is ``NUMBER/NAME``: the arguments by their names, ``upstream`` (the gradient of the output), and what a
kernel should return: ``expected/output``, ``expected/lse``, ``expected/state`` and ``expected/gradient/NAME``.
``bound/RESULT`` is the allowed error of each in float32. All are float64; masks have 1 where a query may attend, and
scalars are tensors of one number. A window is two numbers, keys before and after the query's own, with -1 for no
bound. NaN is not compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from regard.conformance.cases import Case
from regard.errors import OptionError, write_error

SUFFIXES = (".safetensors", ".npz")


def check_vector_file(path: Path) -> None:
    """Raise OptionError unless the suffix is one that vectors can be written as."""
    if path.suffix not in SUFFIXES:
        raise OptionError(
            f"the name {path.name!r} does not say what to write",
            expected=f"a name that ends in {' or '.join(SUFFIXES)}",
            got=path.suffix or "no suffix",
            do=f"name it {path.with_suffix(SUFFIXES[0]).name}",
        )


def write_vectors(cases: Sequence[Case], path: Path) -> None:
    """Write cases to a file of tensors. Raises OptionError for another suffix, OutputError if it cannot be written."""
    check_vector_file(path)
    tensors = {f"{number}/{name}": array for number, case in enumerate(cases) for name, array in _tensors(case).items()}
    try:
        if path.suffix == ".npz":
            np.savez(path, names=np.array([case.name for case in cases]), **tensors)  # type: ignore[arg-type]
            return
        from safetensors.numpy import save_file

        save_file(tensors, path, {str(number): case.name for number, case in enumerate(cases)})
    except OSError as error:
        raise write_error(f"the vectors {path} cannot be written", error) from error


def _tensors(case: Case) -> Mapping[str, np.ndarray]:
    expected, bounds = case.expected, case.bounds("float32")
    tensors = {
        name: _to_array(value) for name, value in case.arguments.items() if value is not None and name != "align"
    }
    tensors["upstream"] = case.upstream
    results = {name: getattr(expected, name) for name in ("output", "lse", "state")}
    tensors |= {f"expected/{name}": array for name, array in results.items() if array is not None}
    tensors |= {f"expected/gradient/{name}": array for name, array in expected.gradients.items() if name in case.inputs}
    tensors |= {
        f"bound/{name}": np.array([bound])
        for name, bound in bounds.items()
        if name in ("output", "lse", "state", *case.inputs)
    }
    return {name: np.ascontiguousarray(array, dtype=np.float64) for name, array in tensors.items()}


def _to_array(value: object) -> np.ndarray:
    if isinstance(value, tuple):
        return np.array([-1 if bound is None else bound for bound in value])
    return value if isinstance(value, np.ndarray) else np.array([value])
