"""The compact convolutional Transformer in NumPy, float64: Hassani et al. 2021, sections 3.1 to 3.3.

``weights`` maps names of tensors to arrays, as in the files of the model.
"""

import math

import numpy as np


def convolve(plane, kernel, step, border):
    """A convolution without bias of a plane (channels, rows, columns) by (out, channels, height, width)."""
    _, height, width = kernel.shape[1:]
    padded = np.pad(plane, ((0, 0), (border, border), (border, border)))
    rows = (padded.shape[1] - height) // step + 1
    columns = (padded.shape[2] - width) // step + 1
    found = np.zeros((len(kernel), rows, columns))
    for row in range(rows):
        for column in range(columns):
            part = padded[:, row * step : row * step + height, column * step : column * step + width]
            found[:, row, column] = (kernel * part).sum(axis=(1, 2, 3))
    return found


def pool(plane):
    """The largest of 3 x 3 numbers around every second row and column."""
    rows, columns = plane.shape[1:]
    found = np.zeros((len(plane), (rows + 1) // 2, (columns + 1) // 2))
    for row in range(found.shape[1]):
        for column in range(found.shape[2]):
            part = plane[:, max(0, 2 * row - 1) : 2 * row + 2, max(0, 2 * column - 1) : 2 * column + 2]
            found[:, row, column] = part.max(axis=(1, 2))
    return found


def tokenize(picture, weights, convolutions, step):
    """The tokens of a picture (channels, height, width), row by row."""
    for number in range(convolutions):
        kernel = weights[f"tokenizer.convolutions.{number}.weight"]
        picture = pool(np.maximum(convolve(picture, kernel, step, kernel.shape[2] // 2), 0))
    return picture.reshape(len(picture), -1).T


def normalize(tokens, weights, name, epsilon):
    centred = tokens - tokens.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + epsilon)
    return centred / deviation * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def project(tokens, weights, name):
    return tokens @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0.0)


def attend(tokens, weights, name, heads):
    query, key, value = (project(tokens, weights, f"{name}.{side}_projection") for side in ("query", "key", "value"))
    size = query.shape[1] // heads
    mixed = []
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        mixed.append(softmax(query[:, own] @ key[:, own].T / math.sqrt(size)) @ value[:, own])
    return project(np.concatenate(mixed, axis=1), weights, f"{name}.output_projection")


def sinusoids(length, width):
    found = np.zeros((length, width))
    for position in range(length):
        for pair in range(width // 2):
            angle = position / 10000 ** (2 * pair / width)
            found[position, 2 * pair : 2 * pair + 2] = math.sin(angle), math.cos(angle)
    return found


def forward(picture, weights, config):
    """Hidden states, pooled vector and logits of a picture (channels, height, width) of the size of the training."""
    tokens = tokenize(picture, weights, config.convolutions, config.stride)
    if config.positions == "learned":
        tokens = tokens + weights["positions.weight"][0]
    elif config.positions == "sinusoidal":
        tokens = tokens + sinusoids(*tokens.shape)
    gelu = np.vectorize(lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2)
    for layer in range(config.layers):
        name = f"layers.{layer}"
        normed = normalize(tokens, weights, f"{name}.attention_residual.norm", config.epsilon)
        tokens = tokens + attend(normed, weights, f"{name}.attention", config.heads)
        normed = normalize(tokens, weights, f"{name}.feed_forward_residual.norm", config.epsilon)
        inner = gelu(project(normed, weights, f"{name}.feed_forward.up"))
        tokens = tokens + project(inner, weights, f"{name}.feed_forward.down")
    hidden = normalize(tokens, weights, "norm", config.epsilon)
    pooled = softmax(project(hidden, weights, "pooling.score")[:, 0]) @ hidden
    return hidden, pooled, project(pooled, weights, "head")
