"""Linear layers whose weights are stored in few bits.

    int8    s_og = max_{k in g} |W_ok| / 127,  w_ok = round(W_ok / s_og)           W_ok ~ s_og w_ok
    int4    m_og = min_{k in g} W_ok,  s_og = (max_{k in g} W_ok - m_og) / 15,
            w_ok = round((W_ok - m_og) / s_og)                                     W_ok ~ s_og w_ok + m_og
            or of a smaller range, where that makes the squared error of the group smaller

Each group g of 64 inputs of an output has a scale, and with int4 a minimum, in bfloat16: Nagel et al. 2021, "A
white paper on neural network quantization", sections 2.2 and 2.4.2. The error of a weight is at most half of its scale.
A weight takes 8.25 bits with int8, and 4.5 with int4. One scale for a whole row would double the error of a sentence's
vector (MiniLM, int8).

A decoding step takes as long as reading the weights, and other calls as long as multiplying. So the native kernels
round tokens as well, and multiply bytes (``kernels.operators.integer_linear_op``). Where they do not compute, as under
``torch.compile`` and for tokens with gradients, weights are converted to the dtype of the tokens, which are not
rounded. The layers are for inference: weights get no gradient. They are stored as the kernels read them, in panels of
16 outputs: ``dense_weight`` is for everyone else.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Self, final

import torch
from jaxtyping import BFloat16, Float, Shaped, UInt8
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import RefusedError
from regard.kernels.operators.activation_op import NATIVE_ACTIVATIONS
from regard.kernels.operators.integer_linear_op import (
    GROUP,
    PANEL,
    UNIT,
    can_multiply_integers,
    is_few,
    multiply_integers,
)

_LARGEST_INT8, _LARGEST_INT4 = 127, 15
"""Largest stored weights; the int8 -128 is not used, so that the range is symmetric."""
_ROUNDED_UP = 1 + 2**-8
"""Makes scales so much larger that in bfloat16 none is too small for the largest weight of its group."""


class QuantizedLinear(nn.Module):
    """A linear layer with ``weight`` and ``scale`` in a format of few bits, and ``bias`` (out), which may be None."""

    format_name: str
    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(
        self, in_features: int, out_features: int, *, weight: Tensor, scale: Tensor, bias: Tensor | None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> Self:
        """Quantize the weights of a linear layer. Raises RefusedError for weights that are NaN or infinite."""
        weight = linear.weight.detach().float()
        finite = weight.isfinite().all(dim=1)
        if not bool(finite.all()):
            raise RefusedError(
                f"weights that are NaN or infinite cannot be stored as {cls.format_name}",
                expected="finite weights",
                got=f"{int((~finite).sum())} rows of {tuple(weight.shape)} with others",
                do=f"check the file of the weights, or use the model without {cls.format_name} weights",
            )
        bias = None if linear.bias is None else linear.bias.detach().clone()
        stored, scale = cls._quantize(weight)
        return cls(linear.in_features, linear.out_features, weight=stored, scale=scale, bias=bias)

    @staticmethod
    @abstractmethod
    def _quantize(weight: Float[Tensor, "out in"]) -> tuple[Tensor, Tensor]:
        """Compute the stored weight and scale of finite weights in float32, in panels."""

    @abstractmethod
    def dense_weight(self) -> Float[Tensor, "out in"]:
        """Compute the weights that the stored ones stand for, in float32."""

    def forward(self, tokens: Float[Tensor, "*rows in"]) -> Float[Tensor, "*rows out"]:
        """Transform tokens (.., in) to (.., out), in their dtype."""
        return self.activate(tokens, "identity") if self._multiplies(tokens) else self._multiply_dense(tokens)

    def can_activate(self, tokens: Tensor, activation: str) -> bool:
        """Whether ``activate`` computes this call: many tokens, and an activation that the kernels have."""
        return activation in NATIVE_ACTIVATIONS and not is_few(tokens) and self._multiplies(tokens)

    def activate(self, tokens: Float[Tensor, "*rows in"], activation: str) -> Float[Tensor, "*rows out"]:
        """Transform tokens, and apply the activation after it, for a call for which ``can_activate`` holds."""
        bias = self._bias_of(tokens)
        return multiply_integers(tokens, self.weight, self.scale, bias, self.out_features, activation)

    def _multiplies(self, tokens: Tensor) -> bool:
        return can_multiply_integers(tokens, self.in_features, self.weight, self.scale, self._bias_of(tokens))

    def _multiply_dense(self, tokens: Tensor) -> Tensor:
        return functional.linear(tokens, self.dense_weight().to(tokens.dtype), self._bias_of(tokens))

    def _bias_of(self, tokens: Tensor) -> Tensor | None:
        return None if self.bias is None else self.bias.to(tokens.dtype)

    def extra_repr(self) -> str:
        """Format the sizes for ``repr``."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


@final
class Int8Linear(QuantizedLinear):
    """A linear layer with int8 ``weight`` (panels, groups, 1024) and ``scale`` (panels, groups, 16) bfloat16."""

    format_name = "int8"

    @staticmethod
    def _quantize(weight: Float[Tensor, "out in"]) -> tuple[Tensor, Tensor]:
        outputs, inputs = weight.shape
        groups = -(-inputs // GROUP)
        grouped = functional.pad(weight, (0, groups * GROUP - inputs)).view(outputs, groups, GROUP)
        scale = (grouped.abs().amax(dim=2) / _LARGEST_INT8 * _ROUNDED_UP).bfloat16()
        divisor = torch.where(scale > 0, scale.float(), 1.0)[..., None]  # a group of zeros stays zeros
        numbers = (grouped / divisor).round().clamp(-_LARGEST_INT8, _LARGEST_INT8).to(torch.int8)
        return _to_panels(numbers, UNIT), _to_panels(scale[..., None], 1)

    def dense_weight(self) -> Float[Tensor, "out in"]:
        """Compute s_og w_ok, in float32."""
        numbers, scale = _from_panels(self.weight, UNIT), _from_panels(self.scale, 1)
        return _flatten_groups(numbers.float() * scale.float(), self.out_features, self.in_features)


@final
class Int4Linear(QuantizedLinear):
    """A linear layer with ``weight`` (panels, pairs of groups, 1024), and ``scale`` (panels, groups, 32) bfloat16.

    ``kernels.operators.integer_linear_op`` says which numbers are in a byte, and in ``scale``.
    """

    format_name = "int4"

    @staticmethod
    def _quantize(weight: Float[Tensor, "out in"]) -> tuple[Tensor, Tensor]:
        outputs, inputs = weight.shape
        pairs, groups = -(-inputs // (2 * GROUP)), -(-inputs // GROUP)
        # The last weight is repeated, so that what fills the last group up changes neither its minimum nor its maximum.
        filled = functional.pad(weight[None], (0, 2 * pairs * GROUP - inputs), mode="replicate")[0]
        grouped = filled.view(outputs, 2 * pairs, GROUP)
        scale, minimum, numbers = _round_groups(grouped)
        first, second = numbers.view(outputs, pairs, 2, GROUP).unbind(dim=2)
        return _to_panels(first | second << 4, UNIT), _to_panels(torch.stack([scale, minimum], dim=2)[:, :groups], 1)

    def dense_weight(self) -> Float[Tensor, "out in"]:
        """Compute s_og w_ok + m_og, in float32."""
        pairs = _from_panels(self.weight, UNIT)
        numbers = torch.stack([pairs & 15, pairs >> 4], dim=2).flatten(1, 2)
        scale, minimum = _from_panels(self.scale, 1).float().split(1, dim=2)
        grouped = numbers[:, : scale.shape[1]].float() * scale + minimum
        return _flatten_groups(grouped, self.out_features, self.in_features)


def _to_panels(numbers: Shaped[Tensor, "out groups size"], unit: int) -> Shaped[Tensor, "panels groups numbers"]:
    """Store the numbers of groups in panels: (units, outputs, unit), where a unit is of so many adjacent numbers.

    Zeros fill the last panel up.
    """
    outputs, groups, size = numbers.shape
    filled = functional.pad(numbers, (0, 0, 0, 0, 0, -outputs % PANEL))
    panels = filled.view(len(filled) // PANEL, PANEL, groups, size // unit, unit)
    return panels.permute(0, 2, 3, 1, 4).flatten(2).contiguous()


def _from_panels(
    panels: Shaped[Tensor, "panels groups numbers"], unit: int
) -> Shaped[Tensor, "out_and_zeros groups size"]:
    units = panels.view(*panels.shape[:2], panels.shape[2] // (PANEL * unit), PANEL, unit)
    return units.permute(0, 3, 1, 2, 4).flatten(3).flatten(0, 1)


def _flatten_groups(grouped: Tensor, outputs: int, inputs: int) -> Float[Tensor, "out in"]:
    return grouped.flatten(1)[:outputs, :inputs]


_SHARES = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)
"""Shares of the range of a group's weights that the sixteen numbers of int4 may cover."""


def _round_groups(
    weight: Float[Tensor, "out groups inputs"],
) -> tuple[BFloat16[Tensor, "out groups"], BFloat16[Tensor, "out groups"], UInt8[Tensor, "out groups inputs"]]:
    """Return scales, minima and numbers of int4, of each group those of the share with the least squared error.

    A smaller step between numbers may gain more for the many weights in the middle than it costs the few at the ends.
    """
    lower, upper = weight.amin(dim=2), weight.amax(dim=2)
    best: tuple[Tensor, Tensor, Tensor] | None = None
    smallest = torch.full_like(lower, torch.inf)
    for share in _SHARES:
        left_out = (upper - lower) * ((1 - share) / 2)
        minimum = (lower + left_out).bfloat16()
        scale = ((upper - left_out - minimum.float()).clamp_min(0) / _LARGEST_INT4).bfloat16()
        divisor = torch.where(scale > 0, scale.float(), 1.0)[..., None]
        numbers = ((weight - minimum.float()[..., None]) / divisor).round().clamp(0, _LARGEST_INT4)
        error = (numbers * scale.float()[..., None] + minimum.float()[..., None] - weight).square().sum(dim=2)
        tried = scale, minimum, numbers.to(torch.uint8)
        if best is None:
            best = tried
        better = error < smallest
        smallest = torch.where(better, error, smallest)
        best = (
            torch.where(better, tried[0], best[0]),
            torch.where(better, tried[1], best[1]),
            torch.where(better[..., None], tried[2], best[2]),
        )
    assert best is not None, "there are shares"
    return best
