"""Linear layers with int8 and int4 weights, few tokens to many: regard, torch, and torch's dynamic quantization.

    native          regard's layer with weights in the format of the case; tokens are bfloat16
    native-bf16     regard's layer with bfloat16 weights and tokens
    native-fp32     regard's layer with float32 weights and tokens
    torch-linear    torch.nn.Linear in float32
    torch-int8      torch.ao's layer with int8 weights, which rounds float32 tokens in each call (oneDNN, FBGEMM)

A result is compared with the float64 product of the weights before they were rounded. The allowed error follows from
the formats: steps of a uniform rounding have a mean square error of step^2 / 12.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.accuracy import Deviation, deviation
from benchmarks.case import Case, Contestant, PreparedCase, Suite, Work
from benchmarks.optional_imports import missing_package_error
from benchmarks.targets import Faster, MaxTimeRatio, Target
from regard.layers.projection import linear_activation
from regard.layers.quantized_linear import Int4Linear, Int8Linear

_ROWS = (1, 4, 8, 16, 64, 512)
_INPUTS, _OUTPUTS = 2048, 8192
_MAX_TIMES = {1: 0.55, 4: 0.55, 8: 0.6, 16: 0.7}
"""Largest share of the time of bfloat16 weights with int8 weights, by rows."""
_LAYERS = {"int8": Int8Linear, "int4": Int4Linear}
_GROUP = 64
_BF16_ERROR, _FP32_ERROR = 1e-2, 1e-5
_MARGIN = 1.25
"""Allowed error, as a multiple of the expected one: a mean over thousands of products varies little."""


def _rounding_error(values: Tensor, group: int, levels: int, *, symmetric: bool) -> float:
    """The expected error of uniform rounding in groups of a row, relative to the norm of the values."""
    grouped = values.float().view(-1, group)
    range_ = 2 * grouped.abs().amax(1) if symmetric else grouped.amax(1) - grouped.amin(1)
    mean_square = (range_ / levels).square().mean() / 12
    return float((mean_square / grouped.square().mean()).sqrt())


@final
class _Problem:
    """The tensors, and the contestants."""

    def __init__(self, weights: str, rows: int) -> None:
        generator = torch.Generator().manual_seed(2015)
        self.weights = weights
        self.tokens = torch.randn(rows, _INPUTS, generator=generator)
        self.linear = nn.Linear(_INPUTS, _OUTPUTS)
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(_OUTPUTS, _INPUTS, generator=generator) * _INPUTS**-0.5)
            self.linear.bias.copy_(torch.randn(_OUTPUTS, generator=generator))
        self.linear.requires_grad_(False)

    def contestant(self, name: str) -> Contestant:
        """Return the contestant of that name. Raises MissingPackageError if torch has no such layer here."""
        makers: dict[str, Callable[[], tuple[Callable[[], Tensor], float]]] = {
            "native": self._few_bits,
            "native-bf16": self._bf16,
            "native-fp32": lambda: (partial(linear_activation, self.tokens, self.linear), _FP32_ERROR),
            "torch-linear": lambda: (partial(self.linear, self.tokens), _FP32_ERROR),
            "torch-int8": self._torch_int8,
        }
        compute, allowed = makers[name]()
        return Contestant(compute, partial(self._deviations, compute, allowed))

    def _few_bits(self) -> tuple[Callable[[], Tensor], float]:
        """Regard's layer: int8 or 16 levels for weights, int8 for tokens, in groups of 64."""
        layer = _LAYERS[self.weights].from_linear(self.linear)
        tokens = _rounding_error(self.tokens, _GROUP, 254, symmetric=True)
        levels, symmetric = (254, True) if self.weights == "int8" else (15, False)
        weights = _rounding_error(self.linear.weight, _GROUP, levels, symmetric=symmetric)
        allowed = _MARGIN * (tokens**2 + weights**2 + _BF16_ERROR**2) ** 0.5
        return partial(linear_activation, self.tokens.bfloat16(), layer), allowed

    def _bf16(self) -> tuple[Callable[[], Tensor], float]:
        layer = nn.Linear(_INPUTS, _OUTPUTS, dtype=torch.bfloat16).requires_grad_(False)
        layer.load_state_dict(self.linear.state_dict())
        return partial(linear_activation, self.tokens.bfloat16(), layer), _BF16_ERROR

    def _torch_int8(self) -> tuple[Callable[[], Tensor], float]:
        """torch.ao: one scale for all weights, and one for all tokens, of which FBGEMM uses 7 bits."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch.ao is to move to another package
                layer = torch.ao.quantization.quantize_dynamic(nn.Sequential(self.linear), {nn.Linear}, torch.qint8)
                layer(self.tokens[:1])
        except (AttributeError, RuntimeError):
            raise missing_package_error("torch.ao's layer with int8 weights", "torch with FBGEMM or oneDNN") from None
        tokens = _rounding_error(self.tokens, _INPUTS, 127, symmetric=True)
        whole = self.linear.weight.view(1, -1)
        weights = _rounding_error(whole, whole.numel(), 254, symmetric=True)
        return partial(layer, self.tokens), _MARGIN * (tokens**2 + weights**2) ** 0.5

    def _deviations(self, compute: Callable[[], Tensor], allowed: float) -> Iterator[Deviation]:
        product = functional.linear(self.tokens.double(), self.linear.weight.double())
        yield deviation("product", compute().double() - self.linear.bias.double(), product, allowed)


def _case(weights: str, rows: int) -> Case:
    contestants = ("native", "native-bf16", "native-fp32", "torch-linear", "torch-int8")

    def prepare() -> PreparedCase:
        problem = _Problem(weights, rows)
        work = Work(2.0 * rows * _INPUTS * _OUTPUTS, "GFLOP/s")
        return PreparedCase(work, {name: partial(problem.contestant, name) for name in contestants})

    targets: tuple[Target, ...] = (Faster("torch-int8", 1.0),)
    if weights == "int8" and rows in _MAX_TIMES:
        targets = (*targets, MaxTimeRatio("native-bf16", _MAX_TIMES[rows]))
    return Case(
        f"{weights} {rows} x {_INPUTS} to {_OUTPUTS}",
        f"{rows} tokens, {_INPUTS:,} inputs, {_OUTPUTS:,} outputs",
        prepare,
        contestants,
        targets,
        quick=rows in (1, 16),
    )


SUITE = Suite(
    name="few-bits",
    title="Linear layers with int8 and int4 weights",
    description="Layers without gradients, with weights in the format of the case, compared with other formats.",
    cases=tuple(_case(weights, rows) for weights in _LAYERS for rows in _ROWS),
    notes=(
        "regard: a scale for each group of 64 inputs, and tokens rounded to int8 in each call; tokens and results are "
        "bfloat16. torch, int8: torch.ao's dynamic quantization, with one scale for all weights; tokens are float32.",
        "The same weights are read in each call: those of int8 and int4 may fit a last-level cache where bfloat16 does "
        "not.",
    ),
    kernels=(
        "linear/projection.h",
        "linear/linear.h",
        "linear/integer_linear.h",
        "linear/integer_tables.cpp",
    ),
)
