"""Layers of a Perceiver of texts: what its queries, one for each token, take from the text through the latents.

    layer 0    each head that reads the text, and the mean over the heads of all later layers
    layer 1    each head of the queries, and the mean over the heads of all earlier layers

No layer of a Perceiver has a weight for two tokens: the first is from latents to tokens, the last from queries to
latents. Their product by rollout has (``rollout.py``, "of latents, by head"), and its rows sum to 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from regard.recording import LayerCall
from regard.view.from_recording import check_number_of_weights
from regard.view.layer_weights import LayerWeights
from regard.view.rollout import latent_rollouts_by_head

_REASON = (
    "The queries of a Perceiver read the text through its latents: these are the weights of its layers, multiplied as "
    "attention rollout does."
)


def make_perceiver_layers(calls: Sequence[LayerCall]) -> tuple[LayerWeights, LayerWeights]:
    """Convert the calls of all layers for one text. Raises DataError for too many weights and for non-finite ones."""
    first, last = calls[0], calls[-1]
    queries, tokens = last.query.shape[2], first.key.shape[2]
    check_number_of_weights([(one.query.shape[1], queries, tokens) for one in (first, last)])
    by_head = latent_rollouts_by_head(call.weights()[0].double().cpu().numpy() for call in calls)
    read, answered = (weights.astype(np.float32) for weights in by_head)
    return (
        LayerWeights(first.name, read, "distribution", _REASON),
        LayerWeights(last.name, answered, "distribution", _REASON),
    )
