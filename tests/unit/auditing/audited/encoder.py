"""A sound encoder in plain torch, from whose source faults are made: one line of it is replaced."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS = 16, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden, mask):
        query, key, value = self.qkv(hidden).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        hidden_keys = ~mask[:, None, None, :]
        scores = scores.masked_fill(hidden_keys, -1e9)
        weights = scores.softmax(-1)
        mixed = weights @ value
        return self.out(mixed.transpose(1, 2).flatten(2))


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.depthwise = nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH)

    def forward(self, hidden, mask):
        hidden = hidden * mask[..., None]
        return self.depthwise(hidden.transpose(1, 2)).transpose(1, 2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.convolution = Attention(), Convolution()
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 24), nn.GELU(), nn.Linear(24, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, hidden, mask):
        hidden = hidden + self.attention(hidden, mask)
        hidden = hidden + self.convolution(hidden, mask)
        hidden = hidden + self.feed_forward(hidden)
        return self.norm(hidden)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(40, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.pooler = Pooler()

    def forward(self, input_ids, attention_mask=None):
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        mask = mask.bool()
        hidden = self.tokens(input_ids)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return self.pooler(hidden, mask)


class Pooler(nn.Module):
    def forward(self, hidden, mask):
        weights = mask[..., None].to(hidden)
        total = (hidden * weights).sum(1)
        return functional.normalize(total / weights.sum(1), dim=-1)


def build():
    torch.manual_seed(0)
    return Encoder().eval(), torch.randint(0, 40, (1, 11)), {"causal": False}
