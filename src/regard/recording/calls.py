"""``LayerCall``, a recorded call of an attention layer, and ``Recording``, the calls of a model in order.

Only queries, keys, values, masks, biases and extra inputs are kept, so memory is linear in length; weights and
statistics are computed on request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, Literal, final

import torch
from torch import Tensor

from regard.arguments import explain_arguments
from regard.contract import Observation
from regard.errors import MissingLayerError, OptionError, check_kind, short_repr
from regard.kernels.request import Bias
from regard.masks.base import Mask
from regard.mechanisms.base import Mechanism
from regard.mechanisms.extra_input import select_side
from regard.recording.captured_inputs import CapturedLayer
from regard.recording.token_buffer import TokenBuffer


@final
@explain_arguments
@dataclass(frozen=True, repr=False, eq=False)
class LayerCall:
    """One recorded call of one attention layer.

    Tensors are detached, have the shapes in ``contract``, and were recorded after any rotation by position. ``inputs``
    are those that the mechanism declares beside query, key and value.
    """

    name: str
    mechanism: Mechanism
    query: Tensor
    key: Tensor
    value: Tensor
    mask: Mask | None
    bias: Bias | None
    inputs: Mapping[str, Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{side} {tuple(getattr(self, side).shape)}" for side in ("query", "key", "value"))
        return f"LayerCall({self.name!r}, {type(self.mechanism).__name__}, {shapes}, mask={self.mask!r})"

    def inputs_of(self, side: Literal["query", "key"]) -> dict[str, Tensor]:
        """Return the extra inputs that belong to the queries or to the keys."""
        return select_side(self.inputs, self.mechanism.extra_inputs, side)

    def weights(self, rows: Sequence[int] | Tensor | None = None) -> Tensor:
        """Compute the exact weights (batch, heads, rows, keys) of the queries ``rows``; None is all queries."""
        with torch.no_grad():
            return self.mechanism.weights(
                self.query, self.key, mask=self.mask, bias=self.bias, rows=rows, **self.inputs
            )

    def observe(self, *, top: int = 8, rows: Sequence[int] | Tensor | None = None) -> Observation:
        """Compute statistics of the weights in linear memory: see ``Observation``."""
        with torch.no_grad():
            return self.mechanism.observe(
                self.query, self.key, self.value, self.mask, bias=self.bias, top=top, rows=rows, **self.inputs
            )


@final
@explain_arguments
class Recording(Sequence[LayerCall]):
    """The recorded calls of all attention layers, in order.

    Index by number or by name: ``seen["layers.0.attention"]`` is the last call of that layer. ``inputs`` are what the
    layers read, by their names, if ``record`` was asked to keep them.
    """

    def __init__(self) -> None:
        self._calls: list[LayerCall] = []
        self.inputs: Mapping[str, CapturedLayer] = {}
        self._buffers: dict[str, tuple[TokenBuffer, TokenBuffer]] = {}

    def __repr__(self) -> str:
        return "Recording(" + ", ".join(call.name or "attention" for call in self._calls) + ")"

    def add(self, call: LayerCall) -> None:
        """Append a call, whose tensors are kept as they are."""
        self._calls.append(call)

    def add_copy(self, call: LayerCall) -> None:
        """Append a call whose tensors may be written to later, such as those of a cache: they are copied."""
        of_keys, of_values = self._buffers.setdefault(call.name, (TokenBuffer(), TokenBuffer()))
        key, value = of_keys.store(call.key), of_values.store(call.value)
        self.add(replace(call, query=call.query.clone(), key=key, value=value))

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[LayerCall]:
        return iter(self._calls)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, Integral) and not -len(self) <= int(index) < len(self):
            # MissingLayerError is an IndexError, by which Python finds the end of a sequence.
            raise MissingLayerError(
                f"attention layer {short_repr(index)} was not called",
                expected=f"an index below {len(self)}" if self._calls else "a call of the model inside the `with`",
                got=short_repr(index),
                do="len(seen) is the number of calls",
            )
        check_kind("index of a call", index, (int, slice, str, Integral), do="a number from 0, or the layer's name")
        if not isinstance(index, str):
            return self._calls[index]
        named = [call for call in self._calls if call.name == index]
        if not named:
            raise OptionError(
                f"no attention layer {short_repr(index)} was called",
                expected="one of "
                + (", ".join(dict.fromkeys(call.name for call in self._calls)) or "none: the model was not called"),
                got=short_repr(index),
                do="call the model inside the `with`, and use the names of model.named_modules()",
            )
        return named[-1]
