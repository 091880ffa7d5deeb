"""A sound encoder-decoder in plain torch, from whose source faults are made: one line of it is replaced."""

from __future__ import annotations

import torch
from torch import nn

WIDTH = 16


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, target, source, visible):
        scores = self.query(target) @ self.key(source).transpose(-1, -2) / 4
        return scores.masked_fill(~visible, float("-inf")).softmax(-1) @ self.value(source)


class EncoderBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm = Attention(), nn.LayerNorm(WIDTH)

    def forward(self, hidden, tokens):
        visible = tokens[:, None, :]
        return self.norm(hidden + self.attention(hidden, hidden, visible))


class DecoderBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.cross_attention = Attention(), Attention()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, hidden, memory, tokens):
        length = hidden.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        hidden = hidden + self.attention(hidden, hidden, causal)
        visible = tokens[:, None, :]
        hidden = hidden + self.cross_attention(hidden, memory, visible)
        return self.norm(hidden)


class Translator(nn.Module):
    is_causal = True

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(40, WIDTH)
        self.encoder = nn.ModuleList(EncoderBlock() for _ in range(2))
        self.decoder = nn.ModuleList(DecoderBlock() for _ in range(2))
        self.output = nn.Linear(WIDTH, 40)

    def forward(self, source, target, source_mask=None):
        tokens = torch.ones_like(source).bool() if source_mask is None else source_mask.bool()
        memory = self.tokens(source)
        for layer in self.encoder:
            memory = layer(memory, tokens)
        hidden = self.tokens(target)
        for layer in self.decoder:
            hidden = layer(hidden, memory, tokens)
        return self.output(hidden)


def build():
    torch.manual_seed(0)
    inputs = {"source": torch.randint(0, 40, (1, 11)), "target": torch.randint(0, 40, (1, 7))}
    return Translator().eval(), inputs
