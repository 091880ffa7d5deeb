"""A sound decoder with a prefix, in plain torch, from whose source faults are made: one line of it is replaced."""

from __future__ import annotations

import torch
from torch import nn

WIDTH, HEADS, PREFIX = 16, 2, 5


class Attention(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden):
        query, key, value = self.qkv(hidden).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        length = query.shape[2]
        rows, columns = torch.arange(length)[:, None], torch.arange(length)
        visible = columns <= rows
        visible = visible | ((columns < PREFIX) & (rows < PREFIX))
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        mixed = weights @ value
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.attention, self.norm = Attention(layer), nn.LayerNorm(WIDTH)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH))

    def forward(self, hidden):
        hidden = hidden + self.attention(self.norm(hidden))
        return hidden + self.feed_forward(hidden)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(40, WIDTH), nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(Block(layer) for layer in range(2))
        self.output = nn.Linear(WIDTH, 40)

    def forward(self, input_ids):
        hidden = self.tokens(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        for layer in self.layers:
            hidden = layer(hidden)
        return self.output(hidden)


def build():
    torch.manual_seed(0)
    return Decoder().eval(), torch.randint(0, 40, (1, 13)), {"prefix": PREFIX}
