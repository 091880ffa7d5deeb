"""Attention through all layers: rollout, and rollout weighted by the gradient of a label.

    rollout             A_l = mean over the heads of layer l,  R_0 = 1
                        R_l = norm((A_l + 1) / 2) R_{l-1}                        norm: each row sums to 1
    gradient rollout    C_l = mean over the heads of max(0, A_l * dy/dA_l),  R_l = R_{l-1} + C_l R_{l-1}
    of a readout        r = max(0, a * dy/da) R_L,    for z = sum_i a_i h_i, the vector that the head reads
    of latents          R_0 = A_0 or C_0, from latents to the input; the rows of the last layer, whose queries have no
                        part of the input of their own, are A_L R_{L-1} or C_L R_{L-1}
    of latents, by head the same with one head in place of the mean: of the first layer, or of the last

Row i of R says how much each token of the input counts for token i of the output; y is the logit of a label.

Rollout: Abnar & Zuidema 2020, "Quantifying attention flow in Transformers", section 3. Gradient rollout: Chefer, Gur &
Wolf 2021, "Generic attention-model explainability for interpreting bi-modal and encoder-decoder Transformers",
equations 5 and 6. A layer's output is linear in its values, o = A v, so dy/dA = dy/do v^T: the gradient of the weights
needs no weights in the forward pass, and one layer's weights are in memory at a time. A readout, such as sequence
pooling, is attention of one head and one query, the vector z, without a residual connection: r is a row for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from regard.mechanisms.base import Mechanism
from regard.recording import LayerCall


def attention_rollout(
    layers: Iterable[Float64[np.ndarray, "heads tokens tokens"]],
) -> Float64[np.ndarray, "tokens tokens"]:
    """Compute the rollout of weights, the first layer first; they are 0 or more. At least one layer is needed."""
    rolled: np.ndarray | None = None
    for weights in layers:
        mixed = _mix_with_identity(weights)
        rolled = mixed if rolled is None else mixed @ rolled
    assert rolled is not None, "there is at least one layer"
    return rolled


def latent_rollout(
    layers: Iterable[Float64[np.ndarray, "heads _ _"]],
) -> Float64[np.ndarray, "queries tokens"]:
    """Compute the rollout of a Perceiver: cross-attention, self-attention of latents, and attention of its queries."""
    first, *between, last = layers
    rolled: np.ndarray = last.mean(axis=0) @ _roll_latents(first.mean(axis=0), between)
    return rolled


def latent_rollouts_by_head(
    layers: Iterable[Float64[np.ndarray, "heads _ _"]],
) -> tuple[Float64[np.ndarray, "cross_heads queries tokens"], Float64[np.ndarray, "output_heads queries tokens"]]:
    """Compute the rollout of a Perceiver for each head that reads the input, and for each head of its queries."""
    first, *between, last = layers
    between_latents = _roll_latents(np.eye(first.shape[1]), between)
    return last.mean(axis=0) @ between_latents @ first, last @ (between_latents @ first.mean(axis=0))


def _roll_latents(
    rolled: Float64[np.ndarray, "latents _"], layers: Iterable[Float64[np.ndarray, "heads latents latents"]]
) -> Float64[np.ndarray, "latents _"]:
    for weights in layers:
        rolled = _mix_with_identity(weights) @ rolled
    return rolled


def _mix_with_identity(weights: Float64[np.ndarray, "heads tokens tokens"]) -> Float64[np.ndarray, "tokens tokens"]:
    mixed: np.ndarray = (weights.mean(axis=0) + np.eye(weights.shape[1])) / 2
    mixed /= mixed.sum(axis=1, keepdims=True)
    return mixed


def gradient_rollouts(
    calls: Sequence[LayerCall], gradients: Sequence[Sequence[Float[Tensor, "1 heads tokens value_dim"]]]
) -> list[Float64[np.ndarray, "tokens tokens"]]:
    """Compute the gradient rollout of each label.

    ``calls`` are the layers of one picture, the first first; ``gradients`` has for each label the gradients of its
    logit with respect to the output of each layer's mechanism, as ``output_gradients`` returns.
    """
    tokens = calls[0].query.shape[2]
    rolled = [torch.eye(tokens, dtype=torch.float64) for _ in gradients]
    for number, call in enumerate(calls):
        for label, counted in enumerate(_count_weights(call, [own[number] for own in gradients])):
            rolled[label] = rolled[label] + counted @ rolled[label]
    return [matrix.numpy() for matrix in rolled]


def latent_gradient_rollouts(
    calls: Sequence[LayerCall], gradients: Sequence[Sequence[Float[Tensor, "1 _ _ _"]]]
) -> list[Float64[np.ndarray, "queries tokens"]]:
    """Compute the gradient rollout of each label of a Perceiver, with the arguments of ``gradient_rollouts``."""
    (first, *between, last) = [
        _count_weights(call, [own[number] for own in gradients]) for number, call in enumerate(calls)
    ]
    rolled = first
    for layer in between:
        rolled = [matrix + counted @ matrix for matrix, counted in zip(rolled, layer, strict=True)]
    return [(counted @ matrix).numpy() for matrix, counted in zip(rolled, last, strict=True)]


def _count_weights(
    call: LayerCall, gradients: Sequence[Float[Tensor, "1 heads queries value_dim"]]
) -> list[Float[Tensor, "queries keys"]]:
    """C of one layer for each gradient of its output: weights as far as a larger one would raise the logit."""
    weights = call.weights()[0].cpu().double()
    value = call.value[0].cpu().double().repeat_interleave(len(weights) // call.value.shape[1], dim=0)
    return [(weights * (gradient[0].cpu().double() @ value.mT)).clamp(min=0).mean(0) for gradient in gradients]


def read_out(
    rolled: Float64[np.ndarray, "tokens tokens"],
    weights: Float[Tensor, " tokens"],
    hidden: Float[Tensor, "tokens width"],
    gradient: Float[Tensor, " width"],
) -> Float64[np.ndarray, "1 tokens"]:
    """Compute the row of a readout of a gradient rollout.

    ``weights`` are the weights of the tokens in the vector that the head reads, ``hidden`` the tokens that it sums, and
    ``gradient`` the gradient of the label's logit with respect to the vector.
    """
    counted = (weights.cpu().double() * (hidden.cpu().double() @ gradient.cpu().double())).clamp(min=0).numpy()
    row: np.ndarray = counted[None] @ rolled
    return row


@contextmanager
def keep_outputs(model: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the output of each call of a mechanism in the model, in order, as a part of the graph of autograd."""
    outputs: list[Tensor] = []
    handles = [
        module.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
        for module in model.modules()
        if isinstance(module, Mechanism)
    ]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def output_gradients(
    logits: Float[Tensor, "1 labels"], outputs: Sequence[Tensor], labels: Sequence[int]
) -> list[tuple[Tensor, ...]]:
    """For each of the ``labels``, the gradients of its logit with respect to each of the outputs."""
    return [torch.autograd.grad(logits[0, label], list(outputs), retain_graph=True) for label in labels]
