"""Leaks through other rows of a batch: experts with a capacity, and a mean over the batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import regard

WIDTH, VOCABULARY = 12, 31


class Experts(nn.Module):
    """Two experts; with a ``capacity``, each takes so many tokens of the batch, first come first served."""

    def __init__(self, capacity: int | None) -> None:
        super().__init__()
        self.capacity = capacity
        self.router = nn.Linear(WIDTH, 2)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, hidden):
        tokens = hidden.flatten(0, 1)
        choice, output = self.router(tokens).argmax(-1), torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            places = (choice == number).nonzero().flatten()[: self.capacity]
            output[places] = expert(tokens[places])
        return output.view_as(hidden)


class MeanOfRows(nn.Module):
    def forward(self, hidden):
        return hidden + hidden.mean(0, keepdim=True)


class Decoder(nn.Module):
    is_causal = True

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.tokens, self.mixer, self.output = nn.Embedding(VOCABULARY, WIDTH), mixer, nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids, mask=None):
        hidden = self.tokens(ids)
        scores = (hidden @ hidden.mT).masked_fill(torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool(), -1e9)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], -1e9)
        return self.output(hidden + self.mixer(scores.softmax(-1) @ hidden))


@pytest.mark.parametrize(
    ("mixer", "cause"),
    [
        (Experts(None), None),
        (
            Experts(9),
            "equal rows of one batch have different outputs: tokens of all rows compete for places, "
            "as in experts with a capacity",
        ),
        (MeanOfRows(), "the rows of the batch are mixed: an operation runs over the dimension of the batch"),
    ],
)
def test_causes_in_other_rows(mixer, cause):
    torch.manual_seed(3)
    ids = torch.randint(0, VOCABULARY, (1, 7))
    report = regard.audit(Decoder(mixer).eval(), ids, only=["causal", "padding", "batch"])
    if cause is None:
        assert report.leaks == (), str(report)
        return
    assert report["batch"].leak.module == "mixer"
    assert report["batch"].leak.cause == cause
    for result in report.leaks:
        assert result.leak.cause == (cause if result.name == "batch" else f"nothing leaks in a batch of one: {cause}")
    # Texts that differ in a later token have the same mean over the batch.
    assert report["causal"].verdict == ("leaks" if isinstance(mixer, Experts) else "holds")
    assert report["causal in training mode"].verdict == "holds", "rows are alone there"
