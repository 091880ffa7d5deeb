"""The embeddings and the loss of Gato, by loops: Reed et al. 2022, "A generalist agent", section 2 and appendix C.

``weights`` are arrays by the names of the model's parameters.
"""

import math

import numpy as np


def gelu(x):
    return np.vectorize(lambda one: one * (1 + math.erf(one / math.sqrt(2))) / 2)(x)


def convolve(x, weight, bias):
    """3 x 3, with zeros around the picture (channels, height, width)."""
    _, height, width = x.shape
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
    result = np.zeros((len(weight), height, width))
    for row in range(height):
        for column in range(width):
            window = padded[:, row : row + 3, column : column + 3]
            for channel in range(len(weight)):
                result[channel, row, column] = (window * weight[channel]).sum() + bias[channel]
    return result


def group_norm(x, groups, weight, bias, epsilon):
    result = np.zeros_like(x)
    size = len(x) // groups
    for start in range(0, len(x), size):
        group = x[start : start + size]
        result[start : start + size] = (group - group.mean()) / np.sqrt(group.var() + epsilon)
    return result * weight[:, None, None] + bias[:, None, None]


def patch_vector(patch, weights, groups, epsilon):
    """A patch (channels, 16, 16) of scaled pixels to a vector (width,)."""
    inner = shortcut = convolve(patch, weights["first.weight"], weights["first.bias"])
    for number in range(2):
        normed = group_norm(inner, groups, weights[f"norms.{number}.weight"], weights[f"norms.{number}.bias"], epsilon)
        inner = convolve(gelu(normed), weights[f"convolutions.{number}.weight"], weights[f"convolutions.{number}.bias"])
    return weights["projection.weight"] @ (shortcut + inner).reshape(-1) + weights["projection.bias"]


def place(start, end, count):
    """The middle of the quantised interval, as in evaluation."""
    return min(count - 1, (math.floor(start * count) + math.floor(end * count)) // 2)


def embed(sequence, weights, *, patch_id, groups, epsilon, places, max_observation):
    """Embed one ``(ids, local, patches, intervals)``; patches (n, channels, 16, 16) of scaled pixels."""
    ids, local, patches, intervals = sequence
    block = {name.removeprefix("patches."): one for name, one in weights.items() if name.startswith("patches.")}
    vectors, seen = [], 0
    for token, position in zip(ids, local, strict=True):
        if token == patch_id:
            top, bottom, left, right = intervals[seen]
            vector = patch_vector(patches[seen], block, groups, epsilon)
            vector = vector + weights["rows.embedding.weight"][place(top, bottom, places)]
            vector = vector + weights["columns.embedding.weight"][place(left, right, places)]
            seen += 1
        else:
            vector = weights["table.weight"][token]
        vectors.append(vector + weights["local.weight"][max_observation if position < 0 else position])
    return np.array(vectors)


def loss(logits, ids, target):
    """The negative log-likelihood of the targets of one sequence, and their number; the first token has no logits."""
    total, count = 0.0, 0
    for position in range(1, len(ids)):
        if target[position]:
            scores = logits[position - 1]
            highest = scores.max()
            total += highest + math.log(np.exp(scores - highest).sum()) - scores[ids[position]]
            count += 1
    return total, count
