"""The check of the tokens that a layer projects: shape, device and dtype must match its projection."""

from __future__ import annotations

from torch import Tensor, nn

from regard.errors import ShapeError
from regard.layers.int8_linear import Int8Linear
from regard.layers.weight_match import check_same_device, check_same_dtype
from regard.validation import check_tokens


def check_layer_input(name: str, tokens: Tensor, projection: nn.Linear) -> None:
    """Raise ShapeError, DeviceError or DtypeError unless ``projection`` can project tokens (batch, length, width)."""
    check_tokens(name, tokens, f"(batch, length, {projection.in_features})")
    if tokens.dim() != 3 or tokens.shape[-1] != projection.in_features:
        raise ShapeError(
            f"{name} tokens do not fit the layer",
            expected=f"(batch, length, {projection.in_features})",
            got=str(tuple(tokens.shape)),
            do="put the batch first, and build the layer with the width of its tokens",
        )
    check_same_device(f"{name} tokens", tokens, projection.weight, owner="the layer")
    is_quantized = isinstance(projection, Int8Linear)  # which multiplies tokens of any dtype
    if not is_quantized:
        check_same_dtype(f"{name} tokens", tokens, projection.weight, owner="the layer")
