"""Scores of wide heads, as of latent attention and Perceivers: sums of at most 128 products, added at the end.

Adding a term of 3/4 of the last digit of the sum so far rounds up by 1/4 of it, each time: of 512 such terms in one sum
that makes 128 digits. In sums of 128 terms it makes 32, and the sums themselves are smaller.
"""

import pytest
import torch

import regard

EPS = torch.finfo(torch.float32).eps


@pytest.mark.parametrize("queries", [1, 7])  # a step of decoding, and the tiles of the forward pass
@pytest.mark.parametrize("head_dim", [512, 576])
def test_errors_of_scores_do_not_grow_with_the_head(head_dim, queries):
    """Two keys have the same score in exact arithmetic: the difference of their weights is the error of one."""
    rounded_up = torch.full((head_dim,), 0.75 * EPS)
    rounded_up[0] = 1.0
    exact = torch.zeros(head_dim)
    exact[0] = rounded_up.double().sum().float()
    key = torch.stack([rounded_up, exact])[None, None]
    value = torch.tensor([[1.0], [-1.0]])[None, None].expand(1, 1, 2, head_dim).contiguous()
    query = torch.ones(1, 1, queries, head_dim)
    output = regard.attention(query, key, value, scale=1.0, impl="native")
    error_of_score = 2 * output.abs().max().item()  # tanh(x / 2) of a small x
    allowed = (128 + head_dim / 128) * EPS / 2 + 4 * EPS
    assert error_of_score <= allowed


def test_gradients_of_wide_values():
    """The same for the products of values and the gradient of the output, which the gradient of the query contains."""
    head_dim = 512
    value = torch.full((1, 1, 2, head_dim), 0.75 * EPS)
    value[..., 0] = 1.0
    exact = value[0, 0, 0].double().sum().float()
    value[0, 0, 1] = 0.0
    value[0, 0, 1, 0] = exact
    query, key = torch.zeros(1, 1, 7, head_dim, requires_grad=True), torch.zeros(1, 1, 2, head_dim)
    key[0, 0, 0, 0], key[0, 0, 1, 0] = 1.0, -1.0
    regard.attention(query, key, value, scale=1.0, impl="native").sum().backward()
    # With weights of 1/2 it is the difference of the two products, times 1/4 and the difference of the keys, 2.
    error_of_product = 2 * query.grad[..., 0].abs().max().item()
    assert error_of_product <= (128 + head_dim / 128) * EPS / 2 + 4 * EPS
