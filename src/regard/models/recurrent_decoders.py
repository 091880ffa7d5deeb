"""Three recurrent decoders, which differ in how they read the source.

    a summary s        h_t = cell([y_t-1 ; s], h_t-1)                                               Cho et al. 2014
    attention first    c_t = attention(h_t-1)                h_t = cell([y_t-1 ; c_t], h_t-1)       Bahdanau et al. 2015
    attention last     h_t = cell([y_t-1 ; m_t-1], h_t-1)    c_t = attention(h_t)                   Luong et al. 2015
                       m_t = tanh(W_c [c_t ; h_t])

y is an embedded token, h the last layer's state. The output of the first two is maxout(W [h_t ; y_t-1 ; c_t]), the
larger of each pair of numbers (Bahdanau, appendix A.2.2, with h_t as in equation 4); the output of the last is m_t.
Training and decoding use the same code for a step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import masks
from regard.masks import Mask
from regard.mechanisms import Mechanism
from regard.mechanisms.mlp_score import MLPScoreMechanism
from regard.models.beam_groups import BeamGroups
from regard.models.recurrent_cells import RecurrentLayers, States


@final
@dataclass(frozen=True, eq=False)
class Annotations:
    """The encoded sources that attention reads.

    ``tokens`` (sources, 1, length, hidden) are keys and values; ``projected_keys`` are given for mechanisms that
    project them; ``lengths`` (sources,) are the lengths of the sources, if some are padded.
    """

    tokens: Float[Tensor, "sources 1 length hidden"]
    projected_keys: Float[Tensor, "sources 1 length inner"] | None
    lengths: Int[Tensor, " sources"] | None

    @classmethod
    def from_tokens(
        cls,
        tokens: Float[Tensor, "sources length hidden"],
        lengths: Int[Tensor, " sources"] | None,
        attention: Mechanism,
    ) -> Annotations:
        """Make one head of keys and values, and project the keys once if ``attention`` does that."""
        keys = tokens[:, None]
        return cls(keys, attention.project_keys(keys) if isinstance(attention, MLPScoreMechanism) else None, lengths)

    @cached_property
    def mask(self) -> Mask | None:
        """The padding mask; None if no source is padded."""
        return None if self.lengths is None else masks.padding(self.lengths)

    def attend(
        self, attention: Mechanism, queries: Float[Tensor, "sources queries hidden"]
    ) -> Float[Tensor, "sources queries hidden"]:
        """Compute the context vector of each query."""
        options = {} if self.projected_keys is None else {"projected_keys": self.projected_keys}
        contexts: Tensor = attention(queries[:, None].to(self.tokens), self.tokens, self.tokens, self.mask, **options)
        return contexts[:, 0]

    def select(self, entries: Int[Tensor, " taken"]) -> Annotations:
        """Select the annotations of the sources ``entries``."""
        lengths = None if self.lengths is None else self.lengths[entries.to(self.lengths.device)]
        projected = None if self.projected_keys is None else self.projected_keys[entries]
        return Annotations(self.tokens[entries], projected, lengths)


@final
@dataclass(frozen=True, eq=False)
class RecurrentState:
    """The decoder's state between two steps, one row for each sequence.

    ``extra_input`` (rows, hidden) is concatenated with each token: the summary of the source, or m_t-1; None without.
    ``annotations`` are stored once for each source, however many rows attend to it; ``groups`` maps rows to sources.
    """

    cells: States
    extra_input: Float[Tensor, "rows hidden"] | None
    groups: BeamGroups
    annotations: Annotations | None

    def context(
        self, attention: Mechanism | None, hidden: Float[Tensor, "rows hidden"]
    ) -> Float[Tensor, "rows hidden"]:
        """The context vector of each row."""
        return self.groups.queries_to_rows(self.contexts(attention, self.groups.rows_to_queries(hidden[:, None])))[:, 0]

    def contexts(
        self, attention: Mechanism | None, queries: Float[Tensor, "sources queries hidden"]
    ) -> Float[Tensor, "sources queries hidden"]:
        """The context vectors of several queries of each source."""
        assert attention is not None
        assert self.annotations is not None
        return self.annotations.attend(attention, queries)

    def reordered(self, entries: Int[Tensor, " rows"]) -> RecurrentState:
        """Select the rows ``entries`` of the state, in that order."""
        groups, sources = self.groups.select(entries)
        annotations = self.annotations
        if annotations is not None and sources is not None:
            annotations = annotations.select(sources)
        cells = tuple(tuple(part[entries] for part in layer) for layer in self.cells)
        return RecurrentState(
            cells, None if self.extra_input is None else self.extra_input[entries], groups, annotations
        )


class RecurrentDecoder(nn.Module, ABC):
    """The decoder's cells: from embedded tokens (rows, .., width) to vectors (rows, .., size) for the output layer."""

    def __init__(self, attention: Mechanism | None, layers: RecurrentLayers, size: int) -> None:
        super().__init__()
        self.attention, self.layers, self.size = attention, layers, size

    def start(
        self, tokens: Float[Tensor, "sources length hidden"], last: States, lengths: Int[Tensor, " sources"] | None
    ) -> RecurrentState:
        """The state before the first token, one row for each source, from the encoder's outputs and last states."""
        annotations = None if self.attention is None else Annotations.from_tokens(tokens, lengths, self.attention)
        return self.init_state(
            RecurrentState(last, None, BeamGroups.one_per_row(len(tokens), tokens.device), annotations)
        )

    @abstractmethod
    def init_state(self, state: RecurrentState) -> RecurrentState:
        """Initialise the decoder's state, from one with the encoder's last states in ``cells``."""

    @abstractmethod
    def step(
        self, tokens: Float[Tensor, "rows width"], state: RecurrentState
    ) -> tuple[Float[Tensor, "rows size"], RecurrentState]:
        """Read one token of each row, and return the output and the next state."""

    @abstractmethod
    def forward_sequence(
        self, tokens: Float[Tensor, "rows length width"], state: RecurrentState
    ) -> Float[Tensor, "rows length size"]:
        """Read all tokens of each row, from the state before the first, and return the outputs."""


@final
class FixedContextDecoder(RecurrentDecoder):
    """The decoder without attention: each step reads the encoder's last state."""

    def __init__(self, layers: RecurrentLayers, width: int) -> None:
        hidden = layers.hidden
        super().__init__(None, layers, hidden // 2)
        self.beginning, self.readout = _init_layers(layers), nn.Linear(2 * hidden + width, hidden)

    def init_state(self, state: RecurrentState) -> RecurrentState:
        """Initialise the cells; the summary of the source is the last state of the encoder's last layer."""
        return replace(state, cells=_init_cells(self.beginning, state.cells), extra_input=state.cells[-1][0])

    def step(
        self, tokens: Float[Tensor, "rows width"], state: RecurrentState
    ) -> tuple[Float[Tensor, "rows size"], RecurrentState]:
        """Read one token of each row, and return the output and the next state."""
        assert state.extra_input is not None
        hidden, cells = self.layers.step(torch.cat([tokens, state.extra_input], dim=-1), state.cells)
        return _maxout(self.readout, hidden, tokens, state.extra_input), replace(state, cells=cells)

    def forward_sequence(
        self, tokens: Float[Tensor, "rows length width"], state: RecurrentState
    ) -> Float[Tensor, "rows length size"]:
        """Read all tokens of each row, in one call of the cells."""
        assert state.extra_input is not None
        summary = state.extra_input[:, None].expand(-1, tokens.shape[1], -1)
        hidden = self.layers.forward_sequence(torch.cat([tokens, summary], dim=-1), state.cells)
        return _maxout(self.readout, hidden, tokens, summary)


@final
class BahdanauDecoder(RecurrentDecoder):
    """The decoder that attends with the state before a step, and reads the context vector in the step."""

    def __init__(self, attention: Mechanism, layers: RecurrentLayers, width: int) -> None:
        hidden = layers.hidden
        super().__init__(attention, layers, hidden // 2)
        self.beginning, self.readout = _init_layers(layers), nn.Linear(2 * hidden + width, hidden)

    def init_state(self, state: RecurrentState) -> RecurrentState:
        """Initialise the cells from the encoder's last states."""
        return replace(state, cells=_init_cells(self.beginning, state.cells))

    def step(
        self, tokens: Float[Tensor, "rows width"], state: RecurrentState
    ) -> tuple[Float[Tensor, "rows size"], RecurrentState]:
        """Read one token of each row, and return the output and the next state."""
        hidden, context, state = self._advance(tokens, state)
        return _maxout(self.readout, hidden, tokens, context), state

    def forward_sequence(
        self, tokens: Float[Tensor, "rows length width"], state: RecurrentState
    ) -> Float[Tensor, "rows length size"]:
        """Read all tokens of each row; only the recurrence runs step by step, the readout once for all."""
        hiddens, contexts = [], []
        for token in tokens.unbind(1):
            hidden, context, state = self._advance(token, state)
            hiddens.append(hidden)
            contexts.append(context)
        return _maxout(self.readout, torch.stack(hiddens, dim=1), tokens, torch.stack(contexts, dim=1))

    def _advance(self, tokens: Tensor, state: RecurrentState) -> tuple[Tensor, Tensor, RecurrentState]:
        """Compute h_t, c_t, and the state after the step."""
        context = state.context(self.attention, state.cells[-1][0])
        hidden, cells = self.layers.step(torch.cat([tokens, context], dim=-1), state.cells)
        return hidden, context, replace(state, cells=cells)


@final
class LuongDecoder(RecurrentDecoder):
    """The decoder that attends with the state after a step; ``input_feeding`` (section 3.3) feeds m_t to the next step.

    Without input feeding no step depends on attention, so that a whole target attends at once.
    """

    def __init__(self, attention: Mechanism, layers: RecurrentLayers, *, input_feeding: bool) -> None:
        super().__init__(attention, layers, layers.hidden)
        self.input_feeding = input_feeding
        self.mix = nn.Linear(2 * layers.hidden, layers.hidden, bias=False)

    def init_state(self, state: RecurrentState) -> RecurrentState:
        """Start from the encoder's last states, with an m_0 of zeros for input feeding."""
        return replace(state, extra_input=torch.zeros_like(state.cells[-1][0])) if self.input_feeding else state

    def step(
        self, tokens: Float[Tensor, "rows width"], state: RecurrentState
    ) -> tuple[Float[Tensor, "rows size"], RecurrentState]:
        """Read one token of each row, and return the output and the next state."""
        read = tokens if state.extra_input is None else torch.cat([tokens, state.extra_input], dim=-1)
        hidden, cells = self.layers.step(read, state.cells)
        mixed = self._attentional_state(hidden, state.context(self.attention, hidden))
        return mixed, replace(state, cells=cells, extra_input=mixed if self.input_feeding else None)

    def forward_sequence(
        self, tokens: Float[Tensor, "rows length width"], state: RecurrentState
    ) -> Float[Tensor, "rows length size"]:
        """Read all tokens of each row: step by step with input feeding, at once without."""
        if not self.input_feeding:
            hidden = self.layers.forward_sequence(tokens, state.cells)
            return self._attentional_state(hidden, state.contexts(self.attention, hidden))
        outputs = []
        for token in tokens.unbind(1):
            output, state = self.step(token, state)
            outputs.append(output)
        return torch.stack(outputs, dim=1)

    def _attentional_state(self, hidden: Tensor, context: Tensor) -> Tensor:
        """m_t = tanh(W_c [c_t ; h_t])."""
        return torch.tanh(self.mix(torch.cat([context, hidden], dim=-1)))


def _init_layers(layers: RecurrentLayers) -> nn.ModuleList:
    """Build W_s of each layer."""
    return nn.ModuleList(nn.Linear(layers.hidden, layers.hidden) for _ in range(layers.depth))


def _init_cells(beginning: nn.ModuleList, last: States) -> States:
    """h_0 = tanh(W_s h), where h is the encoder's last state in both directions; an LSTM's c is not transformed.

    Bahdanau, appendix A.2.2, uses only the backward direction.
    """
    return tuple((torch.tanh(linear(state[0])), *state[1:]) for linear, state in zip(beginning, last, strict=True))


def _maxout(readout: nn.Linear, *parts: Tensor) -> Tensor:
    """Maxout: the larger of each pair of numbers of W [h_t ; y_t-1 ; c_t]. Goodfellow et al. 2013."""
    pairs: Tensor = readout(torch.cat(parts, dim=-1))
    return pairs.unflatten(-1, (-1, 2)).amax(-1)
