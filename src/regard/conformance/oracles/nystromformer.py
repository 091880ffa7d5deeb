"""Nystromformer (Xiong 2021, equations 11 to 14), one head at a time.

    output = softmax(Q K~^T / sqrt(d)) Z softmax(Q~ K^T / sqrt(d)) V + filter * V
    A = softmax(Q~ K~^T / sqrt(d)),   Z_0 = A^T / (|A|_1 |A|_inf)
    Z_(t+1) = Z_t (13 I - A Z_t (15 I - A Z_t (7 I - A Z_t))) / 4

K and V are the keys and values that the queries may see, all the same ones. Q~ and K~ are means over segments of Q and
K, the p-th token of n in segment floor(p landmarks / n). If there are as many queries as keys, a token is left out of
both. With at most ``landmarks`` queries or visible keys the first term is softmax(Q K^T / sqrt(d)) V. The filter is
centred at the key of the query's position; the last query has the position of the last key.

Shapes: query (batch, heads, queries, head_dim); key and value (batch, key heads, keys, ...); filters (heads, size).
"""

import numpy as np

from regard.conformance.oracles.softmax import key_head, visible_keys


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    landmarks: int,
    iterations: int,
    allowed: np.ndarray | None = None,
    filters: np.ndarray | None = None,
    shared_norm: float | None = None,
) -> np.ndarray:
    """Return the output; ``shared_norm`` is a norm of A for all heads, None the norm of each."""
    visible = visible_keys(allowed, (*query.shape[:3], key.shape[2]))
    assert (visible == visible[:, :, :1]).all(), "a query sees other keys than its neighbour"
    dtype = np.result_type(query, key, value, *([] if filters is None else [filters]))
    output = np.zeros((*query.shape[:3], value.shape[3]), dtype=dtype)
    for batch, head in np.ndindex(query.shape[:2]):
        indices, group = np.flatnonzero(visible[batch, head, 0]), key_head(head, query.shape[1], key.shape[1])
        if indices.size:
            queries, keys, values = query[batch, head], key[batch, group, indices], value[batch, group, indices]
            output[batch, head] = (
                _weights(queries, keys, indices, key.shape[2], landmarks, iterations, shared_norm) @ values
            )
            if filters is not None:
                output[batch, head] += _skip(filters[head], indices, values, len(queries), key.shape[2])
    return output


def segment_means(tokens: np.ndarray, segments: int) -> np.ndarray:
    """Return the mean of the tokens of each segment."""
    numbers = [place * segments // len(tokens) for place in range(len(tokens))]
    return np.array([tokens[[number == segment for number in numbers]].mean(0) for segment in range(segments)])


def softmax_rows(scores: np.ndarray) -> np.ndarray:
    """Softmax of each row; for complex numbers the real part gives the maximum."""
    exponentials = np.exp(scores - np.real(scores).max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def column_norm(matrix: np.ndarray) -> np.ndarray:
    """The largest sum of a column, of a matrix of positive numbers; for complex numbers the real part decides."""
    sums = matrix.sum(0)
    return sums[np.real(sums).argmax()]


def pseudo_inverse(matrix: np.ndarray, iterations: int, norm: np.ndarray | float) -> np.ndarray:
    """The iterative pseudo-inverse of a matrix whose rows add up to 1."""
    inverse, identity = matrix.T / norm, np.eye(len(matrix))
    for _ in range(iterations):
        product = matrix @ inverse
        inverse = inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
    return inverse


def landmark_matrix(query: np.ndarray, key: np.ndarray, landmarks: int) -> np.ndarray:
    """A of one head without hidden tokens."""
    means = segment_means(query, landmarks), segment_means(key, landmarks)
    return softmax_rows(means[0] @ means[1].T / np.sqrt(query.shape[1]))


def _weights(
    query: np.ndarray,
    key: np.ndarray,
    indices: np.ndarray,
    keys: int,
    landmarks: int,
    iterations: int,
    shared_norm: float | None,
) -> np.ndarray:
    scale = np.sqrt(query.shape[1])
    if min(len(query), len(key)) <= landmarks:
        return softmax_rows(query @ key.T / scale)
    pooled = query[indices] if len(query) == keys else query
    matrix = landmark_matrix(pooled, key, landmarks)
    inverse = pseudo_inverse(matrix, iterations, column_norm(matrix) if shared_norm is None else shared_norm)
    to_landmarks = softmax_rows(query @ segment_means(key, landmarks).T / scale)
    from_landmarks = softmax_rows(segment_means(pooled, landmarks) @ key.T / scale)
    return to_landmarks @ inverse @ from_landmarks


def _skip(weights: np.ndarray, indices: np.ndarray, values: np.ndarray, queries: int, keys: int) -> np.ndarray:
    output = np.zeros((queries, values.shape[1]), dtype=np.result_type(weights, values))
    for row in range(queries):
        for place, value in zip(indices, values, strict=True):
            tap = place - (row + keys - queries) + len(weights) // 2
            if 0 <= tap < len(weights):
                output[row] += weights[tap] * value
    return output
