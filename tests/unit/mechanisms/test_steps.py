"""Decoding: the steps of every mechanism give the outputs of the whole sequence, whatever their lengths."""

import pytest
import torch

import regard
from capabilities import causal_or_none

WIDTH, HEADS, TOKENS = 12, 2, 21
OPTIONS = {
    "bigbird": [{"block": 4, "random_blocks": 2, "global_tokens": 2, "causal": True}],
    "longformer": [{"window": 4, "global_tokens": [1, 6], "dilation": 2}],
    "moba": [{"block": 4, "chosen_blocks": 2}],
    "nsa": [{"block": 4, "stride": 2, "compressed_block": 4, "chosen_blocks": 2, "window": 5}],
    "performer": [{"features": 29}, {"features": 29, "kernel": "relu"}],
    "reformer": [{"buckets": 6, "rounds": 2}, {}],
    "top_k": [{"keys": 4}],
}
"""Options of mechanisms whose defaults would show all of so few tokens, or that have several forms."""
CASES = [
    (row.name, options | more)
    for row in regard.catalogue()
    for options in OPTIONS.get(row.name, [{}])
    for more in ({}, {"impl": "reference"})
    if row.name not in ("linformer", "nystromformer")  # which have no causal form
    and (not more or "impl" in row.options)
]


@torch.no_grad()
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_steps_equal_the_whole_sequence(name, options):
    """In a layer, which computes the inputs that some mechanisms have beside query, key and value."""
    layer = regard.MultiHeadAttention(WIDTH, HEADS, mechanism=name, mechanism_options=options).double().eval()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    mask = causal_or_none(layer.mechanism)
    tokens = torch.randn(2, TOKENS, WIDTH, dtype=torch.float64)
    whole = layer(tokens, mask=mask)
    for lengths in ([1] * TOKENS, [3, 1, 1, 9, 7]):
        cache, parts = layer.empty_cache(), []
        for part in tokens.split(lengths, dim=1):
            output, cache = layer(part, mask=mask, cache=cache)
            parts.append(output)
        torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=0, atol=1e-11)
