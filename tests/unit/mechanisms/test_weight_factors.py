"""The products of the factors that a mechanism declares are its weights, for every mechanism that has some."""

import pytest
import torch

import regard
from regard import masks
from regard.mechanisms.base import Mechanism

HEADS, HEAD_DIM, TOKENS = 2, 6, 11
OPTIONS = {
    "linear": ({},),
    "performer": ({"features": 13}, {"features": 13, "kernel": "relu"}),
    "linformer": ({"length": 13, "projected": 3}, {"length": 13, "projected": 3, "sharing": "none"}),
    "nystromformer": ({"landmarks": 3},),
}
"""Options of every mechanism with factors."""


def declares_factors(name: str) -> bool:
    mechanism = regard.mechanism(name, heads=HEADS, head_dim=HEAD_DIM)
    return type(mechanism).weight_factors is not Mechanism.weight_factors


def test_every_mechanism_with_factors_is_tested_here() -> None:
    assert {row.name for row in regard.catalogue() if declares_factors(row.name)} == OPTIONS.keys()


@torch.no_grad()
@pytest.mark.parametrize("mask", [None, "causal"])
@pytest.mark.parametrize(
    ("name", "options"), [(name, options) for name, several in OPTIONS.items() for options in several], ids=str
)
def test_products_of_factors_are_the_weights(name: str, options: dict, mask: str | None) -> None:
    mechanism = regard.mechanism(name, heads=HEADS, head_dim=HEAD_DIM, **options)
    torch.manual_seed(1)
    query, key, value = (torch.randn(1, HEADS, TOKENS, HEAD_DIM, dtype=torch.float64) for _ in range(3))
    visible = torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool)
    if mask is not None:
        if name in ("linformer", "nystromformer"):  # which have no causal form
            return
        visible = visible.tril()
    own_mask = None if mask is None else masks.causal()
    factors = mechanism.weight_factors(mechanism.make_request(query, key, value, own_mask, None, {}))
    assert factors is not None
    torch.testing.assert_close(
        factors.weights(visible), mechanism.weights(query, key, mask=own_mask), rtol=1e-9, atol=1e-11
    )
