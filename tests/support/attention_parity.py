"""Attention weights that ``regard.record`` computes, against those of models of transformers: each layer and head."""

import copy

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from causal_parity import assert_near

WEIGHT_TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-9}
"""By the dtype of a model: of the scores, relative to their size."""
_OWN_DTYPE = "eager_in_own_dtype"


def _attend_in_own_dtype(module, query, key, value, attention_mask, scaling=None, **_options):
    """Attend as "eager" of transformers does, which computes its softmax in float32 for float64 too."""
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    weights = (scores if attention_mask is None else scores + attention_mask).softmax(dim=-1)
    return (weights @ value).transpose(1, 2), weights


ALL_ATTENTION_FUNCTIONS.register(_OWN_DTYPE, _attend_in_own_dtype)
ALL_MASK_ATTENTION_FUNCTIONS.register(_OWN_DTYPE, eager_mask)


def largest_weight_error(weights):
    """The error of softmax weights w = exp(s) / sum exp(s) where that of each score s is its size: |dw| <= |ds| / 4.

    Scores are as far apart as the logarithms of their weights; those far below 2^-24 have no part in the others.
    """
    return weights.clamp(min=2.0**-24).log().abs().max().item() / 4


def assert_same_weights(seen, theirs):
    """Compare the weights of each call that ``record`` saw, in order, with those of a peer's layers."""
    assert len(seen) == len(theirs) > 0
    for call, other in zip(seen, theirs, strict=True):
        assert call.weights().shape == other.shape, call.name
        assert_near(call.weights(), other, WEIGHT_TOLERANCES[other.dtype], floor=largest_weight_error(other))


@torch.no_grad()
def weights_of_peer(peer, run):
    """The weights that the layers of a model of transformers return when ``run(peer)`` calls it, in order."""
    peer = copy.deepcopy(peer)
    peer.set_attn_implementation("eager" if next(peer.parameters()).dtype is torch.float32 else _OWN_DTYPE)
    found = []
    for module in peer.modules():
        if hasattr(module, "o_proj") or hasattr(module, "out_proj"):
            module.register_forward_hook(lambda _module, _inputs, output: found.append(output[1]))
    run(peer)
    return found
