"""The check of the tokens that a layer projects: shape, device and dtype must be those of its projection."""

from __future__ import annotations

from torch import Tensor, nn

from regard.errors import DeviceError, DtypeError, ShapeError
from regard.kernels.autocast import is_in_autocast
from regard.layers.int8_linear import Int8Linear
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
    weight = projection.weight
    if tokens.device != weight.device:
        raise DeviceError(
            f"{name} tokens and the layer are on different devices",
            expected=str(weight.device),
            got=str(tokens.device),
            do="move the tokens, or the layer, with .to(device)",
        )
    if tokens.dtype == weight.dtype:
        return
    is_quantized = isinstance(projection, Int8Linear)  # which multiplies tokens of any dtype
    if not is_quantized and not is_in_autocast(tokens.device):
        raise DtypeError(
            f"{name} tokens and the layer have different dtypes",
            expected=str(weight.dtype),
            got=str(tokens.dtype),
            do="convert the tokens, or the layer with .to(dtype)",
        )
