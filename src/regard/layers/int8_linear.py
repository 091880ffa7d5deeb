"""A linear layer whose weights are stored as int8, with a scale for each output.

    s_o = max_k |W_ok| / 127,   q_ok = round(W_ok / s_o)
    y_o = s_o sum_k x_k q_ok + b_o                        x (.., in), q (out, in), s (out), b (out) -> y (.., out)

Symmetric, one scale for each row of weights: Nagel et al. 2021, "A white paper on neural network quantization",
sections 2.2 and 2.4.2. Tokens stay floating point, so the only error is the rounding error of the weights, at most
s_o / 2 for each. A decoding step, which takes as long as reading the weights, reads a quarter of the bytes of float32.
Other calls convert the weights to the dtype of the tokens first. The layer is for inference: weights get no gradient.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import RefusedError
from regard.kernels.operators.projection_op import can_project, project

_LARGEST = 127
"""Largest stored weight; -128 is not used, so that the range is symmetric."""


@final
class Int8Linear(nn.Module):
    """A linear layer with int8 ``weight`` (out, in), float32 ``scale`` (out) and ``bias`` (out), which may be None."""

    weight: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("bias", bias)

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> Int8Linear:
        """Quantize the weights of a linear layer. Raises RefusedError for weights that are NaN or infinite."""
        weight = linear.weight.detach()
        largest = weight.abs().amax(dim=1).float()
        if not bool(largest.isfinite().all()):
            raise RefusedError(
                "weights that are NaN or infinite cannot be stored as int8",
                expected="finite weights",
                got=f"{int((~largest.isfinite()).sum())} rows of {tuple(weight.shape)} with others",
                do="check the file of the weights, or use the model without int8 weights",
            )
        scale = largest / _LARGEST
        divisor = torch.where(scale > 0, scale, 1.0)[:, None]  # a row of zeros stays zeros
        stored = (weight.float() / divisor).round().clamp(-_LARGEST, _LARGEST).to(torch.int8)
        return cls(stored, scale, None if linear.bias is None else linear.bias.detach().clone())

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform tokens (.., in) to (.., out), in their dtype."""
        bias = None if self.bias is None else self.bias.to(tokens.dtype)
        if can_project(tokens, self.weight, bias):
            return project(tokens, self.weight, bias, self.scale.float())
        weight = (self.weight.float() * self.scale.float()[:, None]).to(tokens.dtype)
        return functional.linear(tokens, weight, bias)

    def extra_repr(self) -> str:
        """Format the sizes for ``repr``."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
