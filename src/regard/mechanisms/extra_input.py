"""Inputs that a mechanism takes beside query, key and value: their declaration, and which a layer need not project.

Longformer (Beltagy et al. 2020) has projections of their own for global tokens, gated mechanisms a gate for each token,
recurrent ones a decay. A mechanism declares them (``Mechanism.extra_inputs``), and a layer computes each by a linear
projection of the tokens. The mechanism applies what follows the projection, such as a sigmoid. All are optional: the
mechanism says what it computes without them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.contract import Frame
from regard.errors import DeviceError, DtypeError, ShapeError
from regard.kernels.request import Request
from regard.kernels.results import accumulation_dtype
from regard.kernels.token_projection import TokenProjection
from regard.tensors import check_tensor


@final
@explain_arguments
@dataclass(frozen=True)
class ExtraInput:
    """An input beside query, key and value: (batch, heads, length, size).

    Args:
        name: its keyword in a call of the mechanism.
        side: whether it belongs to the query tokens or to the key tokens, and so has their number as its length.
        heads: number of heads.
        size: numbers per token and head.
        rotates: whether a rotary position rotates it as it does queries or keys; its size is head_dim then.
        projected: whether a layer computes it by a linear projection of the tokens; else the caller passes it to the
            layer, in any dtype, with a batch or heads of 1 if they are the same for all.
        copied_from: the projection of a trained layer that the one of this input starts as a copy of, if the layer
            takes the mechanism without having been trained with it; None leaves the input out.
        may_be_wide: whether it may be in the dtype of sums, float32 beside half-precision tokens: for gates and decays,
            whose roundings compound along the text.
    """

    name: str
    side: Literal["query", "key"]
    heads: int
    size: int
    rotates: bool = False
    projected: bool = True
    copied_from: Literal["query", "key", "value"] | None = None
    may_be_wide: bool = False

    def check(self, tensor: Tensor, request: Request) -> Tensor:
        """Return the tensor, expanded to its whole shape. Raises ShapeError, DtypeError, DeviceError or OptionError."""
        whole_shape = (request.query.shape[0], self.heads, self._length(request), self.size)
        check_tensor(self.name, tensor, f"a tensor {whole_shape}")
        shape = tuple(tensor.shape)
        if not self.projected and len(shape) == 4:
            shape = (
                tuple(whole if size == 1 else size for size, whole in zip(shape[:2], whole_shape, strict=False))
                + shape[2:]
            )
        if shape != whole_shape:
            raise ShapeError(
                f"{self.name} does not fit the call",
                expected=f"(batch, heads, {self.side} tokens, size) = {whole_shape}",
                got=str(tuple(tensor.shape)),
                do=f"compute it from the tokens of the {self.side}",
            )
        dtypes = self._dtypes(request)
        if self.projected and tensor.dtype not in dtypes:
            raise DtypeError(
                f"{self.name} has another dtype than the query",
                expected=" or ".join(str(dtype) for dtype in dtypes),
                got=str(tensor.dtype),
                do="convert it with .to(query.dtype)",
            )
        if tensor.device != request.device:
            raise DeviceError(
                f"{self.name} and the query are on different devices",
                expected=str(request.device),
                got=str(tensor.device),
                do="move it with .to(query.device)",
            )
        return tensor.expand(whole_shape)

    def _dtypes(self, request: Request) -> tuple[torch.dtype, ...]:
        own, wide = request.query.dtype, accumulation_dtype(request.query.dtype)
        return (own, wide) if self.may_be_wide and wide != own else (own,)

    def _length(self, request: Request) -> int:
        return request.frame.queries if self.side == "query" else request.frame.keys


class AbsorbsProjections(ABC):
    """Mixin of mechanisms that need not have all that a layer projects from its tokens; the layer asks before a call.

    The ``inputs`` are those that the caller of the layer passed.
    """

    @abstractmethod
    def absorbs_keys(self, key: TokenProjection, value: TokenProjection) -> bool:
        """Whether a layer should pass such keys and values as they are, since ``forward`` needs fewer products then."""

    def tokens_read(
        self, extra_input: ExtraInput, frame: Frame, inputs: Mapping[str, Tensor]
    ) -> Int[Tensor, " tokens"] | None:
        """Return the tokens of its side at which an extra input is read, so that a layer projects those alone.

        None is all tokens; without any, the layer leaves the input out.
        """
        del extra_input, frame, inputs
        return None

    def absorbs_input(self, extra_input: ExtraInput, frame: Frame, inputs: Mapping[str, Tensor]) -> bool:
        """Whether a layer should pass an extra input as a ``TokenProjection``, since its queries are few.

        The mechanism may still compute the input.
        """
        del extra_input, frame, inputs
        return False


def names_of_side(declared: tuple[ExtraInput, ...], side: Literal["query", "key"]) -> frozenset[str]:
    """Return the names of the inputs that belong to the tokens of one side."""
    return frozenset(extra_input.name for extra_input in declared if extra_input.side == side)


def select_side(
    inputs: Mapping[str, Tensor], declared: tuple[ExtraInput, ...], side: Literal["query", "key"]
) -> dict[str, Tensor]:
    """Select the inputs that belong to the tokens of one side."""
    names = names_of_side(declared, side) if inputs else frozenset()
    return {name: tensor for name, tensor in inputs.items() if name in names}
