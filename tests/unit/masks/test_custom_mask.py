"""A mask of one's own: a subclass with a ``mask_mod`` works wherever the masks of regard do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import regard
from regard import masks
from regard.conformance.oracles import attention as oracle
from regard.errors import RefusedError
from regard.masks.tiles import TileGrid

LENGTHS = [(1, 1), (63, 63), (64, 64), (65, 65), (7, 131), (130, 67)]
STRIDE = 5


@dataclass(frozen=True, eq=False)
class Strided(masks.Mask):
    """The keys 0, stride, 2 stride, .. tokens before the query: Child et al. 2019, section 4.2."""

    stride: int

    def mask_mod(self, queries, keys, *, device=None):
        offset = keys - queries

        def rule(batch, head, query, key):
            distance = query + offset - key
            return (distance >= 0) & (distance % self.stride == 0)

        return rule


@dataclass(frozen=True, eq=False)
class ClassifiedStrided(Strided):
    """The same, which knows that tiles behind the diagonal are empty."""

    def classify(self, grid: TileGrid):
        behind = grid.first_key > grid.last_query + grid.frame.offset
        return grid.codes(empty=behind, full=torch.zeros_like(behind))


def cells(queries, keys):
    distance = np.arange(queries)[:, None] + keys - queries - np.arange(keys)
    return ((distance >= 0) & (distance % STRIDE == 0))[None, None]


def make_tokens(queries, keys, dtype=torch.float64):
    random = torch.Generator().manual_seed(queries * 1000 + keys)
    return tuple(torch.randn(2, 3, length, 8, generator=random, dtype=dtype) for length in (queries, keys, keys))


@pytest.mark.parametrize("kind", [Strided, ClassifiedStrided])
@pytest.mark.parametrize(("queries", "keys"), LENGTHS)
def test_exact_attention_agrees_with_the_equation(kind, queries, keys):
    mask, tokens = kind(STRIDE), make_tokens(queries, keys)
    allowed = np.broadcast_to(cells(queries, keys), (2, 3, queries, keys))
    expected, _ = oracle.attention(*(one.numpy() for one in tokens), allowed)
    assert np.array_equal(mask.dense(queries, keys).numpy(), cells(queries, keys))
    for impl in ("reference", "sdpa", "native"):
        output = regard.attention(*tokens, mask=mask, impl=impl)
        np.testing.assert_allclose(output.numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [Strided, ClassifiedStrided])
def test_hidden_tokens_have_no_influence_and_their_gradients_are_0(kind):
    query, key, value = make_tokens(67, 67)
    hidden = [index for index in range(67) if (66 - index) % STRIDE]
    changed = [one.clone() for one in (key, value)]
    for one in changed:
        one[:, :, hidden] = torch.nan
    tokens = [one.requires_grad_() for one in (query, *changed)]
    output = regard.attention(*tokens, mask=kind(STRIDE))[:, :, -1:]
    assert torch.equal(output, regard.attention(query, key, value, mask=kind(STRIDE))[:, :, -1:])
    output.sum().backward()
    assert all(not one.grad[:, :, hidden].any() for one in tokens[1:])


def test_it_is_combined_with_other_masks_and_read_by_layers_and_statistics():
    tokens = make_tokens(70, 70, torch.float32)
    mask = Strided(STRIDE) & ~masks.window(3, 0) | masks.global_tokens([0])
    allowed = cells(70, 70)[0, 0]
    distance = np.arange(70)[:, None] - np.arange(70)
    allowed = allowed & ~((distance >= 0) & (distance <= 3))
    allowed[0], allowed[:, 0] = True, True
    assert np.array_equal(mask.dense(70, 70).numpy()[0, 0], allowed)
    seen = regard.observe(*tokens, mask=mask)
    assert torch.isfinite(seen.entropy).all()
    layer, states = regard.MultiHeadAttention(24, 3), torch.randn(2, 9, 24)
    torch.testing.assert_close(layer(states, mask=Strided(1)), layer(states, mask=masks.causal()), rtol=0, atol=1e-6)
    with pytest.raises(RefusedError, match="a mask must be causal"):  # whose state is of all earlier tokens
        regard.MultiHeadAttention(24, 3, mechanism="linear")(states, mask=Strided(STRIDE))
