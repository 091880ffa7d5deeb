"""Masked language models against transformers: every output, forward and backward, with padding on either side."""

from functools import partial

import torch

import causal_parity
from causal_parity import (
    assert_error_ratio,
    assert_near_gradients,
    moved_by_rounding,
    peer_gradients,
    reload,
    weight_gradients,
)
from regard import masks
from regard.models import load


def random_ids(peer, batch, length):
    """Random ids without the padding token, whose embedding has no gradient in transformers."""
    ids = torch.randint(0, peer.config.vocab_size - 1, (batch, length))
    return ids + (ids >= peer.config.pad_token_id)


assert_same_outputs = partial(causal_parity.assert_same_outputs, cached=False)


def assert_same_with_padding(model, peer, *, length):
    """Compare texts of ``length``, 5 and 1 tokens, padded on the right and on the left."""
    lengths = torch.tensor([length, 5, 1])
    ids, columns = random_ids(peer, 3, length), torch.arange(length)
    for side in ("right", "left"):
        tokens = columns < lengths[:, None] if side == "right" else columns >= length - lengths[:, None]
        padded = ids.where(tokens, torch.tensor(peer.config.pad_token_id))
        assert_same_outputs(model, peer, padded, tokens=tokens, mask=masks.padding(lengths, side=side))


def assert_same_model(peer, folder, *, length, exact=True):
    """Compare everything in float32, and gradients also in float64 if ``exact``: if the peer computes all in it."""
    model = reload(peer, folder)
    assert model.notes == ()
    assert_same_with_padding(model, peer, length=length)
    assert_same_gradients(model, peer, length=length, tolerance=1e-4)
    if exact:
        wide = load(folder, dtype=torch.float64)
        assert_same_gradients(wide, peer.double(), length=length, tolerance=1e-9)
        peer.float()
    return model


def assert_same_gradients(model, peer, *, length, tolerance):
    """Compare the gradients of all weights, under the names of the file."""
    ids = random_ids(peer, 2, length)
    factors = torch.randn(2, length, peer.config.vocab_size, dtype=peer.dtype)
    ours, theirs = weight_gradients(model, peer, ids, factors)
    compute = partial(peer_gradients, ids=ids, factors=factors, names=list(ours))
    assert_near_gradients(ours, theirs, tolerance, partial(moved_by_rounding, peer, compute))


assert_bfloat16 = partial(causal_parity.assert_bfloat16, draw_ids=random_ids, compare_logits=assert_error_ratio)
