"""The check of the pixels that a layer reads: shape, dtype and device must match its weights."""

from __future__ import annotations

from torch import Tensor

from regard.errors import DtypeError, ShapeError
from regard.layers.weight_match import check_same_device, check_same_dtype
from regard.tensors import check_tensor
from regard.validation import FLOATS


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
