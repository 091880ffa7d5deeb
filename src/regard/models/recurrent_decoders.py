"""Three ways in which recurrent cells write while they know of a source.

    a summary s        h_t = cell([y_t-1 ; s], h_t-1)                                               Cho et al. 2014
    attention first    c_t = attention(h_t-1)                h_t = cell([y_t-1 ; c_t], h_t-1)       Bahdanau et al. 2015
    attention last     h_t = cell([y_t-1 ; m_t-1], h_t-1)    c_t = attention(h_t)                   Luong et al. 2015
                       m_t = tanh(W_c [c_t ; h_t])

y is an embedded token, h the last layer's state. What the first two give is maxout(W [h_t ; y_t-1 ; c_t]), the larger
of each pair of numbers (Bahdanau, appendix A.2.2, with h_t as in equation 4); the last gives m_t. One step is the same
code in training and in decoding.
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
    """What was read of each source, as attention looks at it.

    ``tokens`` (sources, 1, length, hidden) are keys and values; ``prepared`` is what the score makes of them, where it
    makes something; ``lengths`` (sources,) are given where some are padded.
    """

    tokens: Float[Tensor, "sources 1 length hidden"]
    prepared: Float[Tensor, "sources 1 length inner"] | None
    lengths: Int[Tensor, " sources"] | None

    @classmethod
    def from_tokens(
        cls,
        tokens: Float[Tensor, "sources length hidden"],
        lengths: Int[Tensor, " sources"] | None,
        attention: Mechanism,
    ) -> Annotations:
        """One head of keys and values; what ``attention`` makes of the keys alone is computed here, once."""
        keys = tokens[:, None]
        return cls(keys, attention.prepared(keys) if isinstance(attention, MLPScoreMechanism) else None, lengths)

    @cached_property
    def mask(self) -> Mask | None:
        """Who may be attended to."""
        return None if self.lengths is None else masks.padding(self.lengths)

    def attend(
        self, attention: Mechanism, queries: Float[Tensor, "sources queries hidden"]
    ) -> Float[Tensor, "sources queries hidden"]:
        """The context of each query."""
        options = {} if self.prepared is None else {"prepared": self.prepared}
        found: Tensor = attention(queries[:, None].to(self.tokens), self.tokens, self.tokens, self.mask, **options)
        return found[:, 0]

    def select(self, entries: Int[Tensor, " taken"]) -> Annotations:
        """Those of the given sources."""
        lengths = None if self.lengths is None else self.lengths[entries.to(self.lengths.device)]
        return Annotations(self.tokens[entries], None if self.prepared is None else self.prepared[entries], lengths)


@final
@dataclass(frozen=True, eq=False)
class RecurrentState:
    """What is remembered between two steps, one entry a row.

    ``extra_input`` (rows, hidden) is read beside each token: the summary of the source, or m_t-1; None if neither is.
    ``annotations`` are kept once for each source, however many rows look at them; ``groups`` says which rows those are.
    """

    cells: States
    extra_input: Float[Tensor, "rows hidden"] | None
    groups: BeamGroups
    annotations: Annotations | None

    def context(
        self, attention: Mechanism | None, hidden: Float[Tensor, "rows hidden"]
    ) -> Float[Tensor, "rows hidden"]:
        """What each row's attention finds in its source."""
        return self.groups.queries_to_rows(self.contexts(attention, self.groups.rows_to_queries(hidden[:, None])))[:, 0]

    def contexts(
        self, attention: Mechanism | None, queries: Float[Tensor, "sources queries hidden"]
    ) -> Float[Tensor, "sources queries hidden"]:
        """What the queries of each source find."""
        assert attention is not None
        assert self.annotations is not None
        return self.annotations.attend(attention, queries)

    def reordered(self, entries: Int[Tensor, " rows"]) -> RecurrentState:
        """The state of the given rows."""
        groups, sources = self.groups.select(entries)
        annotations = self.annotations
        if annotations is not None and sources is not None:
            annotations = annotations.select(sources)
        cells = tuple(tuple(part[entries] for part in layer) for layer in self.cells)
        return RecurrentState(
            cells, None if self.extra_input is None else self.extra_input[entries], groups, annotations
        )


class RecurrentDecoder(nn.Module, ABC):
    """Writes embedded tokens (rows, .., width) into numbers (rows, .., size), from which the next token is read."""

    def __init__(self, attention: Mechanism | None, layers: RecurrentLayers, size: int) -> None:
        super().__init__()
        self.attention, self.layers, self.size = attention, layers, size

    def start(
        self, tokens: Float[Tensor, "sources length hidden"], last: States, lengths: Int[Tensor, " sources"] | None
    ) -> RecurrentState:
        """The state before the first token, one row for each source: from the encoder's tokens and last states."""
        annotations = None if self.attention is None else Annotations.from_tokens(tokens, lengths, self.attention)
        return self.init_state(
            RecurrentState(last, None, BeamGroups.one_per_row(len(tokens), tokens.device), annotations)
        )

    @abstractmethod
    def init_state(self, state: RecurrentState) -> RecurrentState:
        """The state before the first token, from one whose cells are the encoder's."""

    @abstractmethod
    def step(
        self, tokens: Float[Tensor, "rows width"], state: RecurrentState
    ) -> tuple[Float[Tensor, "rows size"], RecurrentState]:
        """One token of each row."""

    @abstractmethod
    def forward_sequence(
        self, tokens: Float[Tensor, "rows length width"], state: RecurrentState
    ) -> Float[Tensor, "rows length size"]:
        """All tokens of each row, from the state before the first."""


@final
class FixedContextDecoder(RecurrentDecoder):
    """Without attention: each step reads the encoder's last state."""

    def __init__(self, layers: RecurrentLayers, width: int) -> None:
        hidden = layers.hidden
        super().__init__(None, layers, hidden // 2)
        self.beginning, self.readout = _init_layers(layers), nn.Linear(2 * hidden + width, hidden)

    def init_state(self, state: RecurrentState) -> RecurrentState:
        """The summary is the last layer's state."""
        return replace(state, cells=_init_cells(self.beginning, state.cells), extra_input=state.cells[-1][0])

    def step(
        self, tokens: Float[Tensor, "rows width"], state: RecurrentState
    ) -> tuple[Float[Tensor, "rows size"], RecurrentState]:
        """One token of each row."""
        assert state.extra_input is not None
        hidden, cells = self.layers.step(torch.cat([tokens, state.extra_input], dim=-1), state.cells)
        return _maxout(self.readout, hidden, tokens, state.extra_input), replace(state, cells=cells)

    def forward_sequence(
        self, tokens: Float[Tensor, "rows length width"], state: RecurrentState
    ) -> Float[Tensor, "rows length size"]:
        """All tokens of each row, in one call of the cells."""
        assert state.extra_input is not None
        summary = state.extra_input[:, None].expand(-1, tokens.shape[1], -1)
        hidden = self.layers.forward_sequence(torch.cat([tokens, summary], dim=-1), state.cells)
        return _maxout(self.readout, hidden, tokens, summary)


@final
class BahdanauDecoder(RecurrentDecoder):
    """The state before a step attends, and what it finds enters the step."""

    def __init__(self, attention: Mechanism, layers: RecurrentLayers, width: int) -> None:
        hidden = layers.hidden
        super().__init__(attention, layers, hidden // 2)
        self.beginning, self.readout = _init_layers(layers), nn.Linear(2 * hidden + width, hidden)

    def init_state(self, state: RecurrentState) -> RecurrentState:
        """What attends first is made of the encoder's last state."""
        return replace(state, cells=_init_cells(self.beginning, state.cells))

    def step(
        self, tokens: Float[Tensor, "rows width"], state: RecurrentState
    ) -> tuple[Float[Tensor, "rows size"], RecurrentState]:
        """One token of each row."""
        hidden, context, state = self._advance(tokens, state)
        return _maxout(self.readout, hidden, tokens, context), state

    def forward_sequence(
        self, tokens: Float[Tensor, "rows length width"], state: RecurrentState
    ) -> Float[Tensor, "rows length size"]:
        """All tokens of each row; only what feeds back is computed step by step."""
        hiddens, contexts = [], []
        for token in tokens.unbind(1):
            hidden, context, state = self._advance(token, state)
            hiddens.append(hidden)
            contexts.append(context)
        return _maxout(self.readout, torch.stack(hiddens, dim=1), tokens, torch.stack(contexts, dim=1))

    def _advance(self, tokens: Tensor, state: RecurrentState) -> tuple[Tensor, Tensor, RecurrentState]:
        """h_t, c_t, and the state that holds h_t."""
        context = state.context(self.attention, state.cells[-1][0])
        hidden, cells = self.layers.step(torch.cat([tokens, context], dim=-1), state.cells)
        return hidden, context, replace(state, cells=cells)


@final
class LuongDecoder(RecurrentDecoder):
    """The state after a step attends; with ``input_feeding`` what comes out enters the next step (there section 3.3).

    Without it no step waits for attention, so that a whole target attends at once.
    """

    def __init__(self, attention: Mechanism, layers: RecurrentLayers, *, input_feeding: bool) -> None:
        super().__init__(attention, layers, layers.hidden)
        self.input_feeding = input_feeding
        self.mix = nn.Linear(2 * layers.hidden, layers.hidden, bias=False)

    def init_state(self, state: RecurrentState) -> RecurrentState:
        """The cells go on where the encoder's ended."""
        return replace(state, extra_input=torch.zeros_like(state.cells[-1][0])) if self.input_feeding else state

    def step(
        self, tokens: Float[Tensor, "rows width"], state: RecurrentState
    ) -> tuple[Float[Tensor, "rows size"], RecurrentState]:
        """One token of each row."""
        read = tokens if state.extra_input is None else torch.cat([tokens, state.extra_input], dim=-1)
        hidden, cells = self.layers.step(read, state.cells)
        mixed = self._attentional_state(hidden, state.context(self.attention, hidden))
        return mixed, replace(state, cells=cells, extra_input=mixed if self.input_feeding else None)

    def forward_sequence(
        self, tokens: Float[Tensor, "rows length width"], state: RecurrentState
    ) -> Float[Tensor, "rows length size"]:
        """All tokens of each row: step by step with input feeding, at once without."""
        if not self.input_feeding:
            hidden = self.layers.forward_sequence(tokens, state.cells)
            return self._attentional_state(hidden, state.contexts(self.attention, hidden))
        mixed = []
        for token in tokens.unbind(1):
            given, state = self.step(token, state)
            mixed.append(given)
        return torch.stack(mixed, dim=1)

    def _attentional_state(self, hidden: Tensor, context: Tensor) -> Tensor:
        """m_t = tanh(W_c [c_t ; h_t])."""
        return torch.tanh(self.mix(torch.cat([context, hidden], dim=-1)))


def _init_layers(layers: RecurrentLayers) -> nn.ModuleList:
    """W_s of each layer."""
    return nn.ModuleList(nn.Linear(layers.hidden, layers.hidden) for _ in range(layers.depth))


def _init_cells(beginning: nn.ModuleList, last: States) -> States:
    """h_0 = tanh(W_s h), h the encoder's last state in both directions; an LSTM's c is taken as it is.

    Bahdanau's appendix A.2.2 takes the backward direction alone.
    """
    return tuple((torch.tanh(linear(state[0])), *state[1:]) for linear, state in zip(beginning, last, strict=True))


def _maxout(readout: nn.Linear, *parts: Tensor) -> Tensor:
    """The larger of each pair of numbers of W [h_t ; y_t-1 ; c_t]: Goodfellow et al. 2013."""
    pairs: Tensor = readout(torch.cat(parts, dim=-1))
    return pairs.unflatten(-1, (-1, 2)).amax(-1)
