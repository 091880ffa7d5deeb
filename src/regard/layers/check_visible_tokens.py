"""The check of tokens and of which of them are visible, for layers that mix neighbours, such as convolutions."""

from __future__ import annotations

import torch
from torch import Tensor

from regard.errors import DtypeError, ShapeError
from regard.layers.weight_match import check_same_device, check_same_dtype
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
