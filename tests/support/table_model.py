"""A model that looks up its logits by source and target prefix, and counts the rows of each call."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from regard.errors import RefusedError
from regard.models import EncoderDecoder

PAD, UNKNOWN, START, END = range(4)
BANNED_IDS = (PAD, UNKNOWN, START)


@dataclass(frozen=True)
class TableState:
    sources: tuple[tuple[int, ...], ...]
    targets: tuple[tuple[int, ...], ...]
    length: int

    def reordered(self, entries):
        rows = entries.tolist()
        sides = (tuple(side[row] for row in rows) for side in (self.sources, self.targets))
        return TableState(*sides, self.length)


class TableModel(EncoderDecoder):
    """``next_logits(source, target)`` returns (vocabulary,), ``attention_weights(source, target)`` (source tokens,)."""

    def __init__(self, next_logits, vocabulary, *, attention_weights=None):
        nn.Module.__init__(self)
        self.vocab_sizes = vocabulary, vocabulary
        self.pad_id, self.start_id, self.end_id = PAD, START, END
        self.next_logits, self.attention_weights = next_logits, attention_weights
        self.dummy_parameter = nn.Parameter(torch.zeros(()))
        self.rows = []

    @classmethod
    def make_weight_names(cls, config):
        raise NotImplementedError

    def forward(self, source, target, *, mask=None):
        raise NotImplementedError

    def cross_attention_weights(self, source, target, *, mask=None):
        raise NotImplementedError

    def start(self, source, *, lengths=None):
        sources = tuple(tuple(ids[:length]) for ids, length in zip(source.tolist(), lengths.tolist(), strict=True))
        return TableState(sources, ((),) * len(sources), source.shape[1])

    def step(self, tokens, state):
        assert not self.training
        assert len(tokens) == len(state.targets)
        self.rows.append(len(tokens))
        targets = tuple((*ids, token) for ids, token in zip(state.targets, tokens.tolist(), strict=True))
        assert all(ids[0] == START for ids in targets)
        logits = [
            self.next_logits(*prefixes) for prefixes in zip(state.sources, (ids[1:] for ids in targets), strict=True)
        ]
        return torch.from_numpy(np.stack(logits)), TableState(state.sources, targets, state.length)

    def step_with_weights(self, tokens, state):
        if self.attention_weights is None:
            raise RefusedError("a table has no attention")
        logits, next_state = self.step(tokens, state)
        weights = np.zeros((len(tokens), state.length))
        for row, (source, target) in enumerate(zip(next_state.sources, next_state.targets, strict=True)):
            weights[row, : len(source)] = self.attention_weights(source, target[1:])
        return logits, next_state, torch.from_numpy(weights)


def random_table(vocabulary, seed, deviation=2.0):
    """Return a function of source and target prefix to random logits (vocabulary,), the same in every call."""

    def next_logits(source, target):
        return np.random.default_rng([seed, *source, 99, *target]).normal(scale=deviation, size=vocabulary)

    return next_logits


def log_softmax(logits):
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def bind_source(next_logits, source):
    """Return the function that oracles need: target prefix to log-probabilities of the next token, for this source."""
    return lambda target: log_softmax(next_logits(source, target))
