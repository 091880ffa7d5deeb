"""A sound decoder without attention, of convolutions and recurrences, from whose source faults are made."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

WIDTH = 12


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, dilation=2)

    def forward(self, hidden):
        padded = functional.pad(hidden.transpose(1, 2), (4, 0))
        return self.conv(padded).transpose(1, 2)


class LongConvolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(64, WIDTH) * 0.3)

    def forward(self, hidden):
        length = hidden.shape[1]
        size = 2 * length
        spectrum = torch.fft.rfft(hidden, size, dim=1) * torch.fft.rfft(self.filter[:length], size, dim=0)
        return torch.fft.irfft(spectrum, size, dim=1)[:, :length]


class TokenShift(nn.Module):
    def forward(self, hidden):
        return functional.pad(hidden, (0, 0, 1, 0))[:, :-1]


class Recurrence(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, hidden):
        return self.rnn(hidden)[0]


class Average(nn.Module):
    def forward(self, hidden):
        places = torch.arange(1, hidden.shape[1] + 1)[:, None]
        return hidden.cumsum(1) / places


class LinearAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, hidden):
        query, key, value = self.qkv(hidden).chunk(3, -1)
        query, key = functional.elu(query) + 1, functional.elu(key) + 1
        state = (key[..., None] * value[..., None, :]).cumsum(1)
        total = key.cumsum(1)
        return (query[..., None, :] @ state)[..., 0, :] / (query * total).sum(-1, keepdim=True)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.long_convolution, self.shift = Convolution(), LongConvolution(), TokenShift()
        self.recurrence, self.average, self.attention = Recurrence(), Average(), LinearAttention()
        self.norm = nn.LayerNorm(WIDTH)
        self.gate = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden):
        for part in (
            self.convolution,
            self.long_convolution,
            self.shift,
            self.recurrence,
            self.average,
            self.attention,
        ):
            hidden = hidden + part(hidden)
        gate = self.gate(hidden).sigmoid()
        hidden = hidden * gate
        return self.norm(hidden)


class Mixers(nn.Module):
    is_causal = True

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(2))

    def forward(self, vectors):
        for layer in self.layers:
            vectors = layer(vectors)
        return vectors


def build():
    torch.manual_seed(0)
    return Mixers().eval(), torch.randn(1, 11, WIDTH)
