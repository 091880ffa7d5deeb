"""Linear layers without gradients, as in a model that reads: y = a(x W^T + b), against torch's layer and oneDNN.

    native          regard's kernel for many tokens (``kernels/operators/linear_op.py``), with the activation in it
    torch-linear    torch.nn.functional.linear, and the activation after it
    onednn          the operator of oneDNN that torch has for its compiler, with the activation in it

The sizes are those of MiniLM (width 384), GPT-2 small (768) and a layer of width 512, for a sentence, a passage and a
long text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import final

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.accuracy import Deviation, deviation
from benchmarks.case import Case, Contestant, PreparedCase, Suite, Work
from benchmarks.optional_imports import missing_package_error
from benchmarks.peaks import arithmetic_peaks
from benchmarks.problem import DTYPE_NAMES
from benchmarks.targets import Faster
from regard.kernels.operators.linear_op import can_multiply, multiply

_SIZES = {
    "32 x 384 to 1536": (32, 384, 1536),
    "128 x 768 to 768": (128, 768, 768),
    "1024 x 768 to 3072": (1024, 768, 3072),
    "1024 x 3072 to 768": (1024, 3072, 768),
    "8192 x 512 to 512": (8192, 512, 512),
}
_TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


@final
class _LinearProblem:
    """The tensors, and the contestants."""

    def __init__(self, dtype: torch.dtype, sizes: tuple[int, int, int], *, activated: bool) -> None:
        rows, inputs, outputs = sizes
        generator = torch.Generator().manual_seed(2008)
        self.tokens = torch.randn(rows, inputs, generator=generator).to(dtype)
        self.weight = (torch.randn(outputs, inputs, generator=generator) * inputs**-0.5).to(dtype)
        self.bias = torch.randn(outputs, generator=generator).to(dtype)
        self.activated = activated

    def contestant(self, name: str) -> Contestant:
        """Return the contestant of that name. Raises MissingPackageError if this machine does not have it."""
        compute = {"native": self._native, "torch-linear": self._torch, "onednn": self._onednn}[name]()
        return Contestant(compute, partial(self._deviations, compute))

    def _native(self) -> Callable[[], Tensor]:
        if not can_multiply(self.tokens, self.weight, self.bias):
            raise missing_package_error("kernel for this dtype", "a processor with AVX-512 and fast bfloat16")
        activation = "gelu_tanh" if self.activated else "identity"
        return partial(multiply, self.tokens, self.weight, self.bias, activation)

    def _torch(self) -> Callable[[], Tensor]:
        if not self.activated:
            return partial(functional.linear, self.tokens, self.weight, self.bias)
        return lambda: functional.gelu(functional.linear(self.tokens, self.weight, self.bias), approximate="tanh")

    def _onednn(self) -> Callable[[], Tensor]:
        operator = torch.ops.mkldnn._linear_pointwise.default
        name, algorithm = ("gelu", "tanh") if self.activated else ("none", "")
        return partial(operator, self.tokens, self.weight, self.bias, name, [], algorithm)

    def _deviations(self, compute: Callable[[], Tensor]) -> Iterator[Deviation]:
        exact = functional.linear(self.tokens.double(), self.weight.double(), self.bias.double())
        expected = functional.gelu(exact, approximate="tanh") if self.activated else exact
        yield deviation("output", compute(), expected, _TOLERANCES[self.tokens.dtype])


def _case(dtype: torch.dtype, sizes: str, *, activated: bool) -> Case:
    def prepare() -> PreparedCase:
        problem = _LinearProblem(dtype, _SIZES[sizes], activated=activated)
        rows, inputs, outputs = _SIZES[sizes]
        work = Work(2.0 * rows * inputs * outputs, "GFLOP/s", arithmetic_peaks(dtype))
        return PreparedCase(work, {name: partial(problem.contestant, name) for name in contestants})

    contestants = ("native", "torch-linear", "onednn")
    rows, inputs, outputs = _SIZES[sizes]
    return Case(
        f"{DTYPE_NAMES[dtype]} {sizes}{' gelu' if activated else ''}",
        f"{rows:,} tokens, {inputs:,} inputs, {outputs:,} outputs{', and GELU (tanh)' if activated else ''}",
        prepare,
        contestants,
        (Faster("torch-linear", 1.0), Faster("onednn", 1.0)),
        quick=rows <= 128,
    )


SUITE = Suite(
    name="linear",
    title="Linear layers",
    description="Layers of many tokens without gradients, compared with torch's (in float32 MKL) and oneDNN.",
    cases=tuple(
        _case(dtype, sizes, activated=activated)
        for dtype in (torch.float32, torch.bfloat16)
        for sizes in _SIZES
        for activated in ((False, True) if sizes == "1024 x 768 to 3072" else (False,))
    ),
    notes=(
        "Regard's layers use this kernel on AMD processors, and in bfloat16 where products of pairs are fast or there "
        "is no AVX-512. Elsewhere they use torch's layer, or oneDNN.",
        "The operations are those of the product.",
    ),
    kernels=("linear/linear.h",),
)
