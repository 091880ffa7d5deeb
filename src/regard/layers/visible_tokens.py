"""The check of tokens and of which of them are visible, for layers that mix neighbours, such as convolutions."""

from __future__ import annotations

from torch import Tensor, dtype
from torch import bool as torch_bool

from regard.errors import DeviceError, DtypeError, ShapeError
from regard.kernels.autocast import is_in_autocast
from regard.tensors import check_tensor
from regard.validation import check_tokens


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
    _check_place("tokens", tokens, weight)
    if not is_in_autocast(tokens.device) and tokens.dtype != weight.dtype:
        raise _dtype_error("tokens", weight.dtype, tokens.dtype)
    if visible is None:
        return
    check_tensor("visible", visible, "bools (batch, length), True where a token is not padding")
    assert isinstance(visible, Tensor)
    if visible.dtype != torch_bool:
        raise _dtype_error("visible", torch_bool, visible.dtype)
    if visible.shape != tokens.shape[:2]:
        raise ShapeError(
            "visible does not fit the tokens",
            expected=str(tuple(tokens.shape[:2])),
            got=str(tuple(visible.shape)),
            do="pass a bool for each token: True where it is not padding",
        )
    _check_place("visible", visible, weight)


def _check_place(name: str, tensor: Tensor, weight: Tensor) -> None:
    if tensor.device != weight.device:
        raise DeviceError(
            f"{name} and the layer are on different devices",
            expected=str(weight.device),
            got=str(tensor.device),
            do="move one of them with .to(device)",
        )


def _dtype_error(name: str, expected: dtype, got: dtype) -> DtypeError:
    return DtypeError(
        f"{name} of the layer have another dtype", expected=str(expected), got=str(got), do="convert with .to(dtype)"
    )
