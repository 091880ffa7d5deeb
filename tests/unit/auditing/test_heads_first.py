"""Causes in a module that reads queries, keys and values (batch, heads, length, head_dim), as in x-transformers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import regard

HEADS, KEY_HEADS, HEAD_DIM, VOCABULARY = 4, 2, 3, 29
WIDTH = HEADS * HEAD_DIM


class Attend(nn.Module):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(self, query, key, value, mask, positions):
        key, value = (tensor.repeat_interleave(HEADS // KEY_HEADS, 1) for tensor in (key, value))
        scores = query @ key.mT / HEAD_DIM**0.5 + positions
        later = torch.ones(scores.shape[-2:]).triu({"off by one": 2, "no mask": 99}.get(self.fault, 1)).bool()
        hidden = later if mask is None or self.fault == "padding" else later | ~mask[:, None, None]
        return scores.masked_fill(hidden, -1e9).softmax(-1) @ value


class Decoder(nn.Module):
    is_causal = True

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.tokens, self.output = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.query, self.key_value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * KEY_HEADS * HEAD_DIM)
        self.attend = Attend(fault)

    def forward(self, ids, mask=None):
        hidden = self.tokens(ids)
        query = self.query(hidden).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
        key, value = self.key_value(hidden).unflatten(-1, (2 * KEY_HEADS, HEAD_DIM)).transpose(1, 2).chunk(2, 1)
        places = torch.arange(ids.shape[1])
        positions = -0.1 * (places[:, None] - places).abs().to(hidden).expand(len(ids), 1, -1, -1)
        return self.output(hidden + self.attend(query, key, value, mask, positions).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("fault", "leak", "cause"),
    [
        ("none", None, ""),
        ("off by one", "causal", "it reads 1 token ahead: its mask, or its padding, is shifted by 1"),
        ("no mask", "causal", "it reads all later tokens: no causal mask has an effect in it"),
        ("padding", "padding left", "mask has no effect: outputs are the same without it"),
    ],
)
def test_causes_in_a_module_of_queries_keys_and_values(fault, leak, cause):
    torch.manual_seed(5)
    report = regard.audit(Decoder(fault).eval(), torch.randint(0, VOCABULARY, (1, 11)), only=["causal", "padding"])
    if leak is None:
        assert report.leaks == ()
        return
    found = report[leak].leak
    assert (found.module, found.module_class, found.cause) == ("attend", "Attend", cause)
