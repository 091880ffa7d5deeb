"""Layers of recurrent cells: over a whole sequence, one step at a time with the same weights, and bidirectional.

    GRU    r, z = sigmoid(W x + U h)         n = tanh(W x + r * (U h))                 h' = (1 - z) n + z h
    LSTM   i, f, o = sigmoid(W x + U h)      g = tanh(W x + U h)      c' = f c + i g   h' = o tanh(c')

Each gate has its own W, U and biases. Cho et al. 2014, "Learning phrase representations using RNN encoder-decoder";
Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000. The cells are torch's: r multiplies after
the product with U (in Cho's before it), and z weights the old state (in Bahdanau's the new one).
"""

from __future__ import annotations

from typing import Any, TypeAlias, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from regard.layers.precision import has_lstm

States: TypeAlias = tuple[tuple[Tensor, ...], ...]
"""The state of each layer: (h,) for a GRU, (h, c) for an LSTM, each (rows, hidden)."""

_CELLS: dict[str, type[nn.GRU] | type[nn.LSTM]] = {"gru": nn.GRU, "lstm": nn.LSTM}
CELLS = tuple(_CELLS)
"""The names of the recurrent cells."""


@final
class RecurrentLayers(nn.Module):
    """A stack of ``layers`` layers of ``hidden`` cells, with dropout between them; the first reads (rows, .., size)."""

    def __init__(self, cell: str, size: int, hidden: int, *, layers: int, dropout: float) -> None:
        super().__init__()
        self.hidden, self.depth = hidden, layers
        self.cells = _make_cells(cell, size, hidden, layers, dropout, bidirectional=False)

    def forward_sequence(
        self, inputs: Float[Tensor, "rows length size"], states: States
    ) -> Float[Tensor, "rows length hidden"]:
        """Run a whole sequence from initial states, and return h of the last layer at every step."""
        parts = tuple(torch.stack(part) for part in zip(*states, strict=True))
        outputs: Tensor = _run_cells(self.cells, inputs, parts if isinstance(self.cells, nn.LSTM) else parts[0])[0]
        return outputs

    def step(self, inputs: Float[Tensor, "rows size"], states: States) -> tuple[Float[Tensor, "rows hidden"], States]:
        """Run one step, and return h of the last layer and the next states."""
        following: list[tuple[Tensor, ...]] = []
        for weights, state in zip(self.cells.all_weights, states, strict=True):
            if following:
                inputs = nn.functional.dropout(inputs, self.cells.dropout, self.training)
            following.append(_step_layer(inputs, state, weights))
            inputs = following[-1][0]
        return inputs, tuple(following)


@final
class BidirectionalLayers(nn.Module):
    """Bidirectional layers of ``hidden`` cells: half read forwards, half backwards; higher layers read both."""

    def __init__(self, cell: str, size: int, hidden: int, *, layers: int, dropout: float) -> None:
        super().__init__()
        self.cells = _make_cells(cell, size, hidden // 2, layers, dropout, bidirectional=True)

    def forward(
        self, inputs: Float[Tensor, "rows length size"], lengths: Int[Tensor, " rows"] | None
    ) -> tuple[Float[Tensor, "rows length hidden"], States]:
        """Return h of the last layer, and each layer's last states, both directions concatenated.

        The last backward state is that at the first token. Tokens beyond a length are not read, and their h is 0.
        """
        if lengths is None:
            outputs, last = _run_cells(self.cells, inputs)
            return outputs, _both_directions(last)
        packed = pack_padded_sequence(inputs, lengths.cpu(), batch_first=True, enforce_sorted=False)
        outputs, last = _run_cells(self.cells, packed)
        padded, _ = pad_packed_sequence(outputs, batch_first=True, total_length=inputs.shape[1])
        return padded, _both_directions(last)


def _make_cells(
    cell: str, size: int, hidden: int, layers: int, dropout: float, *, bidirectional: bool
) -> nn.GRU | nn.LSTM:
    between = dropout if layers > 1 else 0.0  # torch warns about dropout with a single layer
    return _CELLS[cell](size, hidden, layers, batch_first=True, dropout=between, bidirectional=bidirectional)


def _run_cells(
    cells: nn.GRU | nn.LSTM,
    inputs: Tensor | PackedSequence,
    states: Tensor | tuple[Tensor, ...] | None = None,
) -> tuple[Any, Any]:
    """Compute ``cells(inputs, states)``, without autocast if torch has no LSTM in its dtype."""
    if not _lacks_autocast(cells, inputs.data.device.type):
        return cells(inputs, states)
    dtype = cells.all_weights[0][0].dtype
    with torch.autocast("cpu", enabled=False):
        return cells(inputs.to(dtype), None if states is None else tuple(part.to(dtype) for part in states))


def _lacks_autocast(cells: nn.GRU | nn.LSTM, device: str) -> bool:
    """Whether torch lacks these cells in the dtype of the active autocast."""
    return (
        device == "cpu"
        and isinstance(cells, nn.LSTM)
        and torch.is_autocast_enabled("cpu")
        and not has_lstm(torch.get_autocast_dtype("cpu"))
    )


def _step_layer(inputs: Tensor, state: tuple[Tensor, ...], weights: list[nn.Parameter]) -> tuple[Tensor, ...]:
    """Compute one layer's state after a step."""
    if len(state) == 1:
        return (torch.gru_cell(inputs, state[0], *weights),)
    return torch.lstm_cell(inputs, state, *weights)


def _both_directions(last: Tensor | tuple[Tensor, Tensor]) -> States:
    """Convert torch's states (layers * 2, rows, half) to ``States``, with both directions concatenated."""
    parts = (last,) if isinstance(last, Tensor) else last
    joined = [part.unflatten(0, (-1, 2)).transpose(1, 2).flatten(2) for part in parts]
    return tuple(zip(*(part.unbind(0) for part in joined), strict=True))
