"""Compare flash-linear-attention's kernels, as ``impl="fla"`` calls them, with the oracle: in Triton's interpreter.

    TRITON_INTERPRET=1 PYTHONPATH=build/frameworks:tests python -m kernels.fla_in_interpreter "gated delta" ...

Prints, for each variant of the scan family, and for each with several texts in a row, the largest error of each result
as a multiple of float32's rounding of the largest number in it. Two things that kernels use do not exist in the
interpreter: a device on which the variants of a kernel are timed (the first is taken), and ``.to(...)`` of the
numbers of a loop.
"""

import builtins
import json
import sys
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
import triton.language as tl
from triton.runtime.autotuner import Autotuner

from kernels.scan_inputs import VARIANTS, make_inputs
from regard.conformance.oracles.scan import scan
from regard.kernels.implementations.scan_fla import run_fla
from regard.kernels.reference.scan import ScanRequest

Autotuner._bench = lambda self, *arguments, **options: [1.0, 1.0, 1.0]
LENGTH, HEAD_DIM, VALUE_DIM, SCALE = 67, 16, 24, 0.3
STARTS = [3, 4, 40]
EPSILON = 1e-30


class Index(int):
    """The number of a turn of a loop, which converts itself to a tensor as compiled ones do."""

    def to(self, dtype: tl.dtype) -> tl.tensor:
        return tl.full((), int(self), dtype)


def count(*bounds: int, **options: object) -> Iterator[Index]:
    return map(Index, builtins.range(*map(int, bounds)))


def find_kernel(module: str, function: str):
    """Import a function of fla, and let loops of all its modules count with ``Index``."""
    found = getattr(__import__(f"fla.ops.{module}", fromlist=[function]), function)
    for name, loaded in list(sys.modules.items()):
        if name.startswith("fla.ops"):
            loaded.range = count
    return found


def scan_row(starts: list[int], **options):
    """The oracle, for each text of the row, whose first tokens are ``starts``; the state is of the first text."""
    bounds, outputs, state = [0, *starts, LENGTH], [], options.pop("state", None)
    scale = options.pop("scale")
    for first, last in pairwise(bounds):
        output, final = scan(
            **{name: part[:, :, first:last] for name, part in options.items()}, state=state, scale=scale
        )
        outputs, state = [*outputs, output], None
    return np.concatenate(outputs, 2), final


def compare(variant: str, starts: list[int]) -> dict[str, float]:
    """Return the errors of output, final state and gradients of one variant, with an initial state."""
    wide = make_inputs(variant, LENGTH, HEAD_DIM, VALUE_DIM, batch=1, heads=2)
    narrow = {name: None if part is None else part.float().requires_grad_() for name, part in wide.items()}
    begins = torch.isin(torch.arange(LENGTH), torch.tensor(starts, dtype=torch.long))[None] if starts else None
    result = run_fla(ScanRequest(**narrow, scale=SCALE, starts=begins), find_kernel)
    arrays = {name: part.detach().double().numpy() for name, part in narrow.items() if part is not None}
    if "beta" in arrays:
        arrays["beta"] = arrays["beta"][..., 0]
    output, state = scan_row(starts, **arrays, scale=SCALE)
    generator = torch.Generator().manual_seed(7)
    upstream = [torch.randn(part.shape, generator=generator) for part in result]
    errors = {"output": error_of(result.output, output), "state": error_of(result.state, state)}
    trained = [part for part in narrow.values() if part is not None]
    gradients = torch.autograd.grad(list(result), trained, upstream)
    for name, gradient in zip(arrays, gradients, strict=True):
        errors[f"gradient of {name}"] = error_along(arrays, name, gradient, upstream, starts)
    return errors


def error_of(actual: torch.Tensor, expected: np.ndarray) -> float:
    difference = np.abs(actual.detach().double().numpy() - expected).max()
    return float(difference / np.abs(expected).max() * 2**24)


def error_along(
    arrays: dict[str, np.ndarray], name: str, gradient: torch.Tensor, upstream: list, starts: list[int]
) -> float:
    """Compare the derivative along random directions, by a complex step in the oracle, with that of the gradient."""
    worst, largest, random = 0.0, 0.0, np.random.default_rng(11)
    for _ in range(3):
        direction = random.standard_normal(arrays[name].shape)
        results = scan_row(starts, **{**arrays, name: arrays[name] + 1j * EPSILON * direction}, scale=SCALE)
        slope = (
            sum((up.double().numpy() * part.imag).sum() for up, part in zip(upstream, results, strict=True)) / EPSILON
        )
        ours = (gradient.double().numpy().reshape(direction.shape) * direction).sum()
        worst, largest = max(worst, abs(ours - slope)), max(largest, np.abs(gradient.numpy() * 1.0).max())
    return float(worst / (largest * direction.size**0.5) * 2**24)


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(VARIANTS)
    errors = {variant: compare(variant, []) for variant in chosen}
    errors |= {f"{variant}, several texts": compare(variant, STARTS) for variant in chosen}
    print(json.dumps(errors))
