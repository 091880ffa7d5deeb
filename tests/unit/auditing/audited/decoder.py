"""A sound decoder in plain torch, from whose source faults are made: one line of it is replaced."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Config:
    width, heads, layers, vocabulary, window = 16, 2, 2, 40, 6

    def __init__(self):
        self.sliding_window = self.window


class Cache:
    def __init__(self, layers):
        self.keys, self.values = [None] * layers, [None] * layers

    @property
    def length(self):
        return 0 if self.keys[0] is None else self.keys[0].shape[2]

    def extend(self, layer, key, value):
        if self.keys[layer] is not None:
            key = torch.cat([self.keys[layer], key], 2)
            value = torch.cat([self.values[layer], value], 2)
        self.keys[layer], self.values[layer] = key, value
        return key, value

    def reorder_cache(self, rows):
        self.keys = [key[rows] for key in self.keys]
        self.values = [value[rows] for value in self.values]

    def crop(self, length):
        self.keys = [key[:, :, :length] for key in self.keys]
        self.values = [value[:, :, :length] for value in self.values]


class Attention(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.layer, self.heads = layer, config.heads
        self.sliding_window = config.sliding_window if layer == 1 else None
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(config.width, config.width) for _ in range(4))

    def split(self, tokens):
        return tokens.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, hidden, mask, cache):
        query, key, value = (
            self.split(self.q_proj(hidden)),
            self.split(self.k_proj(hidden)),
            self.split(self.v_proj(hidden)),
        )
        key, value = cache.extend(self.layer, key, value)
        queries, keys = query.shape[2], key.shape[2]
        rows = torch.arange(keys - queries, keys)[:, None]
        columns = torch.arange(keys)
        visible = columns <= rows
        if self.sliding_window is not None:
            visible = visible & (columns > rows - self.sliding_window)
        visible = visible & mask[:, None, None, :].bool()
        visible = visible | (rows == columns)
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(~visible, float("-inf"))
        weights = scores.softmax(-1)
        weights = functional.dropout(weights, 0.1, training=self.training)
        mixed = weights @ value
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.up, self.down = nn.Linear(config.width, 24), nn.Linear(24, config.width)

    def forward(self, hidden):
        inner = self.up(hidden)
        inner = functional.gelu(inner)
        return self.down(inner)


class Block(nn.Module):
    def __init__(self, config, layer):
        super().__init__()
        self.attention, self.feed_forward = Attention(config, layer), FeedForward(config)
        self.first_norm, self.second_norm = nn.LayerNorm(config.width), nn.LayerNorm(config.width)

    def forward(self, hidden, mask, cache):
        normed = self.first_norm(hidden)
        hidden = hidden + self.attention(normed, mask, cache)
        normed = self.second_norm(hidden)
        hidden = hidden + self.feed_forward(normed)
        return hidden  # noqa: RET504  (faults replace the line before)


class Decoder(nn.Module):
    is_causal = True

    def __init__(self):
        super().__init__()
        self.config = config = Config()
        self.tokens, self.places = nn.Embedding(config.vocabulary, config.width), nn.Embedding(64, config.width)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm, self.output = nn.LayerNorm(config.width), nn.Linear(config.width, config.vocabulary)

    def forward(self, input_ids, attention_mask=None, position_ids=None, past_key_values=None, use_cache=False):
        cache = past_key_values if past_key_values is not None else Cache(len(self.layers))
        start, length = cache.length, input_ids.shape[1]
        if position_ids is None:
            position_ids = torch.arange(start, start + length)[None]
        if attention_mask is None:
            attention_mask = torch.ones(input_ids.shape[0], start + length)
        hidden = self.tokens(input_ids) + self.places(position_ids)
        for layer in self.layers:
            hidden = layer(hidden, attention_mask, cache)
        hidden = self.norm(hidden)
        logits = self.output(hidden)
        return Output(logits, cache if use_cache else None)


class Output:
    def __init__(self, logits, past_key_values):
        self.logits, self.past_key_values = logits, past_key_values


def build():
    torch.manual_seed(0)
    model = Decoder().eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=weight.shape[-1] ** -0.5)
    return model, {"input_ids": torch.randint(0, 40, (1, 13))}
