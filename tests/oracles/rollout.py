"""Oracles of rollouts, in NumPy: Abnar & Zuidema 2020, section 3; Chefer, Gur & Wolf 2021, equations 5 and 6."""

import numpy as np


def rollout(layers):
    """Product of the layers' matrices (heads, tokens, tokens), with half of the identity in each, entry by entry."""
    tokens = layers[0].shape[1]
    rolled = np.identity(tokens)
    for weights in layers:
        mixed = np.zeros((tokens, tokens))
        for i in range(tokens):
            for j in range(tokens):
                mixed[i, j] = 0.5 * sum(head[i, j] for head in weights) / len(weights) + 0.5 * (i == j)
            mixed[i] /= sum(mixed[i])
        rolled = np.array(
            [[sum(mixed[i, k] * rolled[k, j] for k in range(tokens)) for j in range(tokens)] for i in range(tokens)]
        )
    return rolled


def gradient_rollout(layers, gradients):
    """The same with weights times gradients, where that is above 0, added to what is there."""
    rolled = np.identity(layers[0].shape[1])
    for weights, gradient in zip(layers, gradients, strict=True):
        counted = np.zeros_like(rolled)
        for one, slope in zip(weights, gradient, strict=True):
            counted += np.where(one * slope > 0, one * slope, 0.0) / len(weights)
        rolled = rolled + np.einsum("ik,kj->ij", counted, rolled)
    return rolled


def latent_rollout(layers):
    """Paths from each query to each token, summed: query, latents before the last layer .. after the first, token."""
    first, *between, last = (sum(weights) / len(weights) for weights in layers)
    latents, rolled = first.shape[0], np.array(first)
    for weights in between:
        moved = np.zeros_like(rolled)
        for i in range(latents):
            shares = [0.5 * weights[i, k] + 0.5 * (i == k) for k in range(latents)]
            for k in range(latents):
                moved[i] += shares[k] / sum(shares) * rolled[k]
        rolled = moved
    return np.einsum("qk,kt->qt", last, rolled)


def latent_gradient_rollout(layers, gradients):
    """The same with weights times gradients, where that is above 0, added to what is there."""
    counted = [
        sum(np.where(one * slope > 0, one * slope, 0.0) for one, slope in zip(weights, gradient, strict=True))
        / len(weights)
        for weights, gradient in zip(layers, gradients, strict=True)
    ]
    rolled = counted[0]
    for one in counted[1:-1]:
        rolled = rolled + np.einsum("ik,kj->ij", one, rolled)
    return np.einsum("qk,kt->qt", counted[-1], rolled)


def numerical_gradient(function, weights, step=1e-5):
    """The derivative of a function of weights by central differences, entry by entry."""
    gradient = np.zeros_like(weights)
    for place in np.ndindex(weights.shape):
        ends = []
        for sign in (1, -1):
            moved = weights.copy()
            moved[place] += sign * step
            ends.append(function(moved))
        gradient[place] = (ends[0] - ends[1]) / (2 * step)
    return gradient
