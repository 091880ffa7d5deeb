"""The checks of what layers and models read: shape, device and dtype must match their weights; and visible tokens.

Layers that replace ``nn.Linear``, such as the layers of torch's ``quantize_dynamic``, may have no tensor as ``weight``:
they check their inputs themselves.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from regard.errors import DeviceError, DtypeError, RefusedError, ShapeError
from regard.kernels.autocast import is_in_autocast
from regard.layers.quantized_linear import QuantizedLinear
from regard.masks import Mask
from regard.tensors import check_tensor
from regard.validation import FLOATS, check_mask, check_tokens


def check_same_device(name: str, tensor: Tensor, weight: Tensor, *, owner: str) -> None:
    """Raise DeviceError unless the tensor, called ``name``, is on the device of a ``weight`` of ``owner``."""
    if isinstance(weight, Tensor) and tensor.device != weight.device:
        raise DeviceError(
            f"{name} and {owner} are on different devices",
            expected=str(weight.device),
            got=str(tensor.device),
            do=f"move the {name.split()[-1]}, or {owner}, with .to(device)",
        )


def check_same_dtype(name: str, tensor: Tensor, weight: Tensor, *, owner: str) -> None:
    """Raise DtypeError unless the tensor, called ``name``, has the dtype of a ``weight`` of ``owner``, or autocast is
    on, which converts both.
    """
    if isinstance(weight, Tensor) and tensor.dtype != weight.dtype and not is_in_autocast(tensor.device):
        raise DtypeError(
            f"{name} and {owner} have different dtypes",
            expected=str(weight.dtype),
            got=str(tensor.dtype),
            do=f"convert the {name.split()[-1]}, or {owner} with .to(dtype)",
        )


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
    is_quantized = isinstance(projection, QuantizedLinear)  # which multiplies tokens of any dtype
    if not is_quantized:
        check_same_dtype(f"{name} tokens", tokens, projection.weight, owner="the layer")


def check_pixels(pixels: object, weight: Tensor, channels: int) -> None:
    """Raise ShapeError, DtypeError or DeviceError unless ``pixels`` (batch, channels, height, width) fit ``weight``.

    Integers are refused too: they are the values 0 to 255 of a picture, which is not normalised yet.
    """
    shape = f"(batch, {channels}, height, width)"
    check_tensor("pixels", pixels, f"a tensor {shape}", do="make it with model.processor, or torch.as_tensor")
    assert isinstance(pixels, Tensor)
    if pixels.dtype not in FLOATS:
        raise DtypeError(
            "pixels have an unsupported dtype",
            expected="normalised numbers: " + ", ".join(str(dtype) for dtype in FLOATS),
            got=str(pixels.dtype),
            do="make them with model.processor, or normalise: (pixels / 255 - mean) / std for each channel",
        )
    if pixels.dim() != 4 or pixels.shape[1] != channels:
        swapped = pixels.dim() == 4 and pixels.shape[3] == channels
        raise ShapeError(
            "pixels have the wrong shape",
            expected=shape,
            got=str(tuple(pixels.shape)),
            do="for one picture add a batch dimension: pixels[None]"
            if pixels.dim() == 3 and pixels.shape[0] == channels
            else "put the channels second: pixels.permute(0, 3, 1, 2)"
            if swapped
            else "convert the pictures to as many channels as the model has",
        )
    check_same_device("pixels", pixels, weight, owner="the model")
    check_same_dtype("pixels", pixels, weight, owner="the model")


def check_visible_tokens(tokens: object, visible: object, width: int, weight: Tensor) -> None:
    """Raise ShapeError, DtypeError or DeviceError unless tokens (batch, length, width) fit ``weight`` and ``visible``.

    ``visible`` is None, or bools (batch, length).
    """
    check_tokens("tokens", tokens, f"(batch, length, {width})")
    assert isinstance(tokens, Tensor)
    if tokens.dim() != 3 or tokens.shape[2] != width:
        raise ShapeError(
            "tokens do not fit the layer",
            expected=f"(batch, length, {width})",
            got=str(tuple(tokens.shape)),
            do="build the layer with the width of its tokens",
        )
    check_same_device("tokens", tokens, weight, owner="the layer")
    check_same_dtype("tokens", tokens, weight, owner="the layer")
    if visible is None:
        return
    check_tensor("visible", visible, "bools (batch, length), True where a token is not padding")
    assert isinstance(visible, Tensor)
    if visible.dtype != torch.bool:
        raise DtypeError(
            "visible has another dtype", expected="torch.bool", got=str(visible.dtype), do="convert with .to(dtype)"
        )
    if visible.shape != tokens.shape[:2]:
        raise ShapeError(
            "visible does not fit the tokens",
            expected=str(tuple(tokens.shape[:2])),
            got=str(tuple(visible.shape)),
            do="pass a bool for each token: True where it is not padding",
        )
    check_same_device("visible", visible, weight, owner="the layer")


def find_visible_tokens(
    mask: object, sizes: tuple[int, int], device: torch.device, *, what: str, do: str
) -> Bool[Tensor, "batch tokens"] | None:
    """The tokens of ``sizes`` (batch, tokens) that a mask shows, or None without a mask.

    Raises ShapeError for a mask of another size; RefusedError for one that shows a token to some queries or heads only:
    ``what`` says why, and ``do`` what to do.
    """
    check_mask(mask)
    if mask is None:
        return None
    assert isinstance(mask, Mask)
    if mask.depends_on_query or mask.heads not in (None, 1):
        raise RefusedError(
            what, expected="masks.padding(lengths), or masks.keep(visible[:, None, None, :])", got=repr(mask), do=do
        )
    batch, tokens = sizes
    mask.check(batch, 1, 1, tokens)
    return mask.dense(1, tokens, device=device)[:, 0, 0].expand(batch, tokens)
